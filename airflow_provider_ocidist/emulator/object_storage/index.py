"""Names of a bucket's objects in order, and how they are listed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

LAST = chr(0x10FFFF)


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a list request asks for."""

    prefix: str = ""
    start: str = ""
    """First name, itself included."""
    end: str | None = None
    """Past the last name."""
    start_after: str | None = None
    delimiter: str | None = None
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """One page: names of objects, common prefixes, and where the next page starts."""

    names: list[str]
    prefixes: list[str]
    next_start: str | None


class NameIndex:
    """Sorted names. Code point order is the UTF-8 byte order of the service."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = sorted(names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        insort(self._names, name)

    def remove(self, name: str) -> None:
        del self._names[bisect_left(self._names, name)]

    def list(self, wanted: Listing) -> Page:
        """Return a page of names; those that share a prefix up to the delimiter count as one."""
        names: list[str] = []
        prefixes: list[str] = []
        place = self._first(wanted)
        while place < len(self._names):
            name = self._names[place]
            if not self._continues(name, wanted):
                break
            if len(names) + len(prefixes) >= wanted.limit:
                return Page(names, prefixes, name)
            common = _common_prefix(name, wanted)
            if common is None:
                names.append(name)
                place += 1
            else:
                prefixes.append(common)
                place = bisect_left(self._names, common + LAST)
        return Page(names, prefixes, None)

    def _first(self, wanted: Listing) -> int:
        place = bisect_left(self._names, max(wanted.prefix, wanted.start))
        if wanted.start_after is not None:
            place = max(place, bisect_left(self._names, wanted.start_after + "\0"))
        return place

    @staticmethod
    def _continues(name: str, wanted: Listing) -> bool:
        return name.startswith(wanted.prefix) and (wanted.end is None or name < wanted.end)


def _common_prefix(name: str, wanted: Listing) -> str | None:
    if wanted.delimiter is None:
        return None
    cut = name.find(wanted.delimiter, len(wanted.prefix))
    return None if cut < 0 else name[: cut + len(wanted.delimiter)]
