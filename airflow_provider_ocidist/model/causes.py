"""What each cause of a failure means: to the node as its exit code, to a person, and to a retry. The one table."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.errors import Cause


class Retry(StrEnum):
    """When a retry can help."""

    NEVER = "NEVER"
    """No retry: the same training would fail again in the same way."""
    AFTER_CLEAR = "AFTER_CLEAR"
    """No retry: a user has ended the run on purpose, and clears the task to train again."""
    AT_ONCE = "AT_ONCE"
    """Retry at once: the fault is gone with the node that had it, or the task only waits again."""
    WITH_TIME = "WITH_TIME"
    """Retry after pauses that grow, since only waiting helps."""
    AS_USUAL = "AS_USUAL"
    """Retry after the task's own `retry_delay`."""

    @property
    def hopeless(self) -> bool:
        """Whether Airflow's retries would be wasted."""
        return self in (Retry.NEVER, Retry.AFTER_CLEAR)


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """The meaning of one cause."""

    retry: Retry
    remedy: str
    """Remedy in the log of the task, unless the error has a better one."""
    on_node: str | None = None
    """Remedy in the log of the node; None: the same."""
    on_page: str | None = None
    """Remedy on the page in Airflow's UI; None: the same as for the task."""
    on_terminal: str | None = None
    """Remedy on the command line, where no task retries; None: the same as for the task."""
    restart: str | None = None
    """Budget of `restarts` that a further launch on the same machines is charged to; None: none would help."""
    no_machine: bool = False
    """Whether the service had no machine to give, so that another candidate may have one."""
    exit_code: int | None = None
    """Exit code of the agent if the training has none of its own; None: that of SERVICE."""


MEANINGS: Mapping[Cause, Meaning] = {
    Cause.USER: Meaning(
        retry=Retry.NEVER,
        remedy="see the last lines of the node, above in this log",
        on_node="the program's own output above says more",
        on_page="see the last lines of the node, below",
        on_terminal="see the last lines of the node, above",
        restart="program",
        exit_code=65,
    ),
    Cause.OOM: Meaning(
        retry=Retry.NEVER,
        remedy="take a larger shape, a smaller batch, or fewer processes on each node",
        restart="program",
    ),
    Cause.DATA: Meaning(
        retry=Retry.NEVER,
        remedy="check that the data exist, that there is room for them, and that this node may read and write them",
        restart="program",
        exit_code=74,
    ),
    Cause.CONFIG: Meaning(retry=Retry.NEVER, remedy="correct the job", exit_code=78),
    Cause.HANG: Meaning(
        retry=Retry.AS_USUAL,
        remedy="see above where it stood; raise limits.hang_timeout if the program is merely silent",
        restart="hang",
        exit_code=75,
    ),
    Cause.NODE: Meaning(
        retry=Retry.AT_ONCE,
        remedy="nothing points at the program itself; run it again",
        restart="node",
        exit_code=69,
    ),
    Cause.CAPACITY: Meaning(
        retry=Retry.WITH_TIME,
        remedy="wait for a later attempt, or ask for another shape or fewer nodes",
        on_terminal="run it again later, or ask for another shape or fewer nodes",
        no_machine=True,
    ),
    Cause.QUOTA: Meaning(
        retry=Retry.WITH_TIME,
        remedy="ask for a higher limit of the service, or for a smaller shape or fewer nodes",
        no_machine=True,
    ),
    Cause.PREEMPTED: Meaning(
        retry=Retry.AT_ONCE,
        remedy="run it again: a retry resumes from its newest checkpoint",
        on_terminal="run it again from its newest checkpoint",
    ),
    Cause.SERVICE: Meaning(
        retry=Retry.AS_USUAL,
        remedy="storage, the service or ocidist is at fault; the message and the lines above say more; try again",
        on_node="this is a fault of ocidist or of its storage; the traceback above says more",
        exit_code=70,
    ),
    Cause.DEADLINE: Meaning(
        retry=Retry.AS_USUAL,
        remedy="raise limits.max_runtime or execution_timeout; a retry resumes from its newest checkpoint",
        on_terminal="raise limits.max_runtime, and run it again from its newest checkpoint",
    ),
    Cause.CANCELED: Meaning(
        retry=Retry.AFTER_CLEAR,
        remedy="clear the task to train again",
        on_terminal="run it again",
    ),
    Cause.ABANDONED: Meaning(
        retry=Retry.AT_ONCE,
        remedy="run it again, and wait for it; a retry in Airflow resumes from its newest checkpoint",
        on_terminal="run it again from its newest checkpoint, and wait for it",
        exit_code=76,
    ),
    Cause.BUDGET: Meaning(
        retry=Retry.NEVER,
        remedy="clear the task: it counts from 0, and begins anew, or from its newest checkpoint if the job has "
        "checkpoints and sets checkpoints.resume_after_clear: true; raise the limit only if that is too little",
        on_terminal="run it again from its newest checkpoint: it counts from 0; raise the limit only if that is too "
        "little",
        exit_code=77,
    ),
    Cause.IDLE: Meaning(
        retry=Retry.AS_USUAL,
        remedy="see in the last lines what the program waits for; raise limits.idle if it may wait that long",
        exit_code=79,
    ),
}


def exit_code_of(cause: Cause) -> int:
    """Return the exit code of an agent that ends for this cause, where the training has none of its own."""
    found = MEANINGS[cause].exit_code
    return int(MEANINGS[Cause.SERVICE].exit_code or 1) if found is None else found


def remedy_on_node(cause: Cause) -> str:
    """Return what to do, in the words of a node's own log."""
    return MEANINGS[cause].on_node or MEANINGS[cause].remedy
