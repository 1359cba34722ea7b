"""P6: how late the triggerer's loop is while the service is slow, beside triggers that call the SDK in the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, drive, percentile, waiting_gangs
from scripts.idle_gangs import IdleGangs

TARGET_MS = 50.0
LATENCY_S = 2.0
SHARE = 0.999
IN_THE_LOOP = 5
"""Triggers of the peer: with a thousand its loop would hardly ever be free."""
SECONDS = 60.0


class WaitingLoop(Comparison):
    name = "P6"
    title = f"the loop is late, p99.9, with {GANGS:,} gangs and {LATENCY_S:.0f} s for each answer"
    peer_name = f"{IN_THE_LOOP} triggers that call the SDK in the loop"
    unit = "ms"
    target = f"at most {TARGET_MS:.0f} ms"
    pairs = 3

    gangs: IdleGangs

    @contextmanager
    def setting(self) -> Iterator[None]:
        with waiting_gangs() as self.gangs:
            fault = {"path": "/(?!_emulator).*", "latency_s": LATENCY_S}
            httpx.post(f"{self.gangs.emulator.url}/_emulator/faults", json=fault).raise_for_status()
            yield
            httpx.delete(f"{self.gangs.emulator.url}/_emulator/faults").raise_for_status()

    def ours(self) -> float:
        told = drive(self.gangs, "triggerer", seconds=SECONDS)
        assert told["alive"] == GANGS
        return percentile(told["waiting"], SHARE) * 1000

    def peer(self) -> float:
        told = drive(self.gangs, "sdk_in_the_loop", count=IN_THE_LOOP, seconds=SECONDS)
        return percentile(told["waiting"], SHARE) * 1000

    def floor(self) -> float:
        """Return how late a loop is that has nothing to do: what this machine, and its other programs, allow."""
        return percentile(drive(self.gangs, "nothing", count=1, seconds=SECONDS)["waiting"], SHARE) * 1000

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_MS


ROW = WaitingLoop()
