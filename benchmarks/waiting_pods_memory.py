"""P4k: memory of a gang on Kubernetes that waits in the triggerer, beside the official operator's triggers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, NODES, drive, waiting_pods
from benchmarks.waiting_memory import SETTLED_S, TARGET_KB
from scripts.idle_pods import IdlePods


class WaitingPodsMemory(Comparison):
    """Each side is a triggerer of its own, whose clients count."""

    name = "P4k"
    title = (
        f"resident memory for each of {GANGS:,} gangs of two pods that wait on Kubernetes, clients included"
    )
    peer_name = "two triggers of KubernetesPodOperator"
    unit = "KB"
    target = f"at most {TARGET_KB:.0f} KB"
    pairs = 6

    gangs: IdlePods

    @contextmanager
    def setting(self) -> Iterator[None]:
        with waiting_pods() as self.gangs:
            yield

    def ours(self) -> float:
        return self._each_kb("triggerer", GANGS)

    def peer(self) -> float:
        return self._each_kb("pod_triggers", GANGS * NODES)

    def _each_kb(self, mode: str, triggers: int) -> float:
        self.gangs.forget_asked()
        measured = drive(self.gangs, mode, seconds=SETTLED_S)
        assert measured["alive"] == triggers
        return float(measured["all_kb"] - measured["before_kb"]) / GANGS

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_KB


ROW = WaitingPodsMemory()
