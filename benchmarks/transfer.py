"""Transfer: one kind of transfer by ours, `ocifs`, the OCI command line and a bare HTTP client, in every condition."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx

from benchmarks.comparison import Comparison, Interval, Samples
from scripts.emulator_process import Access, EmulatorProcess

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / ".venv-clients" / "bin" / "oci"
FAST = Path("/dev/shm")
CONDITIONS: Mapping[str, dict[str, Any]] = {
    "0 ms": {},
    "30 ms a request": {"latency_s": 0.03},
    "60 MB/s a stream": {"bytes_per_s": 60e6},
    "10 MB/s a stream": {"bytes_per_s": 10e6},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """What is transferred: so many files of so many bytes."""

    files: int
    size: int

    def write(self, folder: Path) -> None:
        noise = os.urandom(1 << 20)
        for number in range(self.files):
            path = folder / f"{number % 20:02}" / f"{number:04}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for block in range(0, self.size, len(noise)):
                    mark = f"{number} {block}".encode()
                    file.write(mark + noise[len(mark) : min(len(noise), self.size - block)])


class Transfer(Comparison):
    """Ours, the bare client, the command line and `ocifs` in every pair.

    Every client is a process of its own. Ours, `ocifs` and the bare client are timed without their start,
    against the command line whole processes are. All but the bare client sign; the emulator verifies nothing.
    """

    action: Literal["down", "up"]
    tree: Tree
    conditions: tuple[str, ...] = ("0 ms", "30 ms a request", "60 MB/s a stream")
    headline: str
    """The condition that the row itself shows."""
    peer_name = "oci os object bulk-..."
    unit = "s"
    ocifs_files: int | None = None
    """With so many files `ocifs` is measured, and its time multiplied."""
    pairs = 6
    _folder: Path
    _access: Access
    _seen: dict[str, dict[str, list[float]]]
    _peak_mb: int

    @contextmanager
    def setting(self) -> Iterator[None]:
        if not CLI.exists():
            raise FileNotFoundError(f"{CLI} is missing: `make test` makes the environment of the clients")
        self._seen, self._peak_mb = {name: {} for name in self.conditions}, 0
        with tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None) as folder:
            self._folder = Path(folder)
            self.tree.write(self._folder / "source")
            with EmulatorProcess(self._folder / "emulator", options=("--no-signatures",)) as self._access:
                self._client("ours", "up", self._folder / "source", "there")
                yield

    def ours(self) -> float:
        for condition in self.conditions:
            self._note(condition, "ours", self._run("ours", condition))
            self._note(condition, "floor", self._run("floor", condition))
        return self._seen[self.headline]["ours, process"][-1]

    def peer(self) -> float:
        for condition in self.conditions:
            self._note(condition, "cli", self._run("cli", condition))
            self._note(condition, "ocifs", self._run("ocifs", condition))
        return self._seen[self.headline]["cli, process"][-1]

    def _note(self, condition: str, client: str, seen: Mapping[str, float]) -> None:
        times = self._seen[condition]
        times.setdefault(client, []).append(seen["seconds"])
        times.setdefault(f"{client}, process", []).append(seen["process_s"])

    def _run(self, client: str, condition: str) -> dict[str, float]:
        self._set(condition)
        source = self._folder / "source"
        share = 1.0
        if client == "ocifs" and self.ocifs_files:
            share = self.ocifs_files / self.tree.files
            source = self._some_files()
        target = self._folder / "down"
        name = "there" if share == 1.0 else "few"
        if self.action == "up":
            seen = self._client(client, "up", source, "up")
        else:
            if name == "few":
                self._client("ours", "up", source, "few")
            seen = self._client(client, "down", target, name)
            found = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
            if found != self.tree.files * self.tree.size * share:
                raise RuntimeError(f"{client} has brought {found} bytes")
            shutil.rmtree(target)
        if client == "ours":
            self._peak_mb = max(self._peak_mb, int(seen["peak_mb"]))
        return {name: value / share for name, value in seen.items()}

    def _some_files(self) -> Path:
        folder = self._folder / "few"
        if not folder.exists():
            Tree(files=self.ocifs_files or 0, size=self.tree.size).write(folder)
        return folder

    def _set(self, condition: str) -> None:
        faults = f"{self._access.url}/_emulator/faults"
        httpx.delete(faults).raise_for_status()
        if fault := CONDITIONS[condition]:
            httpx.post(faults, json={"path": "/n/.*", **fault}).raise_for_status()

    def _client(self, client: str, action: str, local: Path, name: str) -> dict[str, float]:
        local.mkdir(exist_ok=True)
        began = time.perf_counter()
        with self._start(client, action, local, name) as process:
            output, failure = process.communicate(timeout=600)
        taken = time.perf_counter() - began
        if process.returncode:
            raise RuntimeError(f"{client} failed: {failure[-2000:]}")
        seen = {"seconds": taken} if client == "cli" else json.loads(output.strip().splitlines()[-1])
        return {**seen, "process_s": taken}

    def _start(
        self, client: str, action: str, local: Path, name: str, url: str | None = None
    ) -> subprocess.Popen[str]:
        url = url or self._access.url
        make = self._cli if client == "cli" else partial(self._program, client, url)
        env = {
            **os.environ,
            "OCI_CLI_CONFIG_FILE": self._access.config_file,
            "OCI_CLI_ENDPOINT": url,
            "OCI_CLI_SUPPRESS_FILE_PERMISSIONS_WARNING": "True",
            "XDG_CACHE_HOME": str(self._folder / "cache"),
        }
        return subprocess.Popen(
            make(action, local, name),
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _program(self, client: str, url: str, action: str, local: Path, name: str) -> list[str]:
        access = self._access
        order = {
            "action": action,
            "uri": f"oci://{access.bucket}@{access.namespace}/{name}",
            "local": str(local),
            "url": url,
            "config_file": access.config_file,
            "namespace": access.namespace,
            "bucket": access.bucket,
            "prefix": f"{name}/",
        }
        return [sys.executable, "-m", "benchmarks.transfer_clients", client, json.dumps(order)]

    def _cli(self, action: str, local: Path, name: str) -> list[str]:
        place = ["-ns", self._access.namespace, "-bn", self._access.bucket]
        if action == "up":
            more = ["bulk-upload", "--src-dir", str(local), "--object-prefix", f"{name}/", "--overwrite"]
        else:
            more = ["bulk-download", "--download-dir", str(local), "--prefix", f"{name}/", "--overwrite"]
        return [str(CLI), "os", "object", *more, *place]

    def times_faster(self, condition: str, client: str) -> Interval:
        """Return how many times as long another client takes; the command line as a whole process."""
        kind = ", process" if client == "cli" else ""
        seen = self._seen[condition]
        pairs = zip(seen[f"{client}{kind}"], seen[f"ours{kind}"], strict=True)
        return Interval.of([theirs / ours for theirs, ours in pairs])

    def floor(self) -> float | None:
        return statistics.median(self._seen[self.headline]["floor"])

    def result(self, samples: Samples) -> dict[str, Any]:
        return {
            **super().result(samples),
            "headline": self.headline,
            "peak_mb": self._peak_mb,
            "ocifs_files": self.ocifs_files or self.tree.files,
            "conditions": {condition: self._summary(condition) for condition in self.conditions},
        }

    def _summary(self, condition: str) -> dict[str, Any]:
        seen = {name: Interval.of(values) for name, values in self._seen[condition].items()}
        ratios = {f"{each}/ours": self.times_faster(condition, each) for each in ("floor", "ocifs", "cli")}
        return {"intervals": {name: each.to_json() for name, each in {**seen, **ratios}.items()}}


class LargeFile(Transfer):
    """One file of 512 MiB."""

    tree = Tree(files=1, size=512 << 20)
    headline = "60 MB/s a stream"
    target = "3 times faster than ocifs, 1.3 times than the command line, in every condition; at most 150 MB"

    def met(self, samples: Samples) -> bool:  # noqa: ARG002 - it needs more than one row's samples
        fast = all(
            self.times_faster(condition, "ocifs").low >= 3 and self.times_faster(condition, "cli").low >= 1.3
            for condition in self.conditions
        )
        return fast and self._peak_mb <= 150
