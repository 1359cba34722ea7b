"""P6: how late the triggerer's loop is while the service is slow, beside triggers that call the SDK in the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, Measure, drive, percentile, waiting_gangs, waiting_program
from scripts.idle_gangs import IdleGangs

TARGET_MS = 50.0
LATENCY_S = 2.0
SHARE = 0.999
IN_THE_LOOP = 5
"""Triggers of the peer: with a thousand its loop would hardly ever be free."""
SECONDS = 20.0


class WaitingLoop(Comparison):
    name = "P6"
    title = (
        f"lateness of the triggerer's loop, p99.9, with {GANGS:,} gangs and {LATENCY_S:.0f} s for each answer"
    )
    peer_name = f"{IN_THE_LOOP} triggers that call the SDK in the loop"
    unit = "ms"
    target = f"at most {TARGET_MS:.0f} ms"
    pairs = 6

    gangs: IdleGangs
    _ours: Measure
    _peer: Measure

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Both programs wait while the other is measured: the states of all gangs are known, not all reports."""
        with ExitStack() as stack:
            self.gangs = stack.enter_context(waiting_gangs())
            self._ours, self._peer = (
                stack.enter_context(
                    waiting_program(self.gangs, mode, count=count, seconds=SECONDS, reports=False)
                )
                for mode, count in (("triggerer", GANGS), ("sdk_in_the_loop", IN_THE_LOOP))
            )
            yield

    def ours(self) -> float:
        return self._late(self._ours, GANGS)

    def peer(self) -> float:
        return self._late(self._peer, IN_THE_LOOP)

    def _late(self, measure: Measure, count: int) -> float:
        with self._slow():
            measured = measure()
        assert measured["alive"] == count
        return percentile(measured["waiting"], SHARE) * 1000

    @contextmanager
    def _slow(self) -> Iterator[None]:
        faults = f"{self.gangs.emulator.url}/_emulator/faults"
        httpx.post(faults, json={"path": "/[^_].*", "latency_s": LATENCY_S}).raise_for_status()
        try:
            yield
        finally:
            httpx.delete(faults).raise_for_status()

    def floor(self) -> float:
        """Return how late a loop is that has nothing to do: what this machine, and its other programs, allow."""
        return percentile(drive(self.gangs, "nothing", count=1, seconds=SECONDS)["waiting"], SHARE) * 1000

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_MS


ROW = WaitingLoop()
