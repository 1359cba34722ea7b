"""P11: how many times four nodes read the same input from a store, and how long that takes where it limits all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.job import Input, LauncherOptions, Limits, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.counting_gate import CountingGate
from benchmarks.transfer import FAST, ROOT, Tree
from scripts.emulator_process import Access, EmulatorProcess

NODES = 4
LARGE, SMALL = Tree(files=1, size=256 << 20), Tree(files=200, size=64 << 10)
BYTES = LARGE.files * LARGE.size + SMALL.files * SMALL.size
STORE_RATE = 40e6
"""Bytes a second that the store gives to all nodes together."""
MOST_READS, FASTER = 1.1, 3.0
PATIENCE_S = 300.0


class SharedReads(Comparison):
    name = "P11"
    title = (
        f"one input for {NODES} nodes ({LARGE.size >> 20} MiB in one file, {SMALL.files} files of "
        f"{SMALL.size >> 10} KiB): bytes read from the store, as a multiple of the input"
    )
    peer_name = "ocifs on each node, as ADS's nodes read their inputs"
    unit = "times"
    target = f"at most {MOST_READS} times; at {STORE_RATE / 1e6:.0f} MB/s for all, {FASTER:.0f} times faster"
    pairs = 5
    _folder: Path
    _access: Access
    _seconds: dict[str, list[float]]

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._seconds = {"ours": [], "peer": []}
        with tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as folder:
            self._folder = Path(folder)
            LARGE.write(self._folder / "source" / "large")
            SMALL.write(self._folder / "source" / "small")
            with EmulatorProcess(self._folder / "emulator", options=("--no-signatures",)) as self._access:
                self._end_all([self._client("ours", "up", self._folder / "source", self._access.url)])
                yield

    def ours(self) -> float:
        name = f"bench-{uuid.uuid4().hex[:10]}"
        config = AgentConfig(
            run_name=name,
            nodes=NODES,
            run_dir=str(self._folder / name / "run"),
            program=Program(script="program.py"),
            launcher=LauncherOptions(kind="python"),
            inputs=(Input(source=f"{self._uri}/", target="data"),),
            limits=Limits(join_timeout=120.0),
        )
        return self._measured("ours", lambda url, home, rank: self._agent(config, url, home, rank))

    def peer(self) -> float:
        return self._measured("peer", lambda url, home, _: self._client("ocifs", "down", home / "data", url))

    def _measured(self, side: str, start: Any) -> float:
        """Return how many times the input was read by all nodes, started at once."""
        with (
            tempfile.TemporaryDirectory(dir=self._folder) as place,
            CountingGate(self._access.url, STORE_RATE) as gate,
        ):
            homes = [Path(place) / f"node-{rank}" for rank in range(NODES)]
            for home in homes:
                (home / "data").parent.mkdir()
            began = time.perf_counter()
            self._end_all([start(gate.url, home, rank) for rank, home in enumerate(homes)])
            self._seconds[side].append(time.perf_counter() - began)
            for home in homes:
                found = sum(path.stat().st_size for path in home.rglob("*.bin"))
                if found != BYTES:
                    raise RuntimeError(f"{side}: a node has {found} of {BYTES} bytes")
            return gate.received / BYTES

    @property
    def _uri(self) -> str:
        return f"oci://{self._access.bucket}@{self._access.namespace}/there"

    def _agent(self, config: AgentConfig, url: str, home: Path, rank: int) -> subprocess.Popen[str]:
        code = home / "code"
        code.mkdir()
        (code / "program.py").write_text("")
        config = replace(config, oci_endpoint=url)
        own = {
            "OCIDIST_NODE_RANK": str(rank),
            "OCIDIST_CODE_DIR": str(code),
            "FQDN": f"127.0.97.{rank + 1}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(home),
            "OCI_CONFIG_FILE": self._access.config_file,
        }
        command = [sys.executable, "-m", "airflow_provider_ocidist.agent"]
        return self._start(command, {**os.environ, **config.to_env(), **own}, home)

    def _client(self, client: str, action: str, local: Path, url: str) -> subprocess.Popen[str]:
        local.mkdir(exist_ok=True)
        access = self._access
        order = {
            "action": action,
            "uri": self._uri,
            "local": str(local),
            "url": url,
            "config_file": access.config_file,
            "namespace": access.namespace,
            "bucket": access.bucket,
            "prefix": "there/",
        }
        command = [sys.executable, "-m", "benchmarks.transfer_clients", client, json.dumps(order)]
        return self._start(command, dict(os.environ), ROOT)

    def _start(self, command: Sequence[str], env: dict[str, str], home: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=env, cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def _end_all(self, nodes: Sequence[subprocess.Popen[str]]) -> None:
        try:
            for node in nodes:
                _, said = node.communicate(timeout=PATIENCE_S)
                if node.returncode:
                    raise RuntimeError(f"a node ended with {node.returncode}: {said[-2000:]}")
        finally:
            for node in nodes:
                node.kill()
                node.wait()

    def times_faster(self) -> Interval:
        pairs = zip(self._seconds["peer"], self._seconds["ours"], strict=True)
        return Interval.of([theirs / ours for theirs, ours in pairs])

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= MOST_READS and self.times_faster().low >= FASTER

    def floor(self) -> float | None:
        return 1.0

    def result(self, samples: Samples) -> dict[str, Any]:
        seconds = {side: Interval.of(values).to_json() for side, values in self._seconds.items()}
        return {**super().result(samples), "seconds": {**seconds, "peer/ours": self.times_faster().to_json()}}


ROW = SharedReads()
