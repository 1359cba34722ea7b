"""echo: a script that prints 100,000 lines, under our agent and by itself."""

from __future__ import annotations

import sys

from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes

TARGET = 1.1
LINES = 100_000
SCRIPT = """
import os, pathlib, time
began = time.perf_counter()
for number in range({lines}):
    print(f"line {{number}} of a training that has much to say: loss 2.345 lr 0.001")
taken = time.perf_counter() - began
pathlib.Path(os.environ["RESULTS"], "took-0").write_text(repr(taken))
"""


class Echo(Comparison):
    name = "echo"
    title = f"a script that prints {LINES:,} lines, unbuffered, from its first line to its last"
    peer_name = "python -u script.py | cat"
    unit = "s"
    target = f"at most {TARGET}x"

    def ours(self) -> float:
        return echoed(LINES)

    def peer(self) -> float:
        with Nodes(SCRIPT.format(lines=LINES), 1) as nodes:
            read_by_cat = ["sh", "-c", '"$0" -u "$1" | cat', sys.executable, str(nodes.script)]
            nodes.start(0, read_by_cat, {})
            nodes.wait()
            return nodes.results("took")[0]

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= 1 / TARGET


def echoed(lines: int) -> float:
    """Return the seconds that a script under our agent takes to print its lines."""
    with Nodes(SCRIPT.format(lines=lines), 1, kind="python") as nodes:
        nodes.agent(0)
        nodes.wait()
        return nodes.results("took")[0]


ROW = Echo()
