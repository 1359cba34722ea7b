"""What is said of the entries of the checkpoint folder, look by look; times are set, so that none has to pass."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import pickle
import random
import re
import resource
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_ocidist.agent.save import judging
from airflow_provider_ocidist.agent.save.judging import Judge
from airflow_provider_ocidist.agent.save.proofs import Moment, Proof, Unproved
from airflow_provider_ocidist.agent.save.renames import Renames, why_none_is_seen
from airflow_provider_ocidist.agent.save.shards import is_shard
from tests.agent.save.saved import KINDS, move, torch_bytes

RUNNING, EXITED, CUT_OFF = Moment.RUNNING, Moment.EXITED, Moment.CUT_OFF
SECOND = 10**9
LIKE = "has all files of the one before"
BEGIN = 1_500_000_000 * SECOND


class Saving:
    """A program that saves, a clock of its own, and the judge that looks on."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder = folder
        self.now = BEGIN
        self.said: dict[str, int] = {}
        self.judge = Judge(folder, announced=lambda: self.said, **options)

    def write(self, name: str, data: bytes = b"x", *, at: int | None = None) -> Path:
        """Write a file, a second after the one before or at that second."""
        self.now += SECOND
        when = self.now if at is None else BEGIN + at * SECOND
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(when, when))
        return path

    def save(self, name: str, *files: str, size: int = 10) -> None:
        for file in files:
            self.write(f"{name}/{file}", b"x" * size)

    def look(self, moment: Moment = RUNNING) -> dict[str, Proof | Unproved]:
        return {verdict.item.path.name: verdict.found for verdict in self.judge.look(moment)}

    def settled(self) -> dict[str, Proof | Unproved]:
        """Look twice: what has just been written is passed over the first time."""
        return {**self.look(), **self.look()}

    def proofs(self) -> dict[str, str]:
        return {name: found.by for name, found in self.settled().items() if isinstance(found, Proof)}

    def doubts(self) -> dict[str, str]:
        return {name: found.why for name, found in self.settled().items() if isinstance(found, Unproved)}


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[Saving]:
    (tmp_path / "checkpoints").mkdir()
    found = Saving(tmp_path / "checkpoints")
    yield found
    found.judge.close()


# When is looked


def test_what_lay_there_at_first_is_not_judged_until_it_is_written_to(tmp_path: Path) -> None:
    before = Saving(tmp_path)
    before.write("step-1.dat")
    before.judge.close()
    saving = Saving(tmp_path)
    for moment in Moment:
        assert saving.look(moment) == {}
    saving.write("step-1.dat", b"anew")
    assert saving.look(EXITED) == {"step-1.dat": Proof("the program exited with 0")}


def test_what_changes_from_look_to_look_is_passed_over_while_the_training_runs(saving: Saving) -> None:
    for _ in range(4):
        saving.write("step-1.pt", torch_bytes({"step": 1}))
        assert saving.look() == {}
    assert saving.look() == {"step-1.pt": Proof("format")}


@pytest.mark.parametrize("moment", [EXITED, CUT_OFF])
def test_what_is_there_at_the_end_is_judged_at_once(saving: Saving, moment: Moment) -> None:
    saving.write("step-1.pt", torch_bytes({"step": 1}))
    assert saving.look(moment) == {"step-1.pt": Proof("format")}


def test_what_is_proved_is_said_once_for_each_content_and_what_is_not_each_time(saving: Saving) -> None:
    saving.write("step-1.pt", torch_bytes({"step": 1}))
    saving.write("step-2.dat")
    assert list(saving.settled()) == ["step-1.pt", "step-2.dat"]
    assert list(saving.look()) == ["step-2.dat"]
    saving.write("step-1.pt", torch_bytes({"step": 100}))
    assert list(saving.settled()) == ["step-2.dat", "step-1.pt"]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_that_of_writing(saving: Saving, seed: int) -> None:
    names = [f"step-{number}.pt" for number in range(9)]
    random.Random(seed).shuffle(names)
    for name in names:
        saving.write(name, torch_bytes({"name": name}))
    assert list(saving.look(EXITED)) == names


@pytest.mark.parametrize("folder_ahead, order", [(0, ["late", "early"]), (100, ["early", "late"])])
def test_after_the_clock_was_set_back_the_order_is_still_that_of_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder_ahead: int, order: list[str]
) -> None:
    """`late` bears a time that is still to come, by the clock that stamps the folder: it is from before."""
    saving = Saving(tmp_path, ahead=lambda _: folder_ahead * SECOND)
    with contextlib.closing(saving.judge):
        monkeypatch.setattr(time, "time", lambda: BEGIN / SECOND + 10)
        saving.write("late", at=60)
        saving.write("early", at=5)
        begun = {verdict.item.path.name: verdict.begun for verdict in saving.judge.look(EXITED)}
    assert begun == {name: number for number, name in enumerate(order, start=1)}


def test_only_names_that_the_pattern_fits_are_judged(tmp_path: Path) -> None:
    Saving(tmp_path).write("run-1.dat")
    saving = Saving(tmp_path, pattern=r"run-(?P<step>\d+)\.dat")
    assert saving.look(EXITED) == {}, "it lay there"
    saving.write("run-2.dat")
    saving.write("step-3.dat")
    assert list(saving.look(EXITED)) == ["run-2.dat"]


def test_what_vanishes_while_it_is_read_is_no_error(saving: Saving, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saving.write("step-1.pt", torch_bytes({"step": 1}))
    saving.look()
    read_file = judging.read_file

    def gone(place: Path) -> object:
        path.unlink(missing_ok=True)
        return read_file(place)

    monkeypatch.setattr(judging, "read_file", gone)
    ((name, found),) = saving.look().items()
    assert name == "step-1.pt"
    assert isinstance(found, Unproved)
    assert found.why.startswith("it cannot be read: ")
    assert "step-1.pt" in found.why


def test_a_folder_that_comes_into_being_later_is_watched_too(tmp_path: Path) -> None:
    saving = Saving(tmp_path / "later")
    assert saving.look() == {}
    (tmp_path / "later").mkdir()
    assert saving.judge.renamed() == frozenset()
    saving.write("aside.tmp").rename(tmp_path / "later" / "step-1.dat")
    assert saving.judge.renamed() == {"step-1.dat"}
    assert saving.proofs() == {"step-1.dat": "renamed into place"}
    saving.judge.close()


def test_a_machine_without_a_free_instance_of_inotify_is_named_and_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with no_free_descriptor():
        renames = Renames(tmp_path)
        assert renames.names() == frozenset()
    (tmp_path / "one.tmp").touch()
    (tmp_path / "one.tmp").rename(tmp_path / "step-1.dat")
    assert renames.names() == frozenset()
    (tmp_path / "two.tmp").touch()
    (tmp_path / "two.tmp").rename(tmp_path / "step-2.dat")
    assert renames.names() == {"step-2.dat"}
    (warning,) = caplog.messages
    assert warning.endswith(
        "without inotify: Too many open files (fs.inotify.max_user_instances, or ulimit -n)"
    )
    renames.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOMEM, errno.ENFILE])
def test_a_limit_is_named_for_the_error_that_it_leads_to_alone(number: int) -> None:
    assert why_none_is_seen(OSError(number, "m")).endswith(f"without inotify: {os.strerror(number)}")


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let this process open no file, and so take no instance of inotify."""
    # What an earlier test has left open would be closed meanwhile.
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# What the program says and does


def test_an_entry_is_whole_when_the_program_has_named_it_since_it_was_last_written_to(saving: Saving) -> None:
    saving.save("step-1", "a", "b")
    for early in (1, SECOND, 5 * SECOND):
        saving.said = {"step-1": saving.now - early, "step-2": saving.now + SECOND}
        assert saving.proofs() == {}
    saving.said = {"step-1": saving.now}
    assert saving.proofs() == {"step-1": "announced by the program"}


@pytest.mark.parametrize("ahead, is_whole", [(60, True), (59, False)])
def test_what_the_program_names_counts_also_where_the_clock_of_the_folder_is_ahead(
    tmp_path: Path, ahead: int, is_whole: bool
) -> None:
    saving = Saving(tmp_path, ahead=lambda folder: ahead * SECOND if folder == tmp_path else 0)
    with contextlib.closing(saving.judge):
        saving.write("step-1.dat", at=100)
        saving.said = {"step-1.dat": BEGIN + 40 * SECOND}
        assert bool(saving.proofs()) is is_whole


def test_an_empty_folder_is_not_whole_because_nobody_has_named_it(saving: Saving) -> None:
    (saving.folder / "step-1").mkdir()
    assert saving.doubts() == {"step-1": "it contains no file"}


def test_what_was_renamed_into_place_is_whole_until_it_is_written_to(saving: Saving) -> None:
    saving.write("one.tmp").rename(saving.folder / "step-1.dat")
    saving.save("two.tmp", "a", "b")
    move(saving.folder / "two.tmp", saving.folder / "step-2")
    assert saving.proofs() == {
        "step-1.dat": "renamed into place",
        "step-2": "renamed into place",
    }
    (saving.folder / "step-3.tmp").mkdir()
    saving.write("step-3.tmp/a")
    move(saving.folder / "step-3.tmp", saving.folder / "step-3")
    # Within the folder nobody sees a file that is written over, but by its time.
    moved_at = saving.folder.joinpath("step-3").stat().st_ctime_ns
    os.utime(saving.folder / "step-3" / "a", ns=(moved_at + 1, moved_at + 1))
    assert saving.proofs() == {}
    os.utime(saving.folder / "step-3" / "a", ns=(moved_at, moved_at))
    assert saving.proofs() == {"step-3": "renamed into place"}


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_that_is_moved_into_place_proves_nothing_of_what_it_leads_to(
    saving: Saving, link: Callable[[Path, Path], None]
) -> None:
    half = saving.write("step-1.dat")
    link(half, saving.folder / "link.tmp")
    saving.folder.joinpath("link.tmp").rename(saving.folder / "last.bin")
    found = saving.look(CUT_OFF)
    assert {name: type(each) for name, each in found.items()} == {
        "step-1.dat": Unproved,
        "last.bin": Unproved,
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_folder_that_was_moved_once_and_is_saved_over_file_by_file_is_not_renamed(
    saving: Saving, seed: int
) -> None:
    dice = random.Random(seed)
    files = ["model.bin", "optimizer.bin", "shards/rank0.bin", "shards/rank1.bin"]
    for name in files:
        saving.write(f"last.tmp/{name}", b"first")
    move(saving.folder / "last.tmp", saving.folder / "last")
    looks_between = dice.random() < 0.5
    if looks_between:
        assert saving.proofs() == {"last": "renamed into place"}
    dice.shuffle(files)
    begun = files[: dice.randint(1, len(files) - 1)]
    for name in begun:
        # Each file of its own is whole: it is written aside, in the entry or above it, and then replaced.
        aside = saving.write(dice.choice([f"last/{name}.new", "part.new"]), b"second")
        stamp = dice.choice([BEGIN, saving.now])
        os.utime(aside, ns=(stamp, stamp))
        aside.replace(saving.folder / "last" / name)
    if dice.random() < 0.3:
        saving.folder.joinpath("last").chmod(0o750)
    found = saving.look(CUT_OFF)
    assert isinstance(found["last"], Unproved), begun


@pytest.mark.parametrize("within", ["", "shards/"])
def test_what_was_created_and_deleted_in_a_folder_since_it_was_moved_leaves_no_rename(
    saving: Saving, within: str
) -> None:
    saving.write(f"last.tmp/{within}a")
    move(saving.folder / "last.tmp", saving.folder / "last")
    (saving.folder / "last" / f"{within}lock").touch()
    (saving.folder / "last" / f"{within}lock").unlink()
    assert saving.proofs() == {}


def test_a_successor_shows_nothing_of_a_save_over_another_that_has_not_replaced_all_of_it(
    saving: Saving,
) -> None:
    saving.save("step-5", "a.bin", "b.bin")
    saving.said = {"step-5": saving.now}
    assert saving.proofs() == {"step-5": "announced by the program"}
    saving.said = {}
    saving.write("step-5/a.bin", b"of a later save")
    saving.write("step-6/a.bin")
    assert saving.proofs() == {}
    saving.write("step-5/b.bin", b"of a later save")
    saving.write("step-7/a.bin")
    assert "step-5" in saving.proofs()


def test_a_folder_that_vanishes_while_it_is_judged_is_no_error(tmp_path: Path) -> None:
    def announced() -> dict[str, int]:
        shutil.rmtree(tmp_path / "step-1", ignore_errors=True)
        return {}

    saving = Saving(tmp_path)
    saving.judge.announced = announced
    saving.write("aside.tmp/a")
    move(tmp_path / "aside.tmp", tmp_path / "step-1")
    assert [type(found) for found in saving.look(CUT_OFF).values()] == [Unproved]
    saving.judge.close()


def test_who_looks_no_more_holds_nothing_open(saving: Saving) -> None:
    saving.judge.close()
    assert saving.judge._renames._queue is None
    assert saving.judge.renamed() == frozenset()


def test_what_does_not_change_is_read_once(saving: Saving, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    for verb in ("read_file", "read_folder"):

        def noted(path: Path, *more: object, real: object = getattr(judging, verb)) -> object:
            read.append(path.name)
            return real(path, *more)

        monkeypatch.setattr(judging, verb, noted)
    saving.write("step-1.dat")
    saving.save("step-2", "a")
    for _ in range(3):
        assert len(saving.settled()) == 2
    assert sorted(read) == ["step-1.dat", "step-2"]
    saving.write("step-1.dat", b"more")
    saving.settled()
    assert sorted(read) == ["step-1.dat", "step-1.dat", "step-2"]


def test_the_next_one_of_its_kind_shows_that_a_folder_was_left(saving: Saving) -> None:
    saving.save("step-1", "a", "b")
    assert saving.proofs() == {}
    saving.save("step-2", "a")
    assert saving.proofs() == {"step-1": "its successor was begun"}


@pytest.mark.parametrize(
    "other, at",
    [("step-1", 9), ("step-4", 9), ("step-05", 9), ("epoch-6", 9), ("best", 9), ("step-6", 2), ("step-6", 3)],
    ids=["earlier", "before", "same number", "another kind", "no number", "begun before", "begun with it"],
)
def test_what_is_not_begun_after_it_shows_nothing(saving: Saving, other: str, at: int) -> None:
    saving.write("step-5/a", at=2)
    saving.write("step-5/b", at=3)
    saving.write(f"{other}/a", at=at)
    assert "step-5" not in saving.proofs()


@pytest.mark.parametrize("way", ["saved here", "seen with it", "renamed into place", "written to since"])
def test_one_that_came_later_follows_whatever_times_its_files_keep(tmp_path: Path, way: str) -> None:
    """As a copied tokenizer, which keeps the time of its origin."""
    doubts = ["node 3 may still write to it"]
    saving = Saving(tmp_path, far=lambda _: doubts[0] if doubts else None)
    with contextlib.closing(saving.judge):
        saving.save("step-1", "a", "b")
        if way != "seen with it":
            saving.settled()
        name = "step-2.tmp" if way == "renamed into place" else "step-2"
        saving.write(f"{name}/tokenizer.json", at=-100)
        if way == "renamed into place":
            move(saving.folder / name, saving.folder / "step-2")
        if way == "saved here":
            assert saving.doubts()["step-1"] == doubts[0]
        else:
            saving.settled()
        doubts.clear()
        if way == "written to since":
            saving.write("step-1/b", b"y", at=2)
        proved = saving.proofs().get("step-1")
        assert proved == ("its successor was begun" if way == "saved here" else None)


@pytest.mark.parametrize("name", ["last", "best"])
def test_a_folder_without_a_number_follows_nothing_and_is_followed_by_nothing(
    saving: Saving, name: str
) -> None:
    saving.write(f"{name}/a", at=1)
    saving.write("step-1/a", at=2)
    saving.write("last-v2/a", at=3)
    assert saving.proofs() == {}


# What the whole one before had


def first_whole(saving: Saving, name: str = "step-1", *files: str) -> None:
    """Save a folder, and let the program say that it is whole."""
    saving.save(name, *(files or ("a.bin", "b.bin")))
    saving.said = {name: saving.now}
    assert list(saving.proofs()) == [name]
    saving.said = {}


def test_the_next_is_whole_once_it_has_all_files_of_the_one_before(saving: Saving) -> None:
    first_whole(saving)
    saving.save("step-2", "b.bin")
    assert saving.doubts() == {"step-2": "it lacks a.bin, which the whole one before has"}
    saving.save("step-2", "a.bin")
    assert saving.proofs() == {"step-2": "has all files of the one before"}
    saving.save("step-3", "a.bin", "b.bin", "c.bin")
    assert saving.doubts() == {"step-3": "nothing shows that the program had written all of it"}


def test_a_file_of_another_size_has_to_be_proved_by_its_own_format(saving: Saving) -> None:
    first_whole(saving)
    saving.save("step-2", "a.bin")
    saving.save("step-2", "b.bin", size=9)
    assert saving.proofs() == {}
    saving.write("step-2/b.bin", torch_bytes({"step": 2}))
    assert saving.proofs() == {"step-2": "has all files of the one before"}


def test_a_file_alone_is_whole_at_the_size_of_the_one_before(saving: Saving) -> None:
    saving.write("step-1.dat", b"x" * 50)
    saving.said = {"step-1.dat": saving.now}
    assert list(saving.proofs()) == ["step-1.dat"]
    saving.write("step-2.dat", b"x" * 30)
    assert saving.doubts() == {"step-2.dat": "nothing shows that the program had written all of it"}
    saving.write("step-2.dat", b"y" * 50)
    assert saving.proofs() == {"step-2.dat": "has all files of the one before"}


def test_another_kind_is_not_measured_by_this_one(saving: Saving) -> None:
    first_whole(saving)
    saving.save("epoch-2", "a.bin", "b.bin")
    assert saving.doubts() == {"epoch-2": "nothing shows that the program had written all of it"}


@pytest.mark.parametrize(
    "names",
    [
        lambda step: [f"model_{step}.bin", f"optimizer-{step:06}.bin"],
        lambda step: [f"shard_{rank}.bin" for rank in range(4)],
        lambda step: [f"model_{step}.bin"] + [f"of_{step}_{rank}.bin" for rank in range(20, 23)],
    ],
    ids=["of the step", "of ranks", "of both"],
)
def test_numbers_in_the_names_of_files_are_those_of_steps_or_of_ranks(saving: Saving, names: object) -> None:
    first_whole(saving, "step-1", *names(1))
    for step in (2, 3, 100):
        *some, last = names(step)
        saving.save(f"step-{step}", *some)
        assert re.match(r"it lacks .*\.bin, which the whole one before has", saving.doubts()[f"step-{step}"])
        saving.save(f"step-{step}", last)
        assert saving.proofs() == {f"step-{step}": "has all files of the one before"}


def test_a_number_within_a_longer_one_is_not_that_of_the_step(saving: Saving) -> None:
    first_whole(saving, "step-1", "part-10.bin", "part-21.bin")
    saving.save("step-2", "part-20.bin", "part-22.bin")
    assert saving.proofs() == {}


def test_what_is_missing_is_named_without_the_number_of_the_step(saving: Saving) -> None:
    first_whole(saving, "step-1", "model_1.bin", "optimizer-000001.bin")
    saving.save("step-20", "model_20.bin")
    assert saving.doubts() == {"step-20": "it lacks optimizer-#.bin, which the whole one before has"}


def test_files_of_the_step_may_differ_in_size_where_their_format_proves_them(saving: Saving) -> None:
    first_whole(saving, "step-1", "model_1.bin", "other_1.bin")
    saving.save("step-2", "other_2.bin")
    saving.write("step-2/model_2.bin", torch_bytes({"step": 2}))
    assert saving.proofs() == {"step-2": "has all files of the one before"}


@pytest.mark.parametrize("kind", ["sharded trainer", "trainer with deepspeed", "zero 3", "deepspeed"])
def test_what_its_format_proves_lacks_nothing_though_ranks_have_the_numbers_of_steps(
    saving: Saving, kind: str
) -> None:
    for step in (1, 2, 3, 1):
        save = KINDS[kind](step, random.Random(step))
        if step == 1:
            shutil.rmtree(saving.folder / save.name, ignore_errors=True)
        for name, data in save.files:
            saving.write(name, data)
        assert saving.proofs() == {save.name: "format"}


@pytest.mark.parametrize("seed", range(10))
def test_a_file_of_a_rank_is_missed_by_its_name_though_ranks_have_the_numbers_of_steps(
    saving: Saving, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    names = {
        step: [f"global_step{step}/zero_pp_rank_{rank}.dat" for rank in range(4)] + [f"model_{step}.dat"]
        for step in dice.sample(range(5), 3)
    }
    first, *later = names
    first_whole(saving, f"checkpoint-{first}", *names[first])
    for step in later:
        missing = dice.choice(names[step][:-1])
        saving.save(f"checkpoint-{step}", *(name for name in names[step] if name != missing))
        hashed = missing.replace(f"global_step{step}", "global_step#")
        assert saving.doubts()[f"checkpoint-{step}"] == f"it lacks {hashed}, which the whole one before has"
        saving.save(f"checkpoint-{step}", missing)
        assert saving.proofs() == {f"checkpoint-{step}": "has all files of the one before"}


def test_a_file_is_proved_by_its_format_though_the_one_before_was_a_folder(saving: Saving) -> None:
    first_whole(saving, "step-1", "a.bin", "b.bin")
    saving.write("step-2", torch_bytes({"step": 2}))
    assert saving.proofs() == {"step-2": "format"}


def test_a_whole_one_to_which_a_file_is_added_is_no_mixture(saving: Saving) -> None:
    first_whole(saving, "step-1", "a.bin", "b.bin")
    saving.save("step-1", "c.bin")
    assert saving.settled() == {"step-1": Unproved("nothing shows that the program had written all of it")}


# A name that is written over


def test_a_folder_in_place_of_the_last_is_whole_once_each_file_is_new_and_whole_by_its_format(
    saving: Saving,
) -> None:
    names = ["a.bin", "b.bin", "c.bin"]

    def write(file: str, number: int) -> None:
        saving.write(f"state/{file}", torch_bytes({"number": number, "file": file}))

    for file in names:
        write(file, 1)
    assert saving.proofs() == {}, "nothing shows which files belong to it"
    for number in (2, 3):
        for file in names[:-1]:
            write(file, number)
            (doubt,) = saving.settled().values()
            assert isinstance(doubt, Unproved)
        write(names[-1], number)
        assert saving.proofs() == {"state": "has all files of the one before"}


def test_while_files_of_two_saves_lie_side_by_side_it_is_said(saving: Saving) -> None:
    first_whole(saving, "state", "a.bin", "b.bin")
    saving.save("state", "b.bin")
    (doubt,) = saving.settled().values()
    assert doubt == Unproved("its file a.bin belongs to an earlier save than the others", mixed=True)
    saving.save("state", "a.bin")
    (doubt,) = saving.settled().values()
    assert isinstance(doubt, Unproved)
    assert not doubt.mixed


def test_sizes_prove_nothing_of_what_is_written_over(saving: Saving) -> None:
    first_whole(saving, "state", "a.bin", "b.bin")
    saving.save("state", "a.bin", "b.bin")
    assert saving.proofs() == {}


def test_settings_that_are_written_twice_show_no_end_of_a_save(saving: Saving) -> None:
    saving.write("state/config.json", b"{}")
    saving.write("state/a.bin", torch_bytes({"a": 1}))
    assert saving.proofs() == {}
    saving.write("state/config.json", b'{"b": 1}')
    assert saving.proofs() == {}
    saving.write("state/a.bin", torch_bytes({"a": 2}))
    saving.write("state/config.json", b'{"b": 2}')
    assert saving.proofs() == {"state": "has all files of the one before"}


def test_a_file_that_comes_after_settings_were_written_twice_belongs_to_the_save(saving: Saving) -> None:
    for number in (1, 2):
        saving.write("state/config.json", b'{"number": %d}' % number)
        saving.write("state/a.bin", torch_bytes({"a": number}))
        assert saving.proofs() == {}
        saving.write("state/config.json", b'{"number": %d, "more": 1}' % number)
        assert saving.proofs() == {}
        saving.write("state/b.bin", torch_bytes({"b": number}))
        assert saving.proofs() == ({} if number == 1 else {"state": "has all files of the one before"})


def test_a_file_that_is_written_twice_in_one_save_of_a_step_shows_no_end_of_it(saving: Saving) -> None:
    for number in (1, 2, 3):
        saving.write("step-5/a.bin", torch_bytes({"a": number}))
        assert saving.proofs() == {}


def test_what_was_broken_shows_no_end_of_a_save(saving: Saving) -> None:
    whole = torch_bytes({"a": 1})
    saving.write("state/a.bin", whole)
    saving.write("state/b.bin", whole[:-20])
    assert saving.proofs() == {}
    saving.write("state/b.bin", whole)
    assert saving.proofs() == {}
    saving.write("state/a.bin", torch_bytes({"a": 2}))
    assert saving.proofs() == {}


# What formats and processes say


def test_a_folder_whose_format_is_whole_may_still_lack_what_the_one_before_had(saving: Saving) -> None:
    for step in (100, 200):
        save = KINDS["trainer"](step, random.Random(step))
        extra = (f"checkpoint-{step}/extra.bin", torch_bytes({"mine": step}))
        files = [extra, *save.files]
        for name, data in files if step == 100 else files[1:]:
            saving.write(name, data)
        if step == 100:
            assert saving.proofs() == {"checkpoint-100": "format"}
    assert saving.doubts() == {"checkpoint-200": "it lacks extra.bin, which the whole one before has"}
    saving.write(*extra, at=1)
    assert saving.proofs() == {"checkpoint-200": "format"}


def test_deepspeed_may_name_it_as_the_latest_after_it_was_looked_at(saving: Saving) -> None:
    save = KINDS["deepspeed"](8, random.Random(8))
    for name, data in save.files[:-1]:
        saving.write(name, data)
    assert list(saving.doubts()) == ["global_step8"]
    saving.write(*save.files[-1])
    assert saving.proofs() == {"global_step8": "format"}


@pytest.mark.parametrize("elsewhere", [{}, {"elsewhere": is_shard}], ids=["one node", "several"])
def test_parts_of_other_nodes_are_missed_where_there_are_none(
    tmp_path: Path, elsewhere: Mapping[str, object]
) -> None:
    saving = Saving(tmp_path, **elsewhere)
    save = KINDS["deepspeed"](8, random.Random(8))
    for name, data in save.files:
        if "rank_2" not in name:
            saving.write(name, data)
    (found,) = saving.settled().values()
    assert isinstance(found, Proof) == bool(elsewhere)
    saving.judge.close()


ANYONE = 7
"""The number of a process."""


def test_what_is_open_for_writing_is_not_whole_and_is_looked_for_until_it_is_seen_closed(
    saving: Saving, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    held: set[str] = set()

    def search() -> dict[int, frozenset[str]]:
        searches.append(1)
        return {ANYONE: frozenset(held)}

    monkeypatch.setattr(judging, "files_by_writer", search)
    saving.save("step-1", "a", "b")
    for _ in range(5):
        saving.doubts()
    assert len(searches) == 1, "nobody has it open, and nothing proves it"
    held.add(str(saving.folder.resolve() / "step-1" / "b"))
    saving.said = {"step-1": saving.now}
    assert saving.doubts() == {"step-1": "step-1/b is still open for writing"}
    assert len(searches) == 3, "one for each look"
    held.clear()
    assert saving.look() == {"step-1": Proof("announced by the program")}


@pytest.mark.parametrize("moment", [EXITED, CUT_OFF])
@pytest.mark.parametrize("changes", [False, True])
def test_what_was_open_when_the_program_was_cut_off_is_half_written_though_its_successor_was_begun(
    saving: Saving, monkeypatch: pytest.MonkeyPatch, moment: Moment, changes: bool
) -> None:
    held = {str(saving.folder.resolve() / "step-1" / "b")}
    monkeypatch.setattr(judging, "files_by_writer", lambda: {ANYONE: frozenset(held)})
    saving.save("step-1", "a", "b")
    saving.save("step-2", "a")
    if changes:
        saving.look()
        saving.write("step-1/b", b"more", at=2)
        assert "step-1" not in saving.look()
    else:
        assert saving.doubts()["step-1"] == "step-1/b is still open for writing"
    held.clear()
    found = saving.look(moment)["step-1"]
    assert isinstance(found, Proof) == (moment is EXITED)


@pytest.mark.parametrize("dropped", ["step-1", "step-2", None])
def test_of_what_is_deleted_in_part_the_rest_counts_once_the_program_has_ended_and_it_was_not_sent(
    saving: Saving, dropped: str | None
) -> None:
    saving.save("step-1", "a.bin", "b.bin")
    saving.said = {"step-1": saving.now}
    assert list(saving.proofs()) == ["step-1"]
    (saving.folder / "step-1" / "b.bin").unlink()
    if dropped:
        saving.judge.note_dropped(saving.folder / dropped)
    assert saving.settled() == {}, "the program may just be deleting the rest too"
    assert list(saving.look(EXITED)) == (["step-1"] if dropped == "step-1" else [])


@pytest.mark.parametrize("moment", [EXITED, CUT_OFF])
def test_after_the_end_of_the_training_nobody_writes(
    saving: Saving, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    monkeypatch.setattr(judging, "files_by_writer", lambda: 1 / 0)
    saving.write("step-1.pt", torch_bytes({"step": 1}))
    assert saving.look(moment) == {"step-1.pt": Proof("format")}


WRITER = """
import os, sys

size = int(sys.argv[2])
file = open(sys.argv[1], "wb", buffering=0)
file.write(b"0" * size)
for number, line in enumerate(sys.stdin):
    if line == "close\\n":
        file.close()
    else:
        file.seek(number)
        file.write(b"1")
    print("done", flush=True)
"""


class Writer:
    """A process of the training that gives a file its full size, and then writes its content bit by bit."""

    def __init__(self, path: Path, size: int) -> None:
        command = [sys.executable, "-c", WRITER, str(path), str(size)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.do("write")

    def do(self, what: str) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{what}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"

    def die(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def writer(saving: Saving) -> Iterator[Writer]:
    """Return the writer of a checkpoint that has the size of the whole one before from the start."""
    saving.write("step-1.dat", b"x" * 5000)
    saving.said = {"step-1.dat": saving.now}
    assert list(saving.proofs()) == ["step-1.dat"]
    found = Writer(saving.folder / "step-2.dat", 5000)
    yield found
    found.die()


@pytest.mark.parametrize("looks", [1, 3])
def test_what_has_its_full_size_early_and_was_written_to_until_a_kill_is_not_whole(
    saving: Saving, writer: Writer, looks: int
) -> None:
    for _ in range(looks):
        assert saving.look() == {}
        writer.do("write")
    writer.die()
    assert saving.look(CUT_OFF) == {
        "step-2.dat": Unproved("a process ended while it had step-2.dat open for writing")
    }


@pytest.mark.parametrize("rests", [False, True])
def test_a_writer_that_dies_leaves_half_however_long_the_training_goes_on(
    saving: Saving, writer: Writer, rests: bool
) -> None:
    saving.look()
    if rests:
        assert saving.doubts() == {"step-2.dat": "step-2.dat is still open for writing"}
    writer.do("write")
    writer.die()
    for _ in range(4):
        assert saving.proofs() == {}
    assert isinstance(saving.look(CUT_OFF)["step-2.dat"], Unproved)
    saving.write("step-2.dat", b"y" * 5000)
    assert saving.proofs() == {"step-2.dat": "has all files of the one before"}


def test_a_writer_that_died_was_no_fault_if_the_program_goes_on_to_the_next_save(
    saving: Saving, writer: Writer
) -> None:
    # As one that starts a process for each save, which ends with it.
    saving.look()
    writer.die()
    assert saving.proofs() == {}
    saving.now = time.time_ns()
    saving.write("step-3.dat", b"z")
    assert saving.proofs() == {"step-2.dat": "its successor was begun"}


@pytest.mark.parametrize("ends", [False, True])
def test_what_its_writer_has_closed_is_whole_also_when_that_ends_later(
    saving: Saving, writer: Writer, ends: bool
) -> None:
    for _ in range(2):
        saving.look()
        writer.do("write")
    writer.do("close")
    saving.look()
    if ends:
        writer.die()
    assert saving.proofs() == {"step-2.dat": "has all files of the one before"}


@pytest.mark.parametrize("name", ["step-2.npy", "step-2.safetensors", "step-2.pt"])
def test_a_length_alone_proves_nothing_of_a_file_whose_writer_died(saving: Saving, name: str) -> None:
    data = {
        "step-2.npy": b"\x93NUMPY\x01\x00\x46\x00"
        + b"{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }".ljust(69)
        + b"\n"
        + b"0" * 36,
        "step-2.safetensors": (2).to_bytes(8, "little") + b"{}",
        "step-2.pt": torch_bytes({"step": 2}),
    }[name]
    path = saving.write(name, data)
    holds = f"file = open({str(path)!r}, 'r+b'); print('open', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.readline()
    assert saving.doubts() == {name: f"{name} is still open for writing"}
    process.kill()
    process.communicate()
    # The end of an archive is written last.
    assert isinstance(saving.look()[name], Proof) == name.endswith(".pt")


def test_of_a_file_alone_its_format_is_enough(saving: Saving) -> None:
    saving.write("snapshot.pt", torch_bytes({"step": 1}))
    assert saving.proofs() == {"snapshot.pt": "format"}
    saving.write("snapshot.pt", torch_bytes({"step": 2})[:-9])
    (found,) = saving.settled().values()
    assert isinstance(found, Unproved)
    assert found.broken
    saving.write("snapshot.pt", torch_bytes({"step": 2}))
    assert saving.proofs() == {"snapshot.pt": "format"}


# Ends that an exception may have written


class Unreadable:
    """What a program cannot save."""

    def __array__(self, *_: object, **__: object) -> object:
        raise RuntimeError("this array cannot be read")

    def __reduce__(self) -> str:
        raise RuntimeError("this object cannot be read")


def archive_of(*values: object) -> bytes:
    """Return what a program leaves that goes on after an exception in the midst of `numpy.savez`."""
    buffer = io.BytesIO()
    with contextlib.suppress(RuntimeError):
        np.savez(buffer, *values)
    return buffer.getvalue()


def pickles_of(*values: object) -> bytes:
    """Return several pickles in one file, which a program may read one by one."""
    buffer = io.BytesIO()
    for value in values:
        if isinstance(value, Unreadable):
            break
        pickle.dump(value, buffer)
    return buffer.getvalue()


ENDLESS = {"npz": archive_of, "pkl": pickles_of}


def array(size: int) -> object:
    return np.arange(size)


@pytest.mark.parametrize("ending", ENDLESS)
def test_an_end_that_an_exception_may_have_written_proves_nothing_until_the_program_has_exited_with_0(
    saving: Saving, ending: str
) -> None:
    name = f"step-1.{ending}"
    saving.write(name, ENDLESS[ending](array(3), Unreadable(), array(3)))
    for _ in range(3):
        assert saving.proofs() == {}
    assert isinstance(saving.look(CUT_OFF)[name], Unproved)
    assert saving.look(EXITED) == {name: Proof("the program exited with 0")}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ending", ENDLESS)
@pytest.mark.parametrize("named", ["step-{}.{}", "state.{1}"])
def test_such_a_file_is_whole_with_all_that_the_one_before_consists_of(
    saving: Saving, named: str, ending: str, seed: int
) -> None:
    dice = random.Random(seed)
    count, at_once = dice.randint(2, 4), named.startswith("state")
    for number in range(1, 7):
        name = named.format(number, ending)
        arrays = [array(dice.randint(1, 300)) for _ in range(count)]
        is_half = number > 2 and dice.random() < 0.5
        if is_half:
            arrays[dice.randrange(1, count)] = Unreadable()
        saving.write(name, ENDLESS[ending](*arrays))
        proofs = saving.proofs()
        if number == 1:
            assert proofs == {}, "nothing shows what belongs to it"
        elif number == 2 and not at_once:
            assert proofs == {
                "step-1." + ending: "its successor was begun",
                name: "has all files of the one before",
            }
        else:
            assert proofs == ({} if is_half else {name: "has all files of the one before"})
    assert isinstance(saving.look(CUT_OFF).get(name, Proof("")), Unproved) == is_half


@pytest.mark.parametrize("ending", ENDLESS)
def test_such_a_file_in_a_folder_is_no_whole_file_of_it_either(saving: Saving, ending: str) -> None:
    parts = ENDLESS[ending]
    saving.write("step-1/a.dat", b"x" * 9)
    saving.write(f"step-1/b.{ending}", parts(array(3), array(300)))
    saving.said = {"step-1": saving.now}
    assert list(saving.proofs()) == ["step-1"]
    saving.write("step-2/a.dat", b"x" * 9)
    saving.write(f"step-2/b.{ending}", parts(array(4), Unreadable()))
    assert saving.proofs() == {}
    saving.write(f"step-2/b.{ending}", parts(array(4), array(250)))
    assert saving.proofs() == {"step-2": "has all files of the one before"}


def test_what_pauses_between_two_pickles_is_one_save(saving: Saving) -> None:
    for number in (1, 2, 3):
        for count in (1, 2, 3):
            saving.write("state.pkl", pickles_of(*[number] * count))
            is_whole = number > 1 and count == 3
            assert saving.proofs() == ({"state.pkl": "has all files of the one before"} if is_whole else {})


# Programs that go on after the error of a save


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("first", ["announced", "fetched"])
def test_the_next_save_proves_nothing_of_one_with_less_than_the_whole_one_before(
    tmp_path: Path, seed: int, first: str
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    sizes = {f"{name}.bin": dice.randint(2, 9000) for name in ("model", "optimizer", "scheduler")}
    place = dice.choice(["checkpoint-{}/", "checkpoint-{}/deep/"])
    cut = dice.choice(list(sizes))
    kept = dice.choice([None, 0, 1, sizes[cut] - 1, dice.randrange(sizes[cut])])

    def save(saving: Saving, step: int, there: Mapping[str, int | None]) -> None:
        for name, size in there.items():
            if size is not None:
                saving.write(place.format(step) + name, b"x" * size)

    saving = Saving(tmp_path)
    save(saving, 50, sizes)
    if first == "fetched":
        saving.judge.close()
        now, saving = saving.now, Saving(tmp_path)
        saving.now = now
    else:
        saving.said = {"checkpoint-50": saving.now}
        assert list(saving.proofs()) == ["checkpoint-50"]
    save(saving, 100, {**sizes, cut: kept})
    save(saving, 200, sizes)
    assert "checkpoint-100" not in saving.proofs()
    save(saving, 300, sizes)
    assert "checkpoint-100" not in saving.proofs()
    found = saving.look(CUT_OFF)
    assert isinstance(found["checkpoint-100"], Unproved)
    assert "checkpoint-200" not in found, "it is whole"
    saving.judge.close()


def test_what_a_program_keeps_makes_no_later_look_dearer(saving: Saving) -> None:
    for step in range(40):
        saving.write(f"step-{step}.pt", torch_bytes({"step": step}))
        assert saving.proofs() == {f"step-{step}.pt": "format"}
    # The square of the saves would be 1600.
    assert sum(map(len, saving.judge._begun_beside.values())) <= 40


def test_a_file_that_was_once_as_small_in_a_whole_one_is_not_smaller(saving: Saving) -> None:
    for step, size in enumerate([100, 90, 120, 95], 1):
        saving.save(f"step-{step}", "a.bin", size=size)
        if step < 3:
            saving.said = {f"step-{step}": saving.now}
            assert list(saving.proofs()) == [f"step-{step}"]
    saving.save("step-5", "a.bin", size=80)
    saving.save("step-6", "a.bin", size=200)
    assert saving.proofs() == dict.fromkeys(["step-3", "step-4"], "its successor was begun")
    assert saving.doubts() == {
        "step-5": "a.bin is smaller than in the whole one before, or missing",
        "step-6": "nothing shows that the program had written all of it",
    }


def test_an_archive_that_the_whole_one_before_did_not_have_lacks_none_of_its_members(saving: Saving) -> None:
    saving.write("step-1/a.npz", archive_bytes("weights", "bias"))
    saving.said = {"step-1": saving.now}
    assert list(saving.proofs()) == ["step-1"]
    for step in (2, 3):
        saving.write(f"step-{step}/a.npz", archive_bytes("weights", "bias"))
        saving.write(f"step-{step}/b.npz", archive_bytes("moments"))
    assert saving.proofs()["step-2"] == "its successor was begun"


def test_what_the_program_goes_on_from_shows_what_a_later_one_lacks(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "a.npz").write_bytes(archive_bytes("weights", "bias"))
    saving = Saving(tmp_path)
    with contextlib.closing(saving.judge):
        saving.now = BEGIN + 100 * SECOND
        # Not by their size.
        for step in (2, 3):
            saving.write(f"step-{step}/a.npz", archive_bytes("weights", "a" * 500))
        doubts = saving.doubts()
    assert doubts["step-2"] == "a.npz is smaller than in the whole one before, or missing"


def archive_bytes(*members: str) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w") as archive:
        for name in members:
            archive.writestr(f"{name}.npy", name)
    return kept.getvalue()


def test_a_smaller_file_is_whole_where_its_format_shows_it(saving: Saving) -> None:
    saving.write("step-1/a.bin", torch_bytes({"step": list(range(1000))}))
    saving.save("step-1", "b.dat")
    saving.said = {"step-1": saving.now}
    assert list(saving.proofs()) == ["step-1"]
    saving.write("step-2/a.bin", torch_bytes({}))
    saving.save("step-2", "b.dat", size=11)
    assert saving.proofs() == {}
    saving.save("step-3", "a.bin")
    assert saving.proofs() == {"step-2": "its successor was begun"}


def test_parts_of_other_nodes_that_were_fetched_too_are_not_missed(tmp_path: Path) -> None:
    names = ["mp_rank_00/model_optim_rng.dat", "mp_rank_01/model_optim_rng.dat"]
    before = Saving(tmp_path)
    before.save("iter_0000001", *names)
    before.judge.close()
    saving = Saving(tmp_path, elsewhere=is_shard)
    saving.now = BEGIN + 100 * SECOND
    for step in (2, 3):
        saving.save(f"iter_000000{step}", names[0])
    assert saving.proofs() == {"iter_0000002": "its successor was begun", "iter_0000003": LIKE}
    saving.judge.close()


def test_an_archive_that_cannot_be_unpacked_keeps_no_other_entry_from_being_judged(tmp_path: Path) -> None:
    judge = Judge(tmp_path)
    odd = tmp_path / "global_step5" / "mp_rank_00_model_states.pt"
    odd.parent.mkdir()
    with zipfile.ZipFile(odd, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", random.Random(1).randbytes(100) + b"x" * 5000)
    # Its directory, which shows its end, is as it was.
    content = bytearray(odd.read_bytes())
    content[60:110] = bytes(each ^ 255 for each in content[60:110])
    odd.write_bytes(content)
    (tmp_path / "step-6.bin").write_bytes(b"weights")
    assert {verdict.item.path.name for verdict in judge.look(Moment.CUT_OFF)} == {
        "global_step5",
        "step-6.bin",
    }
    proved = {verdict.item.path.name: verdict.found for verdict in judge.look(Moment.EXITED)}
    assert all(isinstance(found, Proof) for found in proved.values())
    assert proved.keys() == {"global_step5", "step-6.bin"}
