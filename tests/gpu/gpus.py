"""The GPUs of this machine, programs that use them, and two ranks that share one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

BEGUN = "begun"


def names() -> list[str]:
    """Return the lines of `nvidia-smi -L`, one for each GPU; none where there is no such program."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    done = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60, check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("GPU ")]


@contextmanager
def running(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program from the line on with which it says that it has begun; kill it at the end."""
    with subprocess.Popen([sys.executable, "-u", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            for line in process.stdout:
                if line.strip() == BEGUN:
                    break
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def sharing(rank: int) -> Mapping[str, str]:
    """Return the variables of a rank that shares its GPU: NCCL refuses that to two ranks of one machine."""
    return {"NCCL_HOSTID": f"machine-{rank}", "NCCL_SOCKET_IFNAME": "lo"}
