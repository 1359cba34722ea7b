"""A repair step by step, in folders of this machine: what it sends, what it leaves, and what it says."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import repairs
from airflow_provider_ocidist.storage.checkpoints import newest
from airflow_provider_ocidist.storage.manifests import ManifestFile
from airflow_provider_ocidist.storage.repairs import store_again, store_missing
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.storage.published import publish

SEED = int(os.environ.get("TEST_SEED", "20261127"))
LOGGER = "airflow_provider_ocidist.storage.repairs"
PARTS = ["part-0", "part-1", "part-2", "part-3"]


class Saved:
    """A checkpoint of four files, published, of which a node has all on its disk."""

    def __init__(self, root: Path, *, step: int = 1) -> None:
        self.uri = str(root / "kept")
        self.here = root / "here"
        self.local = self.here / f"step-{step}"
        self.local.mkdir(parents=True)
        for name in PARTS:
            (self.local / name).write_bytes(f"weights {step} {name}".encode())
        self.ref: CheckpointRef = publish(self.local, self.uri, step=step)
        self.stored = Path(self.ref.uri)

    def lose(self, *names: str) -> None:
        for name in names:
            (self.stored / name).unlink()

    def damage(self, *names: str) -> None:
        for name in names:
            path = self.stored / name
            path.write_bytes(b"x" * path.stat().st_size)

    @property
    def lacking(self) -> list[str]:
        """Return the names of the files that are not stored as they are here."""
        return [
            name
            for name in PARTS
            if not (self.stored / name).exists()
            or (self.stored / name).read_bytes() != f"weights {self.ref.step} {name}".encode()
        ]


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    return Saved(tmp_path)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.fixture(autouse=True)
def _says_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def test_who_has_all_of_it_stores_again_what_differs_and_nothing_else(saved: Saved) -> None:
    saved.damage("part-1")
    saved.lose("part-3")
    before = {name: (saved.stored / name).stat().st_ino for name in ("part-0", "part-2")}
    assert store_again(saved.ref.uri, saved.here)
    assert saved.lacking == []
    assert {name: (saved.stored / name).stat().st_ino for name in before} == before


def test_who_lacks_a_file_stores_nothing_again_and_says_which(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    saved.damage("part-1")
    (saved.local / "part-0").unlink()
    (saved.local / "part-3").write_bytes(b"trained on")
    assert not store_again(saved.ref.uri, saved.here)
    assert saved.lacking == ["part-1"]
    assert said(caplog) == [f"{saved.ref.uri} is not whole on this node: part-0, part-3"]


def test_what_is_stored_as_it_is_here_is_left_and_said(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    assert not store_again(saved.ref.uri, saved.here)
    assert said(caplog) == [f"{saved.ref.uri} is stored as it is on this node"]
    with pytest.raises(FileNotFoundError):
        store_again(f"{saved.ref.uri}-too", saved.here)


def test_a_checkpoint_of_one_file_is_found_by_the_name_of_that_file(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "step-1.pt").write_bytes(b"weights")
    ref = publish(here / "step-1.pt", str(tmp_path / "kept"), step=1)
    (Path(ref.uri) / "step-1.pt").write_bytes(b"xxxxxxx")
    assert store_again(ref.uri, here)
    (Path(ref.uri) / "step-1.pt").unlink()
    assert store_missing(str(tmp_path / "kept"), here) == ["step-1.pt"]
    assert (Path(ref.uri) / "step-1.pt").read_bytes() == b"weights"


def test_each_place_is_opened_with_the_nodes_own_access(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, OciAccess]] = []

    def opening(uri: str, access: OciAccess) -> Store:
        opened.append((uri, access))
        return LocalStore(uri)

    monkeypatch.setattr(repairs, "open_store", opening)
    own = OciAccess(profile="of this node")
    saved.lose("part-1")
    assert store_again(saved.ref.uri, saved.here, own)
    saved.lose("part-1")
    assert store_missing(saved.uri, saved.here, own) == [saved.stored.name]
    assert opened == [(saved.ref.uri, own), (saved.uri, own), (saved.ref.uri, own)]


# What a node may have in part


def test_what_is_here_of_the_missing_files_is_stored_and_its_folder_named(saved: Saved) -> None:
    saved.lose("part-1", "part-2", "part-3")
    (saved.local / "part-2").unlink()
    assert store_missing(saved.uri, saved.here) == [saved.stored.name]
    assert saved.lacking == ["part-2"]


def test_a_node_alone_leaves_what_cannot_become_whole_as_it_is(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    saved.lose("part-1", "part-2")
    (saved.local / "part-2").unlink()
    assert store_missing(saved.uri, saved.here, alone=True) == []
    assert saved.lacking == ["part-1", "part-2"]
    assert said(caplog) == [f"{saved.ref.uri} lacks files that are not whole on this node either"]
    (saved.local / "part-2").write_bytes(b"weights 1 part-2")
    assert store_missing(saved.uri, saved.here, alone=True) == [saved.stored.name]
    assert saved.lacking == []


def test_where_nothing_is_missing_nothing_is_stored_or_said(
    saved: Saved, caplog: pytest.LogCaptureFixture
) -> None:
    for alone in (True, False):
        assert store_missing(saved.uri, saved.here, alone=alone) == []
    assert said(caplog) == []


def test_what_has_another_size_is_missing_and_what_is_older_than_a_whole_one_is_left(tmp_path: Path) -> None:
    first, second, third = (Saved(tmp_path, step=step) for step in (1, 2, 3))
    first.lose("part-0")
    (third.stored / "part-2").write_bytes(b"")
    assert store_missing(third.uri, third.here) == [third.stored.name]
    assert (first.lacking, third.lacking) == (["part-0"], [])
    second.lose("part-1")
    assert store_missing(third.uri, third.here) == []
    assert newest(third.uri) == third.ref


def test_of_several_the_newest_is_stored_first_and_older_ones_until_one_is_whole(tmp_path: Path) -> None:
    all_saved = [Saved(tmp_path, step=step) for step in (1, 2, 3)]
    _, second, third = all_saved
    for each in all_saved:
        each.lose("part-0", "part-1")
    (third.local / "part-0").unlink()
    assert store_missing(third.uri, third.here) == [third.stored.name, second.stored.name]
    assert [each.lacking for each in all_saved] == [["part-0", "part-1"], [], ["part-0"]]
    assert newest(third.uri) == second.ref


class Sent:
    """What is sent in which groups; something may happen before each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups: list[list[str]] = []
        self.before: Callable[[], object] = lambda: None
        self._real = repairs.copy_files
        monkeypatch.setattr(repairs, "copy_files", self.copy)

    def copy(
        self, source: Store, target: Store, entries: Sequence[Entry], cancel: threading.Event | None
    ) -> Any:
        self.groups.append([entry.name for entry in entries])
        self.before()
        return self._real(source, target, entries, cancel)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    return Sent(monkeypatch)


@pytest.mark.parametrize(
    "begin_at, order", [(0.0, "0123"), (0.25, "1230"), (0.5, "2301"), (0.6, "2301"), (0.75, "3012")]
)
def test_each_node_begins_at_its_share_of_the_files(
    saved: Saved, sent: Sent, monkeypatch: pytest.MonkeyPatch, begin_at: float, order: str
) -> None:
    monkeypatch.setattr(repairs, "BATCH", 1)
    saved.lose(*PARTS)
    store_missing(saved.uri, saved.here, begin_at=begin_at)
    assert sent.groups == [[f"part-{number}"] for number in order]
    assert saved.lacking == []


def test_what_another_node_has_stored_meanwhile_is_left_out(
    saved: Saved, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "BATCH", 1)
    saved.lose(*PARTS)
    sent.before = lambda: (saved.stored / "part-2").write_bytes(b"weights 1 part-2")
    assert store_missing(saved.uri, saved.here) == [saved.stored.name]
    assert sent.groups == [["part-0"], ["part-1"], ["part-3"]]


def test_a_checkpoint_that_is_deleted_meanwhile_gets_nothing_more(
    saved: Saved, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "BATCH", 1)
    saved.lose(*PARTS)
    sent.before = lambda: (saved.stored / "manifest.json").unlink(missing_ok=True)
    store_missing(saved.uri, saved.here)
    assert sent.groups == [["part-0"]]


@pytest.mark.parametrize("number", range(20))
def test_small_files_are_sent_together_and_none_waits_for_a_large_one(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    monkeypatch.setattr(repairs, "BATCH", 10)
    sizes = [draw.choice([0, 1, 3, 5, 9, 10, 11, 30]) for _ in range(draw.randint(0, 12))]
    files = [ManifestFile(path=f"{at}", size=size, sha256="") for at, size in enumerate(sizes)]
    groups = list(repairs._batches(files))
    assert [item for group in groups for item in group] == files
    assert all(len(group) == 1 or sum(item.size for item in group) <= 10 for group in groups)
    # None could have taken one more.
    assert all(
        sum(item.size for item in group) + after[0].size > 10 for group, after in zip(groups, groups[1:])
    )


# What a program writes to meanwhile


def test_what_is_written_to_before_it_is_sent_is_at_no_moment_stored_and_holds_up_no_other_file(
    saved: Saved, sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    saved.lose(*PARTS)

    def written() -> None:
        sent.before = lambda: None
        path = saved.local / "part-1"
        path.write_bytes(b"x" * path.stat().st_size)
        os.utime(path, ns=(1, 1))

    sent.before = written
    assert store_missing(saved.uri, saved.here) == [saved.stored.name]
    assert saved.lacking == ["part-1"]
    assert not (saved.stored / "part-1").exists()
    assert said(caplog) == []
    assert sent.groups == [PARTS, ["part-0", "part-2", "part-3"]]


@pytest.mark.parametrize("replaced", [False, True])
def test_what_was_written_to_unseen_is_withdrawn_unless_another_node_has_replaced_it(
    saved: Saved, sent: Sent, caplog: pytest.LogCaptureFixture, *, replaced: bool
) -> None:
    saved.lose("part-1", "part-2")
    real = repairs.copy_files
    path = saved.local / "part-1"

    def copy(*given: Any) -> Any:
        status = path.stat()
        path.write_bytes(b"x" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found = real(*given)
        if replaced:
            (saved.stored / "part-1").unlink()
            (saved.stored / "part-1").write_bytes(b"weights 1 part-1")
        return found

    repairs.copy_files = copy
    try:
        store_missing(saved.uri, saved.here)
    finally:
        repairs.copy_files = real
    assert saved.lacking == ([] if replaced else ["part-1"])
    assert (saved.stored / "part-1").exists() is replaced
    assert said(caplog) == [
        f"{saved.ref.uri}/part-1 is not what was published: it was written to while it was sent"
    ]


def test_what_has_gone_before_it_could_be_withdrawn_is_no_error(saved: Saved, sent: Sent) -> None:
    saved.lose("part-1")
    real = repairs.copy_files
    path = saved.local / "part-1"

    def copy(*given: Any) -> Any:
        status = path.stat()
        path.write_bytes(b"x" * status.st_size)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        found = real(*given)
        (saved.stored / "part-1").unlink()
        return found

    repairs.copy_files = copy
    try:
        assert store_missing(saved.uri, saved.here) == []
    finally:
        repairs.copy_files = real


def test_an_error_of_the_place_is_raised_and_not_taken_for_a_change(saved: Saved, sent: Sent) -> None:
    saved.lose("part-1")

    def full() -> None:
        raise StorageError("no space left on the file system")

    sent.before = full
    with pytest.raises(StorageError, match="no space left"):
        store_missing(saved.uri, saved.here)
    assert sent.groups == [["part-1"]]


def test_a_repair_that_is_cancelled_reads_no_further(saved: Saved) -> None:
    saved.lose("part-1")
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(StorageError, match="the repair was cancelled"):
        store_again(saved.ref.uri, saved.here, cancel=cancel)
    with pytest.raises(StorageError, match="the repair was cancelled"):
        store_missing(saved.uri, saved.here, cancel=cancel)
    assert saved.lacking == ["part-1"]
