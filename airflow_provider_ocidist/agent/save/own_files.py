"""Own files: which files of a checkpoint this node's processes have written, and not fetched to resume from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Stamp, candidates, stamps_in
from airflow_provider_ocidist.agent.save.shards import is_companion, is_shard


class OwnFiles:
    """Which files of an entry this node's processes have written, not fetched to resume from.

    The paths that it is asked about may be those of links to an entry, under its name.
    """

    def __init__(self, folder: Path, pattern: str | None = None) -> None:
        self._before = {item.path.name: stamps_in(item.path) for item in candidates(folder, pattern)}

    def names(self, path: Path) -> set[str]:
        now = stamps_in(path)
        return now.keys() - self._stale_of(path, now)

    def stale(self, path: Path) -> set[str]:
        """Return the files from before the start that other nodes may have rewritten."""
        return self._stale_of(path, stamps_in(path))

    def _stale_of(self, path: Path, now: Mapping[str, Stamp]) -> set[str]:
        before = self._before.get(path.name)
        if not before:
            return set()
        of_one_process = {name for name in now if is_shard(name) or is_companion(name)}
        # Not the inode: some mounts give a file another one when they have forgotten it.
        return {name for name in of_one_process if name in before and before[name][:2] == now[name][:2]}
