"""`ocidist drill`: train a job with faults on purpose, and report the cost of each."""

from __future__ import annotations

import argparse
import os
import shlex
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.cli import drill_report
from airflow_provider_ocidist.cli.connection import absence_of, add_connection, backend_of
from airflow_provider_ocidist.cli.files import add_file, load, problems_of, with_lease
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    WRONG,
    Unusable,
    add_json,
    columns,
    last_output,
    local_path,
    print_json,
    say,
    signals_as_ctrl_c,
    without_secrets,
)
from airflow_provider_ocidist.model.drill import OF_NETWORKS, Fault, why_impossible

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.drills import Drilled
    from airflow_provider_ocidist.model.job import TrainingJob

LEASE = 600.0
"""Seconds that nodes go on after the process that drills, or its machine, has died."""
TRIES = 3
"""Number of tries of a training by default, like two retries in Airflow."""
PLANNED = 100
"""Number of steps that a dry run assumes, since it trains nothing."""
DRAWS = 2
"""Most drills of a campaign for each fault that is to happen; one that does not happen is replaced by another."""


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
    parser.add_argument(
        "--parallel",
        type=int,
        default=1,
        metavar="N",
        help="trainings at a time, each with nodes of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="PAGE", help="write the tables as Markdown into this file, too"
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
    if options.report:
        options.report = local_path(options.report)
    _refuse_report(options.report)
    job = with_lease(load(options.file, options), LEASE)
    _refuse_common_folder(job)
    backend = backend_of(options, job.backend.kind)
    choice = _choice(options, job)
    for line in choice.left_out:
        say(line, "yellow", stderr=True)
    if options.dry_run:
        for fault in choice.faults(PLANNED):
            say(str(fault))
        return FINE
    began = time.monotonic()
    with problems_of(options.file, absence_of(options, job.backend.kind)), _networks(choice) as fields:
        apart = backend_of(options, job.backend.kind, **fields) if fields else backend
        done = _drilled(_Trainings(backend, apart, job, options, threading.Event()), choice)
    _report(choice, done, time.monotonic() - began)
    return FINE if _all_well(options, done) else WRONG


def _refuse_counts(options: argparse.Namespace) -> None:
    """Raise Unusable for options with which the drill would inject no fault and report success."""
    if options.tries < 1:
        raise Unusable(f"--tries {options.tries}: must be at least 1")
    if options.parallel < 1:
        raise Unusable(f"--parallel {options.parallel}: must be at least 1")
    if options.campaign is not None and options.campaign < 1:
        raise Unusable(f"--campaign {options.campaign}: must be at least 1")
    if options.campaign is not None and options.fault:
        raise Unusable("--campaign draws faults, and --fault names them: use one of them")


def _refuse_report(page: Path | None) -> None:
    """Raise Unusable where the report cannot be written: a campaign takes hours."""
    if page is None:
        return
    if page.is_dir():
        raise Unusable(f"--report {page}: is a folder; name a file")
    if not page.parent.is_dir():
        raise Unusable(f"--report {page}: the folder {page.parent} does not exist; make it first")
    if not os.access(page if page.exists() else page.parent, os.W_OK):
        raise Unusable(f"--report {page}: cannot be written here; name another file")


def _refuse_common_folder(job: TrainingJob) -> None:
    """Raise Unusable where all trainings of a drill would write into one folder, maybe that of a real one."""
    path = job.checkpoints.path if job.checkpoints else ""
    if Path(path).is_absolute():
        raise Unusable(
            f"checkpoints.path is {path}: each training of a drill needs a folder of its own. Name a relative one, as "
            "with --set checkpoints.path=checkpoints; the program finds it in OCIDIST_CHECKPOINT_DIR"
        )


# The faults


@dataclass(frozen=True)
class _Choice:
    """Which faults a drill injects: those that are named, else random or the usual ones."""

    options: argparse.Namespace
    job: TrainingJob
    named: Sequence[Fault]
    no_network_faults: str | None
    """Why no network is disturbed in a drill that names no fault; None: it can be."""

    @property
    def left_out(self) -> list[str]:
        """Lines on the faults that are not injected here, and why."""
        return (
            []
            if self.no_network_faults is None
            else [f"{' and '.join(OF_NETWORKS)} are left out: {self.no_network_faults}"]
        )

    @property
    def needs_networks(self) -> bool:
        """Whether a network may be cut or starved."""
        if self.named:
            return any(fault.kind in OF_NETWORKS for fault in self.named)
        return self.no_network_faults is None and self.job.nodes > 1

    def faults(self, steps: int, *, more: int = 0, writers: Sequence[int] = ()) -> list[Fault]:
        """Return the faults for a training of so many steps.

        `more`: random ones beyond those that were asked for; `writers`: ranks of the nodes on which the program writes
        checkpoints, where that is known.
        """
        from airflow_provider_ocidist.gangs.drill_faults import drawn_faults, usual_faults

        if self.named:
            return list(self.named)
        without = () if self.no_network_faults is None else OF_NETWORKS
        if self.options.campaign is None:
            return usual_faults(self.job, steps, without=without)
        count = self.options.campaign + more
        return drawn_faults(
            self.job, steps, count, self.options.seed, without=without, writers=writers or (0,)
        )


def _choice(options: argparse.Namespace, job: TrainingJob) -> _Choice:
    from airflow_provider_ocidist.backends.local import networks, plans

    named = _named(options, job)
    no_network_faults = None
    if not named and job.nodes > 1:
        no_network_faults = (
            networks.why_none()
            if job.backend.kind == plans.KIND
            else f"on backend {job.backend.kind!r} the network is disturbed only by --fault (docs/drills.md)"
        )
    return _Choice(options, job, named, no_network_faults)


@contextmanager
def _networks(choice: _Choice) -> Iterator[dict[str, Any]]:
    """Let nodes of this machine have networks of their own where one may be disturbed; give fields of the backend."""
    from airflow_provider_ocidist.backends.local import networks, plans

    if choice.job.backend.kind != plans.KIND or not choice.needs_networks:
        yield {}
        return
    with networks.switch() as switch:
        yield {networks.FIELD: switch}


# The trainings


@dataclass(frozen=True)
class _Trainings:
    """Trains one job again and again, several at a time; whatever ends this process ends the nodes of all."""

    backend: Backend
    apart: Backend
    """Backend of a training whose network is disturbed: nodes of this machine then reach nothing but one another."""
    job: TrainingJob
    options: argparse.Namespace
    stop: threading.Event

    def with_each(self, faults: Sequence[Fault | None], lines: Sequence[str | None]) -> list[Drilled]:
        """Return how the training with each fault went; `lines`: what is printed as each begins."""
        with ThreadPoolExecutor(self.options.parallel) as pool:
            try:
                return list(pool.map(self._with, faults, lines))
            except BaseException:
                self.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _with(self, fault: Fault | None, line: str | None) -> Drilled:
        from airflow_provider_ocidist.gangs.drills import carry_out

        if line:
            say(line, "bold", stderr=True)
        run_id = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}-{uuid.uuid4().hex[:6]}"
        log = _Log("" if self.options.parallel == 1 else f"{fault or 'undisturbed'}: ")
        backend = self.apart if fault and fault.kind in OF_NETWORKS else self.backend
        return carry_out(backend, self.job, run_id, fault, log, tries=self.options.tries, stop=self.stop)


def _drilled(trainings: _Trainings, choice: _Choice) -> list[Drilled]:
    """Return the undisturbed training, and then those with a fault."""
    done = trainings.with_each([None], [None])
    if done[0].failure:
        raise Unusable(f"without any fault the training fails: {done[0].failure}")
    steps = done[0].step or 1
    faults = choice.faults(steps, writers=done[0].writers)
    while faults:
        count = len(done) - 1 + len(faults)
        done += trainings.with_each(
            faults,
            [f"drill {number} of {count}: {fault}" for number, fault in enumerate(faults, len(done))],
        )
        faults = _others_for(choice, steps, done)
    return done


def _others_for(choice: _Choice, steps: int, done: Sequence[Drilled]) -> list[Fault]:
    """Return other random faults for those of a campaign that did not happen, and harmed nothing."""
    wanted, drilled = choice.options.campaign, len(done) - 1
    if wanted is None:
        return []
    spent = sum(each.recovery is not None or not drill_report.ended_as(each, done[0]) for each in done[1:])
    missing = min(wanted - spent, DRAWS * wanted - drilled)
    if missing <= 0:
        return []
    return choice.faults(steps, more=drilled + missing - wanted, writers=done[0].writers)[drilled:]


class _Log:
    """What a gang's watch logs; on stderr, since the table is the result."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def info(self, msg: Any, /, *args: Any) -> None:
        say(self._prefix + str(msg) % args, stderr=True)

    def warning(self, msg: Any, /, *args: Any) -> None:
        say(self._prefix + str(msg) % args, "yellow", stderr=True)

    def error(self, msg: Any, /, *args: Any) -> None:
        say(self._prefix + str(msg) % args, "red", stderr=True)


def _named(options: argparse.Namespace, job: TrainingJob) -> list[Fault]:
    try:
        faults = [Fault.parse(text) for text in options.fault]
    except ValueError as error:
        raise Unusable(f"--fault {error}") from None
    for fault in faults:
        if problem := why_impossible(fault, job):
            raise Unusable(f"--fault {problem}")
    return faults


# The report


def _all_well(options: argparse.Namespace, done: Sequence[Drilled]) -> bool:
    """Whether all have ended as the undisturbed training, at no higher cost than may be, and with enough faults."""
    undisturbed, *drilled = done
    happened = sum(each.recovery is not None for each in drilled)
    enough = happened >= (len(drilled) if options.campaign is None else options.campaign)
    return enough and all(
        drill_report.ended_as(each, undisturbed) and drill_report.problem_of(each, done) is None
        for each in drilled
    )


def _report(choice: _Choice, done: Sequence[Drilled], seconds: float) -> None:
    """Print the tables, and then write the page: hours of drills are in them. Raises Unusable where one fails."""
    try:
        with last_output():
            _print_tables(choice.options, done)
    finally:
        if choice.options.report:
            _write_page(choice, done, seconds)


def _print_tables(options: argparse.Namespace, done: Sequence[Drilled]) -> None:
    if options.json:
        print_json([drill_report.as_json(each, done) for each in done])
        return
    _print_table(drill_report.rows_of(done))
    if options.campaign is not None:
        say("")
        _print_table(drill_report.grouped(done))
    say(drill_report.summary(done), "green" if _all_well(options, done) else "red")


def _write_page(choice: _Choice, done: Sequence[Drilled], seconds: float) -> None:
    options = choice.options
    how = (
        f"`{_command(options)}`, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, "
        f"{seconds / 60:.0f} minutes."
    )
    page = drill_report.page(f"Drills of `{choice.job.name}`", done, how, choice.left_out)
    try:
        options.report.write_text(without_secrets(page))
    except OSError as error:
        raise Unusable(f"--report {options.report}: cannot be written: {error.strerror}") from error


def _command(options: argparse.Namespace) -> str:
    """Return the command, without what belongs to this machine."""
    words = ["ocidist", "drill", Path(options.file).name]
    words += [word for text in options.fault for word in ("--fault", text)]
    if options.campaign is not None:
        words += ["--campaign", str(options.campaign), "--seed", str(options.seed)]
    return shlex.join([*words, "--parallel", str(options.parallel), "--tries", str(options.tries)])


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    for number, line in enumerate(columns(rows)):
        say(line, "bold" if number == 0 else "")
