"""Checkpoints on their way: all of one or nothing is published, and each error names the place."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import CheckpointError, Fenced, StorageError, Unpublishable
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import checkpoints, fences
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.storage.published import FIRST, publish
from tests.storage.trees import make_tree, read_tree

SEED = int(os.environ.get("CHECKPOINTS_SEED", "20261127"))


def cancelled() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_what_is_cancelled_is_not_published(tmp_path: Path) -> None:
    make_tree(tmp_path / "step-1")
    with pytest.raises(StorageError):
        publish(tmp_path / "step-1", str(tmp_path / "to"), step=1, cancel=cancelled())
    assert checkpoints.published(str(tmp_path / "to")) == []


@pytest.mark.parametrize("number", range(5))
def test_parts_of_several_nodes_are_one_checkpoint_whatever_each_leaves_out(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    uri, nodes = str(tmp_path / "to"), draw.randint(1, 4)
    place = checkpoints.reserve(uri, "step-7", step=7, fence=FIRST, sequence=1)
    sent: list[checkpoints.ManifestFile] = []
    for rank in range(nodes):
        folder = tmp_path / f"node-{rank}" / "step-7"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(b"{}")
        for part in range(draw.randint(1, 3)):
            (folder / f"__{rank}_{part}.distcp").write_bytes(draw.randbytes(draw.randint(0, 3000)))
        left_out = {"config.json"} if rank else set()
        sent += checkpoints.send_part(folder, place, leave_out=left_out)
    ref = checkpoints.seal(place, "step-7", sent, step=7, fence=FIRST, sequence=1, proof="the test says so")
    assert ref.uri == place
    assert checkpoints.newest(uri) == ref
    fetched = read_tree(checkpoints.fetch(ref.uri, tmp_path / "in"))
    together = [read_tree(tmp_path / f"node-{rank}" / "step-7") for rank in range(nodes)]
    assert fetched == {name: content for tree in together for name, content in tree.items()}


def test_a_part_that_did_not_arrive_is_named_and_nothing_is_published(tmp_path: Path) -> None:
    uri = str(tmp_path / "to")
    make_tree(tmp_path / "step-7")
    place = checkpoints.reserve(uri, "step-7", step=7, fence=FIRST, sequence=1)
    sent = checkpoints.send_part(tmp_path / "step-7", place)
    lost = sent[-1].path
    Path(place, lost).unlink()
    with pytest.raises(CheckpointError, match=Path(lost).name) as caught:
        checkpoints.seal(place, "step-7", sent, step=7, fence=FIRST, sequence=1, proof="the test says so")
    assert caught.value.uri == place
    assert checkpoints.published(uri) == []


def test_a_part_that_is_cancelled_does_not_arrive_whole(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "step-7")
    place = checkpoints.reserve(str(tmp_path / "to"), "step-7", step=7, fence=FIRST, sequence=1)
    with pytest.raises(StorageError):
        checkpoints.send_part(tmp_path / "step-7", place, cancel=cancelled())
    assert len(read_tree(Path(place))) < len(tree)


def test_an_attempt_that_is_overtaken_as_it_publishes_withdraws_what_it_has_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uri, real, looks = str(tmp_path / "to"), fences.advance_fence, 0
    make_tree(tmp_path / "step-1")

    def advance(store: object, fence: Fence) -> object:
        nonlocal looks
        looks += 1
        if looks == 3:  # before the upload, before the manifest, after it
            assert checkpoints.published(uri) != []
            real(store, Fence(attempt=2))
        return real(store, fence)

    monkeypatch.setattr(fences, "advance_fence", advance)
    with pytest.raises(Fenced):
        publish(tmp_path / "step-1", uri, step=1)
    assert looks == 3
    assert checkpoints.published(uri) == []
    assert caplog.messages == []  # at once


def test_content_that_is_not_what_was_published_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "step-1.pt").write_bytes(b"content")
    ref = publish(tmp_path / "step-1.pt", str(tmp_path / "to"), step=1)
    Path(ref.uri, "step-1.pt").write_bytes(b"CONTENT")
    with pytest.raises(CheckpointError, match="its checksum differs") as caught:
        checkpoints.fetch(ref.uri, tmp_path / "in")
    assert caught.value.uri == ref.uri
    assert [*(tmp_path / "in").iterdir()] == []


def test_links_that_lead_nowhere_are_named_by_their_place(tmp_path: Path) -> None:
    make_tree(tmp_path / "step-1")
    (tmp_path / "step-1" / "weights.bin").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Unpublishable, match=r"weights\.bin") as caught:
        publish(tmp_path / "step-1", str(tmp_path / "to"), step=1)
    assert caught.value.uri == str(tmp_path / "step-1")


def test_what_is_gathered_has_a_name_that_no_program_takes_for_a_checkpoint(tmp_path: Path) -> None:
    with checkpoints.staging_in(tmp_path) as staging:
        (staging / "weights.bin").write_bytes(b"half")
        assert LocalStore(tmp_path).list() == []
        assert staging.name.startswith(".checkpoint.")
    assert [*tmp_path.iterdir()] == []


def test_a_place_that_others_keep_writing_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, final = tmp_path / "arrived", tmp_path / "step-1"
    arrived.mkdir()
    final.mkdir()
    rename = Path.rename

    def rename_and_write(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if path == final:
            (final / "another").mkdir(parents=True)
        return moved

    monkeypatch.setattr(Path, "rename", rename_and_write)
    with pytest.raises(StorageError, match="other processes keep writing to it") as caught:
        checkpoints._replace(arrived, final)
    assert (caught.value.uri, caught.value.retryable) == (str(final), True)
