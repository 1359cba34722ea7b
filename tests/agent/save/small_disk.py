"""A file system of a given size, where this process may mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size, such as `64k`; skip the test where that is not possible."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True)
    if not mounted or mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
