"""What is published while a program trains, and what when it has ended."""

from __future__ import annotations

import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import judging, saving, uploads
from airflow_provider_ocidist.agent.save.entries import candidates, is_unplaced
from airflow_provider_ocidist.agent.save.file_clocks import ahead_ns, nearest_to_none
from airflow_provider_ocidist.agent.save.formats import FormatResult, Reading
from airflow_provider_ocidist.agent.save.judging import Judge
from airflow_provider_ocidist.agent.save.proofs import Evidence, Moment, Proof, judge
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.storage.checkpoint_names import POINTERS
from airflow_provider_ocidist.storage.checkpoints import newest
from tests.agent.gangs import until
from tests.agent.save.saved import KINDS, PROVED_BY_FORMAT, move, some_state, torch_bytes
from tests.agent.save.watched import Watched


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.02)
    monkeypatch.setattr(uploads, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 1.0)
    monkeypatch.setattr(uploads, "ABORT_WITHIN", 0.05)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.end()


# What proves that an entry is whole


def test_what_was_renamed_into_place_is_published_with_its_loss(watched: Watched) -> None:
    watched.start()
    watched.write(5)
    until(lambda: watched.published)
    found = newest(str(watched.target))
    assert found
    assert (found.step, found.loss) == (5, 0.5)
    assert watched.manifest()["proof"] == "renamed into place"


def test_a_folder_that_was_renamed_and_then_written_to_waits_for_another_proof(watched: Watched) -> None:
    watched.start()
    place = watched.begin(5, "part-0").rename(watched.folder / "step-6")
    (place / "part-1").write_text("more")
    watched.looks()
    assert watched.published == []


def test_a_folder_without_a_proof_waits_until_its_successor_is_begun(watched: Watched) -> None:
    watched.start()
    watched.begin(5, "part-0", "part-1")
    watched.looks(10)
    assert watched.published == []
    watched.begin(6, "part-0")
    until(lambda: watched.steps == [5])
    assert watched.manifest()["proof"] == "its successor was begun"


def test_the_next_folder_is_whole_once_it_has_the_files_of_the_last(watched: Watched) -> None:
    watched.start()
    for step in (5, 6):
        watched.begin(step, "part-0", "part-1")
        watched.begin(step + 1, "part-0")
        until(lambda step=step: step in watched.steps)
    watched.begin(7, "part-1")
    until(lambda: watched.steps[-1] == 7)
    assert watched.manifest()["proof"] == "has all files of the one before"


# Named here, since making one imports torch: each worker collects these tests, and few run them.
FOLDERS = ("deepspeed", "distributed", "sharded trainer", "trainer", "trainer with deepspeed", "zero 3")


def test_each_kind_of_several_files_is_written_over_below() -> None:
    kinds = [kind for kind in PROVED_BY_FORMAT if len(KINDS[kind](100, random.Random(0)).content) > 1]
    assert tuple(kinds) == FOLDERS


def content_of(reference: CheckpointRef) -> dict[str, bytes]:
    """Return the files of a published checkpoint; none where it was deleted since."""
    folder = Path(reference.uri)
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name != "manifest.json"
    }


@pytest.mark.parametrize("fetched", [False, True])
@pytest.mark.parametrize("kind", FOLDERS)
def test_what_is_published_of_a_folder_that_is_written_over_is_of_one_save(
    kind: str, fetched: bool, tmp_path: Path
) -> None:
    first, second = (KINDS[kind](100, random.Random(seed)) for seed in (1, 2))
    folder = tmp_path / "checkpoints"
    for name, _ in first.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    watched = None if fetched else Watched(tmp_path)
    if watched:
        watched.start()
    for name, data in first.files:
        (folder / name).write_bytes(data)
    if watched is None:
        watched = Watched(tmp_path)
        watched.start()
    watched.looks()
    for name, data in second.files[:-1]:
        (folder / name).write_bytes(data)
        watched.looks()
    watched.end(Moment.CUT_OFF)
    found = [content for reference in watched.published if (content := content_of(reference))]
    assert all(content in (first.content, second.content) for content in found)
    assert fetched or first.content in found


def test_a_folder_is_whole_when_the_program_says_so(watched: Watched) -> None:
    watched.start()
    watched.begin(5, "part-0")
    watched.announce(checkpoint="checkpoints/step-5", step=77)
    until(lambda: watched.steps == [77])
    assert watched.manifest()["proof"] == "announced by the program"


def test_what_was_written_after_the_program_spoke_is_not_what_it_spoke_of(watched: Watched) -> None:
    watched.start()
    watched.announce(checkpoint="step-5")
    watched.looks(1)
    time.sleep(0.05)
    watched.begin(5, "part-0")
    watched.looks()
    assert watched.published == []


@pytest.mark.parametrize("moment", [Moment.RUNNING, Moment.CUT_OFF])
@pytest.mark.parametrize("rest", ["", '{"step": 23'])
def test_a_word_of_the_program_covers_nothing_that_was_written_before_its_next_line(
    tmp_path: Path, moment: Moment, rest: str
) -> None:
    watched = Watched(tmp_path)
    watched.begin(5, "part-0", "part-1")
    watched.announce(checkpoint="step-5")
    time.sleep(0.02)
    watched.begin(5, "part-0")
    time.sleep(0.02)
    if not rest:
        watched.announce(step=22, rank=1, seconds=0.3)
    with watched.meter.file.open("a") as file:
        file.write(rest)
    if moment is Moment.CUT_OFF:
        watched.uploader._moment = moment
    watched.step(3)
    assert watched.published == []


@pytest.mark.parametrize("seed", range(20))
def test_what_the_program_says_counts_whatever_the_clock_of_the_folders_server(
    tmp_path: Path, seed: int
) -> None:
    """A server stamps files by its own clock; what is written after the program spoke is still not whole."""
    print("seed", seed)
    dice = random.Random(seed)
    skew = int(dice.choice([-1, 1]) * 10 ** dice.uniform(8, 14))
    spoke, took = time.time_ns(), int(10 ** dice.uniform(7, 11))
    judge = Judge(tmp_path, announced=lambda: {"step-5": spoke}, ahead=lambda _: skew)
    (tmp_path / "step-5").mkdir()
    file = tmp_path / "step-5" / "part-0"
    file.write_text("some of it")
    for written, whole in ((spoke + took, False), (spoke - took, True)):
        os.utime(file, ns=(written + skew, written + skew))
        judge.look(Moment.RUNNING)
        (verdict,) = judge.look(Moment.RUNNING)
        assert isinstance(verdict.found, Proof) is whole
    judge.close()


def test_a_folder_of_this_machine_has_its_clock_and_keeps_nothing_of_the_look(tmp_path: Path) -> None:
    assert ahead_ns(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    assert ahead_ns(tmp_path / "missing") == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_slow_machine_is_not_taken_for_a_clock_that_is_off(seed: int) -> None:
    dice = random.Random(seed)
    slow, skew = int(10 ** dice.uniform(6, 10)), int(dice.choice([-1, 1]) * 10 ** dice.uniform(8, 12))
    stamped = dice.randint(0, slow)
    assert nearest_to_none(stamped - slow, stamped) == 0
    found = nearest_to_none(skew + stamped - slow, skew + stamped)
    assert abs(found) <= abs(skew)
    assert abs(found - skew) <= max(slow, abs(skew) * (abs(skew) <= slow))


@pytest.mark.parametrize("seed", range(4))
def test_what_can_never_be_published_is_named_at_once_and_holds_up_nothing(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 600.0)
    watched.start()
    hopeless = dice.randint(6, 9)
    folder = watched.folder / ".tmp-step"
    folder.mkdir()
    (folder / "weights").write_text("w")
    if dice.random() < 0.5:
        (folder / "manifest.json").write_text("{}")
    else:
        (folder / "elsewhere").symlink_to("/etc/hostname")
    move(folder, watched.folder / f"step-{hopeless}")
    others = dice.sample([step for step in range(3, 12) if step != hopeless], 2)
    for step in others:
        watched.write(step)
    undelivered = watched.end(limit=600)
    assert sorted(watched.steps) == sorted(others)
    assert f"step-{hopeless} cannot be published" in caplog.text
    assert "trying again" not in caplog.text
    if undelivered:
        assert undelivered.cause is Cause.DATA


def test_what_a_process_of_the_training_has_open_for_writing_is_not_whole(watched: Watched) -> None:
    watched.start()
    path = watched.folder / "step-5.pt"
    path.write_bytes(torch_bytes({"step": 5}))
    holds = f"file = open({str(path)!r}, 'ab'); print('open', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "open\n"
    published_before = list(watched.published)
    watched.looks(10)
    assert watched.published == published_before == []
    process.communicate("\n")
    until(lambda: watched.steps == [5])


def test_after_an_exit_with_0_all_is_whole_that_is_not_broken(watched: Watched) -> None:
    watched.start()
    watched.begin(5, "part-0", "part-1")
    assert watched.end() is None
    assert watched.steps == [5]


@pytest.mark.parametrize("keep", [1, 3])
def test_after_any_other_end_what_is_not_proved_is_kept_aside_and_named_with_a_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keep: int
) -> None:
    watched = Watched(tmp_path, keep=keep)
    watched.start()
    watched.write(4)
    until(lambda: watched.steps == [4])
    watched.begin(5, "part-0", "part-1")
    assert watched.end(Moment.CUT_OFF) is None
    assert watched.steps == [4]
    found = newest(str(watched.target))
    assert found
    assert found.step == 4
    assert "step-5 is not published, for nothing proves that it is whole" in caplog.text
    assert '"checkpoint": "step-5"' in caplog.text
    assert (watched.target / "unproved" / "step-5" / "part-1").exists()

    again = Watched(tmp_path, keep=keep)
    again.start()
    again.write(6)
    until(lambda: again.steps == [6])
    until(lambda: not (watched.target / "unproved").exists())
    again.end()


def test_what_is_broken_after_an_exit_with_0_is_no_success_of_a_job_that_requires_checkpoints(
    tmp_path: Path,
) -> None:
    for required in (True, False):
        watched = Watched(tmp_path, required=required)
        watched.start()
        whole = torch_bytes({"step": 5})
        watched.write(4)
        (watched.folder / "step-5.pt").write_bytes(whole[:-30])
        undelivered = watched.end()
        assert (undelivered is not None) == required
        if undelivered:
            assert undelivered.cause is Cause.DATA
            assert "step-5.pt is not whole and is not published" in undelivered.message
        assert watched.steps == [4]
        for path in watched.folder.iterdir():
            path.unlink()


def test_a_file_that_is_written_over_is_published_again_and_brought_back_under_its_name(
    watched: Watched,
) -> None:
    watched.start()
    for count in (1, 2):
        watched.meter.saw(b"step %d loss 1\n" % (10 * count))
        (watched.folder / "snapshot.pt").write_bytes(torch_bytes({"count": count}))
        until(lambda count=count: len(watched.published) == count)
    assert watched.steps == [10, 20]
    assert [reference.sequence for reference in watched.published] == [1, 2]
    assert watched.manifest()["name"] == "snapshot.pt"


def test_the_order_is_that_of_saving_and_not_of_the_numbers(watched: Watched) -> None:
    for step in (30, 10, 20):
        watched.write(step)
        time.sleep(0.02)
    watched.start()
    assert watched.end() is None
    found = newest(str(watched.target))
    assert found
    assert found.step == 20


def test_what_is_proved_late_is_not_newer_than_what_was_written_after_it(tmp_path: Path) -> None:
    fetched = tmp_path / "checkpoints" / "step-5"
    fetched.mkdir(parents=True)
    for name in ("part-0", "part-1"):
        (fetched / name).write_text("of the attempt before")
    watched = Watched(tmp_path)
    watched.start()
    (fetched / "part-0").write_text("written anew, and the other not")
    time.sleep(0.02)
    aside = fetched.with_name("aside.tmp")
    aside.mkdir()
    for name in ("part-0", "part-1"):
        (aside / name).write_text("of a later step")
    move(aside, fetched.with_name("step-6"))
    # Step 5 may be published before it: its successor was begun.
    until(lambda: 6 in watched.steps)
    assert watched.end(Moment.EXITED) is None
    found = newest(str(watched.target))
    assert found
    assert found.step == 6


def test_a_half_that_was_left_on_the_way_costs_no_run_whose_last_checkpoint_is_whole(
    watched: Watched,
) -> None:
    watched.start()
    (watched.folder / "step-5.pt").write_bytes(torch_bytes({"step": 5})[:-30])
    time.sleep(0.02)
    watched.write(6)
    assert watched.end() is None
    assert watched.steps == [6]


def save_over(place: Path, names: Sequence[str], seed: int) -> None:
    place.mkdir(exist_ok=True)
    for name in names:
        (place / name).write_bytes(torch_bytes(some_state(random.Random(seed))))


def test_a_folder_of_one_name_is_published_each_time_that_it_was_written_over(watched: Watched) -> None:
    names = ["model.bin", "optimizer.bin", "scheduler.bin"]
    watched.start()
    for count in (1, 2, 3):
        save_over(watched.folder / "state", names, count)
        watched.looks(6)
        assert len(watched.published) == count - 1, "the first shows what belongs to it"


def test_a_folder_that_is_half_of_the_save_before_is_not_whole(watched: Watched) -> None:
    names = ["model.bin", "optimizer.bin", "scheduler.bin"]
    watched.start()
    for count in (1, 2):
        save_over(watched.folder / "state", names, count)
        watched.looks(6)
    assert len(watched.published) == 1
    for name in names[:-1]:
        save_over(watched.folder / "state", [name], 3)
        watched.looks(6)
    watched.end(Moment.CUT_OFF)
    assert len(watched.published) == 1


def test_numbers_of_ranks_that_are_those_of_steps_too_are_not_missed(watched: Watched) -> None:
    watched.start()
    for step in (1, 2, 3):
        watched.begin(step, "config.json")
        (watched.folder / f"step-{step}" / "config.json").write_text("{}")
        save_over(watched.folder / f"step-{step}", [f"part_{rank}.bin" for rank in range(4)], step)
        watched.looks(6)
    assert watched.steps[:1] == [1]
    watched.end(Moment.CUT_OFF)
    assert watched.steps == [1, 2, 3]


def test_processes_are_not_searched_for_what_nothing_else_proves(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    monkeypatch.setattr(judging, "files_by_writer", lambda: searches.append(1) or {})
    watched.start()
    watched.begin(5, "part-0")
    watched.looks(2)
    searched = len(searches)
    assert searched > 0, "as it was written to"
    watched.looks(6)
    assert len(searches) == searched
    watched.begin(6, "part-0")
    until(lambda: watched.steps == [5])
    assert len(searches) > searched


@pytest.mark.parametrize("kept", [None, 2100, 59999])
def test_a_program_that_goes_on_after_the_error_of_a_save_loses_no_checkpoint_for_the_half(
    tmp_path: Path, kept: int | None
) -> None:
    watched = Watched(tmp_path, keep=1)

    def save(step: int, optimizer: int | None) -> None:
        place = watched.folder / f"checkpoint-{step}"
        place.mkdir()
        (place / "model.bin").write_bytes(b"x" * 60000)
        if optimizer is not None:
            (place / "optimizer.bin").write_bytes(b"x" * optimizer)

    save(50, 60000)
    watched.announce(checkpoint="checkpoint-50")
    watched.step(3)
    save(100, kept)
    watched.step(3)
    (watched.folder / "checkpoint-200").mkdir()
    (watched.folder / "checkpoint-200" / "model.bin").write_bytes(b"x")
    watched.step(3)
    assert watched.steps == [50]
    assert [path.name for path in watched.target.glob("checkpoint-*")] == ["checkpoint-50"]
    watched.uploader.judge.close()


def test_a_look_that_fails_ends_no_uploads(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = iter([RuntimeError("odd")])
    look = watched.uploader.judge.look

    def fail_once(moment: Moment) -> object:
        for fault in faults:
            raise fault
        return look(moment)

    monkeypatch.setattr(watched.uploader.judge, "look", fail_once)
    watched.start()
    watched.looks()
    watched.write(5)
    until(lambda: watched.steps == [5])
    assert next(faults, None) is None, "no look has failed"


def test_an_entry_that_no_upload_can_bring_over_holds_up_no_other(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    publish = watched.uploader._publisher.publish

    def odd(whole: Whole, then: Callable[[CheckpointRef], object]) -> None:
        if whole.item.step == 6:
            raise RuntimeError("odd")
        publish(whole, then)

    monkeypatch.setattr(watched.uploader._publisher, "publish", odd)
    for step in (5, 6, 7):
        watched.write(step)
        time.sleep(0.02)
    watched.start()
    assert watched.end() is None
    assert sorted(watched.steps) == [5, 7]
    assert "step-6.txt cannot be published: odd" in caplog.text


# What is looked at


def test_what_was_there_before_the_start_is_not_published_again(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-3.txt").write_text("fetched")
    watched = Watched(tmp_path)
    watched.start()
    assert watched.end() is None
    assert newest(str(watched.target)) is None


def test_a_name_that_cannot_be_placed_is_warned_of_once_with_the_remedy(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.start()
    (watched.folder / "rng_state_1.pth").write_bytes(torch_bytes({}))
    until(lambda: "checkpoints.pattern" in caplog.text)
    watched.looks()
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "rng_state_1.pth in the checkpoint folder is not published" in warned[0]


@pytest.mark.parametrize(
    "name",
    ["latest", "zero_to_fp32.py", "step-2.tmp", ".hidden", "config.json", "events.out.tfevents.1", "step-5"],
)
def test_what_belongs_beside_checkpoints_and_what_is_one_is_not_warned_of(name: str) -> None:
    assert not is_unplaced(name)


@pytest.mark.parametrize("name", sorted(POINTERS))
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_checkpoint_that_has_the_name_of_a_pointer_is_published_all_the_same(
    watched: Watched, caplog: pytest.LogCaptureFixture, name: str, kind: str
) -> None:
    # As of `accelerator.save_state("checkpoints/latest")`, or `torch.save(state, "checkpoints/latest")`.
    path = watched.folder / name
    data = torch_bytes({"step": 5, "weights": list(range(100_000))})
    if kind == "folder":
        path.mkdir()
        path = path / "model.pt"
    path.write_bytes(data)
    watched.start()
    assert watched.end() is None
    (found,) = watched.published
    assert watched.manifest()["name"] == name
    assert content_of(found) == {path.name: data}
    assert "is not published" not in caplog.text


def test_names_that_are_hidden_or_unfinished_are_no_candidates(tmp_path: Path) -> None:
    for name in (".step-1.pt", "step-2.tmp", "step-3.pt.part", "tmp-checkpoint-4", "zero_to_fp32.py"):
        (tmp_path / name).write_text("x")
    (tmp_path / "last.pt").write_text("x")
    (tmp_path / "step-5").mkdir()
    assert {item.path.name for item in candidates(tmp_path)} == {"last.pt", "step-5"}


# How it is sent


def test_the_newest_goes_first_and_only_as_many_as_are_kept(watched: Watched) -> None:
    for step in range(1, 7):
        watched.write(step)
        time.sleep(0.02)
    watched.start()
    assert watched.end() is None
    assert watched.steps == [6, 5, 4]
    found = newest(str(watched.target))
    assert found
    assert found.step == 6
    assert sorted(path.name for path in watched.target.glob("step-*")) == [
        "step-4.txt",
        "step-5.txt",
        "step-6.txt",
    ]


def test_old_ones_leave_as_new_ones_come(watched: Watched) -> None:
    watched.start()
    for step in range(1, 6):
        watched.write(step)
        until(lambda step=step: step in watched.steps)
    newest = ["step-3.txt", "step-4.txt", "step-5.txt"]
    assert until(lambda: sorted(path.name for path in watched.target.glob("step-*")) == newest)


def test_an_upload_that_fails_is_tried_again(watched: Watched) -> None:
    watched.target.write_text("in the way")
    watched.start()
    watched.write(5)
    until(lambda: watched.uploader.error)
    watched.target.unlink()
    until(lambda: watched.steps == [5])
    assert watched.end() is None


def test_what_cannot_be_sent_at_the_end_is_tried_again_until_it_can(
    watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "REFUSED_LIMIT", 60.0)
    watched.target.write_text("in the way")
    watched.write(5)
    watched.start()
    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(watched.end, limit=60)
        until(lambda: caplog.text.count("trying again") > 5)
        watched.target.unlink()
        assert ending.result() is None
    assert watched.steps == [5]


def test_a_last_upload_that_is_refused_for_too_long_is_reported(watched: Watched) -> None:
    watched.target.write_text("in the way")
    watched.write(5)
    watched.start()
    undelivered = watched.end(limit=30)
    assert undelivered
    assert "step-5.txt cannot be published" in undelivered.message
    assert undelivered.cause is Cause.DATA


def test_a_checkpoint_that_the_program_deletes_meanwhile_is_no_fault(watched: Watched) -> None:
    watched.start()
    watched.write(5)
    until(lambda: watched.steps == [5])
    watched.write(6).unlink()
    assert watched.end() is None


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_kind_all_that_a_program_leaves_at_its_end_comes_back(
    kind: str, watched: Watched
) -> None:
    save = KINDS[kind](100, random.Random(kind))
    watched.start()
    for name, data in save.files:
        (watched.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (watched.folder / name).write_bytes(data)
    assert watched.end() is None
    found = newest(str(watched.target))
    assert found
    names = [path for path in Path(found.uri).rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert {path.relative_to(found.uri).as_posix(): path.read_bytes() for path in names} == save.content


def test_what_is_written_to_while_it_is_sent_is_not_published_as_proved(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_ocidist.storage import checkpoints

    send, sent = checkpoints._send, []

    def send_and_write(*arguments: object) -> object:
        files = send(*arguments)
        if not sent:
            (watched.folder / "step-5" / "part-1").write_text("begun anew")
        sent.append(files)
        return files

    monkeypatch.setattr(checkpoints, "_send", send_and_write)
    watched.begin(5, "part-0", "part-1").rename(watched.folder / "aside")
    watched.start()
    move(watched.folder / "aside", watched.folder / "step-5")
    until(lambda: sent)
    watched.looks()
    assert watched.published == []
    assert newest(str(watched.target)) is None


@pytest.mark.parametrize("moment", Moment)
def test_a_format_proves_no_folder_in_which_files_of_an_earlier_save_lie(moment: Moment) -> None:
    mixed = Evidence(format=Reading(FormatResult.WHOLE), left_over=("optimizer.pt",), is_like_the_last=True)
    found = judge(moment, mixed)
    assert isinstance(found, Proof) == (moment is Moment.EXITED)
    assert isinstance(found, Proof) or "optimizer.pt belongs to an earlier save" in found.why
    assert isinstance(judge(moment, replace(mixed, announced=True)), Proof)
    assert isinstance(judge(moment, replace(mixed, left_over=())), Proof)


@pytest.mark.parametrize(
    "place", ["step-5/control", "step-5", "step-5.pt", "deep/step-5/x", "step-6/sub/control"]
)
def test_a_pipe_in_the_checkpoint_folder_is_no_file_of_it_and_holds_up_nothing(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path)
    pipe = watched.folder / place
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    watched.begin(6, "part-0")
    looks = threading.Thread(target=lambda: watched.step(3), daemon=True)
    looks.start()
    watched.announce(checkpoint="step-6")
    looks.join(20)
    is_stuck = looks.is_alive()
    if is_stuck:
        os.close(os.open(pipe, os.O_RDWR))
    assert not is_stuck
    watched.step(2)
    assert watched.steps[-1] == 6
    (found,) = (each for each in watched.published if each.step == 6)
    assert sorted(each.name for each in Path(found.uri).iterdir() if each.is_file()) == [
        "manifest.json",
        "part-0",
    ]
    if place.startswith("step-6/"):
        assert "left out of" in caplog.text


@pytest.mark.parametrize("where", ["looking", "sending"])
def test_saving_that_stands_still_is_given_up_and_names_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """As on a mount whose server is gone: no read of it ends."""
    from airflow_provider_ocidist.storage import checkpoints

    watched = Watched(tmp_path)
    released = threading.Event()

    def blocked(*_: object) -> None:
        released.wait(60)
        raise OSError("the server is back")

    module, verb = (judging, "read_file") if where == "looking" else (checkpoints, "_send")
    monkeypatch.setattr(module, verb, blocked)
    watched.start()
    watched.write(5)
    ended: list[object] = []
    limit = SaveDeadline(0.5, StopSwitch())
    saving = threading.Thread(
        target=lambda: ended.append(watched.uploader.finish(Moment.EXITED, limit)), daemon=True
    )
    saving.start()
    saving.join(20)
    released.set()
    assert len(ended) == 1
    (undelivered,) = ended
    assert undelivered is not None
    assert undelivered.cause is Cause.SERVICE
    assert re.search(r"saving made no progress for \d+ s .*it stands at .*/step-5\.txt", undelivered.message)


def test_saving_that_gets_further_is_not_given_up_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_ocidist.storage import checkpoints

    watched = Watched(tmp_path)
    send, read = checkpoints._send, [0]
    monkeypatch.setattr(saving, "_bytes_read", lambda: sum(read))

    def slow(*arguments: object) -> object:
        for _ in range(8):
            time.sleep(0.2)
            read.append(saving.READ_STEP)
        return send(*arguments)

    monkeypatch.setattr(checkpoints, "_send", slow)
    watched.start()
    watched.write(5)
    assert watched.uploader.finish(Moment.EXITED, SaveDeadline(0.8, StopSwitch())) is None
    assert watched.steps == [5]
