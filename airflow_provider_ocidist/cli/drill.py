"""`ocidist drill`: train a job with faults on purpose, and report the cost of each."""

from __future__ import annotations

import argparse
import statistics
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.cli.connection import absence_of, add_connection, backend_of
from airflow_provider_ocidist.cli.files import add_file, load, problems_of, with_lease
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    WRONG,
    Unusable,
    add_json,
    columns,
    counted,
    print_json,
    say,
    signals_as_ctrl_c,
)

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.drills import Drilled
    from airflow_provider_ocidist.model.drill import Fault
    from airflow_provider_ocidist.model.job import TrainingJob

LEASE = 600.0
"""Seconds that nodes go on after the process that drills, or its machine, has died."""
TRIES = 3
"""Number of tries of a training by default, like two retries in Airflow."""
PLANNED = 100
"""Number of steps that a dry run assumes, since it trains nothing."""


def add_drill(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="FAULT",
        help="fault to inject, such as kill-node@training:node=1,step=30; may be repeated (default: about a dozen, "
        "of all kinds)",
    )
    parser.add_argument("--campaign", type=int, metavar="N", help="inject N random faults")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random faults (default: %(default)s)"
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=TRIES,
        metavar="N",
        help="tries of each training, like Airflow's retries + 1 (default: %(default)s)",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the faults; train nothing")
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    with signals_as_ctrl_c():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    _refuse_counts(options)
    job = with_lease(load(options.file, options), LEASE)
    backend = backend_of(options, job.backend.kind)
    named = _named(options, job)
    if options.dry_run:
        for fault in named or _chosen(options, job, PLANNED):
            say(str(fault))
        return FINE
    with problems_of(options.file, absence_of(options)):
        return _drill(options, backend, job, named)


def _refuse_counts(options: argparse.Namespace) -> None:
    """Raise Unusable for options with which the drill would inject no fault and report success."""
    if options.tries < 1:
        raise Unusable(f"--tries {options.tries}: must be at least 1")
    if options.campaign is not None and options.campaign < 1:
        raise Unusable(f"--campaign {options.campaign}: must be at least 1")
    if options.campaign is not None and options.fault:
        raise Unusable("--campaign draws faults, and --fault names them: use one of them")


def _drill(options: argparse.Namespace, backend: Backend, job: TrainingJob, named: Sequence[Fault]) -> int:
    undisturbed = _carried_out(options, backend, job, None)
    if undisturbed.failure:
        raise Unusable(f"without any fault the training fails: {undisturbed.failure}")
    faults = named or _chosen(options, job, undisturbed.step or 1)
    done = [undisturbed]
    for number, fault in enumerate(faults, 1):
        say(f"drill {number} of {len(faults)}: {fault}", "bold", stderr=True)
        done.append(_carried_out(options, backend, job, fault))
    if options.json:
        print_json([_as_json(each, undisturbed) for each in done])
    else:
        _print(done)
    return FINE if all(_is_well(each, undisturbed) for each in done) else WRONG


def _carried_out(
    options: argparse.Namespace, backend: Backend, job: TrainingJob, fault: Fault | None
) -> Drilled:
    from airflow_provider_ocidist.gangs.drills import carry_out

    run_id = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{uuid.uuid4().hex[:6]}"
    return carry_out(backend, job, run_id, fault, _Log(), tries=options.tries)


class _Log:
    """What a gang's watch logs; on stderr, since the table is the result."""

    def info(self, msg: Any, /, *args: Any) -> None:
        say(str(msg) % args, stderr=True)

    def warning(self, msg: Any, /, *args: Any) -> None:
        say(str(msg) % args, "yellow", stderr=True)


def _named(options: argparse.Namespace, job: TrainingJob) -> list[Fault]:
    from airflow_provider_ocidist.model.drill import Fault, why_impossible

    try:
        faults = [Fault.parse(text) for text in options.fault]
    except ValueError as error:
        raise Unusable(f"--fault {error}") from None
    for fault in faults:
        if problem := why_impossible(fault, job):
            raise Unusable(f"--fault {problem}")
    return faults


def _chosen(options: argparse.Namespace, job: TrainingJob, steps: int) -> list[Fault]:
    from airflow_provider_ocidist.gangs.drills import drawn_faults, usual_faults

    if options.campaign is None:
        return usual_faults(job, steps)
    return drawn_faults(job, steps, options.campaign, options.seed)


# The report


def _is_well(each: Drilled, undisturbed: Drilled) -> bool:
    happened = each.fault is None or each.recovery is not None
    return happened and each.failure is None and each.weights == undisturbed.weights


def _print(done: Sequence[Drilled]) -> None:
    undisturbed = done[0]
    rows: list[tuple[str, ...]] = [
        ("fault", "at step", "back after", "lost steps", "tries", "launches", "replaced", "in all", "outcome")
    ]
    rows += [_row(each, undisturbed) for each in done]
    for number, line in enumerate(columns(rows)):
        say(line, "bold" if number == 0 else "")
    say(
        _summary(done[1:], undisturbed),
        "green" if all(_is_well(each, undisturbed) for each in done) else "red",
    )


def _row(each: Drilled, undisturbed: Drilled) -> tuple[str, ...]:
    recovery = each.recovery
    return (
        str(each.fault or "none"),
        _or_dash(recovery and recovery.injected.step),
        _or_dash(recovery and recovery.seconds, "{:.1f} s"),
        _or_dash(recovery and recovery.lost_steps),
        str(each.tries),
        str(each.launches),
        str(each.replaced),
        f"{each.seconds:.1f} s",
        _outcome(each, undisturbed),
    )


def _or_dash(value: object, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


def _outcome(each: Drilled, undisturbed: Drilled) -> str:
    if each.failure:
        return each.failure.partition("\n")[0][:80]
    if each.fault is None:
        return "succeeded"
    if each.recovery is None:
        return "did not happen: the training was over before"
    if each.weights is None:
        return "succeeded"
    return "same weights" if each.weights == undisturbed.weights else "OTHER WEIGHTS"


def _summary(drilled: Sequence[Drilled], undisturbed: Drilled) -> str:
    well = sum(_is_well(each, undisturbed) for each in drilled)
    times = [each.recovery.seconds for each in drilled if each.recovery and each.recovery.seconds is not None]
    lost = [
        each.recovery.lost_steps for each in drilled if each.recovery and each.recovery.lost_steps is not None
    ]
    end = f"{well} of {counted(len(drilled), 'drill')} ended as the undisturbed training"
    if not times:
        return end
    recovery = f"back after {statistics.median(times):.1f} s (median), {max(times):.1f} s at most"
    return f"{end}; {recovery}; {max(lost, default=0)} steps lost at most"


def _as_json(each: Drilled, undisturbed: Drilled) -> dict[str, Any]:
    from airflow_provider_ocidist.model import codec

    recovery = each.recovery
    return {
        "fault": str(each.fault) if each.fault else None,
        "happened": recovery is not None,
        "strike": codec.encode(recovery.injected) if recovery else None,
        "recovered_after_s": recovery.seconds if recovery else None,
        "lost_steps": recovery.lost_steps if recovery else None,
        "tries": each.tries,
        "launches": each.launches,
        "replaced": each.replaced,
        "seconds": each.seconds,
        "failure": each.failure,
        "as_undisturbed": _is_well(each, undisturbed),
    }
