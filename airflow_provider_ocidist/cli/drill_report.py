"""The report of drills: how each training recovered, as tables, as JSON, and as a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli.terminal import counted
from airflow_provider_ocidist.model.drill import OF_TIME, When

if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.drills import Drilled

HEADER = (
    "fault",
    "at step",
    "back after",
    "lost steps",
    "lag",
    "tries",
    "launches",
    "replaced",
    "in all",
    "outcome",
)
GROUPED = ("fault", "when", "drills", "as undisturbed", "back after", "at most", "lost steps", "at most")


def ended_as(each: Drilled, undisturbed: Drilled) -> bool:
    """Whether a training has ended as the undisturbed one."""
    return each.failure is None and each.weights == undisturbed.weights


def has_recovered(each: Drilled, undisturbed: Drilled) -> bool:
    """Whether the fault of a training has happened, and it has ended as the undisturbed one."""
    return each.recovery is not None and ended_as(each, undisturbed)


def most_lost_steps(each: Drilled, done: Sequence[Drilled]) -> int | None:
    """Return how many steps a fault may have cost, at most; None where the undisturbed training does not show it."""
    from airflow_provider_ocidist.gangs.drill_measures import counted_lag, most_lost

    pace = done[0].pace
    if each.fault is None or pace is None:
        return None
    return most_lost(each.fault, pace, counted_lag((other.lag for other in done), done[0].lag, pace))


def loss_problem(each: Drilled, done: Sequence[Drilled]) -> str | None:
    """Return what is wrong with the steps that were lost; None: nothing, or nothing that could be judged."""
    most = most_lost_steps(each, done)
    if most is None or each.recovery is None:
        return None
    lost = each.recovery.lost_steps
    if lost is None:
        return "LOST STEPS NOT KNOWN" if each.launches > 1 else None
    return f"LOST MORE THAN {most} STEPS" if lost > most else None


def problem_of(each: Drilled, done: Sequence[Drilled]) -> str | None:
    """Return what a fault has cost that it must not cost; None: nothing."""
    return loss_problem(each, done) or launch_problem(each)


def launch_problem(each: Drilled) -> str | None:
    """Return what is wrong with the launches of a training that was only slow; None: nothing."""
    if each.fault is None or each.fault.kind not in OF_TIME or each.recovery is None:
        return None
    # A fault of a restore comes after a kill.
    expected = 2 if each.fault.when is When.RESTORING else 1
    return "LAUNCHED AGAIN, THOUGH ONLY SLOW" if each.launches > expected else None


def rows_of(done: Sequence[Drilled]) -> list[tuple[str, ...]]:
    """Return a row for each training; the first is the undisturbed one."""
    return [HEADER, *(_row(each, done) for each in done)]


def grouped(done: Sequence[Drilled]) -> list[tuple[str, ...]]:
    """Return a row for each kind of fault and each moment of those that have happened, with medians and worst."""
    undisturbed, *drilled = done
    groups: dict[tuple[str, str], list[Drilled]] = {}
    for each in drilled:
        if each.fault is not None and each.recovery is not None:
            groups.setdefault((each.fault.kind, each.fault.when), []).append(each)
    return [
        GROUPED,
        *(_group(place, groups[place], undisturbed) for place in sorted(groups)),
        _group(("all", ""), [each for group in groups.values() for each in group], undisturbed),
    ]


def summary(done: Sequence[Drilled]) -> str:
    undisturbed, *drilled = done
    well = sum(has_recovered(each, undisturbed) for each in drilled)
    absent = sum(each.recovery is None for each in drilled)
    end = f"{well} of {counted(len(drilled), 'drill')} ended as the undisturbed training"
    end += f", {counted(absent, 'fault')} did not happen" if absent else ""
    lossy = sum(loss_problem(each, done) is not None for each in drilled)
    end += f", {lossy} lost more steps than one may, or nobody knows how many" if lossy else ""
    again = sum(launch_problem(each) is not None for each in drilled)
    end += f", {again} launched again though only slow" if again else ""
    times = _recovery_times(drilled)
    if not times:
        return end
    recovery = f"back after {statistics.median(times):.1f} s (median), {max(times):.1f} s at most"
    return f"{end}; {recovery}; {max(_lost_steps(drilled), default=0)} steps lost at most"


def page(title: str, done: Sequence[Drilled], how: str, left_out: Sequence[str] = ()) -> str:
    """Return the tables as a page in Markdown.

    `how`: a sentence on how they were measured; `left_out`: lines on the faults that were not injected, and why.
    """
    parts = [
        f"# {title}",
        f"{how} {summary(done)}.",
        *(f"**{line}.**" for line in left_out),
        "Where a cell has no value, there was none. Each *back after* and *lost steps* is a median.",
        "\n".join(_markdown(grouped(done))),
        "## Each training",
        "\n".join(_markdown(rows_of(done))),
    ]
    return "\n\n".join(parts) + "\n"


def as_json(each: Drilled, done: Sequence[Drilled]) -> dict[str, Any]:
    from airflow_provider_ocidist.model import codec

    recovery = each.recovery
    return {
        "fault": str(each.fault) if each.fault else None,
        "happened": recovery is not None,
        "strike": codec.encode(recovery.injected) if recovery else None,
        "recovered_after_s": recovery.seconds if recovery else None,
        "lost_steps": recovery.lost_steps if recovery else None,
        "most_lost_steps": most_lost_steps(each, done),
        "lag_steps": each.lag,
        "tries": each.tries,
        "launches": each.launches,
        "replaced": each.replaced,
        "seconds": each.seconds,
        "failure": each.failure,
        "as_undisturbed": ended_as(each, done[0]),
    }


def _row(each: Drilled, done: Sequence[Drilled]) -> tuple[str, ...]:
    recovery = each.recovery
    return (
        str(each.fault or "none"),
        _or_dash(recovery and recovery.injected.step),
        _or_dash(recovery and recovery.seconds, "{:.1f} s"),
        _or_dash(recovery and recovery.lost_steps),
        str(each.lag),
        str(each.tries),
        str(each.launches),
        str(each.replaced),
        f"{each.seconds:.1f} s",
        _outcome(each, done),
    )


def _group(place: tuple[str, str], drilled: Sequence[Drilled], undisturbed: Drilled) -> tuple[str, ...]:
    times, lost = _recovery_times(drilled), _lost_steps(drilled)
    return (
        *place,
        str(len(drilled)),
        str(sum(has_recovered(each, undisturbed) for each in drilled)),
        _or_dash(statistics.median(times) if times else None, "{:.1f} s"),
        _or_dash(max(times, default=None), "{:.1f} s"),
        _or_dash(statistics.median(lost) if lost else None, "{:g}"),
        _or_dash(max(lost, default=None)),
    )


def _recovery_times(drilled: Iterable[Drilled]) -> list[float]:
    return [each.recovery.seconds for each in drilled if each.recovery and each.recovery.seconds is not None]


def _lost_steps(drilled: Iterable[Drilled]) -> list[int]:
    return [
        each.recovery.lost_steps for each in drilled if each.recovery and each.recovery.lost_steps is not None
    ]


def _or_dash(value: object, form: str = "{}") -> str:
    return "-" if value is None else form.format(value)


def _outcome(each: Drilled, done: Sequence[Drilled]) -> str:
    if each.failure:
        return each.failure.partition("\n")[0][:80]
    if each.fault is None:
        return "succeeded"
    if each.weights != done[0].weights:
        return "OTHER WEIGHTS"
    if each.recovery is None:
        return "did not happen"
    if problem := problem_of(each, done):
        return problem
    return "succeeded" if each.weights is None else "same weights"


def _markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    header, *others = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *others)]
