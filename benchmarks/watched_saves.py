"""P13b: the same for an unchanged script whose folder ocidist watches, beside one that writes to Object Storage."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from benchmarks.comparison import Comparison, Samples
from benchmarks.save_stall import ROOT, stalls_of
from benchmarks.transfer import FAST
from scripts.emulator_process import Access, EmulatorProcess

STREAM = 60e6
"""Bytes a second that one stream of the store takes."""
ORDER: dict[str, object] = {"saves": 3, "pause": 4.0}
"""In the seconds between two saves one arrives: 512 MiB in parallel parts take less than three."""
TIMES_FASTER = 15
SCRIPT = "from benchmarks.saving_programs import main\nmain()\n"
RESULT = re.compile(r'^\{"stalls": .*\}$', re.MULTILINE)


class WatchedSaves(Comparison):
    name = "P13b"
    title = "the training's pause for a save of 512 MiB to a store with 60 MB/s a stream, by torch.save to a folder"
    peer_name = "torch.save to oci:// by ocifs"
    unit = "s"
    target = f"{TIMES_FASTER} times shorter"
    afresh = True
    """The store keeps what was saved: with each pair it would be a GiB more."""
    saves_to: Path | None = None
    """Where the checkpoint folder is; None: on the node's disk."""
    _folder: Path
    _access: Access
    _alone: list[float]

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._alone = []
        # In memory, as a store does not share the disk of a node; the node's own folder is on a disk.
        memory = tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None)
        with tempfile.TemporaryDirectory() as folder, memory as store:
            self._folder = Path(folder)
            with EmulatorProcess(Path(store) / "emulator", options=("--no-signatures",)) as self._access:
                fault = {"path": "/n/.*", "bytes_per_s": STREAM}
                httpx.post(f"{self._access.url}/_emulator/faults", json=fault).raise_for_status()
                yield

    def ours(self) -> float:
        """Run the program under a real agent, which uploads while it goes on."""
        self._alone.append(self._without_an_agent())
        name = f"saves-{uuid.uuid4().hex[:8]}"
        with (
            tempfile.TemporaryDirectory(dir=self._folder) as home,
            tempfile.TemporaryDirectory(dir=self.saves_to or self._folder) as folder,
        ):
            return statistics.median(self._under_an_agent(name, Path(home), Path(folder, "checkpoints")))

    def _under_an_agent(self, name: str, home: Path, folder: Path) -> list[float]:
        (home / "program.py").write_text(SCRIPT)
        config = AgentConfig(
            run_name=name,
            nodes=1,
            run_dir=f"{self._access.work_dir}/{name}",
            launcher=LauncherOptions(kind="python"),
            program=Program(script="program.py", args=("watched", json.dumps(ORDER))),
            checkpoints=Checkpoints(
                path=str(folder), uri=f"{self._access.work_dir}/checkpoints/{name}", keep=1
            ),
            oci_endpoint=self._access.url,
        )
        more = {
            "OCI_CLI_CONFIG_FILE": self._access.config_file,
            "OCIDIST_NODE_RANK": "0",
            "OCIDIST_CODE_DIR": str(home),
            "FQDN": "127.0.0.1",
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "airflow_provider_ocidist.agent"]
        environ = {**os.environ, **config.to_env(), **more}
        done = subprocess.run(
            command, cwd=home, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
        found = RESULT.search(done.stdout)
        if done.returncode or found is None:
            raise RuntimeError(f"the agent failed: {done.stderr[-2000:]}")
        return [float(each) for each in json.loads(found[0])["stalls"]]

    def _without_an_agent(self) -> float:
        with tempfile.TemporaryDirectory(dir=self.saves_to or self._folder) as folder:
            return statistics.median(stalls_of("watched", ORDER, OCIDIST_CHECKPOINT_DIR=folder))

    def floor(self) -> float:
        """What torch.save itself takes: the same program, and nobody watches its folder."""
        return statistics.median(self._alone)

    def peer(self) -> float:
        order = {
            # Each takes nine seconds.
            "saves": 1,
            "pause": 0.0,
            "uri": f"oci://{self._access.bucket}@{self._access.namespace}/straight",
            "url": self._access.url,
            "config_file": self._access.config_file,
        }
        return statistics.median(stalls_of("straight", order))

    def met(self, samples: Samples) -> bool:
        return samples.ratio.low >= TIMES_FASTER


ROW = WatchedSaves()
