"""The nodes of a gang that are one run for the service: only their own reports distinguish them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState


def states_while_running(reports: Sequence[NodeReport | None]) -> list[NodeState]:
    """Return the state of each node of a run that runs, by the nodes' reports."""
    over = all(report is not None and report.phase is Phase.DONE for report in reports)
    return [_state(report, over=over) for report in reports]


def _state(report: NodeReport | None, *, over: bool) -> NodeState:
    if report is None:
        # The service does not report its machine.
        return NodeState.PENDING
    if report.phase is not Phase.DONE:
        return NodeState.RUNNING
    # When all are done, the run's state follows soon; before, the others may wait for this one in vain.
    return NodeState.FAILED if report.cause is not None and not over else NodeState.ENDING
