"""P1: creating a gang over an API of 300 ms as one native multi-node run, which is what ADS does by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from benchmarks.gang_creation import GangCreation


class NativeGangCreation(GangCreation):
    name = "P1"
    title = "creating a gang of 32 nodes at 300 ms a request, from nothing, as one multi-node run"
    peer_name = "ADS, one multi-node run (its default)"
    target = "1.5 times faster; with 8 % of faults 1.6 times the time, no orphan"
    topology = "multi_node"
    times_faster: ClassVar[Mapping[int, float]] = {8: 1.5, 32: 1.5}


ROW = NativeGangCreation()
