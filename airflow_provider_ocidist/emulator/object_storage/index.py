"""Names of a bucket's objects in order, and how they are listed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

LAST = chr(0x10FFFF)


@dataclass(frozen=True, kw_only=True, slots=True)
class ListParameters:
    """The parameters of a list request."""

    prefix: str = ""
    start: str = ""
    """First name, included."""
    end: str | None = None
    """Name before which the range ends; None: it has no end."""
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

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def add(self, name: str) -> None:
        insort(self._names, name)

    def remove(self, name: str) -> None:
        del self._names[bisect_left(self._names, name)]

    def list(self, wanted: ListParameters) -> Page:
        """Return a page of names; those that share a prefix up to the delimiter count as one."""
        place, end = self._first(wanted), self._past_last(wanted)
        if wanted.delimiter is None:
            return Page(
                self._names[place : min(place + wanted.limit, end)], [], self._at(place + wanted.limit, end)
            )
        names: list[str] = []
        prefixes: list[str] = []
        while place < end and len(names) + len(prefixes) < wanted.limit:
            name = self._names[place]
            cut = name.find(wanted.delimiter, len(wanted.prefix))
            if cut < 0:
                names.append(name)
                place += 1
            else:
                prefixes.append(name[: cut + len(wanted.delimiter)])
                place = min(self._past(prefixes[-1]), end)
        return Page(names, prefixes, self._at(place, end))

    def _first(self, wanted: ListParameters) -> int:
        place = bisect_left(self._names, max(wanted.prefix, wanted.start))
        if wanted.start_after is not None:
            place = max(place, bisect_left(self._names, wanted.start_after + "\0"))
        return place

    def _past_last(self, wanted: ListParameters) -> int:
        place = self._past(wanted.prefix)
        return place if wanted.end is None else min(place, bisect_left(self._names, wanted.end))

    def _past(self, prefix: str) -> int:
        """Return the place after all names that begin so."""
        kept = prefix.rstrip(LAST)  # nothing comes after the last character: the one before it decides
        if not kept:
            return len(self._names)
        return bisect_left(self._names, kept[:-1] + chr(ord(kept[-1]) + 1))

    def _at(self, place: int, end: int) -> str | None:
        return self._names[place] if place < end else None
