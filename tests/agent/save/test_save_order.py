"""In which order saves were begun, as far as looks at the folder show it: no files, no time."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, Stamp
from airflow_provider_ocidist.agent.save.save_order import SaveOrder
from airflow_provider_ocidist.storage.checkpoint_names import place

ONE_NAME = ("best.pt", "last.ckpt", "snapshot.pt")


@dataclass
class Save:
    """One save of a program; its files appear one after the other, at these times."""

    name: str
    begun: int
    parts: list[int]
    proved_at: int
    """When it is proved, at the first look from then on."""
    number: int = 0


@dataclass
class Folder:
    """What lies there at one time, and what is known to be whole."""

    saves: list[Save]
    whole: dict[Path, Signature] = field(default_factory=dict)
    set_back_at: float = math.inf
    set_back_by: int = 0

    def at(self, now: int) -> list[Candidate]:
        latest = {save.name: save for save in self.saves if save.begun <= now}
        return [self._candidate(save, now) for save in latest.values()]

    def look(self, now: int) -> list[Candidate]:
        found = self.at(now)
        for item in found:
            save = next(
                save for save in reversed(self.saves) if save.name == item.path.name and save.begun <= now
            )
            if save.proved_at <= now and len(item.files) == len(save.parts):
                self.whole[item.path] = item.signature
        return found

    def clock(self, now: int) -> int:
        """Return the time by which files are stamped."""
        return now - self.set_back_by if now >= self.set_back_at else now

    def _candidate(self, save: Save, now: int) -> Candidate:
        placed = place(save.name)
        assert placed
        stamps = [(self.clock(when), when) for when in save.parts if when <= now]
        files = tuple((f"part-{at}", Stamp(10, stamp, when)) for at, (stamp, when) in enumerate(stamps))
        return Candidate(
            Path(save.name), placed, Signature(files), min(stamp.modified_ns for _, stamp in files)
        )


def saves_from(dice: random.Random) -> list[Save]:
    """Draw a program: folders of a step whose parts take long, and files of one name that are replaced at once."""
    saves, now = [], 0
    for step in range(1, dice.randint(3, 12)):
        now += dice.randint(1, 40)
        if dice.random() < 0.5:
            parts = [now]
            for _ in range(dice.randint(0, 4)):
                parts.append(parts[-1] + dice.randint(1, 60))
            saves.append(Save(f"checkpoint-{step}", now, parts, parts[-1] + dice.randint(0, 300)))
        else:
            saves.append(Save(dice.choice(ONE_NAME), now, [now], now + dice.randint(0, 300)))
    return saves


@pytest.mark.parametrize("seed", range(200))
def test_what_was_begun_later_is_newer_however_late_others_are_complete_or_proved(seed: int) -> None:
    print("seed", seed)
    assert_order(Folder(saves_from(dice := random.Random(seed))), dice)


@pytest.mark.parametrize("seed", range(200))
def test_a_clock_that_is_set_back_changes_no_order_whichever_saves_a_look_is_the_first_to_see(
    seed: int,
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    folder = Folder(saves_from(dice), set_back_at=dice.randint(1, 300), set_back_by=dice.randint(400, 5000))
    assert_order(folder, dice)


def assert_order(folder: Folder, dice: random.Random) -> None:
    order = SaveOrder(folder.at(0))
    now, known = 0, dict[int, int]()
    while now < 1000:
        now += dice.choice([1, 1, 2, 5, 30, 90])
        clock = folder.clock(now)
        set_back_to = partial(int, clock) if clock != now else None
        order.note(folder.look(now), folder.whole, set_back_to)
        for item in folder.at(now):
            save = max(
                (each for each in folder.saves if each.name == item.path.name and each.begun <= now),
                key=lambda each: each.begun,
            )
            number = order.of(item.path)
            assert known.setdefault(save.begun, number) == number, f"{save.name} has changed its place"
    in_order = [number for _, number in sorted(known.items())]
    assert in_order == sorted(set(in_order))
    assert min(in_order) >= 1


def entry(name: str, *stamps: int) -> Candidate:
    placed = place(name)
    assert placed
    files = tuple((f"part-{at}", Stamp(10, when, when)) for at, when in enumerate(stamps))
    return Candidate(Path(name), placed, Signature(files), min(stamps))


def test_what_lay_there_at_first_is_no_save_and_a_part_that_is_written_anew_begins_one() -> None:
    fetched = entry("checkpoint-5", 1, 2)
    order = SaveOrder([fetched])
    whole = {fetched.path: fetched.signature}
    order.note([fetched], whole)
    assert order.of(fetched.path) == 0
    some = entry("checkpoint-5", 10, 2)
    order.note([some], whole)
    order.note([some, entry("checkpoint-6", 20)], whole)
    # The other part comes while the next one is there already.
    order.note([entry("checkpoint-5", 10, 30), entry("checkpoint-6", 20)], whole)
    assert order.of(Path("checkpoint-5")) == 1 < order.of(Path("checkpoint-6"))


@pytest.mark.parametrize("name, begins", [("checkpoint-5", False), ("best", False), ("checkpoint-5", True)])
def test_a_file_that_is_added_to_a_whole_one_is_no_new_save_and_all_of_them_anew_are(
    name: str, begins: bool
) -> None:
    first = entry(name, 1, 2)
    order = SaveOrder([])
    for _ in range(2):
        order.note([first], {})
    whole = {first.path: first.signature}
    later = entry("checkpoint-6", 5)
    order.note([first, later], whole)
    now = entry(name, 8, 9) if begins else entry(name, 1, 2, 9)
    order.note([now, later], whole)
    is_new = begins or name == "best"
    assert (order.of(first.path) > order.of(later.path)) is is_new


def test_what_is_deleted_and_written_again_is_a_new_save() -> None:
    order = SaveOrder([])
    order.note([entry("checkpoint-5", 1)], {})
    order.note([entry("checkpoint-6", 2)], {})
    order.note([entry("checkpoint-5", 3), entry("checkpoint-6", 2)], {})
    assert order.of(Path("checkpoint-5")) > order.of(Path("checkpoint-6"))
