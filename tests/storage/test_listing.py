"""Listing a place for checkpoints: what is whole, the newest first, and why the rest is none."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.storage.listing import (
    Complete,
    by_folder,
    complete_in,
    complete_now,
    delete_folder,
    fault_of,
    manifests_in,
)
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest, ManifestFile
from airflow_provider_ocidist.storage.stores.base import Entry
from airflow_provider_ocidist.storage.stores.local import LocalStore

SEED = int(os.environ.get("TEST_SEED", "20261127"))
LOGGER = "airflow_provider_ocidist.storage.listing"


class Shelf(LocalStore):
    """A folder of checkpoints that notes what is read and deleted in it; something may happen before each reading."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked: list[str] = []
        self.deleted: list[str] = []
        self.listings = 0
        self.before_read: Callable[[str], object] = lambda _: None

    def list(self, prefix: str = "") -> list[Entry]:
        self.listings += 1
        return super().list(prefix)

    def read(self, name: str) -> bytes:
        self.before_read(name)
        self.asked.append(name)
        return super().read(name)

    def delete(self, name: str) -> None:
        self.deleted.append(name)
        super().delete(name)

    def save(self, folder: str, sequence: int, **files: bytes) -> Manifest:
        """Publish a checkpoint, its files by their names."""
        content = files or {"model": b"weights"}
        manifest = Manifest(
            version=2,
            name=folder,
            step=sequence,
            created_at=5.0,
            files=tuple(ManifestFile(path=name, size=len(data), sha256="") for name, data in content.items()),
            attempt=1,
            sequence=sequence,
        )
        for name, data in content.items():
            self.write(f"{folder}/{name}", data)
        self.write(f"{folder}/{MANIFEST}", manifest.to_json())
        return manifest

    def found(self) -> Sequence[str]:
        return [each.folder for each in complete_now(self)]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "place")


def test_the_files_of_each_folder_are_known_by_their_names_in_it() -> None:
    names = ["a/manifest.json", "a/deep/er/x", "b/x", "fence.json", "unproved/a/x", "unproved-too/x"]
    entries = [Entry(name=name, size=number) for number, name in enumerate(names)]
    found = by_folder(entries)
    assert found == {
        "a": {"manifest.json": entries[0], "deep/er/x": entries[1]},
        "b": {"x": entries[2]},
        "unproved-too": {"x": entries[5]},
    }


def test_what_is_whole_is_found_the_newest_first_and_why_the_rest_is_none_is_logged(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    for sequence, folder in (
        (3, "c"),
        (9, "a"),
        (5, "b"),
        (7, "lacks"),
        (8, "cut"),
        (6, "broken"),
        (4, "begun"),
    ):
        shelf.save(folder, sequence, model=b"weights", optim=b"state")
    shelf.delete("lacks/optim")
    shelf.write("cut/model", b"wei")
    shelf.write(f"broken/{MANIFEST}", b"{")
    shelf.delete(f"begun/{MANIFEST}")
    assert shelf.found() == ["a", "b", "c"]
    assert shelf.listings == 1, "nothing has vanished"
    said = {record.getMessage().partition(": ")[0]: record for record in caplog.records}
    place = shelf.uri

    def level_and_reason(folder: str) -> tuple[int, str]:
        record = said.pop(f"skipped {place}/{folder}")
        return record.levelno, record.getMessage().partition(": ")[2]

    assert level_and_reason("lacks") == (logging.WARNING, "optim is missing")
    assert level_and_reason("cut") == (logging.WARNING, "model has 3 bytes instead of 7")
    level, reason = level_and_reason("broken")
    assert level == logging.WARNING
    assert reason.startswith("the manifest is corrupt: ")
    # As of any checkpoint that is being sent.
    assert level_and_reason("begun") == (logging.INFO, "it has no manifest, so it is not complete")
    assert not said


def test_of_a_whole_one_the_place_the_manifest_and_the_time_of_its_publication_are_known(
    shelf: Shelf,
) -> None:
    manifest = shelf.save("a", 3)
    os.utime(shelf.folder / "a" / MANIFEST, (77.0, 77.0))
    os.utime(shelf.folder / "a" / "model", (99.0, 99.0))
    assert complete_now(shelf) == [Complete(folder="a", manifest=manifest, modified=77.0)]
    (found,) = complete_now(shelf)
    assert found.ref(shelf) == manifest.ref(f"{shelf.uri}/a")
    # Where a place does not say when a file was written, the manifest does.
    listed = by_folder([replace(entry, modified=None) for entry in shelf.list()])
    assert [each.modified for each in complete_in(shelf, listed)] == [5.0]


def test_an_empty_place_has_none(shelf: Shelf) -> None:
    assert complete_now(shelf) == []
    assert shelf.listings == 1


def test_what_is_saved_while_older_ones_are_deleted_is_not_overlooked(shelf: Shelf) -> None:
    for sequence in (1, 2):
        shelf.save(f"step-{sequence}", sequence)

    def meanwhile(name: str) -> None:
        if name == f"step-1/{MANIFEST}":
            shelf.before_read = lambda _: None
            shelf.save("step-3", 3)
            delete_folder(shelf, by_folder(LocalStore(shelf.folder).list())["step-1"])

    shelf.before_read = meanwhile
    assert shelf.found() == ["step-3", "step-2"]
    assert shelf.listings == 2


def test_a_place_that_does_not_come_to_rest_is_listed_20_times_and_what_was_whole_at_last_counts(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    shelf.save("kept", 1)
    shelf.save("gone", 2)

    def gone(name: str) -> None:
        if name.startswith("gone/"):
            raise FileNotFoundError(name)

    shelf.before_read = gone
    assert shelf.found() == ["kept"]
    assert shelf.listings == 20
    just_deleted = f"skipped {shelf.uri}/gone: its manifest was just deleted"
    assert caplog.messages == [just_deleted] * 20
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_what_was_listed_before_is_not_listed_again_though_it_is_gone(shelf: Shelf) -> None:
    for sequence in (1, 2):
        shelf.save(f"step-{sequence}", sequence)
    listed = by_folder(shelf.list())
    shelf.delete(f"step-2/{MANIFEST}")
    assert [each.folder for each in complete_in(shelf, listed)] == ["step-1"]
    assert shelf.listings == 1


def test_manifests_are_read_of_incomplete_ones_too_and_of_those_alone_that_have_one(shelf: Shelf) -> None:
    whole, lacks = shelf.save("whole", 1), shelf.save("lacks", 2)
    for folder in ("broken", "gone", "begun"):
        shelf.save(folder, 3)
    shelf.delete("lacks/model")
    shelf.write(f"broken/{MANIFEST}", b"[]")
    shelf.delete(f"begun/{MANIFEST}")
    listed = by_folder(shelf.list())
    shelf.delete(f"gone/{MANIFEST}")
    assert manifests_in(shelf, listed) == {"whole": whole, "lacks": lacks}
    assert f"begun/{MANIFEST}" not in shelf.asked
    assert list(manifests_in(shelf, {"lacks": listed["lacks"]})) == ["lacks"]


@pytest.mark.parametrize("number", range(20))
def test_a_fault_is_the_first_file_that_is_missing_or_of_another_size(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    named = [ManifestFile(path=f"part-{each}", size=draw.randint(0, 9), sha256="") for each in range(6)]
    manifest = Manifest(version=2, name="x", created_at=0.0, files=tuple(named))
    there = {item.path: Entry(name=f"x/{item.path}", size=item.size) for item in named}
    there["another"] = Entry(name="x/another", size=1)
    assert fault_of(manifest, there) is None
    expected: str | None = None
    for item in reversed(named):
        how = draw.choice(["whole", "whole", "missing", "larger", "unknown"])
        if how == "missing":
            del there[item.path]
            expected = f"{item.path} is missing"
        elif how == "larger":
            there[item.path] = Entry(name=f"x/{item.path}", size=item.size + 1)
            expected = f"{item.path} has {item.size + 1} bytes instead of {item.size}"
        elif how == "unknown":
            there[item.path] = Entry(name=f"x/{item.path}", size=None)
            expected = f"{item.path} has None bytes instead of {item.size}"
    assert fault_of(manifest, there) == expected


def test_of_a_folder_the_manifest_is_deleted_first_and_nothing_of_others(shelf: Shelf) -> None:
    shelf.save("a", 1, **{"a-file": b"1", "z-file": b"2"})
    shelf.save("b", 2)
    delete_folder(shelf, by_folder(shelf.list())["a"])
    assert shelf.deleted[0] == f"a/{MANIFEST}"
    assert sorted(shelf.deleted) == ["a/a-file", f"a/{MANIFEST}", "a/z-file"]
    assert [entry.name for entry in shelf.list()] == [f"b/{MANIFEST}", "b/model"]
