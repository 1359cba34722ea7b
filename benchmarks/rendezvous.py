"""P2: from the start of the last of three nodes until the program runs on all, beside Oracle ADS's driver."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.comparison import Comparison, Samples
from benchmarks.nodes import Nodes, require_clients

TARGET_S = 1.0
NODES = 3
SCRIPT = """
import os, pathlib, time
pathlib.Path(os.environ["RESULTS"], f"began-{os.environ['RANK']}").write_text(repr(time.time()))
"""
ADS = Path(__file__).with_name("ads_driver.py")
ADS_POLL_S = 20.0


class Rendezvous(Comparison):
    name = "P2"
    title = "from the start of the last of three nodes until the program runs on all (run directory on local disk)"
    peer_name = "ADS's driver, DTv2: the service's file complete, until it is read"
    unit = "s"
    target = f"p95 within {TARGET_S} s"
    pairs = 12  # a pair takes a quarter of a minute

    def __init__(self) -> None:
        self._chance = random.Random(0)

    def ours(self) -> float:
        with Nodes(SCRIPT, NODES, kind="python") as nodes:
            for rank in (0, 2):
                nodes.agent(rank)
            time.sleep(self._chance.uniform(1.0, 2.5))
            last_up = time.time()
            nodes.agent(1)
            nodes.wait()
            return max(nodes.results("began")) - last_up

    def peer(self) -> float:
        """Return how long the driver's own `read_metadata` waits on, after the file names all nodes."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "nodes.json")
            environ = {**os.environ, "CLUSTER_NODES_METADATA_FILE": str(file), "HOME": folder}
            command = [require_clients(), str(ADS), "read_metadata", str(NODES)]
            with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as driver:
                assert driver.stdout
                assert driver.stdout.readline() == "waiting\n"
                time.sleep(self._chance.uniform(0.0, ADS_POLL_S))
                file.write_text(
                    json.dumps([{"Rank": rank, "IPAddress": f"10.0.0.{rank}"} for rank in range(NODES)])
                )
                complete = time.time()
                return float(driver.stdout.readline()) - complete

    def met(self, samples: Samples) -> bool:
        ordered = sorted(samples.ours)
        return ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))] <= TARGET_S


ROW = Rendezvous()
