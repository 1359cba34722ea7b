"""How job runs move from state to state: the rules, without processes or clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from airflow_provider_ocidist.emulator.errors import ApiError, incorrect_state
from airflow_provider_ocidist.emulator.nodes.life import LifeEnd


class _Name(str, Enum):
    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]  # str takes no keyword, Enum does


class State(_Name):
    """States of a job run."""

    ACCEPTED = "ACCEPTED"
    IN_PROGRESS = "IN_PROGRESS"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"
    CANCELING = "CANCELING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    DELETED = "DELETED"


class GroupState(_Name):
    """States of a node group of a multi-node job run."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETED = "DELETED"
    FAILED = "FAILED"


CANCELABLE = frozenset({State.ACCEPTED, State.IN_PROGRESS, State.NEEDS_ATTENTION})
TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELED, State.DELETED})
MOVES = {
    State.ACCEPTED: frozenset({State.IN_PROGRESS, State.CANCELING, State.FAILED}),
    State.IN_PROGRESS: frozenset({State.NEEDS_ATTENTION, State.CANCELING, State.SUCCEEDED, State.FAILED}),
    State.NEEDS_ATTENTION: frozenset({State.IN_PROGRESS, State.CANCELING, State.SUCCEEDED, State.FAILED}),
    State.CANCELING: frozenset({State.CANCELED}),
    State.SUCCEEDED: frozenset({State.DELETED}),
    State.FAILED: frozenset({State.DELETED}),
    State.CANCELED: frozenset({State.DELETED}),
    State.DELETED: frozenset[State](),
}
RUNNING_TEXT = "Job run artifact execution in progress."
ATTENTION_TEXT = "Job run needs attention."


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The last state of a job run, and its lifecycle details."""

    state: State
    details: str


def check_move(before: State, after: State) -> None:
    """Raise AssertionError on a move that no job run makes."""
    assert after in MOVES[before], f"a job run cannot go from {before} to {after}"


def check_cancel(state: State) -> None:
    """Raise 409 unless a run in this state can be canceled (the documentation names the three states)."""
    if state not in CANCELABLE:
        raise _refusal("canceled", state)


def check_delete(state: State) -> None:
    if state not in TERMINAL - {State.DELETED}:
        raise _refusal("deleted", state)


def _refusal(verb: str, state: State) -> ApiError:
    return incorrect_state(f"The job run is {state} and cannot be {verb}.")


def after_exit(exit_code: int) -> RunEnd:
    if exit_code == 0:
        return RunEnd(State.SUCCEEDED, "Job run artifact execution succeeded.")
    return RunEnd(State.FAILED, f"Job run artifact execution failed with exit code {exit_code}.")


def after_node(end: LifeEnd, group: str) -> RunEnd:
    """Return the end of a run whose node ended like this; `group` is empty for a single-node run."""
    if end.failure is not None:
        return RunEnd(State.FAILED, end.failure)
    ending = after_exit(end.exit_code or 0)
    if not group or end.succeeded:
        return ending
    where = f"on node {end.rank} of node group {group}"
    return RunEnd(State.FAILED, f"{ending.details.removesuffix('.')} {where}.")


def verdict(ends: Sequence[LifeEnd], *, replicas: int, minimum_success: int) -> bool | None:
    """Return whether a node group has succeeded by the nodes that have ended so far; None while it is open."""
    succeeded = sum(end.succeeded for end in ends)
    if succeeded >= minimum_success:
        return True
    return False if len(ends) - succeeded > replicas - minimum_success else None


def after_timeout(minutes: int) -> RunEnd:
    return RunEnd(State.FAILED, f"Job run exceeded its maximum runtime of {minutes} minutes and was stopped.")


def after_cancel() -> RunEnd:
    return RunEnd(State.CANCELED, "Job run was canceled.")


def not_started(reason: str) -> RunEnd:
    return RunEnd(State.FAILED, reason)


def after_restart(state: State) -> RunEnd:
    """The end of a run that an earlier emulator process left alive in its records."""
    if state is State.CANCELING:
        return after_cancel()
    return RunEnd(State.FAILED, "Job run was lost: the emulator stopped while the run was active.")
