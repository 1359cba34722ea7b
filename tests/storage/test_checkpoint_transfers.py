"""Checkpoints on their way: all of one or nothing is published, and each error names the place."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import CheckpointError, Fenced, StorageError, Unpublishable
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage import checkpoints, fences
from airflow_provider_ocidist.storage.manifests import MANIFEST
from airflow_provider_ocidist.storage.stores.local import LocalStore
from tests.storage.published import FIRST, publish
from tests.storage.trees import make_tree, read_tree

SEED = int(os.environ.get("CHECKPOINTS_SEED", "20261127"))
SAVE = checkpoints.SaveFacts(step=7, fence=FIRST, sequence=1, proof="the test says so")


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
    place = checkpoints.reserve(uri, "step-7", SAVE)
    sent: list[checkpoints.ManifestFile] = []
    for rank in range(nodes):
        folder = tmp_path / f"node-{rank}" / "step-7"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(b"{}")
        for part in range(draw.randint(1, 3)):
            (folder / f"__{rank}_{part}.distcp").write_bytes(draw.randbytes(draw.randint(0, 3000)))
        left_out = {"config.json"} if rank else set()
        sent += checkpoints.send_part(folder, place, leave_out=left_out)
    ref = checkpoints.seal(place, "step-7", sent, SAVE)
    assert ref.uri == place
    assert checkpoints.newest(uri) == ref
    fetched = read_tree(checkpoints.fetch(ref.uri, tmp_path / "in"))
    together = [read_tree(tmp_path / f"node-{rank}" / "step-7") for rank in range(nodes)]
    assert fetched == {name: content for tree in together for name, content in tree.items()}


def test_a_part_that_did_not_arrive_is_named_and_nothing_is_published(tmp_path: Path) -> None:
    uri = str(tmp_path / "to")
    make_tree(tmp_path / "step-7")
    place = checkpoints.reserve(uri, "step-7", SAVE)
    sent = checkpoints.send_part(tmp_path / "step-7", place)
    lost = sent[-1].path
    Path(place, lost).unlink()
    with pytest.raises(CheckpointError, match=Path(lost).name) as caught:
        checkpoints.seal(place, "step-7", sent, SAVE)
    assert caught.value.uri == place
    assert checkpoints.published(uri) == []


def test_a_part_that_is_cancelled_does_not_arrive_whole(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "step-7")
    place = checkpoints.reserve(str(tmp_path / "to"), "step-7", SAVE)
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


def test_what_a_killed_node_has_gathered_is_deleted_once_nobody_can_be_gathering_it(tmp_path: Path) -> None:
    make_tree(tmp_path / "step-1")
    ref, folder = publish(tmp_path / "step-1", str(tmp_path / "to"), step=1), tmp_path / "folder"

    def left(name: str, days: float) -> Path:
        part = folder / name / "inner" / ".weights.pt.0a1b2c3d.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"half")
        at = time.time() - days * 86_400
        for path in (part, part.parent, part.parents[1]):
            os.utime(path, (at, at))
        return folder / name

    old, young = left(".checkpoint.0a1b2c3d.part", 2), left(".checkpoint.1a1b2c3d.part", 0.5)
    others = [left(name, 2) for name in (".checkpoint.part", ".other.0a1b2c3d.part", "checkpoint.0a1b2c3d")]
    checkpoints.fetch(ref.uri, folder)
    assert not old.exists()
    assert {path.name for path in folder.iterdir()} == {"step-1", young.name, *(path.name for path in others)}


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


def test_what_is_confirmed_has_arrived_and_what_is_refused_then_is_not_published(tmp_path: Path) -> None:
    uri, tree = str(tmp_path / "to"), make_tree(tmp_path / "step-1")
    arrived: list[int] = []

    def confirm() -> None:
        arrived.append(len(LocalStore(tmp_path / "to").list("step-1/")))
        assert checkpoints.published(uri) == []

    ref = publish(tmp_path / "step-1", uri, step=1, confirm=confirm)
    assert arrived == [len(tree)]
    assert checkpoints.newest(uri) == ref

    def refuse() -> None:
        raise StorageError("these are not the proved files")

    with pytest.raises(StorageError, match="not the proved files"):
        publish(tmp_path / "step-1", uri, step=2, confirm=refuse)
    assert checkpoints.newest(uri) == ref


@pytest.mark.parametrize("in_parts", [True, False])
def test_what_is_known_of_a_checkpoint_is_in_its_manifest_and_its_reference(
    tmp_path: Path, *, in_parts: bool
) -> None:
    uri, fence = str(tmp_path / "to"), Fence(attempt=3)
    make_tree(tmp_path / "step-7")
    save = checkpoints.SaveFacts(
        step=7, fence=fence, sequence=5, proof="renamed", loss=0.25, metrics={"accuracy": 0.5}
    )
    if in_parts:
        place = checkpoints.reserve(uri, "step-7", save)
        sent = checkpoints.send_part(tmp_path / "step-7", place)
        ref = checkpoints.seal(place, "step-7", sent, save)
    else:
        ref = checkpoints.publish(tmp_path / "step-7", uri, save)
    found = checkpoints.verify(ref.uri)
    assert (found.name, found.proof, found.single_file) == ("step-7", "renamed", False)
    for one in (found, ref):
        assert (one.step, one.fence, one.sequence, one.loss) == (7, fence, 5, 0.25)
    assert found.metrics == {"accuracy": 0.5}
    assert [item.size for item in found.files] == [
        len(content) for _, content in sorted(read_tree(tmp_path / "step-7").items())
    ]


def test_a_checkpoint_whose_fence_cannot_be_read_any_more_is_published_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uri, real, looks = str(tmp_path / "to"), fences.advance_fence, 0
    make_tree(tmp_path / "step-1")

    def advance(store: Any, fence: Fence) -> object:
        nonlocal looks
        looks += 1
        assert (store.uri, fence) == (uri, FIRST)
        if looks == 3:
            raise StorageError("no answer")
        return real(store, fence)

    monkeypatch.setattr(fences, "advance_fence", advance)
    ref = publish(tmp_path / "step-1", uri, step=1)
    assert checkpoints.newest(uri) == ref
    assert caplog.messages == [
        f"{ref.uri} was published, but the fence of its folder cannot be read: no answer"
    ]


@pytest.mark.parametrize("refusals", [1, 3, 6, 7])
def test_what_is_published_too_late_is_withdrawn_with_longer_and_longer_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refusals: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(sleep=pauses.append))
    refused = 0

    class Busy(LocalStore):
        def delete(self, name: str) -> None:
            nonlocal refused
            refused += 1
            if refused <= refusals:
                raise StorageError("busy")
            super().delete(name)

    store = Busy(tmp_path / "to")
    store.write(MANIFEST, b"{}")
    if refusals > 6:
        with pytest.raises(StorageError, match="busy"):
            checkpoints._withdraw(store)
    else:
        checkpoints._withdraw(store)
    assert store.exists(MANIFEST) is (refusals > 6)
    # For half a minute, which an outage may last.
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0][:refusals]
    assert caplog.messages == [f"{store.uri} is published too late, and cannot be withdrawn yet: busy"] * min(
        refusals, 6
    )


@pytest.mark.parametrize("single", [True, False])
def test_a_checkpoint_may_be_read_through_another_store_which_knows_what_will_lie_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, single: bool
) -> None:
    name = "step-1.pt" if single else "step-1"
    if single:
        (tmp_path / name).write_bytes(b"content")
    else:
        make_tree(tmp_path / name, {"a": 10, "part/b": 20, "c": 30})
    ref = publish(tmp_path / name, str(tmp_path / "to"), step=1)
    # Who reads it from its own place finds other content.
    kept = shutil.copytree(ref.uri, tmp_path / "kept elsewhere")
    files = [item.path for item in checkpoints.verify(ref.uri).files]
    for path in files:
        Path(ref.uri, path).write_bytes(bytes(Path(ref.uri, path).stat().st_size))
    asked: list[tuple[Path, Path, int]] = []

    def through(store: Any, lies_at: Callable[[str], Path], size: int) -> Any:
        assert store.uri == ref.uri
        asked.append((lies_at("step-1.pt"), lies_at("part/b"), size))
        return LocalStore(kept)

    fetched = checkpoints.fetch(ref.uri, tmp_path / "in", through=through)
    final = tmp_path / "in" / name
    assert fetched == final
    expected = (final, final) if single else (final / "step-1.pt", final / "part/b")
    assert asked == [(*expected, 7 if single else 60)]
    with caplog.at_level(logging.INFO):
        checkpoints.fetch(ref.uri, tmp_path / "in", through=through)
    assert asked[1:] == [(*expected, 0)], "all of it lies here"
    assert caplog.messages == [f"{len(files)} of {len(files)} files of {ref.uri} are here already"]
    caplog.clear()
    checkpoints.fetch(ref.uri, tmp_path / "in", through=through, reuse=False)
    assert asked[2:] == [(*expected, 7 if single else 60)]
    assert not [text for text in caplog.messages if "here already" in text]


@pytest.mark.parametrize("damage", ["no manifest", "damaged", "a file is missing"])
def test_what_is_no_whole_checkpoint_is_named_with_its_place_and_why(tmp_path: Path, damage: str) -> None:
    make_tree(tmp_path / "step-1", {"a": 10})
    ref = publish(tmp_path / "step-1", str(tmp_path / "to"), step=1)
    if damage == "no manifest":
        Path(ref.uri, MANIFEST).unlink()
        words = rf"^there is no checkpoint at {ref.uri}: it has no manifest\.json$"
    elif damage == "damaged":
        Path(ref.uri, MANIFEST).write_bytes(b"{")
        words = rf"^{ref.uri}: ."
    else:
        Path(ref.uri, "a").unlink()
        words = rf"^the checkpoint at {ref.uri} is not complete: a is missing"
    for asked in (checkpoints.verify, lambda uri: checkpoints.fetch(uri, tmp_path / "in")):
        with pytest.raises(CheckpointError, match=words) as caught:
            asked(ref.uri)
        assert caught.value.uri == ref.uri
    assert not (tmp_path / "in").exists()


def test_what_is_no_file_is_left_out_with_a_word_and_the_rest_is_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = make_tree(tmp_path / "step-1", {"a": 10})
    os.mkfifo(tmp_path / "step-1" / "pipe")
    ref = publish(tmp_path / "step-1", str(tmp_path / "to"), step=1)
    assert [item.path for item in checkpoints.verify(ref.uri).files] == [*tree]
    assert caplog.messages == [f"left out of {tmp_path / 'step-1'}, because they are not files: pipe"]


def test_each_reason_why_nothing_is_published_names_the_entry(tmp_path: Path) -> None:
    make_tree(tmp_path / "step-1", {"manifest.json": 10})
    make_tree(tmp_path / "linked", {"a": 10})
    (tmp_path / "linked/folder").symlink_to(tmp_path / "step-1")
    odd = os.fsdecode(b"step-\xff")
    make_tree(tmp_path / odd, {"a": 10})
    for name, kind, target in (
        ("missing", CheckpointError, "to"),
        ("step-1", Unpublishable, "to"),
        ("linked", Unpublishable, "to"),
        (odd, Unpublishable, "memory://to"),
    ):
        uri = target if "://" in target else str(tmp_path / target)
        with pytest.raises(kind) as caught:
            publish(tmp_path / name, uri, step=1)
        assert caught.value.uri == str(tmp_path / name)
    with pytest.raises(Unpublishable, match="is not UTF-8: rename it"):
        checkpoints.send_part(tmp_path / odd, "memory://to/step-1")
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        checkpoints.send_part(tmp_path / "missing", str(tmp_path / "to"))


def test_a_name_that_was_published_a_thousand_times_has_no_place_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "published_folder", lambda named, *_: f"{named}.taken")
    uri = str(tmp_path / "to")
    make_tree(tmp_path / "step-1")
    publish(tmp_path / "step-1", uri, step=1)
    with pytest.raises(Unpublishable, match=r"to/step-1\.taken was published a thousand times") as caught:
        publish(tmp_path / "step-1", uri, step=1)
    assert caught.value.uri == uri


def test_where_nothing_can_be_gathered_the_place_is_named(tmp_path: Path) -> None:
    make_tree(tmp_path / "step-1")
    ref = publish(tmp_path / "step-1", str(tmp_path / "to"), step=1)
    (tmp_path / "in").write_text("in the way")
    with pytest.raises(StorageError, match=str(tmp_path / "in")):
        checkpoints.fetch(ref.uri, tmp_path / "in")


@pytest.mark.parametrize("after", ["file", "folder"])
@pytest.mark.parametrize(
    "before", ["nothing", "file", "folder", "link to a file", "link to a folder", "link to nothing"]
)
def test_what_lies_in_a_place_is_replaced_whatever_it_is(tmp_path: Path, before: str, after: str) -> None:
    arrived, final, elsewhere = tmp_path / "arrived", tmp_path / "in" / "x", tmp_path / "elsewhere"
    final.parent.mkdir()
    lay(elsewhere if before.startswith("link") else final, before, "old")
    if before.startswith("link"):
        final.symlink_to(elsewhere)
    lay(arrived, after, "new")
    checkpoints._replace(arrived, final)
    assert not final.is_symlink()
    assert (final / "f" if after == "folder" else final).read_text() == "new"
    assert not arrived.exists()
    assert [*final.parent.iterdir()] == [final], "nothing is left beside it"
    if before == "link to a folder":
        assert (elsewhere / "f").read_text() == "old", "what the link leads to is another's"


@pytest.mark.parametrize("before", ["nothing", "file", "folder", "link to a folder", "link to nothing"])
def test_what_cannot_be_put_into_a_place_leaves_there_what_it_has(tmp_path: Path, before: str) -> None:
    arrived, elsewhere = tmp_path / "arrived", tmp_path / "elsewhere"
    # The operating system moves no folder into itself.
    final = arrived / "x"
    arrived.mkdir()
    lay(elsewhere if before.startswith("link") else final, before, "old")
    if before.startswith("link"):
        final.symlink_to(elsewhere)
    there = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="Invalid argument"):
        checkpoints._replace(arrived, final)
    assert sorted(tmp_path.rglob("*")) == there
    assert final.is_symlink() == before.startswith("link")
    if before in ("file", "folder"):
        assert (final / "f" if before == "folder" else final).read_text() == "old"


def test_a_file_that_is_gone_takes_no_folder_with_it(tmp_path: Path) -> None:
    lay(tmp_path / "x", "folder", "old")
    with pytest.raises(FileNotFoundError):
        checkpoints._replace(tmp_path / "arrived", tmp_path / "x")
    assert (tmp_path / "x" / "f").read_text() == "old"


@pytest.mark.parametrize("kinds", [("file", "folder"), ("folder", "file"), ("folder", "folder")])
def test_an_interrupt_leaves_the_old_or_the_new(
    tmp_path: Path, kinds: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = kinds
    arrived, final = tmp_path / "arrived", tmp_path / "x"
    lay(final, before, "old")
    lay(arrived, after, "new")

    def interrupted(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoints._replace(arrived, final)
    assert (final / "f" if before == "folder" else final).read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [arrived, final]


@pytest.mark.parametrize("kind, between", [("file", "folder"), ("folder", "file")])
def test_what_another_node_puts_there_meanwhile_gives_way_too(
    tmp_path: Path, kind: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of another kind, where the nodes fetch different checkpoints of one name."""
    arrived, final = tmp_path / "arrived", tmp_path / "x"
    lay(arrived, kind, "new")
    replace, others = Path.replace, [between]

    def replace_after_another(path: Path, target: Path) -> Path:
        if others:
            lay(target, others.pop(), "another's")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_after_another)
    checkpoints._replace(arrived, final)
    assert (final / "f" if kind == "folder" else final).read_text() == "new"
    assert [*tmp_path.iterdir()] == [final]


def lay(path: Path, kind: str, text: str) -> None:
    if kind.endswith("folder"):
        path.mkdir()
        path = path / "f"
    if not kind.endswith("nothing"):
        path.write_text(text)
