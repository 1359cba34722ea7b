"""Own files: which files of a checkpoint this node's processes have written, and not fetched to resume from."""

from __future__ import annotations

import contextlib
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.shards import is_companion, is_shard


class OwnFiles:
    """Which files of an entry this node's processes have written, not fetched to resume from."""

    def __init__(self, folder: Path, pattern: str | None = None) -> None:
        self._before = {item.path: _stamps(item.path) for item in candidates(folder, pattern)}

    def names(self, path: Path) -> set[str]:
        return set(_stamps(path)) - self.stale(path)

    def stale(self, path: Path) -> set[str]:
        """Return the files from before the start that other nodes may have rewritten."""
        before, now = self._before.get(path, {}), _stamps(path)
        of_one_process = {name for name in now if is_shard(name) or is_companion(name)}
        return {name for name in of_one_process if before.get(name) == now[name]}


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file in a folder."""
    found = {}
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file():
                status = file.stat()
                found[file.relative_to(path).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found
