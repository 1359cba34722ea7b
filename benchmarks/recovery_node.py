"""P16d: from SIGKILL of a whole node to the first new step, beside a gang that is made anew."""

from __future__ import annotations

from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks.comparison import Comparison, Samples
from benchmarks.recovery import seconds_to_recover


class NodeRecovery(Comparison):
    name = "P16d"
    title = (
        "SIGKILL of one of two nodes, until the first new step (another node in its place, from the newest "
        "checkpoint)"
    )
    peer_name = "the gang ends and another is created at once, without Airflow's retry_delay"
    unit = "s"
    target = "less than the peer"
    pairs = 5

    def ours(self) -> float:
        return seconds_to_recover(FaultKind.KILL_NODE, {})

    def peer(self) -> float:
        without = {"restarts.program": 0, "restarts.node": 0, "restarts.hang": 0}
        return seconds_to_recover(FaultKind.KILL_NODE, without, tries=2)

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low > 1


ROW = NodeRecovery()
