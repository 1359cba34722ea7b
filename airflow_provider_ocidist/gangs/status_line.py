"""The state of a gang for a person, as one line or in one word."""

from __future__ import annotations

from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus

# The list and the page have a rule each: tests/gangs/test_status_line.py has the gangs in which they differ.
ENDED_FIRST = (NodeState.FAILED, NodeState.MISSING, NodeState.CANCELED)
LIVE_FIRST = (NodeState.ENDING, NodeState.RUNNING, NodeState.PENDING, NodeState.UNKNOWN)
"""States of members that differ, the one first that stands for a gang in the list."""
NOT_BEGUN = {NodeState.PENDING, NodeState.UNKNOWN}
END_OTHERS = {NodeState.ENDING, NodeState.FAILED, NodeState.CANCELED, NodeState.MISSING}
"""States of a member for which the page shows that the others are being ended."""


def status_line(status: RunStatus, *, with_step: bool = True) -> str:
    """Return one line for a person, as `nodes: 2 RUNNING (TRAINING); step 40/300, loss 2.31`."""
    parts = ["nodes: " + ", ".join(f"{count} {state}" for state, count in _tally(status).items())]
    parts += sorted({node.details for node in status.nodes if _waits_for_a_reason(node) and node.details})
    progress = status.progress
    if with_step and progress is not None and progress.step is not None:
        total = f"/{progress.steps}" if progress.steps else ""
        loss = f", loss {progress.loss:.4g}" if progress.loss is not None else ""
        parts.append(f"step {progress.step}{total}{loss}")
    if status.checkpoint is not None:
        parts.append(f"checkpoint at {status.checkpoint.label}")
    if restarts := status.restarts:
        last = restarts[-1]
        at = "" if last.step is None else f" at step {last.step}"
        where = "" if last.rank is None else f" of node {last.rank}"
        back = "" if last.seconds is None else f"; back after {last.seconds:.0f} s"
        parts.append(f"launched again ({len(restarts)}) after {last.cause}{where}{at}: {last.message}{back}")
    return "; ".join(parts)


def _waits_for_a_reason(node: NodeStatus) -> bool:
    """Whether the platform has named what a node waits for: a quota, a machine, a person."""
    return node.state is NodeState.PENDING and node.cause is not None


def _tally(status: RunStatus) -> dict[str, int]:
    tally: dict[str, int] = {}
    for node in status.nodes:
        phase = f" ({node.report.phase})" if node.report and node.state is NodeState.RUNNING else ""
        tally[f"{node.state}{phase}"] = tally.get(f"{node.state}{phase}", 0) + 1
    return tally


def word_in_list(status: RunStatus) -> str:
    """Return the state of a gang in one word: its members', or the most important one if they differ."""
    if _is_left_over(status):
        return str(NodeState.ENDING)
    states = _states_of_members(status)
    if len(states) == 1:
        return str(states.pop())
    order = ENDED_FIRST if status.ended else LIVE_FIRST
    return str(next((state for state in order if state in states), NodeState.RUNNING))


def word_on_page(status: RunStatus) -> str:
    """Return the state of a gang in one word: how its members have ended, or whether they run or are being ended."""
    states = _states_of_members(status)
    if status.of_members.ended and not _is_left_over(status):
        return _outcome(states)
    if _is_left_over(status) or states & END_OTHERS:
        return str(NodeState.ENDING)
    return str(NodeState.RUNNING if states - NOT_BEGUN else NodeState.PENDING)


def _outcome(states: set[NodeState]) -> str:
    if states == {NodeState.SUCCEEDED}:
        return str(NodeState.SUCCEEDED)
    is_cancelled = NodeState.CANCELED in states and NodeState.FAILED not in states
    return str(NodeState.CANCELED if is_cancelled else NodeState.FAILED)


def _is_left_over(status: RunStatus) -> bool:
    """Whether only nodes that take no part live on: they are being ended."""
    return status.of_members.ended and not status.ended


def _states_of_members(status: RunStatus) -> set[NodeState]:
    return {node.state for node in status.of_members.nodes}
