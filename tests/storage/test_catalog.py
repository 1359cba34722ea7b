"""The catalog lists everything in a place for checkpoints; what it lets a person delete is never the last whole one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.job import Best
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import catalog, checkpoints
from airflow_provider_ocidist.storage.catalog import FolderState, Item, PruneRule
from airflow_provider_ocidist.storage.listing import delete_folder
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.retention import ABANDONED_AFTER_S, Retention, retain
from airflow_provider_ocidist.storage.stores.base import Entry
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish

SEED = int(os.environ.get("CATALOG_SEED", "20261123"))
DAY = 86_400.0
NOW = 1_000 * DAY


@pytest.fixture
def place(tmp_path):
    """Three whole checkpoints of two files each."""
    for step in (10, 20, 30):
        folder = tmp_path / "program" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(bytes([step]) * 3000)
        (folder / "optimizer.bin").write_bytes(bytes([step + 1]) * 100)
        publish(folder, str(tmp_path / "place"), step=step, loss=1 / step)
    return tmp_path / "place"


def listed(place: Path) -> dict[str, Item]:
    return {item.folder: item for item in catalog.items(open_store(str(place)))}


def test_everything_that_lies_there_is_listed_with_what_it_is(place):
    (place / "checkpoint-20" / "optimizer.bin").unlink()
    (place / "checkpoint-40").mkdir()
    (place / "checkpoint-40" / "model.bin").write_bytes(b"half")
    (place / "unproved" / "checkpoint-35").mkdir(parents=True)
    (place / "unproved" / "checkpoint-35" / "model.bin").write_bytes(b"who knows")
    (place / "unproved" / "last.pt").write_bytes(b"nor this")
    found = listed(place)
    assert list(found)[:2] == ["checkpoint-30", "checkpoint-10"]
    assert {name: str(item.state) for name, item in found.items()} == {
        "checkpoint-30": "whole",
        "checkpoint-10": "whole",
        "checkpoint-20": "damaged",
        "checkpoint-40": "unfinished",
        "unproved/checkpoint-35": "unproved",
        "unproved/last.pt": "unproved",
    }
    assert found["checkpoint-20"].fault == "optimizer.bin is missing"
    # The manifest counts too.
    assert found["checkpoint-30"].size == 3100 + (place / "checkpoint-30" / MANIFEST).stat().st_size


def test_a_manifest_that_is_no_manifest_is_damage(place):
    (place / "checkpoint-30" / MANIFEST).write_text("{")
    assert listed(place)["checkpoint-30"].state is FolderState.DAMAGED


def test_the_places_of_several_tasks_are_found_below_a_work_directory(place, tmp_path):
    work_dir = tmp_path / "work"
    for task in ("a-g0", "b-g1"):
        shutil.copytree(place, work_dir / "checkpoints" / task)
    assert catalog.places(open_store(str(work_dir))) == ["checkpoints/a-g0", "checkpoints/b-g1"]
    assert catalog.places(open_store(str(place))) == [""]
    assert catalog.places(open_store(str(place / "checkpoint-10"))) == []


def test_manifests_that_are_no_checkpoints_make_no_place(place, tmp_path):
    """Of a run's packages, and of a program's own files within a checkpoint."""
    work_dir = tmp_path / "work"
    shutil.copytree(place, work_dir / "checkpoints" / "a-g0")
    for folder in ("run-1/wheels", "checkpoints/a-g0/checkpoint-20/onnx"):
        (work_dir / folder).mkdir(parents=True)
        (work_dir / folder / MANIFEST).write_text('{"torch-2.whl": "sha256"}')
    shutil.copytree(place / "checkpoint-10", work_dir / "checkpoints" / "a-g0" / "checkpoint-30" / "within")
    assert catalog.places(open_store(str(work_dir))) == ["checkpoints/a-g0"]
    assert catalog.places(open_store(str(work_dir / "checkpoints" / "a-g0"))) == [""]


FOREIGN = ['{"metadata": {"dbt_version": "1"}, "nodes": {}}', '{"name": "web", "version": "1"}', "[]", "null"]


@pytest.mark.parametrize("number", range(20))
def test_a_manifest_of_another_program_above_checkpoints_hides_none(place, tmp_path, number):
    """As in a bucket, project or work directory in which dbt or a web application keeps its own `manifest.json`."""
    print("seed", SEED, number)
    draw = random.Random(f"{SEED}.foreign.{number}")
    root, tasks = tmp_path / "work", sorted(draw.sample(["a", "b/c", "b/d", "e/f/g"], draw.randint(1, 3)))
    for task in tasks:
        shutil.copytree(place, root / task)
    above = ["", *(task.rpartition("/")[0] for task in tasks), *tasks, "public", "public/of/it"]
    for folder in draw.sample(above, draw.randint(1, len(above))):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / MANIFEST).write_text(
            draw.choice([*FOREIGN, "{", "no JSON"][: 4 if "public" in folder else 6])
        )
    store = open_store(str(root))
    assert catalog.own_item(store) is None
    assert catalog.places(store) == tasks
    for task in tasks:
        assert len([item for item in listed(root / task).values() if item.state is FolderState.WHOLE]) == 3


@pytest.mark.parametrize("manifest", [*FOREIGN, "{"])
def test_a_folder_with_checkpoints_is_no_remains_though_it_has_another_programs_manifest(place, manifest):
    (place / "old").mkdir()
    shutil.copytree(place / "checkpoint-10", place / "old" / "checkpoint-10")
    (place / "old" / MANIFEST).write_text(manifest)
    for path in (place / "old").rglob("*"):
        os.utime(path, (0, 0))
    assert "old" not in listed(place)
    assert catalog.places(open_store(str(place))) == ["", "old"]
    chosen = catalog.selected(
        catalog.items(open_store(str(place))), PruneRule(rule=Retention(), remains=True), 100 * NOW
    )
    assert "old" not in [item.folder for item in chosen]


def test_the_folder_of_a_checkpoint_whose_manifest_is_none_any_more_is_damaged(place):
    for text in (*FOREIGN, "{"):
        (place / "checkpoint-10" / MANIFEST).write_text(text)
        found = catalog.own_item(open_store(str(place / "checkpoint-10")))
        assert found is not None
        assert found.state is FolderState.DAMAGED
        assert listed(place)["checkpoint-10"].state is FolderState.DAMAGED


def test_a_place_whose_manifests_are_all_corrupt_is_found_beside_others(place, tmp_path):
    work_dir = tmp_path / "work"
    for task in ("a", "b"):
        shutil.copytree(place, work_dir / task)
    for manifest in (work_dir / "b").glob(f"*/{MANIFEST}"):
        manifest.write_text("{")
    assert catalog.places(open_store(str(work_dir))) == ["a", "b"]


def test_runs_with_checkpoints_of_one_name_lose_none_to_one_another(place, tmp_path):
    archive = tmp_path / "archive"
    for run in ("run-A", "run-B"):
        shutil.copytree(place / "checkpoint-10", archive / run)
    found = catalog.items(open_store(str(archive)))
    assert catalog.selected(found, PruneRule(rule=Retention(keep=5)), 100 * NOW) == []
    assert len(catalog.selected(found, PruneRule(rule=Retention(keep=1)), 100 * NOW)) == 1


def test_a_place_below_a_place_is_no_remains(place):
    """As another run's checkpoints that a person has put there."""
    (place / "old" / "run-B").mkdir(parents=True)
    shutil.copytree(place / "checkpoint-10", place / "old" / "run-B" / "checkpoint-10")
    for path in (place / "old").rglob("*"):
        os.utime(path, (0, 0))
    store = open_store(str(place))
    assert catalog.places(store) == ["", "old/run-B"]
    assert "old" not in listed(place)
    retain(str(place), Retention(keep=5), fence=Fence(attempt=9))
    assert (place / "old" / "run-B" / "checkpoint-10" / MANIFEST).exists()


def test_any_changed_byte_is_found(place):
    draw = random.Random(SEED)
    print(f"seed {SEED}")
    store = open_store(str(place))
    assert [catalog.what_differs(store, item) for item in catalog.items(store)] == [None] * 3
    for _ in range(20):
        item = draw.choice(catalog.items(store))
        file = place / item.folder / draw.choice(["model.bin", "optimizer.bin"])
        before = file.read_bytes()
        at = draw.randrange(len(before))
        file.write_bytes(before[:at] + bytes([before[at] ^ (1 << draw.randrange(8))]) + before[at + 1 :])
        faults = {each.folder: catalog.what_differs(store, each) for each in catalog.items(store)}
        assert faults.pop(item.folder) == (
            f"{item.folder}/{file.name} is not what was published: its SHA-256 differs"
        )
        assert set(faults.values()) == {None}
        file.write_bytes(before)


def drawn(draw: random.Random) -> list[Item]:
    """Return a catalog as it might be: attempts, steps, ages, losses, remains at random."""
    found = []
    for sequence in range(1, draw.randint(1, 12)):
        manifest = Manifest(
            version=2,
            name=f"checkpoint-{sequence}",
            step=draw.choice([None, sequence * draw.randint(1, 9)]),
            loss=draw.choice([None, float("nan"), draw.random()]),
            created_at=NOW - draw.choice([0, 1, 3, 30]) * DAY,
            files=(ManifestFile(path="x", size=1, sha256=""),),
            attempt=draw.randint(1, 3),
            sequence=sequence,
        )
        found.append(Item(folder=f"c{sequence}", state=FolderState.WHOLE, files={}, manifest=manifest))
    whole = sorted(found, key=lambda item: item.manifest.order if item.manifest else (), reverse=True)
    rest = [
        Item(folder=f"r{number}", state=draw.choice([FolderState.UNFINISHED, FolderState.UNPROVED]), files={})
        for number in range(draw.randint(0, 3))
    ]
    return whole + rest


@pytest.mark.parametrize("number", range(200))
def test_the_newest_whole_one_and_what_the_rule_keeps_are_never_chosen(number):
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    found = drawn(draw)
    keep, age = draw.randint(1, 4), draw.choice([0.0, 2 * DAY])
    best = draw.choice([None, Best()])
    selection = PruneRule(rule=Retention(keep=keep, best=best), older_than=age, remains=draw.random() < 0.5)
    chosen = catalog.selected(found, selection, NOW)
    whole = [item for item in found if item.state is FolderState.WHOLE]
    assert not [item for item in whole[:keep] if item in chosen]
    assert all(item.saved_at is not None and item.saved_at <= NOW - age for item in chosen)
    losses = [
        item.manifest.loss for item in whole if item.manifest and item.manifest.loss == item.manifest.loss
    ]
    known = [loss for loss in losses if loss is not None]
    if best and known:
        assert min(known) not in [item.manifest.loss for item in chosen if item.manifest]


def test_all_that_no_rule_keeps_and_that_is_old_enough_is_chosen(place):
    items = catalog.items(open_store(str(place)))
    chosen = catalog.selected(items, PruneRule(rule=Retention(keep=1)), now=items[0].saved_at + 10)
    assert [item.folder for item in chosen] == ["checkpoint-20", "checkpoint-10"]


def test_remains_younger_than_an_hour_may_be_an_upload_that_goes_on(place):
    (place / "checkpoint-40").mkdir()
    half = place / "checkpoint-40" / "model.bin"
    half.write_bytes(b"half")
    selection = PruneRule(rule=Retention(keep=3), remains=True)
    written = half.stat().st_mtime
    items = catalog.items(open_store(str(place)))
    assert catalog.selected(items, selection, now=written + ABANDONED_AFTER_S - 1) == []
    (chosen,) = catalog.selected(items, selection, now=written + ABANDONED_AFTER_S + 1)
    assert chosen.folder == "checkpoint-40"


def test_where_nothing_is_whole_nothing_is_chosen(place):
    for manifest in place.glob(f"*/{MANIFEST}"):
        manifest.unlink()
    items = catalog.items(open_store(str(place)))
    assert len(items) == 3
    assert catalog.selected(items, PruneRule(rule=Retention(keep=1), remains=True), now=NOW * 100) == []


def test_a_deleted_one_is_gone_and_the_others_are_as_before(place):
    store = open_store(str(place))
    delete_folder(store, listed(place)["checkpoint-20"].files)
    assert [ref.step for ref in checkpoints.complete(str(place))] == [30, 10]
    assert not [path for path in (place / "checkpoint-20").glob("*") if path.is_file()]


def test_a_later_attempt_is_newer_whatever_its_step(place, tmp_path):
    again = tmp_path / "again" / "checkpoint-5"
    again.mkdir(parents=True)
    (again / "model.bin").write_bytes(b"x")
    publish(again, str(place), step=5, fence=Fence(attempt=2), sequence=1)
    assert next(iter(listed(place))).startswith("checkpoint-5")


def a_file(name: str, size: int | None = 1, modified: float | None = None) -> Entry:
    return Entry(name=name, size=size, modified=modified)


def a_manifest(*, at: float, sequence: int = 1, **more: Any) -> Manifest:
    given = {"version": 2, "name": "c", "step": None, "loss": None, "attempt": 1, "files": ()}
    return Manifest(**{**given, "created_at": at, "sequence": sequence, **more})


def an_item(folder: str, state: FolderState = FolderState.WHOLE, **more: Any) -> Item:
    return Item(folder=folder, state=state, **{"files": {}, **more})


def test_a_folder_has_the_size_of_its_files_and_the_time_of_its_publication_or_last_change():
    files = {"a": a_file("f/a", 3, 10.0), "b": a_file("f/b", None, 30.0), "c": a_file("f/c", 4)}
    item = an_item("f", FolderState.UNFINISHED, files=files)
    assert (item.size, item.saved_at) == (7, 30.0)
    assert an_item("f", files=files, manifest=a_manifest(at=20.0)).saved_at == 20.0
    assert an_item("f", files={"c": files["c"]}).saved_at is None
    assert (an_item("f").size, an_item("f").fault) == (0, None)


def test_each_kind_of_folder_says_why_it_is_not_whole(place):
    (place / "checkpoint-40").mkdir()
    (place / "checkpoint-40" / "model.bin").write_bytes(b"half")
    (place / "unproved").mkdir()
    (place / "unproved" / "last.pt").write_bytes(b"nor this")
    (place / "checkpoint-20" / MANIFEST).write_text("{")
    (place / "aside.txt").write_text("of nobody")
    found = listed(place)
    assert list(found) == [
        "checkpoint-30",
        "checkpoint-10",
        "checkpoint-20",
        "checkpoint-40",
        "unproved/last.pt",
    ]
    assert found["checkpoint-40"].fault == f"it has no {MANIFEST}"
    assert found["unproved/last.pt"].fault == "nothing proved that it is whole"
    assert found["unproved/last.pt"].files.keys() == {"last.pt"}
    assert "manifest" in str(found["checkpoint-20"].fault)
    assert found["checkpoint-20"].manifest is None
    assert found["checkpoint-20"].files.keys() == {MANIFEST, "model.bin", "optimizer.bin"}
    assert "Entry(" not in repr(found["checkpoint-30"]), "a thousand files are no text"
    assert found["checkpoint-30"].fault is None
    assert found["checkpoint-30"].files.keys() == {MANIFEST, "model.bin", "optimizer.bin"}


def test_a_folder_that_retention_deletes_meanwhile_is_not_there(place):
    class Deleting(LocalStore):
        def read(self, name: str) -> bytes:
            if name.startswith("checkpoint-20/"):
                raise FileNotFoundError(name)
            return super().read(name)

    found = catalog.items(Deleting(str(place)))
    assert [item.folder for item in found] == ["checkpoint-30", "checkpoint-10"]


def test_a_damaged_folder_keeps_its_manifest_and_is_not_read(place):
    (place / "checkpoint-20" / "optimizer.bin").unlink()
    item = listed(place)["checkpoint-20"]
    assert item.manifest is not None
    store = open_store(str(place))
    assert catalog.what_differs(store, item) == "optimizer.bin is missing"
    half = an_item("f", FolderState.UNFINISHED)
    assert catalog.what_differs(store, half) == f"it has no {MANIFEST}"
    assert catalog.what_differs(store, an_item("f", FolderState.UNPROVED, fault="why")) == "why"


class Pieces:
    """A store whose files are read in ranges, or only from front to back."""

    def __init__(self, data: bytes, *, ranges: bool) -> None:
        self.data, self.ranges = data, ranges
        self.asked: list[tuple[int, int]] = []
        self.finished = 0

    def download(self, entry: Entry, part_size: int) -> Pieces | None:
        assert (entry.name, part_size) == ("f/x", catalog.PIECE)
        return self if self.ranges else None

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        self.asked.append((offset, length))
        yield self.data[offset : offset + length]

    def finish(self) -> None:
        self.finished += 1

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        assert (entry.name, size) == ("f/x", catalog.PIECE)
        yield self.data


def test_a_file_is_read_in_pieces_to_its_last_byte_and_checked_at_its_end(monkeypatch):
    monkeypatch.setattr(catalog, "PIECE", 4)
    store = Pieces(b"abcdefghij", ranges=True)
    assert b"".join(catalog.content(store, a_file("f/x", 10))) == store.data
    assert store.asked == [(0, 4), (4, 4), (8, 2)]
    assert store.finished == 1
    store.asked.clear()
    assert list(catalog.content(store, a_file("f/x", None))) == []
    assert (store.asked, store.finished) == ([], 2)
    front = Pieces(b"abcdefghij", ranges=False)
    assert list(catalog.content(front, a_file("f/x", 10))) == [front.data]
    assert (front.asked, front.finished) == ([], 0)


def test_what_is_old_enough_to_the_second_is_chosen_and_of_remains_nothing_within_an_hour():
    newest = an_item("n", manifest=a_manifest(at=NOW, sequence=3))
    old = [an_item(str(at), manifest=a_manifest(at=at)) for at in (NOW - 100.0, NOW - 99.9)]
    rest = [
        an_item(f"r{age:g}", FolderState.UNFINISHED, files={"x": a_file("r/x", 1, NOW - age)})
        for age in (ABANDONED_AFTER_S, ABANDONED_AFTER_S - 0.1, 2 * ABANDONED_AFTER_S)
    ]
    timeless = an_item("t", FolderState.UNPROVED, files={"x": a_file("t/x")})
    found = [newest, *old, *rest, timeless]

    def chosen(**selection: Any) -> list[str]:
        rule = PruneRule(rule=Retention(keep=1), **selection)
        return [item.folder for item in catalog.selected(found, rule, NOW)]

    assert chosen(older_than=100.0) == [old[0].folder]
    assert chosen() == [old[0].folder, old[1].folder]
    at_once = an_item("o", manifest=a_manifest(at=NOW))
    assert catalog.selected([newest, at_once], PruneRule(rule=Retention(keep=1)), NOW) == [at_once]
    assert chosen(older_than=100.0, remains=True) == [old[0].folder, rest[0].folder, rest[2].folder]
    assert chosen(older_than=2 * ABANDONED_AFTER_S, remains=True) == [rest[2].folder]


def test_of_a_later_attempt_everything_counts_though_an_earlier_one_was_published_last():
    later = an_item("b", manifest=a_manifest(at=NOW, attempt=2, sequence=1))
    others = [an_item(f"a{n}", manifest=a_manifest(at=NOW - 9, sequence=n)) for n in (2, 1)]
    found = catalog.selected([later, *others], PruneRule(rule=Retention(keep=1)), NOW)
    assert found == others
    older = an_item("c", manifest=a_manifest(at=NOW - 1, attempt=2, sequence=0))
    assert catalog.selected([later, older], PruneRule(rule=Retention(keep=1)), NOW) == [older]


def test_the_manifest_goes_first_so_that_no_half_passes_for_whole(place):
    deleted: list[str] = []

    (place / "checkpoint-20" / "a.bin").write_bytes(b"beside it")

    class Noting(LocalStore):
        def delete(self, name: str) -> None:
            deleted.append(name)
            super().delete(name)

    delete_folder(Noting(str(place)), listed(place)["checkpoint-20"].files)
    assert deleted[0] == f"checkpoint-20/{MANIFEST}"
    assert sorted(deleted[1:]) == [f"checkpoint-20/{name}.bin" for name in ("a", "model", "optimizer")]
