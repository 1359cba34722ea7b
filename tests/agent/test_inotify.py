"""Instances of inotify, of which a machine has few."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

from airflow_provider_ocidist.agent.inotify import CREATE, Inotify


def instances() -> int:
    """Return how many this process has."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{entry}") == "anon_inode:inotify"
    return found


def test_an_instance_goes_with_its_last_reference_or_when_it_is_closed(tmp_path: Path) -> None:
    gc.collect()
    before = instances()
    first, second = Inotify(), Inotify()
    assert first.watch(tmp_path, CREATE)
    assert instances() == before + 2
    first.close()
    first.close()
    assert instances() == before + 1
    del second
    gc.collect()
    assert instances() == before
