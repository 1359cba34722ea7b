"""SaveOrder: in which order the saves of a program were begun, as far as looks at its folder show it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature
from airflow_provider_ocidist.backports import dataclass


@dataclass(frozen=True)
class _Save:
    number: int
    after: Signature | None
    """What was known to be whole under this name when it was begun."""


class SaveOrder:
    """Numbers saves from 1.

    A save that is proved late keeps its number: it is not newer than what was begun after it. Where an entry has a
    number of its own, a save lasts until it is proved, however often the program pauses within it; what is added later
    belongs to it. An entry without one is a new save whenever it is written to: it may be replaced within a second.
    """

    def __init__(self, there: Iterable[Candidate]) -> None:
        """`there`: what lies there at first, which is no save of this program."""
        self._seen = {item.path: item.signature for item in there}
        self._saves: dict[Path, _Save] = {}
        self._count = 0

    def note(self, found: Iterable[Candidate], whole: Mapping[Path, Signature]) -> None:
        """Note what one look has shown; `whole`: the contents that are known to be whole, by their paths."""
        now = {item.path: item for item in found}
        self._saves = {path: save for path, save in self._saves.items() if path in now}
        changed = [item for item in now.values() if self._seen.get(item.path) != item.signature]
        for item in sorted(changed, key=lambda item: (item.begun_ns, item.signature.modified_ns)):
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


def _has_some_of(item: Candidate, before: Signature) -> bool:
    return any(item.files.get(name) == stamp for name, stamp in before.files)
