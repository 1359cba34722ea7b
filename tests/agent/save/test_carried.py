"""What a launch leaves to the next one: only where all that belongs together is still here."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import handover, saving, unproved_copies, uploads
from airflow_provider_ocidist.agent.save.carried import (
    Carried,
    NewestInPlace,
    digest_of,
    fetched_into,
    renumbered,
)
from airflow_provider_ocidist.agent.save.entries import Candidate, candidates
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.proofs import Moment, Proof
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.upload_order import MOST_HELD
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.checkpoint_names import Placed
from airflow_provider_ocidist.storage.checkpoints import complete
from tests.agent.gangs import until
from tests.agent.save.watched import Watched

SEED = int(os.environ.get("TEST_SEED", "20261127"))
SERIES = ("model-{}.bin", "optimizer-{}.bin", "last.ckpt", "best-epoch={}.ckpt")


def series_of(placed: Placed) -> str:
    return placed.series


def saved(folder: Path, name: str) -> Candidate:
    (folder / name).write_text(f"{name} {random.random()}")
    (item,) = fetched_into(folder, None, [name])
    return item


@pytest.mark.parametrize("number", range(20))
def test_the_newest_of_each_series_has_to_lie_there_as_it_was_proved(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    there = [saved(tmp_path, pattern.format(0)) for pattern in SERIES if draw.random() < 0.5]
    newest = {item.placed.series: item for item in there}
    known = NewestInPlace(there)
    for begun in range(1, draw.randrange(2, 12)):
        item = saved(tmp_path, draw.choice(SERIES).format(begun))
        known.add(item, begun)
        older = newest.get(item.placed.series)
        newest[item.placed.series] = item
        if older and older.path != item.path and draw.random() < 0.5:
            # A program that keeps the last one.
            older.path.unlink()
    found = known.found(series_of) or ()
    assert {item.path: item.signature for item in found} == {
        item.path: item.signature for item in newest.values()
    }
    touched = draw.choice([*newest.values()]).path
    if draw.random() < 0.5:
        touched.unlink()
    else:
        touched.write_text("half")
    assert known.found(series_of) is None


def test_what_is_here_before_the_program_starts_counts_by_when_it_was_written(tmp_path: Path) -> None:
    for step in (1, 3, 2):
        (tmp_path / f"model-{step}.bin").write_text(str(step))
        os.utime(tmp_path / f"model-{step}.bin", (step, step))
    (found,) = NewestInPlace(candidates(tmp_path)).found(series_of) or ()
    assert found.path.name == "model-3.bin"


def test_what_waits_is_numbered_in_the_order_of_saving(tmp_path: Path) -> None:
    item = saved(tmp_path, "model-1.bin")
    waiting = [Whole(item, Proof("a test"), begun, step=begun) for begun in (7, 2, 5)]
    assert [(each.begun, each.step) for each in renumbered(waiting)] == [(1, 2), (2, 5), (3, 7)]


def test_what_is_found_here_comes_newest_first_as_the_next_launch_takes_it(tmp_path: Path) -> None:
    known = NewestInPlace()
    for begun, name in enumerate(("model-1.bin", "optimizer-1.bin", "last.ckpt", "model-2.bin"), 1):
        known.add(saved(tmp_path, name), begun)
    found = known.found(series_of) or ()
    assert [item.path.name for item in found] == ["model-2.bin", "last.ckpt", "optimizer-1.bin"]
    # Once more names have shown that they are of one series.
    (newest,) = NewestInPlace(found).found(lambda _: "one series") or ()
    assert newest.path.name == "model-2.bin"


def test_names_that_turn_out_to_be_of_one_series_stand_where_the_newest_of_them_does(tmp_path: Path) -> None:
    known = NewestInPlace()
    for begun, name in enumerate(("model-1.bin", "optimizer-1.bin", "best-epoch=2.ckpt"), 1):
        known.add(saved(tmp_path, name), begun)
    found = known.found(lambda placed: "optimizer" if "optimizer" in placed.series else "model") or ()
    assert [item.path.name for item in found] == ["best-epoch=2.ckpt", "optimizer-1.bin"]


def test_of_what_lies_in_a_folder_only_what_was_fetched_and_fits_the_pattern_is_an_entry(
    tmp_path: Path,
) -> None:
    for step, name in enumerate(("model-2.bin", "model-1.bin", "model-3.bin", "notes.bin"), 1):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (step, step))
    fetched = ("model-1.bin", "model-2.bin", "notes.bin", "gone-1.bin")
    assert [item.path.name for item in fetched_into(tmp_path, r"model-\d\.bin", fetched)] == [
        "model-1.bin",
        "model-2.bin",
    ]
    assert [item.path.name for item in fetched_into(tmp_path, None, fetched)] == [
        "notes.bin",
        "model-1.bin",
        "model-2.bin",
    ]
    assert fetched_into(tmp_path, None, ()) == []


# What nodes compare


def carried_in(folder: Path) -> Carried:
    items = tuple(candidates(folder))
    return Carried(
        waiting=(Whole(items[0], Proof("a test"), 1, step=1),), links=HeldLinks(folder), in_place=items
    )


def write_all(folder: Path) -> Path:
    for name in ("step-2/model.bin", "step-2/deep/optimizer.bin", "step-1/model.bin", "last.ckpt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"weights in {name}")
        os.utime(folder / name, (1, 1))
    return folder


def longer(folder: Path) -> None:
    (folder / "step-2" / "model.bin").write_text("weights in part and whole")
    os.utime(folder / "step-2" / "model.bin", (1, 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "written to": lambda folder: os.utime(folder / "last.ckpt", (2, 2)),
    "longer": longer,
    "a file less": lambda folder: (folder / "step-2/deep/optimizer.bin").unlink(),
    "a file more": lambda folder: (folder / "step-1/more.bin").write_text("more"),
    "another name": lambda folder: (folder / "step-2/model.bin").rename(folder / "step-2/model-2.bin"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nodes_find_the_same_only_if_all_files_are_and_for_one_launch(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    """The inodes of their files differ, and each may name what it finds in another order."""
    mine, its = write_all(tmp_path / "mine"), write_all(tmp_path / "its")
    carried = carried_in(mine)
    assert sorted(carried.names) == ["last.ckpt", "step-1", "step-2"]
    assert carried.digest(2) == digest_of(its, carried.names, 2) == digest_of(its, carried.names[::-1], 2)
    assert carried.digest(2) != carried.digest(3)
    assert digest_of(its, carried.names[:1], 2) != carried.digest(2)
    change(its)
    assert digest_of(its, carried.names, 2) != carried.digest(2)


def test_a_node_that_lacks_an_entry_finds_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent"):
        digest_of(tmp_path, ["absent"], 1)


# What an uploader leaves to that of the next launch


class Gate:
    """A store that takes nothing of these names until it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, heeds: bool = True) -> None:
        """`heeds`: whether an upload ends when it is cancelled; else it hangs in a request."""
        self.is_open, self.tried = threading.Event(), list[str]()
        send = checkpoints._send

        def sent(source: Any, target: Any, entries: Any, cancel: threading.Event) -> Any:
            (name,) = [name for name in names if name in target.uri] or [""]
            self.tried.append(name)
            while name and not self.is_open.is_set():
                if not heeds:
                    self.is_open.wait(60)
                elif cancel.wait(0.02):
                    raise StorageError("it was cancelled")
            return send(source, target, entries, cancel)

        monkeypatch.setattr(checkpoints, "_send", sent)


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.01)
    monkeypatch.setattr(handover, "SENT_FIRST", 0.3)
    monkeypatch.setattr(saving, "FIRST_PAUSE", 0.01)


def whole(watched: Watched, name: str) -> Path:
    aside = watched.folder / f"{name}.tmp"
    aside.write_text(f"weights of {name}")
    return aside.rename(watched.folder / name)


def proved(watched: Watched, *names: str) -> Watched:
    """Let the program have saved these one after the other, and then have ended."""
    for name in names:
        whole(watched, name)
        for _ in range(2):
            watched.uploader._look()
    watched.start()
    watched.uploader.program_ended()
    return watched


def numbers(watched: Watched) -> list[tuple[str, int]]:
    """Return what is stored and its numbers, the newest first."""
    found = complete(str(watched.target))
    return [
        (json.loads(Path(each.uri, "manifest.json").read_text())["name"], each.sequence) for each in found
    ]


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize(
    "names",
    [
        ("step-1.txt", "step-2.txt"),
        ("step-1.txt", "step-2.txt", "step-3.txt"),
        ("model-1.txt", "step-1.txt"),
        ("model-1.txt", "step-1.txt", "model-2.txt", "step-2.txt"),
    ],
    ids=",".join,
)
def test_what_is_older_than_what_has_got_through_is_sent_before_the_next_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Numbered above all that is stored, it would be the newest."""
    gate = Gate(monkeypatch, *names[:-1])
    watched = proved(Watched(tmp_path, keep=5), *names)
    until(lambda: watched.published)
    assert watched.uploader.leave(SaveDeadline(60)) is None
    gate.is_open.set()
    assert watched.end(Moment.CUT_OFF, limit=60) is None
    assert numbers(watched) == [(name, number) for number, name in reversed([*enumerate(names, 1)])]


@pytest.mark.usefixtures("_hasty")
def test_what_waits_is_left_once_and_sent_before_the_launch_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures that come faster than an upload must not keep a checkpoint from the store for good."""
    gate = Gate(monkeypatch, "step-1.txt", "step-2.txt")
    carried = proved(Watched(tmp_path, keep=5), "step-1.txt").uploader.leave(SaveDeadline(60))
    assert carried
    again = proved(Watched(tmp_path, keep=5, carried=carried), "step-2.txt")
    assert again.uploader.leave(SaveDeadline(60)) is None
    assert again.uploader.owes_carried
    gate.is_open.set()
    assert again.end(Moment.CUT_OFF, limit=60) is None
    assert not again.uploader.owes_carried
    assert numbers(again) == [("step-2.txt", 2), ("step-1.txt", 1)]


@pytest.mark.usefixtures("_hasty")
def test_what_is_carried_stays_here_though_a_full_disk_has_kept_it_from_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Gate(monkeypatch, "step-1.txt")
    watched = Watched(tmp_path, path=str(tmp_path / "checkpoints"))
    ledger = watched.uploader.ledger
    assert ledger
    ledger.file.with_name(f"{ledger.file.name}.new").mkdir()
    carried = proved(watched, "step-1.txt").uploader.leave(SaveDeadline(60))
    assert carried
    Watched(tmp_path, path=str(tmp_path / "checkpoints"), carried=carried)
    assert (watched.folder / "step-1.txt").exists()
    assert not (tmp_path / "checkpoints-unproved").exists()


@pytest.mark.usefixtures("_hasty")
def test_an_upload_that_hangs_is_no_reason_to_send_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "step-1.txt", heeds=False)
    watched = proved(Watched(tmp_path), "step-1.txt")
    until(lambda: gate.tried)
    assert watched.uploader.leave(SaveDeadline(1.0)) is None
    gate.is_open.set()
    assert watched.end(Moment.CUT_OFF, limit=60) is None
    assert watched.steps == [1]


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("follows", [True, False])
def test_what_nothing_proves_is_not_copied_where_another_launch_waits_on_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, follows: bool
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(unproved_copies, "keep_aside", lambda *arguments: kept.append(arguments))
    watched = Watched(tmp_path, required=False)
    watched.start()
    (watched.folder / "step-1.pt").write_bytes(b"PK half")
    if follows:
        assert watched.uploader.leave(SaveDeadline(60)) is None
    assert watched.end(Moment.CUT_OFF, limit=60) is None
    assert bool(kept) is not follows


def test_of_what_was_cut_off_only_some_are_held_behind_newer_ones(tmp_path: Path) -> None:
    watched = Watched(tmp_path, keep_every=1)
    watched.uploader._handover.is_open = True
    for number in range(1, 4 * MOST_HELD):
        whole(watched, f"step-{number}.txt")
        for _ in range(2):
            watched.uploader._look()
    held = [path.name for path in tmp_path.glob(".checkpoints.held.*/*/*")]
    assert len(held) <= 2 * MOST_HELD
    assert f"step-{4 * MOST_HELD - 1}.txt" in held
