"""P3: from the start of two nodes to the program's first line, under our agent and under bare torchrun."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes

TARGET_S = 0.15
NODES = 2
SCRIPT = """
import os, pathlib, time
pathlib.Path(os.environ["RESULTS"], f"began-{os.environ['RANK']}").write_text(repr(time.time()))
"""


class LaunchOverhead(Comparison):
    name = "P3"
    title = "two nodes of torchrun, from start to the last process's first line (run directory on local disk)"
    peer_name = "bare torchrun, addresses known"
    unit = "s"
    target = f"at most {TARGET_S} s more"

    def ours(self) -> float:
        with Nodes(SCRIPT, NODES) as nodes:
            return _first_line(nodes, nodes.agent)

    def peer(self) -> float:
        with Nodes(SCRIPT, NODES) as nodes:
            return _first_line(nodes, nodes.torchrun)

    def met(self, samples: Samples) -> bool:
        return samples.excess.high <= TARGET_S


def _first_line(nodes: Nodes, start: Callable[[int], object]) -> float:
    began = time.time()
    for rank in range(NODES):
        start(rank)
    nodes.wait()
    return max(nodes.results("began")) - began


ROW = LaunchOverhead()
