"""Comparison: one measure of ours beside a peer's, in turn in the same run, with its spread."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

FEWEST = 5
"""Pairs: with fewer no interval holds, whatever its method."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The median of a sample, and two values of it between which the true median lies.

    That is the interval of the sign test: exact for any distribution and any number of values, because each value lies
    above the true median as heads come up. No normal distribution is assumed, and no value is drawn twice.
    """

    median: float
    low: float
    high: float
    coverage: float
    """How probable it is that the true median lies between: 0.9375 with five values, from six on at least 0.95."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return the narrowest that reaches 95 %; the whole range where none does."""
        ordered = sorted(values)
        place = max(
            (each for each in range((len(ordered) + 1) // 2) if coverage(len(ordered), each) >= CONFIDENCE),
            default=0,
        )
        found = coverage(len(ordered), place)
        return cls(statistics.median(ordered), ordered[place], ordered[-1 - place], found)

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "interval": [self.low, self.high]}


def coverage(values: int, left_out: int) -> float:
    """Return how probable it is that a median lies within a sample of which so many are left out at each end."""
    beyond = sum(math.comb(values, each) for each in range(left_out + 1))
    return max(0.0, 1 - beyond / float(2 ** (values - 1)))


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What was measured, pair by pair."""

    ours: Sequence[float]
    peer: Sequence[float]
    floor: float | None = None
    """What no implementation can go below."""

    @property
    def ratio(self) -> Interval:
        """How many times as much the peer takes."""
        return Interval.of([theirs / ours for ours, theirs in zip(self.ours, self.peer, strict=True)])

    @property
    def excess(self) -> Interval:
        """How much more ours takes."""
        return Interval.of([ours - theirs for ours, theirs in zip(self.ours, self.peer, strict=True)])


class Comparison(ABC):
    """One row of the table; a module of this folder holds it as `ROW`."""

    name: str
    """As in the project's list of metrics: `P7`."""
    title: str
    peer_name: str
    unit: str
    target: str
    """In words; `met` says it in code, at the bad end of the interval."""
    pairs = 6
    """At least so many, for an interval of 95 %."""
    afresh = False
    """Whether each pair needs a setting of its own."""

    def lacks(self) -> str | None:
        """Return what the row needs and this machine has not; None: nothing."""
        return None

    def setting(self) -> AbstractContextManager[Any]:
        """Return what both sides need: servers, environments. Entered once."""
        return nullcontext()

    @abstractmethod
    def ours(self) -> float: ...

    @abstractmethod
    def peer(self) -> float: ...

    @abstractmethod
    def met(self, samples: Samples) -> bool: ...

    def floor(self) -> float | None:
        return None

    def measure(self, pairs: int, say: Callable[[str], None]) -> Samples:
        """Measure pair after pair, the order turned round each time (ABBA), so that a drift hits both alike."""
        ours: list[float] = []
        peer: list[float] = []
        with nullcontext() if self.afresh else self.setting():
            for number in range(pairs):
                sides = [(ours, self.ours), (peer, self.peer)]
                with self.setting() if self.afresh else nullcontext():
                    for values, side in sides if number % 2 == 0 else reversed(sides):
                        values.append(side())
                say(
                    f"{self.name} {number + 1}/{pairs}: {ours[-1]:.4g} {self.unit}, {self.peer_name} {peer[-1]:.4g}"
                )
            return Samples(ours=ours, peer=peer, floor=self.floor())

    def result(self, samples: Samples) -> dict[str, Any]:
        """Return the row as it stands in results.json."""
        ours, peer = Interval.of(samples.ours), Interval.of(samples.peer)
        return {
            "title": self.title,
            "ours": ours.median,
            "peer": peer.median,
            "peer_name": self.peer_name,
            "floor": samples.floor,
            "unit": self.unit,
            "ratio": samples.ratio.median,
            "spread": {
                name: [interval.low, interval.high]
                for name, interval in {"ours": ours, "peer": peer, "ratio": samples.ratio}.items()
            },
            "pairs": len(samples.ours),
            "coverage": samples.ratio.coverage,
            "samples": {"ours": list(samples.ours), "peer": list(samples.peer)},
            "target": self.target,
            "met": self.met(samples),
        }
