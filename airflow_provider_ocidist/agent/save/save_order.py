"""SaveOrder: numbers a program's saves in the order in which they were begun, as scans of its folder show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature
from airflow_provider_ocidist.backports import dataclass


@dataclass(frozen=True)
class _Save:
    number: int
    after: Signature | None
    """Signature of the complete save that had this name before; None: there was none."""


class SaveOrder:
    """Numbers saves from 1, or after those of an earlier launch.

    A save keeps its number when it is proved late, so it never counts as newer than a save that was begun after it.

    An entry whose name holds a number is one save until it is proved: pauses do not end it, and files that are added
    later belong to it. An entry without a number in its name is a new save at each write, since programs replace it.
    """

    def __init__(self, there: Iterable[Candidate], before: int = 0) -> None:
        """`there`: the entries that were there before the program started; they are no saves of it.

        `before`: how many saves of an earlier launch are numbered already.
        """
        self._seen = {item.path: item.signature for item in there}
        self._saves: dict[Path, _Save] = {}
        self._count = before

    def note(
        self,
        found: Iterable[Candidate],
        whole: Mapping[Path, Signature],
        set_back_to: Callable[[], int] | None = None,
    ) -> None:
        """Take in what one scan has found. `whole`: the signatures that are known to be complete, by path.

        `set_back_to`: returns the time in ns of the clock that stamps the files, if it was ever set back.
        """
        now = {item.path: item for item in found}
        self._saves = {path: save for path, save in self._saves.items() if path in now}
        changed = [item for item in now.values() if self._seen.get(item.path) != item.signature]
        clock_ns = set_back_to() if set_back_to and len(changed) > 1 else None
        for item in sorted(changed, key=lambda item: _begin(item, clock_ns)):
            if self._is_begun(item, whole.get(item.path)):
                self._count += 1
                self._saves[item.path] = _Save(self._count, whole.get(item.path))
        self._seen = {path: item.signature for path, item in now.items()}

    def of(self, path: Path) -> int:
        """Return the number of the save that lies there; 0 where it is none of this program."""
        return self._saves[path].number if path in self._saves else 0

    def _is_begun(self, item: Candidate, whole: Signature | None) -> bool:
        save = self._saves.get(item.path)
        if save is None or item.placed.number is None:
            return True
        return whole is not None and whole != save.after and not _has_some_of(item, whole)


def _begin(item: Candidate, clock_ns: int | None) -> tuple[bool, int, int]:
    """Return what orders entries by the moments at which they were begun.

    `clock_ns`: the time, if the clock was set back: a stamp ahead of it is from before.
    """
    ahead = [
        stamp.modified_ns
        for _, stamp in item.signature.files
        if clock_ns is not None and stamp.modified_ns > clock_ns
    ]
    # An entry with files of both times was begun before the clock was set back.
    return not ahead, min(ahead, default=item.begun_ns), item.signature.modified_ns


def _has_some_of(item: Candidate, before: Signature) -> bool:
    return any(item.files.get(name) == stamp for name, stamp in before.files)
