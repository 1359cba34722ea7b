"""P4: memory of a gang that waits in the triggerer, beside a process in which Oracle ADS watches one run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import Comparison, Samples
from benchmarks.waiting import GANGS, ads_watch, drive, waiting_gangs
from scripts.idle_gangs import IdleGangs

TARGET_KB, TARGET_RATIO = 64.0, 1000.0
SETTLED_S = 10.0


class WaitingMemory(Comparison):
    name = "P4"
    title = f"resident memory for each of {GANGS:,} gangs that wait, the SDK and its clients included"
    peer_name = "a process of ADS's watch"
    unit = "KB"
    target = f"at most {TARGET_KB:.0f} KB, {TARGET_RATIO:,.0f} times less"
    pairs = 6

    @contextmanager
    def setting(self) -> Iterator[None]:
        with waiting_gangs() as self.gangs:
            yield

    gangs: IdleGangs

    def ours(self) -> float:
        measured = drive(self.gangs, "triggerer", seconds=SETTLED_S)
        assert measured["alive"] == GANGS
        return float(measured["all_kb"] - measured["before_kb"]) / GANGS

    def peer(self) -> float:
        with ads_watch(self.gangs) as pid:
            time.sleep(SETTLED_S)
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        return float(found[1]) if found else 0.0

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_KB and samples.ratio.low >= TARGET_RATIO


ROW = WaitingMemory()
