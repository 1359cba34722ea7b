"""SaveSeries: which saves are of one series, by what changes in the names of a program's saves. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable
from functools import lru_cache

from airflow_provider_ocidist.storage.checkpoint_names import Placed
from airflow_provider_ocidist.storage.name_words import HASH, MOST_MODELS

_WORD = re.compile("(?<![0-9A-Za-z])[0-9a-f]*#|#|[0-9A-Za-z]*[0-9][0-9A-Za-z]*")
_NUMBERED = re.compile("(?P<before>[A-Za-z]*)(?P<number>[0-9]+)(?P<after>[A-Za-z]*)")
_GAP = "\0"
"""Character in the place of what counts the saves; no name has it."""


class SaveSeries:
    """Learns which numbers in the names of a program's saves count these saves, and which name a model.

    What `checkpoint_names` recognizes as a step is such a count already. Of the rest, a number or hash counts the saves
    if it has had several values, unless the program comes back to the same few: that of `G_1000.pth` does, those of
    `resnet18.pt` and `resnet50.pt` do not, and of those in `agent_2_1000.pt` only the second.
    """

    def __init__(self) -> None:
        self._places: dict[str, tuple[_Place, ...]] = {}
        """Places of the numbers and hashes in names that differ in these alone."""
        self._saves: Counter[str] = Counter()
        """Count of the saves of each series, as they were placed at the time."""

    def note(self, placed: Placed) -> None:
        """Take in the name of a save, in the order of saving."""
        text, values = _parted(placed.series)
        places = self._places.setdefault(text, tuple(_Place() for _ in values))
        for index, (place, value) in enumerate(zip(places, values)):
            place.note(value, (placed.step, placed.epoch, values[:index], values[index + 1 :]))
        self._saves[self.of(placed)] += 1

    def of(self, placed: Placed) -> str:
        """Return the series of a name; that of its saves may change with what further names show."""
        text, values = _parted(placed.series)
        places = self._places.get(text, ())
        shown = [_GAP if place.counts else value for place, value in zip(places, values)] or list(values)
        between = text.split(_GAP)
        return "".join(part for pair in zip(between, [*shown, ""]) for part in pair)

    def goes_on(self, placed: Placed) -> bool:
        """Whether the series has had several saves: one that has not may be of a name that is never used again."""
        series = self.of(placed)
        return _GAP in series or self._saves[series] > 1


class _Place:
    """A number or hash at one place of names that are the same but for such."""

    def __init__(self) -> None:
        self._values: set[str] = set()
        self._last = ""
        self._came_back = 0
        """Count of changes to a value that was there before, since the last that was new."""
        self._beside: dict[Hashable, str] = {}
        """First value beside each content of the other places."""
        self._differs_alone = False
        """Whether two names differ here alone, as those of two models at one step do."""

    def note(self, value: str, others: Hashable) -> None:
        if value not in self._values:
            self._came_back = 0
        elif value != self._last:
            self._came_back += 1
        self._values.add(value)
        self._last = value
        self._differs_alone |= self._beside.setdefault(others, value) != value

    @property
    def counts(self) -> bool:
        """Whether it counts the saves; else it is a part of the series' name."""
        names_a_model = self._differs_alone and self._came_back > len(self._values)
        return len(self._values) > MOST_MODELS and not names_a_model


@lru_cache(maxsize=4096)
def _parted(series: str) -> tuple[str, tuple[str, ...]]:
    """Return a name with a gap for each number and each hash, and these."""
    values: list[str] = []

    def take(word: re.Match[str]) -> str:
        one = None if HASH.fullmatch(word[0]) else _NUMBERED.fullmatch(word[0])
        values.append(one["number"] if one else word[0])
        return f"{one['before']}{_GAP}{one['after']}" if one else _GAP

    return _WORD.sub(take, series), tuple(values)
