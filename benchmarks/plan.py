"""plan: the dry run of one and the same YAML, from the command to the printed requests, beside Oracle ADS."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.comparison import Comparison, Interval, Samples

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / ".venv-clients" / "bin"
JOB = ROOT / "tests" / "job_file" / "dialects" / "ads_train.yaml"
TARGET_S, TARGET_MB = 0.5, 80.0
CONFIG = """\
[DEFAULT]
user=ocid1.user.oc1..a
tenancy=ocid1.tenancy.oc1..a
fingerprint=00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff
region=us-ashburn-1
key_file={key}
"""


@dataclass(frozen=True)
class Cost:
    """Of one process: wall time in seconds, largest memory in MB."""

    seconds: float
    peak_mb: float


def run(command: Sequence[str | Path], folder: Path) -> Cost:
    """Run a command to its end. Raises RuntimeError when it does not print the requests' environment."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0 or "NCCL_ASYNC_ERROR_HANDLING" not in text:
        raise RuntimeError(f"{command}: {process.returncode}\n{text[-2000:]}")
    return Cost(seconds, usage.ru_maxrss * 1024 / 1e6)


@dataclass
class Memory:
    """The largest memory of every process measured, in MB."""

    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)


class PlanCost(Comparison):
    """The command a person types; memory stands beside the time."""

    name = "plan"
    title = "dry run of a three-node job, whole command"
    peer_name = "ads opctl run --dry-run --nobuild"
    unit = "s"
    target = f"at most {TARGET_S} s and {TARGET_MB:.0f} MB"
    pairs = 7

    @contextmanager
    def setting(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            self._memory = Memory()
            self._prepare()
            # Once unmeasured: the first start compiles.
            self.ours()
            self.peer()
            self._memory = Memory()
            yield

    def _prepare(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = self._folder / "key.pem"
        key.write_bytes(
            rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        key.chmod(0o600)
        (self._folder / ".oci").mkdir()
        config = self._folder / ".oci" / "config"
        config.write_text(CONFIG.format(key=key))
        config.chmod(0o600)
        (self._folder / JOB.name).write_text(JOB.read_text())

    def ours(self) -> float:
        cost = run([Path(sys.executable).parent / "ocidist", "plan", JOB.name], self._folder)
        self._memory.ours.append(cost.peak_mb)
        return cost.seconds

    def peer(self) -> float:
        command: list[str | Path] = [
            CLIENTS / "ads",
            "opctl",
            "run",
            "-f",
            JOB.name,
            "--dry-run",
            "--nobuild",
        ]
        cost = run(command, self._folder)
        self._memory.peer.append(cost.peak_mb)
        return cost.seconds

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_S and max(self._memory.ours) <= TARGET_MB

    def result(self, samples: Samples) -> dict[str, Any]:
        memory = {name: round(statistics.median(getattr(self._memory, name)), 1) for name in ("ours", "peer")}
        return {**super().result(samples), "peak_mb": memory}


ROW = PlanCost()
