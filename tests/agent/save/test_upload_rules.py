"""What is published and in which order, what is tried again, what is said of the rest: look by look, no time passes."""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import (
    file_clocks,
    judging,
    saving,
    unproved_copies,
    uploads,
)
from airflow_provider_ocidist.agent.save.entry_ledger import Ledger
from airflow_provider_ocidist.agent.save.formats import NOTHING
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.publishing import Publisher
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT, SaveDeadline
from airflow_provider_ocidist.agent.save.uploads import SENT_LAST_AFTER
from airflow_provider_ocidist.errors import Cause, IncompleteCheckpoint, StorageError
from airflow_provider_ocidist.job import Best, Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints, fences, retention
from airflow_provider_ocidist.storage.checkpoints import SaveFacts, complete, newest
from airflow_provider_ocidist.storage.manifests import Manifest
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import until
from tests.agent.save.naming import of_several_models, some_names
from tests.agent.save.saved import move, torch_bytes
from tests.agent.save.watched import Watched

BEGIN = 1_500_000_000 * 10**9


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(uploads, "ABORT_WITHIN", 0.05)
    caplog.set_level(logging.INFO)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def save(watched: Watched, name: str, at: int, text: str = "weights") -> Path:
    """Put a whole checkpoint there, written at that second."""
    aside = watched.folder / f"{name}.tmp"
    aside.write_text(text)
    os.utime(aside, ns=(BEGIN + at * 10**9, BEGIN + at * 10**9))
    return aside.rename(watched.folder / name)


def names(watched: Watched) -> list[str]:
    """Return what was published, by the names that the program gave it."""
    return [Path(reference.uri).name.partition(".save-")[0] for reference in watched.published]


def manifests(watched: Watched) -> list[dict[str, Any]]:
    """Return what is offered, in the order in which it was published."""
    return [
        json.loads(Path(reference.uri, "manifest.json").read_text())
        for reference in watched.published
        if Path(reference.uri, "manifest.json").exists()
    ]


def fail(watched: Watched, monkeypatch: pytest.MonkeyPatch, *errors: Exception | None) -> list[str]:
    """Let the next uploads end so, None: well; return the names that are tried, as they are."""
    answers, tried, publish = list(errors), list[str](), checkpoints.publish

    def answered(path: Path, *arguments: Any, **options: Any) -> CheckpointRef:
        tried.append(path.name)
        if answers and (error := answers.pop(0)) is not None:
            raise error
        return publish(path, *arguments, **options)

    monkeypatch.setattr(checkpoints, "publish", answered)
    return tried


# What is sent


def test_the_newest_is_sent_first_and_the_numbers_are_those_of_saving(watched: Watched) -> None:
    for at, step in enumerate((7, 3, 9)):
        save(watched, f"step-{step}.txt", at)
    assert watched.step(2)
    assert watched.steps == [9, 3, 7]
    assert [each["sequence"] for each in manifests(watched)] == [3, 2, 1]
    assert [found.step for found in complete(str(watched.target))] == [9, 3, 7]
    save(watched, "step-1.txt", 10)
    assert watched.step(2)
    assert manifests(watched)[-1]["sequence"] == 4


def test_a_node_that_begins_again_goes_on_counting(tmp_path: Path) -> None:
    for at in range(2):
        watched = Watched(tmp_path)
        save(watched, f"step-{at}.txt", at)
        assert watched.step(2)
        (sequence,) = [each["sequence"] for each in manifests(watched)]
        assert sequence == at + 1
        watched.uploader.judge.close()


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_of_what_waits_only_as_many_as_stay_are_sent_of_each_kind(tmp_path: Path, keep: int) -> None:
    watched = Watched(tmp_path, keep=keep)
    for at in range(6):
        save(watched, f"step-{at}.txt", 2 * at)
        save(watched, f"model_epoch_{at}.txt", 2 * at + 1)
    watched.step(2)
    assert sorted(names(watched)) == sorted(
        [f"step-{at}.txt" for at in range(6)[-keep:]] + [f"model_epoch_{at}.txt" for at in range(6)[-keep:]]
    )


@pytest.mark.parametrize("rule", [{"keep_every": 2}, {"keep_best": Best(metric="loss")}], ids=str)
def test_where_another_rule_keeps_some_all_are_sent(tmp_path: Path, rule: dict[str, Any]) -> None:
    watched = Watched(tmp_path, keep=1, **rule)
    for at in range(5):
        save(watched, f"step-{at}.txt", at)
    watched.step(2)
    assert sorted(filter(None, [*watched.steps, 5])) == [1, 2, 3, 4, 5]
    assert len(watched.steps) == 5


def test_what_is_written_over_while_it_waits_is_sent_once_as_the_last(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(watched, monkeypatch, StorageError("down", retryable=True))
    save(watched, "last", 1, "one")
    save(watched, "step-1.txt", 2)
    assert not watched.step(2)
    save(watched, "last", 3, "two")
    watched.uploader._look()
    assert watched.step()
    assert [each["name"] for each in manifests(watched)] == ["last", "step-1.txt"]
    assert [each["sequence"] for each in manifests(watched)] == [3, 2]
    assert Path(watched.published[0].uri, "last").read_text() == "two"


def test_the_step_is_that_which_the_program_names_then_that_of_the_name_then_how_far_it_is(
    watched: Watched,
) -> None:
    watched.meter.saw(b"step 40 loss 1\n")
    save(watched, "last", 1)
    save(watched, "step-5.txt", 2)
    save(watched, "best", 3)
    save(watched, "step-6.txt", 4)
    watched.announce(checkpoint="best", step=77)
    watched.announce(checkpoint="step-6.txt")
    watched.step(2)
    assert {each["name"]: each["step"] for each in manifests(watched)} == {
        "last": 40,
        "step-5.txt": 5,
        "best": 77,
        "step-6.txt": 6,
    }


@pytest.mark.parametrize(
    "name, reached, step",
    [
        ("ckpt_1337.ckpt", 40, 40),
        ("ckpt_1337.ckpt", 900, 900),
        ("ckpt_1337.ckpt", 5000, 5000),
        ("ckpt_1337.ckpt", None, 1337),
        ("checkpoint_3", 300, 300),
        ("checkpoint-500", 500, 500),
        ("checkpoint-500", 490, 500),
        ("checkpoint-500", 503, 500),
        ("checkpoint-5", 0, 5),
        ("step_1337.ckpt", 40, 1337),
        ("epoch_3.ckpt", 40, 40),
    ],
)
def test_a_number_without_a_word_for_a_step_is_one_only_where_the_program_may_have_got_there(
    watched: Watched, name: str, reached: int | None, step: int
) -> None:
    if reached is not None:
        watched.meter.saw(b"step %d loss 1\n" % reached)
    save(watched, name, 1)
    watched.step(2)
    assert watched.steps == [step]


def test_a_manifest_says_loss_metrics_proof_and_attempt(watched: Watched) -> None:
    save(watched, "epoch=3-step=20-val_acc=0.5.ckpt", 1)
    watched.step(2)
    (found,) = manifests(watched)
    assert (found["step"], found["loss"], found["attempt"], found.get("generation", 0)) == (20, 2.0, 1, 0)
    assert found["metrics"] == {"val_acc": 0.5}
    assert found["proof"] == "renamed into place"


def test_without_a_step_there_is_no_loss(watched: Watched) -> None:
    save(watched, "last", 1)
    watched.step(2)
    (found,) = manifests(watched)
    assert (found.get("step"), found.get("loss")) == (None, None)


def test_what_is_published_is_said(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    save(watched, "step-5.txt", 1)
    watched.step(2)
    (reference,) = watched.published
    assert f"checkpoint of step 5 is published (renamed into place): {reference.uri}" in caplog.text


def test_old_ones_are_deleted_only_when_something_new_was_published(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    retained: list[Any] = []
    monkeypatch.setattr(
        retention,
        "retain",
        lambda uri, rule, *, fence, access: retained.append((uri, rule.keep, fence, access)),
    )
    watched.step(2)
    assert retained == []
    save(watched, "step-5.txt", 1)
    watched.step(3)
    assert retained == [(str(watched.target), 3, Fence(attempt=1), watched.access)]


def test_a_retention_that_fails_is_said_and_costs_nothing(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise StorageError("may not delete")

    monkeypatch.setattr(retention, "retain", refused)
    save(watched, "step-5.txt", 1)
    assert watched.step(2)
    assert "old checkpoints cannot be deleted: may not delete" in caplog.text
    assert watched.uploader.error is None


def test_what_the_program_writes_while_it_is_sent_is_not_offered_as_what_was_proved(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, place = checkpoints._send, save(watched, "step-5.txt", 1)

    def meanwhile(*arguments: Any) -> Any:
        files = send(*arguments)
        place.write_text("of other content")
        return files

    monkeypatch.setattr(checkpoints, "_send", meanwhile)
    assert watched.step(2), "that is no failure"
    assert watched.published == complete(str(watched.target)) == []
    assert watched.uploader._waiting == {}
    monkeypatch.undo()
    save(watched, "step-5.txt", 2, "whole again")
    assert watched.step(2)
    assert len(watched.published) == 1


@pytest.mark.parametrize("verb", ["publish", "next_sequence"])
def test_all_is_done_with_the_access_of_the_node(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    given: list[Any] = []
    real = getattr(checkpoints, verb)

    def noted(*arguments: Any, **options: Any) -> Any:
        given.append(options.get("access", arguments[-1]))
        return real(*arguments, **options)

    monkeypatch.setattr(checkpoints, verb, noted)
    save(watched, "step-5.txt", 1)
    watched.step(2)
    assert given == [watched.access]
    assert given[0] is watched.access


def test_the_thread_keeps_no_process_alive_and_leaves_nothing_open(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.uploader._thread.daemon
    assert watched.uploader._thread.name == "checkpoints"
    watched.start()
    assert watched.end() is None
    assert watched.uploader.judge._renames._queue is None


# Parts of other nodes


class Collector:
    """What gathers the parts of other nodes, of folders alone."""

    apart: tuple[int, ...] = (1,)
    holder = "00000000-0"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def open(self) -> None:
        self.calls.append("open")

    def close(self) -> None:
        self.calls.append("close")

    def finish(self, *_: object) -> None:
        self.calls.append("finish")

    def may_be_elsewhere(self, name: str) -> bool:
        return name.endswith(".distcp")

    def needs_others(self, path: Path) -> bool:
        return path.is_dir()

    def publish(
        self, item: Any, uri: str, save: SaveFacts, *, confirm: Callable[[], object], cancel: threading.Event
    ) -> CheckpointRef:
        confirm()
        assert not cancel.is_set()
        self.calls.append((item.path.name, uri, save))
        return CheckpointRef(uri=f"{uri}/parts", step=save.step)


def test_a_folder_in_parts_is_published_by_all_nodes_and_a_file_by_this_one(tmp_path: Path) -> None:
    collector = Collector()
    watched = Watched(tmp_path, shards=collector)
    watched.start()
    place = watched.folder / "aside.tmp"
    place.mkdir()
    (place / "x").write_text("part")
    move(place, watched.folder / "step-5")
    until(lambda: watched.published)
    save(watched, "step-6.txt", 1)
    until(lambda: len(watched.published) == 2)
    assert watched.end() is None
    assert collector.calls == [
        "open",
        (
            "step-5",
            str(watched.target),
            SaveFacts(step=5, loss=0.5, fence=Fence(attempt=1), sequence=1, proof="renamed into place"),
        ),
        "finish",
        "close",
    ]
    assert names(watched) == ["parts", "step-6.txt"]


def test_a_part_that_is_missing_for_good_is_given_up_and_is_no_success_when_it_is_the_last(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = fail(watched, monkeypatch, IncompleteCheckpoint("node 1 is gone", uri="x"))
    watched.start()
    save(watched, "step-5.txt", 1)
    until(lambda: tried)
    watched.looks()
    assert tried == ["step-5.txt"]
    undelivered = watched.end()
    assert undelivered
    assert undelivered.cause is Cause.DATA
    assert undelivered.message == (
        "the checkpoint step-5.txt is not whole and is not published: node 1 is gone"
    )
    assert undelivered.message in caplog.text


def test_it_costs_nothing_once_a_later_one_is_published(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail(watched, monkeypatch, IncompleteCheckpoint("node 1 is gone", uri="x"))
    watched.start()
    save(watched, "step-5.txt", 1)
    until(lambda: tried)
    save(watched, "step-6.txt", 2)
    assert watched.end() is None
    assert watched.steps == [6]


def test_a_later_one_that_is_given_up_is_no_success(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(watched, monkeypatch, None, IncompleteCheckpoint("node 1 is gone", uri="x"))
    watched.start()
    save(watched, "step-5.txt", 1)
    until(lambda: watched.published)
    save(watched, "step-6.txt", 2)
    undelivered = watched.end()
    assert undelivered
    assert "step-6.txt" in undelivered.message


def test_what_the_program_has_deleted_is_not_missed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = save(watched, "step-5.txt", 1)

    def deleted(*_: Any, **__: Any) -> None:
        place.unlink()
        raise IncompleteCheckpoint("it is gone", uri="x")

    monkeypatch.setattr(checkpoints, "publish", deleted)
    assert watched.step(2)
    assert watched.uploader._lost == {}
    assert "not published" not in caplog.text


# What fails


def test_a_failed_upload_is_tried_again_after_pauses_that_grow_to_a_minute(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watched.uploader._pause = 1.0
    tried = fail(watched, monkeypatch, *[StorageError("the store is down")] * 9)
    save(watched, "step-5.txt", 1)
    watched.uploader._look()
    pauses = []
    for _ in range(9):
        assert not watched.step()
        pauses.append(watched.uploader._try_again_at - now[0])
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "the checkpoint step-5.txt cannot be published: the store is down; trying again in 4 s" in (
        caplog.text
    )
    assert str(watched.uploader.error) == "the store is down"
    assert watched.step()
    assert watched.uploader.error is None
    assert watched.uploader._try_again_at == 0.0
    assert len(tried) == 10
    fail(watched, monkeypatch, StorageError("again"))
    save(watched, "step-6.txt", 2)
    watched.step(2)
    assert watched.uploader._try_again_at - now[0] == uploads.FIRST_PAUSE, "the next failure is another"


def test_until_its_time_comes_nothing_is_tried(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LONGEST_PAUSE", 3600.0)
    watched.uploader._pause = 3600.0
    tried = fail(watched, monkeypatch, StorageError("the store is down"))
    watched.start()
    save(watched, "step-5.txt", 1)
    until(lambda: tried)
    watched.looks(5)
    assert len(tried) == 1
    assert watched.end() is None, "at the end it is tried at once"
    assert watched.steps == [5]


def test_after_a_failure_the_older_ones_wait(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = fail(watched, monkeypatch, StorageError("the store is down"))
    for at in range(3):
        save(watched, f"step-{at}.txt", at)
    assert not watched.step(2)
    assert tried == ["step-2.txt"]
    assert "step-0.txt, step-1.txt, step-2.txt cannot be" in watched.uploader._why(StorageError("x"))
    assert watched.step()
    assert tried == ["step-2.txt", "step-2.txt", "step-1.txt", "step-0.txt"]


def test_an_upload_error_that_nobody_thought_of_is_tried_again_while_the_training_runs(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = fail(watched, monkeypatch, RuntimeError("can't start new thread"))
    for at in range(2):
        save(watched, f"step-{at}.txt", at)
    assert watched.step(2)
    assert (tried, watched.steps) == (["step-1.txt", "step-0.txt"], [0])
    assert watched.step()
    assert watched.steps == [0, 1]


def test_the_pause_after_a_success_at_the_end_is_the_first_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadline, noted = SaveDeadline(20.0), list[str]()
    monkeypatch.setattr(deadline, "succeeded", lambda: noted.append("succeeded"))
    watched.start()
    save(watched, "step-5.txt", 1)
    assert watched.uploader.finish(Moment.EXITED, deadline) is None
    assert noted == ["succeeded"]


def test_of_many_that_wait_the_last_three_are_named(watched: Watched) -> None:
    for at in range(3):
        save(watched, f"step-{at}.txt", at)
        save(watched, f"model_epoch_{at}.txt", 10 + at)
    watched.uploader._look()
    watched.uploader._look()
    assert watched.uploader._why(StorageError("x")) == (
        "the checkpoint model_epoch_0.txt, model_epoch_1.txt, model_epoch_2.txt cannot be published: x"
    )


@pytest.mark.parametrize("error", [StorageError("half read"), OSError("half read")])
@pytest.mark.parametrize("change", ["written", "deleted"])
def test_what_changes_while_it_is_sent_is_no_failure(
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    change: str,
) -> None:
    if change == "deleted":
        monkeypatch.setattr(os, "link", without_links)
    place = save(watched, "step-5.txt", 1)

    def meanwhile(*_: Any, **__: Any) -> None:
        place.write_text("of other content") if change == "written" else place.unlink()
        raise error

    monkeypatch.setattr(checkpoints, "publish", meanwhile)
    assert watched.step(2)
    assert watched.uploader.error is None
    assert watched.uploader._waiting == {}
    (said,) = [
        record.getMessage()
        for record in caplog.records
        if "Remedy: " in record.getMessage() and record.levelno == logging.WARNING
    ]
    assert said.startswith(
        {
            "written": "the program wrote to step-5.txt before all of it was sent",
            "deleted": "the program deleted step-5.txt before all of it was sent",
        }[change]
    )


def without_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("error", [StorageError("down", retryable=True), OSError("half read")])
def test_what_the_program_deletes_while_it_is_sent_is_tried_again_until_it_is_published(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    place, publish = save(watched, "step-5.txt", 1), checkpoints.publish
    failures = [error, error]

    def failing(*arguments: Any, **options: Any) -> CheckpointRef:
        place.unlink(missing_ok=True)
        if failures:
            raise failures.pop()
        return publish(*arguments, **options)

    monkeypatch.setattr(checkpoints, "publish", failing)
    assert [watched.step(2), watched.step(), watched.step()] == [False, False, True]
    assert Path(watched.published[0].uri, "step-5.txt").read_text() == "weights"
    assert not hidden(watched)


def hidden(watched: Watched) -> list[str]:
    """Return what the uploader holds."""
    return [place.name for place in watched.folder.parent.rglob(".*.held.*")]


@pytest.mark.parametrize("rule", [{}, {"keep_every": 1}], ids=str)
def test_of_what_waits_the_newest_of_each_series_is_held_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    watched = Watched(tmp_path, keep=3, **rule)
    fail(watched, monkeypatch, *[StorageError("down", retryable=True)] * 99)
    for at in range(5):
        for name in (f"step-{at}.txt", f"model_epoch_{at}.txt"):
            save(watched, name, at)
        watched.step(3)
        for name in (f"step-{at}.txt", f"model_epoch_{at}.txt"):
            (watched.folder / name).unlink()
        held = [path.name for path in tmp_path.glob(".*.held.*/*/*")]
        assert sorted(held) == [f"model_epoch_{at}.txt", f"step-{at}.txt"]


def test_each_series_has_its_turn_where_another_always_has_a_newer_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LONG_UPLOAD", 0.0)
    watched = Watched(tmp_path)
    for at in range(16):
        for offset, name in enumerate(("step-{}.txt", "last.bin", "model_epoch_{}.txt", "best.bin")):
            save(watched, name.format(at), 4 * at + offset)
        watched.uploader._look()
        watched.uploader._look()
        # One is sent, and then there is a look.
        assert watched.uploader._upload()
        for path in watched.folder.iterdir():
            path.unlink()
    sent = [name[:4] for name in names(watched)]
    assert len(sent) == 16
    for begin in range(len(sent) - 7):
        assert len(set(sent[begin : begin + 8])) == 4, sent


MOST_HELD = 4
"""Most checkpoints that are held on the disk."""


class Rotating:
    """A program that saves under some names at each step, and keeps the last; its uploads take several saves."""

    def __init__(self, watched: Watched, names: list[Any], keeps: int) -> None:
        self.watched, self.names, self.keeps = watched, names, keeps
        self.saved: list[list[str]] = []
        self.most_held = 0

    def save(self) -> None:
        save_number = len(self.saved) + 1
        new = [name(save_number) for name in self.names]
        for offset, name in enumerate(new):
            save(self.watched, name, 10 * save_number + offset)
        self.saved.append(new)
        self.looks()
        there = {name for names in self.saved[-self.keeps :] for name in names}
        for names in self.saved[: -self.keeps]:
            for name in set(names) - there:
                (self.watched.folder / name).unlink(missing_ok=True)

    def looks(self) -> None:
        self.watched.uploader._look()
        self.watched.uploader._look()
        held = {path.name for path in self.watched.folder.parent.glob(".*.held.*/*/*")}
        self.most_held = max(self.most_held, len(held))

    def uploads(self) -> str | None:
        """Let one upload go well; return its name."""
        before = len(self.watched.published)
        for _ in range(99):
            self.looks()
            assert self.watched.uploader._upload()
            if len(self.watched.published) > before:
                return names(self.watched)[-1]
        return None


def age(program: Rotating, name: str | None) -> int:
    """Return how many saves were made since the one that has this name."""
    return next(back for back, saved in enumerate(reversed(program.saved)) if name in saved)


@pytest.fixture
def _proved_by_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LONG_UPLOAD", 0.0)
    # What a test writes here has the names of formats, and is none.
    monkeypatch.setattr(judging, "read_file", lambda _: NOTHING)


@pytest.mark.usefixtures("_proved_by_rename")
@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_program_calls_its_checkpoints_few_are_held_and_each_series_is_sent_anew(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    named = some_names(dice)
    program = Rotating(Watched(tmp_path), named, keeps=dice.randint(1, 3))
    takes = dice.randint(2, 4)
    print("seed", seed, [name(1) for name in named], "keeps", program.keeps, "takes", takes)
    ages: list[int] = []
    for _ in range(12):
        for _ in range(takes):
            program.save()
        ages.append(age(program, program.uploads()))
    assert program.most_held <= MOST_HELD
    # Each second one is the newest of all; what had its turn was proved when the upload before it began, or later.
    settled = ages[4:]
    assert all(min(pair) == 0 for pair in zip(settled, settled[1:])), ages
    assert max(settled) <= 2 * takes, ages
    # Each has its turn.
    for name in named:
        last = [name(save) for save in range(len(program.saved) - 8 * takes, len(program.saved) + 1)]
        assert set(last) & set(names(program.watched)), (ages, names(program.watched))


@pytest.mark.usefixtures("_proved_by_rename")
@pytest.mark.parametrize("seed", range(12))
def test_each_of_several_models_has_its_turn_whose_names_differ_in_a_number(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    models = of_several_models(dice, dice.randint(2, 4))
    program = Rotating(Watched(tmp_path), models, keeps=1)
    for _ in range(20):
        for _ in range(2):
            program.save()
        program.uploads()
    assert program.most_held <= MOST_HELD
    sent = names(program.watched)
    for model in models:
        late = {model(save) for save in range(24, 41)}
        assert late & set(sent), sent


@pytest.mark.usefixtures("_proved_by_rename")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keep", [1, 3])
def test_whatever_the_names_no_more_wait_than_stay_in_the_store(tmp_path: Path, seed: int, keep: int) -> None:
    named = some_names(random.Random(seed))
    print("seed", seed, [name(1) for name in named])
    # It deletes nothing, and the store is down.
    program = Rotating(Watched(tmp_path, keep=keep), named, keeps=99)
    for _ in range(20):
        program.save()
    # Two names do not show yet that they are of one series.
    assert len(program.watched.uploader._waiting) <= (keep + 2) * len(named)
    assert program.most_held <= MOST_HELD


@pytest.mark.usefixtures("_proved_by_rename")
@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
def test_after_the_training_the_newest_goes_first_though_another_has_waited_for_its_turn(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    save(watched, "best.bin", 0)
    for at in (1, 2):
        save(watched, f"step-{at}.txt", at)
        watched.uploader._look()
        watched.uploader._look()
        assert watched.uploader._upload()
    save(watched, "step-3.txt", 3)
    tried = fail(watched, monkeypatch)
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 1000.0)
    watched.start()
    assert watched.end(moment) is None
    assert tried == ["step-3.txt", "best.bin"]


@pytest.fixture
def _no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", without_links)


@pytest.mark.usefixtures("_no_links")
@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
@pytest.mark.parametrize("seed", range(8))
def test_what_the_program_has_left_of_a_checkpoint_is_one_once_it_has_exited_with_0(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, moment: Moment, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    name = dice.choice(["final", "step-9"])
    aside = watched.folder / "aside.tmp"
    aside.mkdir()
    for file in ("weights", "optimizer", "scheduler"):
        (aside / file).write_text(f"{file} of it")
    move(aside, watched.folder / name)
    fail(watched, monkeypatch, *[StorageError("down", retryable=True)] * dice.randint(0, 2))
    tries = dice.randint(0, 2)
    strips_at = dice.randint(0, tries)
    for number in range(tries + 1):
        watched.uploader._look()
        watched.uploader._look()
        if number == strips_at:
            for file in ("optimizer", "scheduler"):
                (watched.folder / name / file).unlink()
        if number < tries:
            watched.uploader._upload()
    was_published = list(watched.published)
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 1000.0)
    watched.start()
    assert watched.end(moment) is None
    new = [{file.name for file in Path(each.uri).iterdir()} - {"manifest.json"} for each in watched.published]
    if was_published or moment is Moment.CUT_OFF:
        # The whole one is in the store; or the program may have been deleting it.
        assert len(new) == len(was_published)
    else:
        assert new == [{"weights"}]


def test_what_an_upload_holds_that_outlives_its_time_is_let_go(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = held(monkeypatch, "_send")
    watched.start()
    save(watched, "step-5.txt", 1)
    assert reached.wait(60)
    assert hidden(watched)
    undelivered = watched.end(Moment.CUT_OFF, limit=0.0)
    assert undelivered
    assert watched.uploader._thread.is_alive()
    until(lambda: not hidden(watched))
    goes_on.set()
    watched.uploader._thread.join(60)
    assert not watched.uploader._thread.is_alive()
    assert not hidden(watched)


@pytest.mark.parametrize("change", ["written", "deleted", "replaced"])
def test_what_has_changed_since_it_was_proved_is_judged_anew(watched: Watched, change: str) -> None:
    place = save(watched, "step-5.txt", 1)
    watched.uploader._look()
    watched.uploader._look()
    if change == "written":
        place.write_text("of other content")
    else:
        place.unlink()
    if change == "replaced":
        save(watched, "step-5.txt", 2, "of the next save")
    assert watched.uploader._upload()
    # What is deleted or replaced was whole, and is held.
    assert [Path(each.uri, "step-5.txt").read_text() for each in watched.published] == ["weights"] * (
        change != "written"
    )
    assert watched.uploader._waiting == {}
    watched.published.clear()
    save(watched, "step-5.txt", 3, "whole again")
    assert watched.step(2)
    assert Path(watched.published[0].uri, "step-5.txt").read_text() == "whole again"


def test_an_error_that_nobody_thought_of_ends_no_uploads_and_is_said_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look, odd = watched.uploader.judge.look, [RuntimeError("odd")] * 5 + [RuntimeError("odder")]

    def fails(moment: Moment) -> Any:
        if odd:
            raise odd.pop(0)
        return look(moment)

    monkeypatch.setattr(watched.uploader.judge, "look", fails)
    watched.start()
    until(lambda: not odd)
    save(watched, "step-5.txt", 1)
    until(lambda: watched.published)
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [str(record.exc_info[1]) for record in said if record.exc_info] == ["odd", "odder"]
    assert all("unexpected error in the scan for checkpoints" in record.getMessage() for record in said)
    assert watched.end() is None


def test_an_error_at_the_end_that_nobody_thought_of_is_no_success(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(_: Moment) -> None:
        raise RuntimeError("odd")

    watched.start()
    monkeypatch.setattr(watched.uploader.judge, "look", odd)
    undelivered = watched.end()
    assert undelivered
    assert "odd" in undelivered.message
    assert undelivered.cause is Cause.DATA
    assert "RuntimeError: odd" in caplog.text


# A later attempt


def test_once_a_later_attempt_saves_nothing_more_is_tried(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fences.advance_fence(open_store(str(watched.target)), Fence(attempt=2))
    tried = fail(watched, monkeypatch)
    for at in range(3):
        save(watched, f"step-{at}.txt", at)
    watched.start()
    undelivered = watched.end(limit=60)
    assert tried == ["step-2.txt"]
    assert undelivered
    assert "attempt 2 has begun to save there" in undelivered.message
    assert undelivered.cause is Cause.DATA
    assert [record.levelno for record in caplog.records if "attempt 2" in record.getMessage()] == [
        logging.ERROR
    ]
    assert watched.published == []
    assert not watched.step(), "not even what else waits"
    assert tried == ["step-2.txt"]


# The end


def test_what_is_still_on_its_way_when_the_time_is_over_is_said(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> CheckpointRef:
        begun.set()
        goes_on.wait(60)
        return CheckpointRef(uri="x", step=5)

    monkeypatch.setattr(checkpoints, "publish", slow)
    watched.start()
    save(watched, "step-5.txt", 1)
    until(begun.is_set)
    undelivered = watched.end(limit=0)
    goes_on.set()
    assert undelivered
    assert undelivered.cause is Cause.SERVICE
    assert undelivered.message == f"checkpoints were still uploading to {watched.target} after 0 s"
    watched.uploader._thread.join(20)


@pytest.mark.parametrize("times", [1, 3])
def test_what_fails_after_the_training_is_tried_again_until_it_is_sent(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    publish, failures = checkpoints.publish, [StorageError("down", retryable=True)] * times

    def down_at_first(*arguments: Any, **options: Any) -> CheckpointRef:
        if not watched.uploader._training_ended.is_set():
            raise StorageError("down", retryable=True)
        if failures:
            raise failures.pop()
        return publish(*arguments, **options)

    monkeypatch.setattr(checkpoints, "publish", down_at_first)
    watched.start()
    save(watched, "step-5.txt", 1)
    assert watched.end() is None
    assert watched.steps == [5]
    assert failures == []


@pytest.mark.parametrize("retryable, cause", [(True, Cause.SERVICE), (False, Cause.DATA)])
def test_what_cannot_be_sent_in_the_time_that_is_left_is_said(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, retryable: bool, cause: Cause
) -> None:
    fail(watched, monkeypatch, *[StorageError("the store is down", retryable=retryable)] * 10_000)
    watched.start()
    save(watched, "step-5.txt", 1)
    undelivered = watched.end(limit=0.1)
    assert undelivered
    assert (undelivered.cause, undelivered.message) == (
        cause,
        "the checkpoint step-5.txt cannot be published: the store is down",
    )


@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
def test_a_training_that_saved_nothing_ends_well_here(watched: Watched, moment: Moment) -> None:
    watched.start()
    assert watched.end(moment) is None
    assert not watched.uploader._thread.is_alive()


def half(watched: Watched, name: str, at: int) -> Path:
    path = watched.folder / name
    path.write_bytes(torch_bytes({"at": at})[:-30])
    os.utime(path, ns=(BEGIN + at * 10**9, BEGIN + at * 10**9))
    return path


@pytest.mark.parametrize("moment", [Moment.EXITED, Moment.CUT_OFF])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("broken_at", [1, 3])
def test_a_broken_one_that_is_the_last_is_no_success_where_checkpoints_are_required(
    tmp_path: Path, moment: Moment, required: bool, broken_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, required=required)
    watched.start()
    save(watched, "step-5.txt", 2)
    until(lambda: watched.published)
    half(watched, f"step-{broken_at}.pt", broken_at)
    undelivered = watched.end(moment)
    # After any other end the task fails by that end.
    assert (undelivered is not None) == (required and broken_at == 3 and moment is Moment.EXITED)
    assert f"step-{broken_at}.pt is not whole and is not published: " in caplog.text
    assert "Remedy: " in caplog.text
    assert '{"checkpoint": "step-' in caplog.text


def test_of_what_nothing_proves_as_many_as_stay_are_kept_aside_the_last_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(unproved_copies, "keep_aside", lambda *arguments: kept.append(arguments))
    watched = Watched(tmp_path, keep=2)
    watched.start()
    for at in range(4):
        half(watched, f"step-{at}.pt", at)
    deadline = SaveDeadline(20.0)
    assert watched.uploader.finish(Moment.CUT_OFF, deadline) is None
    ((paths, uri, access, given),) = kept
    assert [path.name for path in paths] == ["step-3.pt", "step-2.pt"]
    assert (uri, access, given) == (str(watched.target), watched.access, deadline)


def test_what_was_kept_aside_before_leaves_with_the_first_that_is_published_and_not_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[Any] = []
    monkeypatch.setattr(unproved_copies, "forget", lambda *arguments: forgotten.append(arguments))
    watched.step(2)
    assert forgotten == []
    for at in range(3):
        save(watched, f"step-{at}.txt", at)
        watched.step(2)
    assert forgotten == [(str(watched.target), watched.access)]


@pytest.mark.parametrize("is_lasting", [True, False])
def test_in_a_folder_that_outlives_the_node_it_is_noted_what_the_next_attempt_may_go_on_from(
    tmp_path: Path, is_lasting: bool
) -> None:
    watched = Watched(tmp_path, path=str(tmp_path / "checkpoints") if is_lasting else "checkpoints")
    save(watched, "step-5.txt", 1)
    watched.step(2)
    half(watched, "step-6.pt", 2)
    watched.step(2)
    assert Ledger(watched.folder).begin() == (["step-6.pt"] if is_lasting else [])
    assert (watched.folder / "step-5.txt").exists()


@pytest.mark.parametrize("seed", range(10))
def test_where_nodes_have_folders_apart_a_launch_goes_on_only_from_what_all_can_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    path = str(tmp_path / "checkpoints")
    watched = Watched(tmp_path, shards=Collector(), path=path, keep=dice.randint(1, 3), required=False)
    written, count = [], dice.randint(3, 8)
    reachable_until = dice.randint(0, count)
    for at in range(count):
        if at == reachable_until:
            fail(watched, monkeypatch, *[StorageError("the store is down", retryable=True)] * 10_000)
        older = written and dice.random() < 0.3
        written.append(save(watched, f"step-{at}.txt", dice.randint(0, at - 1) if older else at).name)
        watched.step(dice.randint(1, 3))
    assert set(written) - set(Ledger(watched.folder).begin()) <= set(names(watched))


# What is said of names


def test_a_name_that_cannot_be_placed_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path, pattern=r"run-(?P<step>\d+)\.txt")
    for name in ("run-1.txt", "step-2.pt", "b.pt", "a.pt"):
        (watched.folder / name).write_text("x")
    watched.step(3)
    said = [record.getMessage() for record in caplog.records if "checkpoints.pattern" in record.getMessage()]
    assert [text.split()[0] for text in said] == ["a.pt", "b.pt", "step-2.pt"]
    (watched.folder / "c.pt").write_text("x")
    watched.step(2)
    assert caplog.text.count("c.pt in the checkpoint folder") == 1


def test_a_folder_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    watched = Watched(tmp_path / "deep")
    watched.folder.rmdir()
    watched.folder.parent.joinpath("meter").rmdir()
    watched.folder.parent.rmdir()
    assert watched.step(2)
    watched.start()
    assert watched.folder.is_dir()
    assert watched.end() is None


def test_a_mixture_of_two_saves_is_warned_of_once_while_the_training_runs(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    place = watched.begin(5, "a.bin", "b.bin")
    watched.announce(checkpoint="step-5")
    watched.step(2)
    (place / "a.bin").write_text("of the next save")
    watched.step(4)
    said = [record.getMessage() for record in caplog.records if "is not published yet" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("step-5 is not published yet: its file b.bin belongs to an earlier save")
    assert "Remedy: " in said[0]


# An upload that outlives its launch


def held(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Let a step of publishing wait; return what shows that it was reached, and what lets it go on."""
    reached, goes_on, step = threading.Event(), threading.Event(), getattr(checkpoints, name)

    def waits(*arguments: Any) -> Any:
        reached.set()
        assert goes_on.wait(60)
        return step(*arguments)

    monkeypatch.setattr(checkpoints, name, waits)
    return reached, goes_on


def test_what_is_still_being_sent_when_another_launch_begins_is_never_published(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = held(monkeypatch, "_send")
    watched.start()
    for at in (5, 6):
        save(watched, f"step-{at}.txt", at)
    assert reached.wait(60)
    assert watched.end(Moment.CUT_OFF, limit=0.0) is not None
    watched.uploader.abandon()
    goes_on.set()
    watched.uploader._thread.join(60)
    assert not watched.uploader._thread.is_alive()
    assert watched.published == []
    assert newest(str(watched.target)) is None


def test_what_is_being_sent_when_the_time_to_save_is_over_is_aborted(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def until_cancelled(*arguments: Any) -> Any:
        begun.set()
        assert arguments[-1].wait(60)
        raise StorageError("cancelled")

    monkeypatch.setattr(checkpoints, "_send", until_cancelled)
    watched.start()
    save(watched, "step-5.txt", 1)
    until(begun.is_set)
    undelivered = watched.end(Moment.CUT_OFF, limit=0.0)
    assert undelivered
    assert "were still uploading" in undelivered.message
    watched.uploader._thread.join(60)
    assert not watched.uploader._thread.is_alive()


def test_another_launch_waits_for_what_is_just_being_published(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, goes_on = held(monkeypatch, "_offer")
    watched.start()
    save(watched, "step-5.txt", 5)
    assert reached.wait(60)
    assert watched.end(Moment.CUT_OFF, limit=0.0) is not None
    abandons = threading.Thread(target=watched.uploader.abandon)
    abandons.start()
    until(lambda: watched.uploader._publisher._abandoned)
    assert abandons.is_alive()
    goes_on.set()
    abandons.join(60)
    assert watched.steps == [5]


def test_a_checkpoint_without_a_number_that_is_proved_late_has_the_step_at_which_it_was_written(
    watched: Watched,
) -> None:
    watched.meter.saw(b"step 10 loss 1\n")
    (watched.folder / "best.bin").write_text("nothing proves that it is whole")
    watched.step(2)
    watched.meter.saw(b"step 50 loss 1\n")
    assert watched.steps == []
    watched.announce(checkpoint="best.bin")
    watched.step(2)
    assert watched.steps == [10]
    (watched.folder / "best.bin").write_text("of the fiftieth step")
    watched.step()
    watched.meter.saw(b"step 60 loss 1\n")
    watched.announce(checkpoint="best.bin")
    watched.step(2)
    assert watched.steps == [10, 50]


def test_what_was_written_before_the_program_reported_a_step_has_none(watched: Watched) -> None:
    (watched.folder / "best.bin").write_text("nothing proves that it is whole")
    watched.step(2)
    watched.meter.saw(b"step 50 loss 1\n")
    watched.announce(checkpoint="best.bin")
    watched.step(2)
    assert watched.steps == [None]


def test_without_a_word_of_the_program_nothing_of_it_is_assumed(watched: Watched) -> None:
    bare = uploads.ProgramState()
    assert (bare.step(), bare.loss_at(3), dict(bare.announced())) == (None, None, {})
    watched.uploader.program = bare
    save(watched, "last", 1)
    watched.step(2)
    assert watched.steps == [None]


# The order of what is proved early and late


@pytest.mark.parametrize("seed", range(15))
def test_whatever_is_proved_late_the_newest_is_what_was_begun_last(tmp_path: Path, seed: int) -> None:
    """Folders are proved only when their successor is begun; files of other kinds beside them at once."""
    print("seed", seed)
    dice = random.Random(seed)
    watched = Watched(tmp_path, keep=100)
    begun: list[str] = []
    for at in range(dice.randint(3, 9)):
        if dice.random() < 0.5:
            begun.append(watched.begin(at, "part-0", "part-1").name)
        else:
            begun.append(dice.choice(["best", "last", f"model_epoch_{at}.txt"]))
            (watched.folder / "aside.tmp").write_text("weights")
            # Its time stays that of the write: a change after the rename would look like another write.
            (watched.folder / "aside.tmp").rename(watched.folder / begun[-1])
        watched.step(dice.randint(2, 4))
    watched.uploader._moment = Moment.EXITED
    assert watched.step(2)
    found = [
        Manifest.from_json(Path(each.uri, "manifest.json").read_bytes())
        for each in complete(str(watched.target))
    ]
    assert [each.name for each in reversed(found)] == begun
    assert watched.uploader._newest == len(begun)


def test_with_one_to_keep_what_is_proved_late_costs_the_newest_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path, keep=1)
    watched.begin(5, "part-0", "part-1")
    watched.step(2)
    (watched.folder / "aside.tmp").write_text("the best")
    (watched.folder / "aside.tmp").rename(watched.folder / "best")
    watched.step(2)
    watched.begin(6, "part-0")
    watched.step(2)
    assert len(watched.published) == 2
    found = newest(str(watched.target))
    assert found
    assert Path(found.uri, "best").read_text() == "the best"


def test_what_an_earlier_attempt_has_left_open_is_forgotten_also_if_the_folder_was_not_claimed_before(
    tmp_path: Path,
) -> None:
    uri, access = str(tmp_path / "dag-train-0a-g1"), OciAccess(region="of-the-node")
    store = open_store(uri, access)
    for owner in ("", ".attempt-2", ".attempt-3"):
        store.upload(f"step-5.pt{owner}/step-5.pt", 2, 1).write(0, 0, b"x")
    fence = Fence(generation=1, attempt=2)
    publisher = Publisher(Checkpoints(uri=uri), access, fence, loss_at=lambda _: None)
    fences.advance_fence(store, Fence(generation=1, attempt=3))
    publisher.retain()
    assert len(store.open_uploads()) == 3
    store.delete(fences.FENCE_FILE)
    publisher.retain()
    assert sorted(upload.name.partition("/")[0] for upload in store.open_uploads()) == [
        "step-5.pt.attempt-2",
        "step-5.pt.attempt-3",
    ]


@pytest.mark.parametrize("is_seen_later", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_where_the_clock_is_set_back_what_is_written_from_there_on_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, is_seen_later: bool
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    watched = Watched(tmp_path, keep=100)
    at, set_back = 0, 0
    clock = SimpleNamespace(monotonic=lambda: float(at), time=lambda: BEGIN / 1e9 + at + 0.5 - set_back)
    monkeypatch.setattr(file_clocks, "time", clock)
    watched.uploader._newest_saves.clock = file_clocks.WallClock()
    back_at, seconds = dice.randint(1, 4), dice.randint(10, 100_000)
    for at in range(6):
        if at == back_at and not is_seen_later:
            set_back = seconds
        save(watched, f"step-{at}.txt", at - set_back)
        if at == back_at:
            set_back = seconds
        watched.step(2)
    assert watched.steps == list(range(6))
    assert [found.step for found in complete(str(watched.target))] == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "passed, set_back", [(10.0, 0.0), (0.0, 0.4), (3600.0, -100.0), (10.0, 0.6), (10.0, 3600.0)]
)
def test_a_clock_that_runs_or_is_set_on_was_not_set_back(
    monkeypatch: pytest.MonkeyPatch, passed: float, set_back: float
) -> None:
    now = SimpleNamespace(monotonic=lambda: 5.0, time=lambda: 5000.0)
    monkeypatch.setattr(file_clocks, "time", now)
    clock = file_clocks.WallClock()
    now.monotonic, now.time = lambda: 5.0 + passed, lambda: 5000.0 + passed - set_back
    assert clock.went_back() is (set_back > 0.5)
    assert not clock.went_back()


# After a failure, when another launch or the end of the run waits


@pytest.mark.parametrize("seed", range(6))
def test_after_a_failure_what_is_older_than_the_newest_is_sent_only_in_the_time_that_the_end_of_a_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    moment, is_late = dice.choice([Moment.CUT_OFF, Moment.EXITED]), dice.random() < 0.6
    keep = dice.randint(2, 4)
    monkeypatch.setattr(uploads, "SAVE_LIMIT", 0.0 if is_late else 600.0)
    watched = Watched(tmp_path, keep=keep)
    for at in range(keep):
        save(watched, f"step-{at}.txt", at)
    watched.uploader._look()
    watched.uploader._look()
    watched.uploader._moment = watched.uploader._end = moment
    watched.uploader._ended_at = time.monotonic() - 1.0
    assert watched.uploader._upload()
    is_newest_alone = is_late and moment is Moment.CUT_OFF
    assert watched.steps[0] == keep - 1
    assert len(watched.steps) == (1 if is_newest_alone else keep)
    assert not watched.uploader._waiting


@pytest.mark.parametrize("moment", [Moment.CUT_OFF, Moment.EXITED])
def test_only_after_a_success_silent_nodes_are_waited_for_with_their_parts(
    tmp_path: Path, moment: Moment
) -> None:
    given: list[Any] = []

    class Noting(Collector):
        def finish(self, *arguments: object) -> None:
            given.extend(arguments)

    watched = Watched(tmp_path, shards=Noting(), required=False)
    watched.start()
    deadline = SaveDeadline(20.0)
    assert watched.uploader.finish(moment, deadline) is None
    waits, further = given
    assert waits is (deadline if moment is Moment.EXITED else None)
    assert further == watched.uploader._movement.further


@pytest.mark.parametrize("moment", [Moment.CUT_OFF, Moment.EXITED])
def test_what_nothing_proves_holds_up_another_launch_no_longer_than_the_end_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: Moment
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(unproved_copies, "keep_aside", lambda *arguments: kept.append(arguments[-1]))
    watched = Watched(tmp_path, required=False)
    watched.start()
    half(watched, "step-1.pt", 1)
    deadline = SaveDeadline(3600.0, from_failure=True)
    watched.uploader.finish(moment, deadline)
    (given,) = kept
    assert given.limit == (SAVE_LIMIT if moment is Moment.CUT_OFF else 3600.0)


@pytest.mark.parametrize("keep, steps", [(1, 4), (2, 5), (3, 5)])
def test_one_that_cannot_be_sent_keeps_no_old_ones_in_the_store(
    tmp_path: Path, keep: int, steps: int
) -> None:
    """It is tried again and again, while the newer ones are published and the old ones deleted."""
    watched = Watched(tmp_path, keep=keep)
    watched.target.mkdir()
    (watched.target / "best.pt.save-1").write_text("what somebody has put in its place")
    watched.start()
    # Aside and renamed: a look amid the writing would count it as a save before, and the name in the store is another.
    save_torch(watched, "best.pt", 1)
    until(lambda: isinstance(watched.uploader.error, StorageError))
    for step in range(1, steps + 1):
        watched.write(step)
        until(lambda step=step: step in watched.steps)
    kept = [f"step-{step}.txt" for step in range(steps - keep + 1, steps + 1)]
    until(lambda: sorted(path.name for path in watched.target.glob("step-*")) == kept)
    undelivered = watched.end(limit=0.1)
    assert undelivered is not None
    assert "best.pt cannot be published" in undelivered.message


def test_a_name_that_is_too_long_for_the_store_is_in_no_other_ones_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path)
    watched.start()
    watched.write(1)
    long = "m" * 250 + ".pt"
    (watched.folder / long).write_bytes(torch_bytes(1))
    until(lambda: f"{long} cannot be published" in caplog.text)
    watched.write(2)
    until(lambda: 2 in watched.steps)
    undelivered = watched.end()
    assert watched.steps == [1, 2]
    assert watched.uploader.error is None
    assert undelivered is None


def refusing(
    monkeypatch: pytest.MonkeyPatch, *names: str, refused: Callable[[], bool] = lambda: True
) -> None:
    """Let the store refuse checkpoints of these names, as long as `refused` returns so."""
    publish = checkpoints.publish

    def answer(path: Path, *arguments: Any, **options: Any) -> CheckpointRef:
        if Path(path).name in names and refused():
            raise StorageError("403: not allowed", retryable=False)
        return publish(path, *arguments, **options)

    monkeypatch.setattr(checkpoints, "publish", answer)


def save_torch(watched: Watched, name: str, at: int) -> Path:
    place = watched.folder / name
    aside = place.with_suffix(".tmp")
    aside.write_bytes(torch_bytes(at))
    os.utime(aside, ns=(BEGIN + at * 10**9, BEGIN + at * 10**9))
    return aside.rename(place)


@pytest.mark.parametrize("rules", [{}, {"keep_every": 5}])
def test_one_that_is_refused_is_given_up_once_a_newer_one_of_its_series_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: dict[str, Any]
) -> None:
    refusing(monkeypatch, "step-5.txt")
    watched = Watched(tmp_path, keep=3, **rules)
    save(watched, "step-5.txt", 1)
    for _ in range(SENT_LAST_AFTER):
        watched.step(2)
    save(watched, "step-6.txt", 2)
    watched.step(2)
    watched.step(2)
    assert watched.steps == [6]
    # Where a rule keeps old ones, it is wanted still.
    assert bool(watched.uploader._waiting) is bool(rules)


def test_a_save_under_a_name_that_was_refused_before_is_sent_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [True]
    refusing(monkeypatch, "last.pt", refused=lambda: first[0])
    watched = Watched(tmp_path, keep=3)
    place = save_torch(watched, "last.pt", 1)
    for _ in range(SENT_LAST_AFTER + 1):
        watched.step(2)
    assert [watched.uploader._is_sent_last(whole) for whole in watched.uploader._waiting.values()] == [True]
    first[0] = False
    place.unlink()
    save_torch(watched, "last.pt", 3)
    watched.uploader._look()
    watched.uploader._look()
    assert [watched.uploader._is_sent_last(whole) for whole in watched.uploader._waiting.values()] == [False]


def test_after_a_failure_refusals_change_no_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [True]
    refusing(monkeypatch, "best.pt", "step-1.txt", refused=lambda: refused[0])
    watched = Watched(tmp_path, keep=3)
    save_torch(watched, "best.pt", 1)
    save(watched, "step-1.txt", 2)
    watched.uploader._look()
    watched.uploader._look()
    watched.uploader._moment = watched.uploader._end = Moment.CUT_OFF
    watched.uploader._ended_at = time.monotonic()
    for _ in range(SENT_LAST_AFTER + 1):
        assert not watched.uploader._upload()
    refused[0] = False
    assert watched.uploader._upload()
    assert [Path(each.uri).name.partition(".")[0] for each in watched.published] == ["step-1", "best"]


def test_what_is_held_first_is_what_is_sent_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"best_{metric}.pt" for metric in ("a", "b", "c", "d")]
    refusing(monkeypatch, *names)
    watched = Watched(tmp_path, keep=3)
    for at, name in enumerate(names, 1):
        save_torch(watched, name, at)
        for _ in range(SENT_LAST_AFTER + 1):
            watched.step(2)
    refusing(monkeypatch, "step-1.txt")
    save(watched, "step-1.txt", 9)
    watched.uploader._look()
    watched.uploader._look()
    held = watched.uploader._held_next()
    assert held[0].item.path.name == "step-1.txt"
    assert len(held) == MOST_HELD
