"""File pairing: pairs the files of two checkpoints whose names differ in numbers only. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache

from airflow_provider_ocidist.backports import dataclass

_NUMBER = re.compile(r"([0-9]+)")

Parts = Sequence[str]
"""Texts and numbers of a name in turn, numbers at the odd places."""


@dataclass(frozen=True)
class Aligned:
    """The names of two checkpoints, with `#` in place of the checkpoint's own number."""

    now: Mapping[str, str]
    before: Mapping[str, str]

    @property
    def lacking(self) -> tuple[str, ...]:
        """Files of the checkpoint before that this one lacks."""
        return tuple(sorted(set(self.before.values()) - set(self.now.values())))


def align(now: Iterable[str], number: int | None, before: Iterable[str], its: int | None) -> Aligned:
    """Return the names of two checkpoints so that the same file has the same name in both.

    `number`: of the checkpoint to judge; `its`: of the checkpoint before. A name may also hold the number of a rank or
    of a part: `global_step1/zero_pp_rank_1.pt`. A number in a name is the checkpoint's own if, at its place, all names
    of the checkpoint before have that one's number, and at least one name of this checkpoint has its own.
    """
    return _align(tuple(now), number, tuple(before), its)


@lru_cache(maxsize=64)
def _align(now: Sequence[str], number: int | None, before: Sequence[str], its: int | None) -> Aligned:
    """Do what `align` does. Kept: an entry that is not proved yet is compared several times at each look."""
    mine, others = _by_form(now), _by_form(before)
    own = {form: _own_places(mine.get(form, ()), number, others[form], its) for form in others}
    return Aligned(_hashed(mine, own, number), _hashed(others, own, its))


def _by_form(names: Iterable[str]) -> dict[Parts, list[Parts]]:
    """Return names grouped by their texts without the numbers."""
    found: dict[Parts, list[Parts]] = {}
    for name in names:
        parts = _NUMBER.split(name)
        found.setdefault(tuple(parts[::2]), []).append(parts)
    return found


def _own_places(
    now: Collection[Parts], number: int | None, before: Collection[Parts], its: int | None
) -> frozenset[int]:
    if number is None or its is None:
        return frozenset()
    places = range(1, len(next(iter(before))), 2)
    return frozenset(
        place
        for place in places
        if all(int(parts[place]) == its for parts in before)
        and (not now or any(int(parts[place]) == number for parts in now))
    )


def _hashed(
    names: Mapping[Parts, Sequence[Parts]], own: Mapping[Parts, frozenset[int]], number: int | None
) -> dict[str, str]:
    return {
        "".join(parts): "".join(
            "#" if place in own.get(form, ()) and int(part) == number else part
            for place, part in enumerate(parts)
        )
        for form, some in names.items()
        for parts in some
    }
