"""P6k: how late the triggerer's loop is while an API server is slow, beside the official operator's triggers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, NODES, drive, percentile, waiting_pods, waiting_program
from benchmarks.waiting_loop import LATENCY_S, SECONDS, SHARE, TARGET_MS
from scripts.idle_pods import IdlePods


class WaitingPodsLoop(Comparison):
    """Each side is a triggerer of its own: two at a time would take each other's processor."""

    name = "P6k"
    title = (
        f"lateness of the triggerer's loop, p99.9, with {GANGS:,} gangs on Kubernetes and "
        f"{LATENCY_S:.0f} s for each answer"
    )
    peer_name = f"{GANGS * NODES:,} triggers of KubernetesPodOperator"
    unit = "ms"
    target = f"at most {TARGET_MS:.0f} ms"
    pairs = 6

    gangs: IdlePods

    @contextmanager
    def setting(self) -> Iterator[None]:
        with waiting_pods() as self.gangs:
            yield

    def ours(self) -> float:
        return self._late("triggerer", GANGS)

    def peer(self) -> float:
        return self._late("pod_triggers", GANGS * NODES)

    def _late(self, mode: str, triggers: int) -> float:
        self.gangs.forget_asked()
        with (
            waiting_program(self.gangs, mode, seconds=SECONDS, reports=False) as measure,
            self.gangs.slow(LATENCY_S),
        ):
            measured = measure()
        assert measured["alive"] == triggers
        return percentile(measured["waiting"], SHARE) * 1000

    def floor(self) -> float:
        """Return how late a loop is that has nothing to do: what this machine, and its other programs, allow."""
        return percentile(drive(self.gangs, "nothing", count=1, seconds=SECONDS)["waiting"], SHARE) * 1000

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_MS


ROW = WaitingPodsLoop()
