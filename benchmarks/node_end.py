"""end: from the end of the last user process to the end of the node, beside Oracle ADS's `kind: distributed`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes, require_clients

TARGET_S = 1.0
ADS = Path(__file__).with_name("ads_driver.py")
SCRIPT = """
import os, pathlib, time
pathlib.Path(os.environ["RESULTS"], "ended-0").write_text(repr(time.time()))
"""


class NodeEnd(Comparison):
    name = "end"
    title = "the last user process gone, until the node is gone"
    peer_name = "ADS, kind: distributed"
    unit = "s"
    target = f"at most {TARGET_S:.0f} s"
    pairs = 6  # a pair takes more than a minute

    def ours(self) -> float:
        with Nodes(SCRIPT, 1, kind="python") as nodes:
            nodes.agent(0).wait()
            gone = time.time()
            nodes.wait()
            return gone - nodes.results("ended")[0]

    def peer(self) -> float:
        command = [require_clients(), str(ADS), "end"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        gone = time.time()
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("gone ")]
        return gone - float(line.split()[1])

    def met(self, samples: Samples) -> bool:
        return max(samples.ours) <= TARGET_S


ROW = NodeEnd()
