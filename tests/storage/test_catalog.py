"""The catalog lists everything in a place for checkpoints; what it lets a person delete is never the last whole one."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from airflow_provider_ocidist.job import Best
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import catalog, checkpoints
from airflow_provider_ocidist.storage.catalog import FolderState, Item, PruneRule
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.retention import ABANDONED_AFTER_S, Retention
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


def test_what_was_read_is_counted(place):
    store = open_store(str(place))
    read: list[int] = []
    catalog.what_differs(store, catalog.items(store)[0], read.append)
    assert sum(read) == 3100


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
    catalog.delete(store, listed(place)["checkpoint-20"])
    assert [ref.step for ref in checkpoints.complete(str(place))] == [30, 10]
    assert not [path for path in (place / "checkpoint-20").glob("*") if path.is_file()]


def test_a_later_attempt_is_newer_whatever_its_step(place, tmp_path):
    again = tmp_path / "again" / "checkpoint-5"
    again.mkdir(parents=True)
    (again / "model.bin").write_bytes(b"x")
    publish(again, str(place), step=5, fence=Fence(attempt=2), sequence=1)
    assert next(iter(listed(place))).startswith("checkpoint-5")
