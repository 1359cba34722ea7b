"""Comparison: one measure of ours beside a peer's, in turn in the same run, with its spread."""

from __future__ import annotations

import random
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """The median of a sample, and where the true median lies with 95 % confidence (bootstrap)."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        chance = random.Random(0)  # the same sample always tells the same story
        medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
        return cls(statistics.median(values), medians[RESAMPLES // 40], medians[-RESAMPLES // 40])


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
    pairs = 7

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
        with self.setting():
            for number in range(pairs):
                sides = [(ours, self.ours), (peer, self.peer)]
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
            "target": self.target,
            "met": self.met(samples),
        }
