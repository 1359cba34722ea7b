"""P4b: memory of a gang that waits in the triggerer, beside a trigger that makes a client of the SDK for itself."""

from __future__ import annotations

from benchmarks.comparison import Samples
from benchmarks.waiting import GANGS, drive
from benchmarks.waiting_memory import TARGET_KB, WaitingMemory

CLIENTS = 50
"""Triggers of the peer; what each takes does not depend on their number, but for the SDK itself."""
SECONDS = 20.0


class WaitingMemoryBesideSdk(WaitingMemory):
    name = "P4b"
    title = f"the same, each of {GANGS:,} beside each of {CLIENTS}"
    peer_name = "a trigger with a client of its own"
    target = f"at most {TARGET_KB:.0f} KB"

    def peer(self) -> float:
        measured = drive(self.gangs, "sdk_in_the_loop", count=CLIENTS, seconds=SECONDS)
        return float(measured["all_kb"] - measured["before_kb"]) / CLIENTS

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_KB


ROW = WaitingMemoryBesideSdk()
