"""The state of a gang as one line for a person."""

from __future__ import annotations

from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunStatus


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
