"""What is damaged or missing of a published checkpoint is stored once more, from a folder that has it whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import CheckpointError, StorageError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import repairs
from airflow_provider_ocidist.storage.checkpoints import fetch, newest, next_sequence, verify
from airflow_provider_ocidist.storage.manifests import Manifest
from airflow_provider_ocidist.storage.repairs import store_again, store_missing
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import publish
from tests.storage.trees import read_tree

SEED = int(os.environ.get("TEST_SEED", "20261126"))


@pytest.fixture(params=["local", "oci"])
def place(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "target"), None
    return request.getfixturevalue("bucket"), request.getfixturevalue("access")


def drawn(draw: random.Random, folder: Path, number: int) -> Path:
    """Write a checkpoint of some files, or of one."""
    path = folder / f"step-{number}.pt"
    names = [""] if draw.random() < 0.4 else [f"{name}/part-{name}" for name in range(draw.randint(1, 5))]
    for name in names:
        file = path / name if name else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(draw.randbytes(draw.randint(1, 3000)))
    return path


def lose(draw: random.Random, uri: str, access) -> list[str]:
    """Delete some files of a stored checkpoint, or cut them short; return their names."""
    store = open_store(uri, access)
    names = [item.path for item in verify(uri, access).files]
    lost = draw.sample(names, draw.randint(1, len(names)))
    for name in lost:
        store.delete(name) if draw.random() < 0.7 else store.write(name, b"")
    return lost


@pytest.mark.parametrize("number", range(12))
def test_whatever_is_missing_of_the_newest_is_stored_from_the_folders_that_have_it(place, tmp_path, number):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    refs = [
        publish(drawn(draw, here, step), uri, step=step, access=access)
        for step in range(1, draw.randint(2, 4))
    ]
    last = refs[-1]
    fetch(last.uri, elsewhere, access)
    content = read_tree(elsewhere)
    lost = lose(draw, last.uri, access)
    # As of a checkpoint in parts: each of two nodes lacks files that the other has.
    local = [path for path in (here / f"step-{len(refs)}.pt").rglob("*") if path.is_file()]
    for path in local:
        owner = draw.choice([here, elsewhere])
        (owner / path.relative_to(here)).unlink()
    named = [store_missing(uri, folder, access) for folder in (here, elsewhere)]
    folder = last.uri.rpartition("/")[2]
    assert {name for names in named for name in names} == {folder}, lost
    assert newest(uri, access) == last
    assert read_tree(fetch(last.uri, tmp_path / "in", access).parent) == content
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []
    assert store_missing(uri, here, access) == []


def test_what_is_not_what_was_published_is_never_stored_nor_what_is_older_than_a_whole_one(place, tmp_path):
    uri, access = place
    draw = random.Random(SEED)
    here = tmp_path / "here"
    old, whole, last = (publish(drawn(draw, here, step), uri, step=step, access=access) for step in (1, 2, 3))
    for ref in (old, last):
        lose(draw, ref.uri, access)
    for path in (here / "step-3.pt", *(here / "step-3.pt").rglob("*")):
        if path.is_file():
            path.write_bytes(b"trained on")
    assert store_missing(uri, here, access) == []
    assert newest(uri, access) == whole
    with pytest.raises(CheckpointError):
        verify(old.uri, access)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_what_was_incomplete_when_a_later_launch_saved_does_not_overtake_it(place, tmp_path, lost):
    uri, access = place
    draw = random.Random(f"{SEED}.{lost}")
    here, fence = tmp_path / "here", Fence(attempt=1)

    def saved(step):
        sequence = next_sequence(uri, fence, access)
        return publish(drawn(draw, here, step), uri, step=step, sequence=sequence, access=access)

    refs = [saved(step) for step in range(1, 6)]
    for ref in refs[-lost:]:
        lose(draw, ref.uri, access)
    # The nodes went back to the last whole one, as nothing was repaired then; what they had is still here.
    last = saved(7)
    assert newest(uri, access) == last
    store_missing(uri, here, access)
    assert newest(uri, access) == last


def test_a_checkpoint_without_a_manifest_or_with_a_damaged_one_is_left_alone(place, tmp_path):
    uri, access = place
    draw = random.Random(SEED)
    here = tmp_path / "here"
    whole, damaged, deleted = (
        publish(drawn(draw, here, step), uri, step=step, access=access) for step in (1, 2, 3)
    )
    for ref in (damaged, deleted):
        lose(draw, ref.uri, access)
    open_store(damaged.uri, access).write("manifest.json", b"{")
    open_store(deleted.uri, access).delete("manifest.json")
    assert store_missing(uri, here, access) == []
    assert newest(uri, access) == whole


@pytest.mark.parametrize("number", range(6))
def test_damaged_content_is_stored_again_only_by_who_has_all_of_it(place, tmp_path, number):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    here = tmp_path / "here"
    ref = publish(drawn(draw, here, 1), uri, step=1, access=access)
    files = verify(ref.uri, access).files
    changed = draw.choice(files)
    open_store(ref.uri, access).write(changed.path, b"x" * changed.size)
    assert not store_again(ref.uri, tmp_path / "nothing", access)
    with pytest.raises(CheckpointError, match="is not what was published"):
        fetch(ref.uri, tmp_path / "in", access)
    assert store_again(ref.uri, here, access)
    fetch(ref.uri, tmp_path / "in", access)


@pytest.fixture
def without_links():
    """Refuse hard links in this process, as exFAT and many network file systems do."""

    def refuse(event, _arguments):
        if event == "os.link" and refused:
            raise PermissionError(errno.EPERM, "Operation not permitted")

    refused = [True]
    sys.addaudithook(refuse)
    yield
    refused.clear()


@pytest.mark.parametrize("number", range(6))
def test_a_file_system_without_links_repairs_as_any_other(place, tmp_path, number, without_links):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    here = tmp_path / "here"
    ref = publish(drawn(draw, here, 1), uri, step=1, access=access)
    lose(draw, ref.uri, access)
    if draw.random() < 0.5:
        assert store_missing(uri, here, access) == [ref.uri.rpartition("/")[2]]
    else:
        assert store_again(ref.uri, here, access)
    assert read_tree(fetch(ref.uri, tmp_path / "in", access).parent) == read_tree(here)


class Overwrites(threading.Event):
    """An event that is never set; a program writes to a file in place when it is asked for the nth time."""

    def __init__(self, path: Path, nth: int, *, hides: bool) -> None:
        """`hides`: the file's time stays, as where the clock of its file system is coarse."""
        super().__init__()
        self.path, self.left, self.hides = path, nth, hides
        self.lock = threading.Lock()

    def is_set(self) -> bool:
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.write()
        return False

    def write(self) -> None:
        before = self.path.stat()
        with self.path.open("r+b") as file:
            file.seek(before.st_size // 2)
            file.write(b"trained on"[: before.st_size - before.st_size // 2])
        if self.hides:
            os.utime(self.path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("number", range(16))
def test_what_is_written_to_at_any_moment_of_a_repair_is_never_stored_as_what_was_published(
    place, tmp_path, number
):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    here = tmp_path / "here"
    path = drawn(draw, here, 1)
    large = draw.choice([each for each in (path, *path.rglob("*")) if each.is_file()])
    large.write_bytes(draw.randbytes(draw.choice([3000, 3 << 20, 9 << 20])))
    ref = publish(path, uri, step=1, access=access)
    store, files = open_store(ref.uri, access), verify(ref.uri, access).files
    lost = draw.sample(files, draw.randint(1, len(files)))
    for item in lost:
        store.delete(item.path)
    writes = Overwrites(large, draw.randint(1, 12), hides=draw.random() < 0.5)
    try:
        again = draw.random() < 0.5
        if again:
            store_again(ref.uri, here, access, cancel=writes)
        else:
            store_missing(uri, here, access, cancel=writes)
    except StorageError:
        # Its time is other only for a moment: if the repair looks just then, nothing shows afterwards which it was.
        if not writes.hides:
            raise
        again = True
    finally:
        stored = {item.path: store.read(item.path) for item in files if store.exists(item.path)}
    wrong = [item.path for item in files if item.path in stored and digest(stored[item.path]) != item.sha256]
    assert wrong == []
    if not again:
        # One file that changes holds up no other.
        changed = large.name if path == large else large.relative_to(path).as_posix()
        assert {item.path for item in files} - set(stored) <= {changed}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_repair_that_can_send_nothing_is_logged(place, tmp_path, caplog):
    uri, access = place
    caplog.set_level(logging.INFO)
    ref = publish(drawn(random.Random(SEED), tmp_path / "here", 1), uri, step=1, access=access)
    lose(random.Random(SEED), ref.uri, access)
    assert store_missing(uri, tmp_path / "nothing", access) == []
    assert not store_again(ref.uri, tmp_path / "nothing", access)
    assert caplog.text.count("not whole on this node") == 2


def many(draw: random.Random, folder: Path, number: int) -> Path:
    """Write a checkpoint of several files."""
    path = folder / f"step-{number}"
    path.mkdir(parents=True)
    for name in range(draw.randint(4, 9)):
        (path / f"part-{name}").write_bytes(draw.randbytes(draw.randint(1, 3000)))
    return path


def marks(uri: str, access) -> dict[str, str | None]:
    """Return what changes with each write of a stored file."""
    return {entry.name: entry.etag for entry in open_store(uri, access).list()}


@pytest.mark.parametrize("number", range(6))
def test_the_newest_is_stored_first_and_nothing_more_once_it_is_whole(place, tmp_path, number):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    here = tmp_path / "here"
    refs = [publish(many(draw, here, step), uri, step=step, access=access) for step in range(1, 5)]
    for ref in draw.sample(refs[:-1], len(refs) - 1):
        lose(draw, ref.uri, access)
    lose(draw, refs[-1].uri, access)
    lost_here = draw.randint(0, 2)
    # Of the newest ones a part is lost everywhere.
    for ref in refs[len(refs) - lost_here :]:
        lacking = sorted(
            {item.path for item in manifest_of(ref.uri, access).files} - whole_in(ref.uri, access)
        )
        (here / ref.uri.rpartition("/")[2] / draw.choice(lacking)).unlink()
    before = [marks(ref.uri, access) for ref in refs]
    alone = draw.random() < 0.5
    named = store_missing(uri, here, access, alone=alone)
    repaired = refs[-1 - lost_here]
    assert newest(uri, access) == repaired
    assert repaired.uri.rpartition("/")[2] in named
    older = slice(0, len(refs) - lost_here - 1)
    assert [marks(ref.uri, access) for ref in refs[older]] == before[older]
    if alone:
        hopeless = slice(len(refs) - lost_here, None)
        assert [marks(ref.uri, access) for ref in refs[hopeless]] == before[hopeless]
        assert len(named) == 1


def manifest_of(uri: str, access) -> Manifest:
    return Manifest.from_json(open_store(uri, access).read("manifest.json"))


def whole_in(uri: str, access) -> set[str]:
    sizes = {entry.name: entry.size for entry in open_store(uri, access).list()}
    return {item.path for item in manifest_of(uri, access).files if sizes.get(item.path, -1) == item.size}


class Meanwhile(threading.Event):
    """An event that is never set; something happens when it is asked for the nth time."""

    def __init__(self, nth: int, happens: Callable[[], object]) -> None:
        super().__init__()
        self.left, self.happens = nth, happens

    def is_set(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.happens()
        return False


@pytest.mark.parametrize("number", range(6))
def test_what_another_node_has_sent_meanwhile_is_not_sent_again(place, tmp_path, monkeypatch, number):
    uri, access = place
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    monkeypatch.setattr(repairs, "BATCH", 1)
    here = tmp_path / "here"
    ref = publish(many(draw, here, 1), uri, step=1, access=access)
    for item in verify(ref.uri, access).files:
        open_store(ref.uri, access).delete(item.path)
    sent_by_another: dict[str, str | None] = {}

    def another_sends() -> None:
        before = marks(ref.uri, access)
        store_missing(uri, here, access)
        now = marks(ref.uri, access)
        sent_by_another.update({name: mark for name, mark in now.items() if name not in before})

    store_missing(uri, here, access, cancel=Meanwhile(draw.randint(1, 3), another_sends))
    verify(ref.uri, access)
    now = marks(ref.uri, access)
    assert len(sent_by_another) > 1
    # It may have begun with one of them.
    assert sum(now[name] != mark for name, mark in sent_by_another.items()) <= 1


class Leaves(threading.Event):
    """An event that is set once a place holds any of some files."""

    def __init__(self, uri: str, names: set[str]) -> None:
        super().__init__()
        self.uri, self.names = uri, names

    def is_set(self) -> bool:
        return bool(self.names & set(marks(self.uri, None)))


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_nodes_that_have_the_same_begin_with_different_files(tmp_path, monkeypatch, nodes):
    monkeypatch.setattr(repairs, "BATCH", 1)
    uri, here, draw = str(tmp_path / "target"), tmp_path / "here", random.Random(f"{SEED}.{nodes}")
    ref = publish(many(draw, here, 1), uri, step=1)
    names = {item.path for item in verify(ref.uri).files}
    first = set()
    for rank in range(nodes):
        for name in names:
            open_store(ref.uri).delete(name)
        with contextlib.suppress(StorageError):
            store_missing(uri, here, begin_at=rank / nodes, cancel=Leaves(ref.uri, names))
        (begun,) = names & set(marks(ref.uri, None))
        first.add(begun)
    assert len(first) == nodes


def test_a_checkpoint_that_is_stored_as_it_is_here_is_not_sent_again(place, tmp_path):
    uri, access = place
    draw = random.Random(SEED)
    here = tmp_path / "here"
    ref = publish(many(draw, here, 1), uri, step=1, access=access)
    before = marks(ref.uri, access)
    assert not store_again(ref.uri, here, access)
    assert marks(ref.uri, access) == before
    changed = draw.choice(verify(ref.uri, access).files)
    open_store(ref.uri, access).write(changed.path, b"x" * changed.size)
    assert store_again(ref.uri, here, access)
    assert {name for name, mark in marks(ref.uri, access).items() if mark != before[name]} == {changed.path}
