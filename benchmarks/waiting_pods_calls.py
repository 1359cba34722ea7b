"""P5k: what gangs on Kubernetes that wait ask of the API server, beside the official operator's triggers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.waiting import GANGS, INTERVAL_S, MEASURED_S, NODES, waiting_pods, waiting_program
from benchmarks.waiting_calls import beating
from scripts.idle_pods import IdlePods

TARGET = 10.0
LISTS = 3
"""Kinds of objects that a look reads."""


class WaitingPodsCalls(Comparison):
    """Each side is a triggerer of its own; the seconds of its processor for the same minute stand beside."""

    name = "P5k"
    title = f"requests a minute to the API server for each of {GANGS:,} gangs of two pods that wait, logs included"
    peer_name = "two triggers of KubernetesPodOperator, without logs"
    unit = "requests"
    target = f"at least {TARGET:.0f} times fewer"
    pairs = 6

    gangs: IdlePods
    _cpu: dict[str, list[float]]
    """By side: seconds of the processor in a minute."""

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._cpu = {"ours": [], "peer": []}
        with waiting_pods() as self.gangs, beating(self.gangs):
            yield

    def ours(self) -> float:
        return self._each("ours", "triggerer", GANGS)

    def peer(self) -> float:
        return self._each("peer", "pod_triggers", GANGS * NODES)

    def _each(self, side: str, mode: str, triggers: int) -> float:
        self.gangs.forget_asked()
        with waiting_program(self.gangs, mode, reports=False) as measure:
            self.gangs.forget_asked()
            measured = measure()
            asked = len(self.gangs.asked())
        assert measured["alive"] == triggers
        self._cpu[side].append(measured["busy_s"] * 60 / MEASURED_S)
        return asked / GANGS * 60 / MEASURED_S

    def floor(self) -> float:
        """Return what a request for each kind of object takes, at every look."""
        return LISTS / GANGS * 60 / INTERVAL_S

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= TARGET

    def result(self, samples: Samples) -> dict[str, Any]:
        cpu = {side: Interval.of(values).to_json() for side, values in self._cpu.items()}
        return {**super().result(samples), "cpu_s_a_minute": cpu}


ROW = WaitingPodsCalls()
