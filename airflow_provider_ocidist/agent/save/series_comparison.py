"""Series comparison: compares an entry with the complete entry before it, in the series of a program's saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate
from airflow_provider_ocidist.agent.save.file_pairing import Aligned, align
from airflow_provider_ocidist.agent.save.formats import FormatResult, Members, Reading
from airflow_provider_ocidist.agent.save.layouts import Elsewhere

ALONE = ""
"""Name, among a checkpoint's files, of a file that is a checkpoint by itself."""


@dataclass(frozen=True)
class _Complete:
    """A complete entry, with which the next of its series is compared."""

    item: Candidate
    members: Mapping[str, Members]
    """Members of its files that may be cut short."""
    least: Mapping[str, int]
    """The fewest bytes that each of its files has had in a complete entry of the series."""


@dataclass(frozen=True)
class Compared:
    """An entry beside the complete one before it in its series; nothing is known where there is none."""

    lacks: tuple[str, ...]
    """Files of the last complete entry that this one lacks."""
    smaller: tuple[str, ...]
    """Files that are smaller than in each complete entry before it, or missing, and not proved by their format."""
    is_like_the_last: bool
    """Whether it has the files of the last complete entry: of the same size, or proved, or of the same members."""


class CompleteSaves:
    """The last complete entry of each series, and what the program went on from before it had saved one."""

    def __init__(self, there: Sequence[Candidate], reading_of: Callable[[Candidate], Reading]) -> None:
        """`there`: the entries from before the program started, the last written first.

        `reading_of` returns what one of these holds; nothing, where it has changed since.
        """
        self._reading_of = reading_of
        self._last: dict[str, _Complete] = {}
        """Last complete entry of each series."""
        self._there_before = {item.placed.series: item for item in reversed(there)}
        """Last entry of each series that was there before the program started, as one that was fetched."""
        self._fetched: dict[str, _Complete] = {}
        """Entries of these with which others were compared."""
        self._read: dict[Path, tuple[Candidate, Reading]] = {}
        """Entries as they were last judged."""

    def note_read(self, item: Candidate, reading: Reading) -> None:
        """Note what an entry holds as it is judged.

        Where a program saves over the last checkpoint, the next save shows that the last was all that it writes.
        """
        before, was = self._read.get(item.path, (item, reading))
        self._read[item.path] = (item, reading)
        is_one_name = item.placed.number is None
        again = [
            name
            for name in was.files | was.members.keys()
            if item.files.get(name) != before.files[name] and not _has_grown(was, reading, name)
        ]
        # Settings may be written twice in one save.
        if (
            is_one_name
            and was.says is not FormatResult.BROKEN
            and any(not name.endswith(".json") for name in again)
        ):
            self._last.setdefault(item.placed.series, self._complete(before, was))

    def note_proved(self, item: Candidate, reading: Reading) -> None:
        """Note that an entry is complete: the next of its series is compared with it."""
        self._last[item.placed.series] = self._complete(item, reading)

    def compared(self, item: Candidate, reading: Reading, elsewhere: Elsewhere) -> Compared:
        """Compare an entry with the complete one before it; `elsewhere`: of which files other nodes have the parts."""
        last, before = self._last.get(item.placed.series), self._last_or_fetched(item)
        return Compared(
            lacks=() if last is None else _aligned(item, last.item).lacking,
            smaller=() if before is None else _smaller(item, reading, before, elsewhere),
            is_like_the_last=last is not None and _is_like(item, reading, last),
        )

    def _complete(self, item: Candidate, reading: Reading) -> _Complete:
        sizes, before = _sizes(item), self._last_or_fetched(item)
        if before is None:
            return _Complete(item, reading.members, sizes)
        names = _aligned(item, before.item)
        least = {names.before[name]: size for name, size in before.least.items()}
        fewest = {name: min(size, least.get(names.now[name], size)) for name, size in sizes.items()}
        return _Complete(item, reading.members, fewest)

    def _last_or_fetched(self, item: Candidate) -> _Complete | None:
        """Return the last complete entry of a series; before the first, what the program goes on from."""
        series = item.placed.series
        known, fetched = self._last.get(series), self._there_before.get(series)
        if known is None and fetched is not None and series not in self._fetched:
            self._fetched[series] = _Complete(fetched, self._reading_of(fetched).members, _sizes(fetched))
        return known or self._fetched.get(series)


def _has_grown(was: Reading, now: Reading, name: str) -> bool:
    """Whether a file holds more than before, of which nothing has gone: the same save may go on."""
    return name in was.members and was.members[name] < now.members.get(name, frozenset())


def _smaller(item: Candidate, reading: Reading, before: _Complete, elsewhere: Elsewhere) -> tuple[str, ...]:
    """Return the files that had more bytes or members in each complete entry, unless their format proves them."""
    names, proved = _aligned(item, before.item), _proved_files(item, reading, before)
    sizes: dict[str, float] = {names.now[name]: size for name, size in _sizes(item).items()}
    sizes |= {names.now[name]: math.inf for name in proved}
    sizes |= dict.fromkeys(_with_fewer_members(item, reading, before), -1)
    least = {
        names.before[name]: size
        for name, size in before.least.items()
        # What was fetched has the parts of all nodes.
        if names.before[name] in sizes or not elsewhere(name)
    }
    return tuple(sorted(name for name, size in least.items() if sizes.get(name, -1) < size))


def _with_fewer_members(item: Candidate, reading: Reading, before: _Complete) -> set[str]:
    """Return the files without a member that those of a complete entry have, by their common names."""
    names = _aligned(item, before.item)
    its = {names.before[_name_in(before.item, name)]: dict(each) for name, each in before.members.items()}
    mine = {names.now[_name_in(item, name)]: dict(each) for name, each in reading.members.items()}
    return {name for name, each in mine.items() if its.get(name, {}).keys() - each.keys()}


def _is_like(item: Candidate, reading: Reading, last: _Complete) -> bool:
    sizes, its = _sizes(item), _sizes(last.item)
    names, proved = _aligned(item, last.item), _proved_files(item, reading, last)
    its_by_name = {names.before[name]: size for name, size in its.items()}
    if set(names.now.values()) != set(its_by_name):
        return False
    if last.item.path == item.path:
        # Overwritten in place: file sizes prove nothing, and an unchanged file is the last save's.
        stays = any(last.item.files.get(name) == stamp for name, stamp in item.files.items())
        return not stays and proved == set(sizes)
    return all(name in proved or size == its_by_name[names.now[name]] for name, size in sizes.items())


def _proved_files(item: Candidate, reading: Reading, before: _Complete) -> set[str]:
    """Return the files that are whole by their own formats, or consist of what those of a complete entry consist of."""
    names = _aligned(item, before.item)
    its = {names.before[_name_in(before.item, name)]: each for name, each in before.members.items()}
    mine = {_name_in(item, name): each for name, each in reading.members.items()}
    alike = {name for name, each in mine.items() if its.get(names.now[name]) == each}
    return alike.union(_name_in(item, name) for name in reading.files)


def _aligned(item: Candidate, last: Candidate) -> Aligned:
    return align(_sizes(item), item.placed.number, _sizes(last), last.placed.number)


def _sizes(item: Candidate) -> dict[str, int]:
    return {_name_in(item, name): stamp.size for name, stamp in item.files.items()}


def _name_in(item: Candidate, name: str) -> str:
    """Return the name of a file among an entry's files, of one that is the entry itself another."""
    # The entry may be deleted by now.
    return ALONE if len(item.files) == 1 and item.path.name in item.files else name
