"""echo-ads: a script that prints 500 lines, under our agent and under Oracle ADS's driver."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from benchmarks.comparison import Comparison, Samples
from benchmarks.echo import SCRIPT
from benchmarks.nodes import Nodes, require_clients

LINES = 500
TARGET = 50.0
ADS = Path(__file__).with_name("ads_driver.py")


class EchoAds(Comparison):
    name = "echo-ads"
    title = f"{LINES} lines, from the script's first until the last is passed on"
    peer_name = "ADS's driver, run_command"
    unit = "s"
    target = f"at least {TARGET:.0f} times as fast"
    pairs = 6

    def ours(self) -> float:
        with Nodes(_script(), 1, kind="python") as nodes:
            nodes.agent(0)
            return _passed_on(nodes)

    def peer(self) -> float:
        with Nodes(_script(), 1) as nodes:
            command = shlex.join([sys.executable, "-u", str(nodes.script)])
            nodes.start(0, [require_clients(), str(ADS), "run_command", command], {"PYTHONUNBUFFERED": "1"})
            return _passed_on(nodes)

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= TARGET


def _script() -> str:
    begins = "import os, pathlib, time\npathlib.Path(os.environ['RESULTS'], 'began-0').write_text(repr(time.time()))\n"
    return begins + SCRIPT.format(lines=LINES)


def _passed_on(nodes: Nodes) -> float:
    log, last = nodes.folder / "node-0" / "log", f"line {LINES - 1} ".encode()
    while last not in log.read_bytes():
        if nodes.running[0].poll():
            nodes.wait()
        time.sleep(0.001)
    passed_on = time.time()
    nodes.wait()
    return passed_on - nodes.results("began")[0]


ROW = EchoAds()
