"""P5: requests for each gang that waits, in a minute, beside Oracle ADS that watches one run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, MEASURED_S, ads_watch, drive, waiting_gangs
from scripts.idle_gangs import IdleGangs

TARGET = 100.0
BEATS_PER_S = 5.0
"""Gangs whose nodes write their reports anew: more than are read."""


class WaitingCalls(Comparison):
    name = "P5"
    title = f"requests a minute for each of {GANGS:,} gangs of two nodes that wait"
    peer_name = "ADS's watch of one run"
    unit = "requests"
    target = f"at least {TARGET:.0f} times fewer"
    pairs = 3

    gangs: IdleGangs

    @contextmanager
    def setting(self) -> Iterator[None]:
        with waiting_gangs() as self.gangs:
            yield

    def ours(self) -> float:
        with self._beating():
            told = drive(self.gangs, "triggerer", on_settled=self.gangs.forget_calls)
            asked = [call for call in self.gangs.calls() if call["method"] != "PUT"]
        assert told["alive"] == GANGS
        return len(asked) / GANGS * 60 / MEASURED_S

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Let nodes report on, one gang after the other; the emulator could not take the reports of all."""
        stop = threading.Event()

        def beat() -> None:
            for step, record in enumerate(cycle(self.gangs.records)):
                if stop.wait(1 / BEATS_PER_S):
                    return
                self.gangs.report([record], step)

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def peer(self) -> float:
        with ads_watch(self.gangs):
            self.gangs.forget_calls()
            time.sleep(MEASURED_S)
            return len(self.gangs.calls()) * 60 / MEASURED_S

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= TARGET


ROW = WaitingCalls()
