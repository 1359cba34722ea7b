"""What is killed, when, and in which order: drawn from a seed. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Who = Literal["worker", "triggerer", "scheduler"]
When = Literal["submit", "wait", "finish"]
Path = Literal["deferred", "blocking"]

WHENS: dict[tuple[Who, Path], list[When]] = {
    ("worker", "blocking"): ["submit", "wait", "finish"],
    # While a task is deferred it has no worker, and while it blocks no trigger.
    ("worker", "deferred"): ["submit", "finish"],
    ("triggerer", "deferred"): ["submit", "wait", "finish"],
    ("scheduler", "blocking"): ["submit", "wait", "finish"],
    ("scheduler", "deferred"): ["submit", "wait", "finish"],
}
HOW: dict[Who, list[str]] = {
    "worker": ["task", "supervisor", "both"],
    "triggerer": ["whole"],
    # With its workers, as a container or a unit of systemd goes; or alone, and they go on.
    "scheduler": ["whole", "alone"],
}
POINTS: dict[When, list[str]] = {
    "submit": ["process", "process", "job", "first run"],
    "wait": ["training"],
    "finish": ["nodes done"],
}
LATEST_S = {"process": 4.0, "job": 2.5, "first run": 1.0, "training": 3.0, "nodes done": 2.0}
"""After each point, the longest delay until the kill."""
BATCH: tuple[Who, ...] = ("worker", "worker", "worker", "worker", "triggerer", "scheduler")
"""Who is killed for the sake of each run of a batch; a triggerer or scheduler that is killed hits all of them."""
CHAIN = 2
"""So many kills for each run: what follows the first happens to a later try of its task."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One kill, and the run that it is timed by."""

    who: Who
    how: str
    """Which processes of it."""
    when: When
    path: Path
    point: str
    """What must be there first."""
    delay: float
    """Seconds after that."""
    store: bool
    """Whether the task has Airflow's task state store."""

    def __str__(self) -> str:
        store = "" if self.store else ", no store"
        return (
            f"{self.who} ({self.how}) at {self.when} [{self.point} + {self.delay:.2f} s], {self.path}{store}"
        )

    @property
    def dag_id(self) -> str:
        return f"chaos_{self.path}{'' if self.store else '_without_store'}"


def planned(seed: int, count: int) -> list[list[list[Kill]]]:
    """Return at least so many kills in batches of chains: the kills of a chain hit one run, one after the other."""
    chance = random.Random(seed)
    chains = {key: _endlessly(*key, chance) for key in WHENS}
    keys = {who: itertools.cycle(chance.sample(found, len(found))) for who, found in _keys_by_who().items()}
    number_of_batches = -(-count // (len(BATCH) * CHAIN))
    return [[next(chains[next(keys[who])]) for who in BATCH] for _ in range(number_of_batches)]


def _keys_by_who() -> dict[Who, list[tuple[Who, Path]]]:
    return {who: [key for key in WHENS if key[0] == who] for who in BATCH}


def _endlessly(who: Who, path: Path, chance: random.Random) -> Iterator[list[Kill]]:
    whens = WHENS[who, path]
    while True:
        moments = list(itertools.combinations(whens, min(CHAIN, len(whens))))
        for chosen in chance.sample(moments, len(moments)):
            store = chance.random() < 0.5
            yield [_kill(who, path, when, store, chance) for when in chosen]


def _kill(who: Who, path: Path, when: When, store: bool, chance: random.Random) -> Kill:
    point = chance.choice(POINTS[when])
    return Kill(
        who=who,
        how=chance.choice(HOW[who]),
        when=when,
        path=path,
        point=point,
        delay=chance.uniform(0, LATEST_S[point]),
        store=store,
    )
