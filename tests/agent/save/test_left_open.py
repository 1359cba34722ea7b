"""Which files of an entry a process has left open, look by look, of processes that exist in the test alone."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, Stamp
from airflow_provider_ocidist.agent.save.left_open import LeftOpen
from airflow_provider_ocidist.storage.checkpoint_names import Placed

SEED = int(os.environ.get("TEST_SEED", "20261127"))


@dataclass
class Entry:
    """An entry of a checkpoint folder, its files, and the processes that have them open."""

    path: Path
    stamps: dict[str, Stamp] = field(default_factory=dict)
    open: dict[int, set[str]] = field(default_factory=dict)
    """The files that each living process has open for writing."""
    watch: LeftOpen = field(default_factory=LeftOpen)
    clock: int = 0

    @property
    def item(self) -> Candidate:
        return Candidate(self.path, Placed(series="step-#"), Signature(tuple(sorted(self.stamps.items()))), 0)

    def write(self, *names: str) -> None:
        for name in names:
            self.clock += 1
            self.stamps[name] = Stamp(1, self.clock, 7)

    def look(self, *beside: str) -> None:
        files = {pid: {f"{self.path}/{name}" for name in names} for pid, names in self.open.items()}
        self.watch.look(self.item, files, [self.path.parent / name for name in beside])

    def left(self, *followers: str, has_ended: bool = False) -> tuple[str, ...]:
        return self.watch.left_in(
            self.item, [self.path.parent / name for name in followers], has_ended=has_ended
        )

    @property
    def is_known_closed(self) -> bool:
        return self.watch.is_known_closed(self.item)


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    found = Entry(tmp_path / "step-1")
    found.write("model.bin", "optim.bin")
    return found


def test_of_what_was_never_looked_at_nothing_is_known(entry: Entry) -> None:
    assert not entry.is_known_closed
    assert entry.watch.open_in(entry.item) == ()
    assert entry.left() == entry.left(has_ended=True) == ()


def test_what_is_open_is_named_and_is_closed_once_its_writer_lives_without_it(entry: Entry) -> None:
    entry.open = {1: {"optim.bin", "model.bin"}, 2: {"model.bin"}}
    entry.look()
    assert entry.watch.open_in(entry.item) == ("step-1/model.bin", "step-1/optim.bin")
    assert not entry.is_known_closed
    entry.open = {1: set(), 2: set()}
    entry.look()
    assert entry.watch.open_in(entry.item) == ()
    assert entry.is_known_closed
    assert entry.left() == ()
    # What is written since may be open again.
    entry.write("model.bin")
    assert not entry.is_known_closed


def test_files_of_other_entries_are_no_concern_of_this_one(entry: Entry) -> None:
    files = {1: {f"{entry.path}0/model.bin", f"{entry.path.parent}/model.bin"}}
    entry.watch.look(entry.item, files, [])
    assert entry.watch.open_in(entry.item) == ()
    assert entry.is_known_closed


def test_a_file_alone_is_its_own_only_file(tmp_path: Path) -> None:
    entry = Entry(tmp_path / "step-1.pt")
    entry.write("step-1.pt")
    entry.watch.look(entry.item, {1: {str(entry.path)}}, [])
    assert entry.watch.open_in(entry.item) == ("step-1.pt",)
    for _ in range(3):
        entry.watch.look(entry.item, {}, [])
        assert entry.left() == ("step-1.pt",)


def test_what_a_process_had_open_when_it_ended_is_left_though_another_that_had_it_open_too_closes_it(
    entry: Entry,
) -> None:
    entry.open = {1: {"model.bin"}, 2: {"model.bin"}}
    entry.look()
    entry.open = {2: {"model.bin"}}
    entry.look()
    # Who has it open still may write what is missing.
    assert entry.left() == ()
    entry.open = {2: set()}
    entry.look()
    assert entry.left() == ()
    entry.open = {2: {"optim.bin"}}
    entry.look()
    entry.open = {}
    entry.look()
    assert entry.left() == ("step-1/optim.bin",)


@pytest.mark.parametrize("ends", [1, 2])
def test_what_one_of_two_writers_left_is_left_though_the_other_has_closed_it(entry: Entry, ends: int) -> None:
    entry.stamps["deep/x.bin"] = Stamp(1, 1, 7)
    entry.open = {1: {"deep/x.bin"}, 2: {"deep/x.bin"}}
    entry.look()
    entry.open = {3 - ends: set()}
    for _ in range(3):
        entry.look()
        assert entry.left() == ("step-1/deep/x.bin",)


def test_what_was_left_is_looked_at_once_more_for_what_was_written_last_and_stays_left(entry: Entry) -> None:
    entry.open = {1: {"model.bin"}}
    entry.look()
    # It writes once more, and ends.
    entry.write("model.bin")
    entry.open = {}
    entry.look()
    assert entry.left() == ("step-1/model.bin",)
    assert not entry.is_known_closed
    for _ in range(3):
        entry.look()
        assert entry.left() == ("step-1/model.bin",)
        assert entry.is_known_closed


@pytest.mark.parametrize("how", ["written", "opened", "deleted"])
def test_what_another_has_taken_up_since_is_not_left_any_more(entry: Entry, how: str) -> None:
    entry.open = {1: {"model.bin", "optim.bin"}}
    entry.look()
    entry.open = {}
    entry.look()
    entry.look()
    assert entry.left() == ("step-1/model.bin", "step-1/optim.bin")
    if how == "written":
        entry.write("model.bin")
    elif how == "opened":
        entry.open = {2: {"model.bin"}}
    else:
        del entry.stamps["model.bin"]
    entry.look()
    assert entry.left() == ("step-1/optim.bin",)
    entry.open = {2: set()}
    entry.look()
    assert entry.left() == ("step-1/optim.bin",)


def test_a_program_that_goes_on_to_a_later_save_has_left_nothing(entry: Entry) -> None:
    entry.open = {1: {"model.bin"}}
    entry.look("step-1", "step-2")
    entry.open = {}
    entry.look("step-1", "step-2")
    assert entry.left("step-2") == ("step-1/model.bin",), "it was there as the writer ended"
    entry.look("step-1", "step-2", "step-3")
    assert entry.left("step-2", "step-3") == ()
    assert entry.left("step-2") == ("step-1/model.bin",)


def test_at_the_end_of_the_program_what_was_open_at_the_last_look_was_left_open(entry: Entry) -> None:
    entry.open = {1: {"optim.bin"}}
    entry.look()
    entry.open = {2: {"model.bin"}}
    entry.look()
    assert entry.left() == ("step-1/optim.bin",)
    assert entry.left(has_ended=True) == ("step-1/model.bin", "step-1/optim.bin")
    assert entry.left("step-2", has_ended=True) == ("step-1/model.bin",)


def test_what_is_there_no_more_is_forgotten_and_the_rest_is_not(entry: Entry, tmp_path: Path) -> None:
    other = replace(entry, path=tmp_path / "step-2")
    for each in (entry, other):
        each.open = {1: {"model.bin"}}
        each.look()
    entry.watch.keep([other.path])
    assert entry.watch.open_in(entry.item) == ()
    assert entry.watch.open_in(other.item) == ("step-2/model.bin",)


@pytest.mark.parametrize("number", range(20))
def test_whatever_processes_do_what_one_left_half_is_left_until_another_takes_it_up(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    entry, names = Entry(tmp_path / "step-1"), ["a", "b", "c"]
    entry.write(*names)
    entry.open = {pid: set() for pid in range(3)}
    entry.look()
    left: dict[str, int] = {}
    for turn in range(60):
        pid, name = draw.choice(list(entry.open)), draw.choice(names)
        before = {each: set(files) for each, files in entry.open.items()}
        does = draw.choice(["opens", "closes", "writes", "ends", "nothing"])
        if does == "opens":
            entry.open[pid].add(name)
        elif does == "closes":
            entry.open[pid].discard(name)
        elif does == "writes":
            # What is written as its writer ends may be its own last write.
            if left.get(name, 2) > 1:
                entry.write(name)
                left.pop(name, None)
        elif does == "ends":
            del entry.open[pid]
            entry.open[100 + turn] = set()
            left |= dict.fromkeys(before[pid], 0)
        for files in entry.open.values():
            for each in files:
                left.pop(each, None)
        left = {each: looks + 1 for each, looks in left.items()}
        entry.look()
        assert entry.left() == tuple(f"step-1/{each}" for each in sorted(left)), turn
