"""The rules of success: one table, applied by one function. Pure.

Success is judged by this attempt alone. Of each node two things are known: its state at the service (columns) and its
own report (rows):

    reported          SUCCEEDED      FAILED, CANCELED, MISSING
    exit 0            well           failed
    stopped, exit 0   failed         failed         well where the first node has succeeded
    a failure         failed         failed
    not done          unsaid         failed         its last report was lost, as by throttling
    nothing           failed         failed         where an agent is certain, and often enough seen (`work_dir.stored`)
    unreadable        unread         failed
    (no agent)        well           failed

One failed node fails the gang; an unread one is asked again, up to a limit. For the others the checkpoint decides,
if the job requires one (rows), then the outputs, and then the signs of a training: a step, a loss, a checkpoint of
this attempt, an output. A node that is unsaid has copied its outputs, because its agent exits with 0 only then.

    checkpoint        all well       some unsaid
    of this attempt   success        success
    former, complete  success        success        the program reports that there was nothing left to train
    former            USER           NODE           a retry that trained nothing
    none              USER           NODE
    damaged           USER           USER           also if the job requires none
    unreadable        asked again    asked again    up to a limit, then SERVICE

"Complete" is what the program itself says in this attempt, in its progress file or in words; n steps are `steps`:

    it says                                 and                                           complete
    complete: true                          its file names no further step                yes
                                            its file names further steps                  no     trained, nothing saved
    step below n, as its first              -                                             no
    n, and no step below it                 the checkpoint is at n                        yes
                                            the checkpoint is beyond n, and its step is   yes
                                            any other checkpoint, or one without a step   no
    nothing; its first bar stands at 0      the checkpoint is at the bar's total          yes    Hugging Face's Trainer
    nothing; any other bar                  -                                             no

    signs             all well       some unsaid
    any               success        success
    none, required    USER           NODE           `require_training`
    none, short       warning        warning        a success with a warning
    none              success        success
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import (
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunStatus,
)

SHORT_RUN = 60.0
"""Seconds of a training that is so short that, without visible progress, it probably did nothing."""


class ReportOutcome(Enum):
    """What a node reported."""

    EXIT_0 = auto()
    STOPPED = auto()
    """Exit with 0 of a program whose node was stopped from outside before the program had ended."""
    FAILURE = auto()
    NOT_DONE = auto()
    NOTHING = auto()
    UNREADABLE = auto()
    NO_AGENT = auto()


class NodeEnd(Enum):
    """How a node's part has ended."""

    WELL = auto()
    UNSAID = auto()
    """The node exited with 0 at the service, but its last report is missing."""
    UNREAD = auto()
    FAILED = auto()


class Saved(Enum):
    """Which checkpoint exists."""

    OWN = auto()
    COMPLETE = auto()
    FORMER = auto()
    NONE = auto()
    DAMAGED = auto()
    UNREADABLE = auto()


@dataclass(frozen=True, slots=True)
class Success:
    """The gang succeeded."""

    warning: str | None = None


@dataclass(frozen=True, slots=True)
class GangFailure:
    """The gang failed."""

    cause: Cause
    message: str


@dataclass(frozen=True, slots=True)
class Unread:
    """Reports or checkpoints cannot be read now."""


_ENDS = {
    ReportOutcome.EXIT_0: NodeEnd.WELL,
    ReportOutcome.STOPPED: NodeEnd.FAILED,
    ReportOutcome.FAILURE: NodeEnd.FAILED,
    ReportOutcome.NOT_DONE: NodeEnd.UNSAID,
    ReportOutcome.NOTHING: NodeEnd.FAILED,
    ReportOutcome.UNREADABLE: NodeEnd.UNREAD,
    ReportOutcome.NO_AGENT: NodeEnd.WELL,
}
"""Ends of nodes that are SUCCEEDED at the service, by what they reported; all others have failed.

A node that was stopped has done its part all the same where node 0 has: the service has ended what was left of a gang.
"""


def report_outcome(node: NodeStatus, expects: Expectations, *, readable: bool) -> ReportOutcome:
    """Return what a node reported."""
    report = node.report
    if report is None:
        if not expects.reports:
            return ReportOutcome.NO_AGENT
        return ReportOutcome.NOTHING if readable else ReportOutcome.UNREADABLE
    over = report.phase is Phase.DONE
    if report.cause is not None or report.exit_code not in (None, 0) or (over and report.exit_code is None):
        return ReportOutcome.FAILURE
    if not over:
        return ReportOutcome.NOT_DONE
    return ReportOutcome.STOPPED if report.stopped else ReportOutcome.EXIT_0


def end(node: NodeStatus, expects: Expectations, status: RunStatus) -> NodeEnd | None:
    """Return how a node's part has ended; None while it lives. `status`: of all that take part."""
    if not node.state.terminal:
        return None
    if node.state is not NodeState.SUCCEEDED:
        return NodeEnd.FAILED
    found = report_outcome(node, expects, readable=status.reports_readable)
    if found is ReportOutcome.STOPPED and first_is_done(status):
        return NodeEnd.WELL
    return _ENDS[found]


def first_is_done(status: RunStatus) -> bool:
    """Whether the first node has done its part: several services count a gang as succeeded then, and end the others."""
    first = status.nodes[0]
    report = first.report
    if report is None:
        return first.state is NodeState.SUCCEEDED and not status.reports_readable
    # Of one that is done for the service, only the last report was lost.
    is_lost = first.state is NodeState.SUCCEEDED and report.phase is not Phase.DONE
    return report.cause is None and (report.has_succeeded or is_lost)


def checkpoint_of(record: RunRecord, status: RunStatus) -> Saved:
    """Return which checkpoint exists, by the reports and, if they do not say, by the store."""
    if not status.checkpoint_readable:
        return Saved.UNREADABLE
    if status.checkpoint_problem is not None:
        return Saved.DAMAGED
    if own_checkpoint(record.ref.key, status):
        return Saved.OWN
    if status.checkpoint is None:
        return Saved.NONE
    return Saved.COMPLETE if _was_complete(status, status.checkpoint) else Saved.FORMER


def has_trained(key: RunKey, status: RunStatus) -> bool:
    """Whether this attempt has reported a step, or a checkpoint of its own.

    A node that waits for the others reports neither, though it may report a checkpoint that it has restored.
    """
    progress = status.progress
    return own_checkpoint(key, status) or (progress is not None and progress.step is not None)


def own_checkpoint(key: RunKey, status: RunStatus) -> bool:
    """Whether this attempt has published a checkpoint."""
    fence = Fence(generation=key.generation, attempt=key.attempt)
    reports = [node.report for node in status.nodes if node.report is not None]
    return (status.stored is not None and status.stored.fence == fence) or any(
        _is_own(report, fence) for report in reports
    )


def _is_own(report: NodeReport, fence: Fence) -> bool:
    if report.checkpoint is None:
        return False
    # Agents of earlier versions know no fences; they are recognised by other fields that they lack.
    is_older = report.moved is None and report.starts_from is None
    return report.checkpoint.fence == fence or (report.checkpoint.fence == LOWEST and is_older)


def _was_complete(status: RunStatus, former: CheckpointRef) -> bool:
    """Whether the program reports that the checkpoint it resumed from was the end of the training.

    A bar may be that of an evaluation or a download, so that its count and total say nothing by themselves. A program
    that names a step before the end trains, or has to: then only the checkpoint of this attempt would be its result.
    """
    progresses = [node.report.progress for node in status.nodes if node.report and node.report.progress]
    # Not where it has reported further steps: who says it after a training has saved nothing of that.
    if any(progress.complete for progress in progresses):
        return not any(progress.goes_on for progress in progresses)
    if any(_begins_before_the_end(progress) for progress in progresses):
        return False
    return any(_ends_at(progress, former.step) for progress in progresses)


def _begins_before_the_end(progress: Progress) -> bool:
    first, steps = progress.first_step, progress.own_steps
    return first is not None and steps is not None and first < steps


def _ends_at(progress: Progress, step: int | None) -> bool:
    """Whether a program that has begun at a checkpoint of this step shows that it was the last one."""
    if step is None:
        return False
    if progress.own_steps is None:
        return progress.idle_bar == step
    # Beyond the end, as after the number of steps was lowered, the program has to say itself where it stands.
    return step == progress.own_steps or (step > progress.own_steps and progress.first_step == step)


def outcome(record: RunRecord, status: RunStatus) -> Success | GangFailure | Unread:
    """Judge a gang whose nodes have all ended at the service without a failure."""
    ends = {end(node, record.expects, status) for node in status.nodes}
    found = checkpoint_of(record, status)
    if NodeEnd.UNREAD in ends or found is Saved.UNREADABLE:
        return Unread()
    if found is Saved.DAMAGED:
        return GangFailure(Cause.USER, str(status.checkpoint_problem))
    unsaid = [node.rank for node in status.nodes if end(node, record.expects, status) is NodeEnd.UNSAID]
    if record.expects.checkpoint and found in (Saved.NONE, Saved.FORMER):
        return _without_checkpoint(status, unsaid)
    missing = [] if unsaid else _missing_outputs(record, status)
    if missing:
        return GangFailure(
            Cause.USER,
            f"the program exited with 0 on every node but these outputs are missing: {', '.join(missing)}",
        )
    return _of_signs(record, status, unsaid)


def _without_checkpoint(status: RunStatus, unsaid: list[int]) -> GangFailure:
    former = status.checkpoint
    if unsaid:
        return GangFailure(
            Cause.NODE,
            f"{_unsaid(unsaid)}, and this attempt published no checkpoint: success cannot be confirmed, so retry",
        )
    if former is None:
        return GangFailure(
            Cause.USER,
            "the program exited with 0 on every node but wrote no checkpoint: it probably trained nothing. "
            "Read its first lines of output, or set checkpoints.required: false",
        )
    return GangFailure(
        Cause.USER,
        "the program exited with 0 on every node but wrote no checkpoint in this attempt: all there is, "
        f"{former.label}, is of attempt {former.fence.attempt}. Read its output; if there was nothing left to train, "
        'have it log step and steps, or write {"complete": true} into $OCIDIST_PROGRESS_FILE',
    )


def _missing_outputs(record: RunRecord, status: RunStatus) -> list[str]:
    return [
        uri for uri in record.expects.outputs if not any(_lies_in(found, uri) for found in status.outputs)
    ]


def _lies_in(uri: str, folder: str) -> bool:
    return f"{uri.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _of_signs(record: RunRecord, status: RunStatus, unsaid: list[int]) -> Success | GangFailure:
    """Judge whether there was a training at all; only an agent's report can show it."""
    reports = [node.report for node in status.nodes if node.report is not None]
    if not reports or _shows_training(record, status, reports, unsaid):
        return Success()
    took = max(map(_trained_for, reports))
    nothing = f"{_nothing_shown(took, unsaid)}. Read its first lines of output"
    if record.expects.training:
        cause = Cause.NODE if unsaid else Cause.USER
        return GangFailure(cause, f"{nothing}, or set require_training: false")
    return Success(nothing) if took < SHORT_RUN else Success()


def _unsaid(ranks: list[int]) -> str:
    missing = "last report of {} is missing" if len(ranks) == 1 else "last reports of {} are missing"
    return f"the {missing.format(in_words(ranks))}"


def _nothing_shown(took: float, unsaid: list[int]) -> str:
    if unsaid:
        return (
            f"{_unsaid(unsaid)}, and no report showed a step, loss, checkpoint or output: "
            "it may have trained nothing"
        )
    return (
        f"the program exited with 0 on every node after {took:.0f} s and showed no step, loss, checkpoint or output: "
        "it probably trained nothing"
    )


def _shows_training(
    record: RunRecord, status: RunStatus, reports: list[NodeReport], unsaid: list[int]
) -> bool:
    # A node whose last report was lost has copied what it had to.
    has_outputs = bool(status.outputs or (unsaid and record.expects.outputs))
    return has_outputs or own_checkpoint(record.ref.key, status) or _has_progress(reports)


def _has_progress(reports: list[NodeReport]) -> bool:
    progresses = [report.progress for report in reports if report.progress is not None]
    return any(
        progress.step is not None or progress.loss is not None or progress.complete for progress in progresses
    )


def _trained_for(report: NodeReport) -> float:
    """Return how many seconds a node trained, by its own clock."""
    if report.trained_for is not None:
        return report.trained_for
    return report.ran_until - report.started_at
