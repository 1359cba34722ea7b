"""Outcome: how a node's part ended, as an exit code and as one line for a person. Pure.

The exit code is the training's own (128 + n for signal n). Where there is none, the agent uses its own:

    65  the training succeeded, but did not write what its job requires
    69  the other nodes were not found, or were lost
    70  a fault of the agent itself
    74  data could not be read or written
    75  the training hung
    76  nobody waited for the run any more
    77  the task has used what its job allows
    78  the job cannot run as it is configured
    79  the program used neither processors nor GPUs for too long
   143  this node was stopped, by a signal or by another node's failure
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure
from airflow_provider_ocidist.agent.diagnose.symptoms import symptom_of
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.launchers.exit_status import exit_status
from airflow_provider_ocidist.model.causes import exit_code_of, remedy_on_node
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import Restart

NOT_NEEDED_CODE = 0
"""Exit code of a node that nobody needs: after any other its platform would start it again, for hours."""
STOPPED_CODE = 143
"""Exit code of a node that ended on account of others: 128 and the number of SIGTERM, as in a shell."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How this node's part ended."""

    code: int
    """Exit code of the agent."""
    exit_code: int | None = None
    """Exit code of the training."""
    cause: Cause | None = None
    """Cause of the failure; None for a success, and for a node that was stopped."""
    message: str | None = None
    tail: str | None = None
    remedy: str | None = None
    """Remedy, if a better one than the cause's is known."""
    restarts: tuple[Restart, ...] = ()
    """Restarts so far with the new one last, if the training is launched again."""


def success(tail: str) -> Outcome:
    return Outcome(code=0, exit_code=0, tail=tail)


def failure(found: NodeFailure, silent: Sequence[int] = ()) -> Outcome:
    """Return the outcome of a training that failed by itself; `silent`: nodes without a heartbeat."""
    message = found.message
    if silent:
        lost = f"{in_words(silent)} {'was' if len(silent) == 1 else 'were'} lost"
        message = f"the training ended because {lost}: {message}"
    elif found.consequence and found.cause is Cause.NODE:
        message = f"lost the connection to another process: {message}"
    if found.rank is not None:
        message = f"{message} (rank {found.rank})"
    return Outcome(
        code=exit_status(found.exit_code),
        exit_code=found.exit_code,
        cause=Cause.NODE if silent else found.cause,
        message=message,
        tail=found.tail,
        remedy=found.remedy,
    )


def consequence(found: NodeFailure, explanation: str, restarts: tuple[Restart, ...] = ()) -> Outcome:
    """Return the outcome of a training that failed because another node's did."""
    return Outcome(
        code=STOPPED_CODE, exit_code=found.exit_code, message=explanation, tail=found.tail, restarts=restarts
    )


def stopped(stop: Stop, exit_code: int | None = None, tail: str | None = None) -> Outcome:
    """Return the outcome of a node that was stopped early."""
    return Outcome(
        code=STOPPED_CODE if stop.cause is None else exit_code_of(stop.cause),
        exit_code=exit_code,
        cause=stop.cause,
        message=stop.message,
        tail=tail,
        restarts=stop.restarts,
    )


def own_fault(cause: Cause, message: str, tail: str | None) -> Outcome:
    """Return the outcome of a node whose own stages failed, rather than the training."""
    symptom = symptom_of(message)
    remedy = symptom.remedy if symptom is not None and symptom.cause is cause else None
    return Outcome(code=exit_code_of(cause), cause=cause, message=message, tail=tail, remedy=remedy)


def names_exit_code(message: str, code: int) -> bool:
    """Return whether a failure's message names its exit code itself."""
    return re.search(rf"exit code {code}\b", message) is not None


def ending_line(rank: int, nodes: int, outcome: Outcome) -> str:
    """Return the line for a person about a node that ended early."""
    if outcome.cause is None:
        return f"node {rank} ends: {outcome.message}"
    message, code = outcome.message or "", outcome.exit_code
    ended = "" if code is None or names_exit_code(message, code) else f" [exit code {code}]"
    what = f"node {rank} of {nodes} failed: {outcome.cause}: {message}{ended}"
    return f"{what}. Remedy: {outcome.remedy or remedy_on_node(outcome.cause)}"
