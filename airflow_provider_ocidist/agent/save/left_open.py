"""LeftOpen: which files of entries a process could still write to, or had open when it ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, Stamp
from airflow_provider_ocidist.agent.save.open_files import open_files_in
from airflow_provider_ocidist.backports import dataclass


@dataclass(frozen=True)
class _Look:
    """What was known of an entry when it was last looked at."""

    signature: Signature
    writers: Mapping[str, frozenset[int]]
    """The processes that had a file open, by its name."""
    left: Mapping[str, Stamp | None]
    """The files that a process had open when it ended, as they were at the look after that; None until then."""
    beside: frozenset[Path]
    """The entries that were there when a file was found so."""


class LeftOpen:
    """Follows the open files of each entry from look to look.

    A process that lives, and has a file open no more, has closed it. The end of a process closes its files too: what
    it was writing counts as left open until another writes to it, or until the program goes on to a later save.
    """

    def __init__(self) -> None:
        self._looks: dict[Path, _Look] = {}

    def is_known_closed(self, item: Candidate) -> bool:
        """Whether there is nothing to look for: no process has had this version open since it was last written to."""
        look = self._looks.get(item.path)
        if look is None or look.signature != item.signature:
            return False
        return not look.writers and None not in look.left.values()

    def look(self, item: Candidate, files: Mapping[int, Collection[str]], beside: Collection[Path]) -> None:
        """Take in which files each living process has open; `beside`: the entries that are there."""
        before = self._looks.get(item.path, _Look(item.signature, {}, {}, frozenset()))
        writers: dict[str, frozenset[int]] = {}
        for pid, names in files.items():
            for name in open_files_in(item.path, frozenset(names)):
                writers[name] = writers.get(name, frozenset()) | {pid}
        left: dict[str, Stamp | None] = {
            name: now
            for name, then in before.left.items()
            if (now := _stamp_of(item, name)) and then in (None, now) and name not in writers
        }
        # What it wrote last may be newer than the stamps of this look.
        ended = {name for name, pids in before.writers.items() if not pids <= files.keys()}
        left |= dict.fromkeys(ended - writers.keys())
        since = frozenset(beside) if ended else before.beside
        self._looks[item.path] = _Look(item.signature, writers, left, since)

    def open_in(self, item: Candidate) -> tuple[str, ...]:
        """Return the files that a process had open at the last look."""
        look = self._looks.get(item.path)
        return tuple(sorted(look.writers)) if look else ()

    def left_in(self, item: Candidate, followers: Collection[Path], *, has_ended: bool) -> tuple[str, ...]:
        """Return the files that a process had open when it ended.

        `followers`: the later saves of its kind; `has_ended`: whether the program has been cut off, and with it all
        that had a file open at the last look.
        """
        look = self._looks.get(item.path)
        if look is None:
            return ()
        left = look.left if look.beside.issuperset(followers) else {}
        return tuple(sorted({*left, *(look.writers if has_ended else ())}))

    def keep(self, paths: Collection[Path]) -> None:
        """Forget the entries that are there no more."""
        self._looks = {path: look for path, look in self._looks.items() if path in paths}


def _stamp_of(item: Candidate, name: str) -> Stamp | None:
    """Return the stamp of a file, by its name from the checkpoint folder on."""
    return item.files.get(name.partition("/")[2] or name)
