"""A checkpoint exists when its manifest does."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from airflow_provider_ocidist.errors import CheckpointError, StorageError, Unpublishable
from airflow_provider_ocidist.storage.checkpoints import fetch, newest, newest_in, verify
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.published import keep_last, publish
from tests.storage.trees import make_tree, read_tree
from tests.storage.unruly_proxy import Fault


@pytest.fixture(params=["local", "oci", "memory"])
def place(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "target"), None
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}", None
    return request.getfixturevalue("bucket"), request.getfixturevalue("access")


def make(tmp_path, step, content=None):
    path = tmp_path / "program" / f"step-{step:06}.pt"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if content is not None else os.urandom(1000 + step))
    return path


def test_a_file_comes_back_under_its_own_name(place, tmp_path):
    uri, access = place
    path = make(tmp_path, 100)
    ref = publish(path, uri, step=100, loss=0.5, access=access)
    assert (ref.step, ref.loss) == (100, 0.5)
    assert ref.uri.endswith("/step-000100.pt")
    assert newest(uri, access) == ref
    fetched = fetch(ref.uri, tmp_path / "in", access)
    assert fetched == tmp_path / "in/step-000100.pt"
    assert fetched.read_bytes() == path.read_bytes()
    assert [found.name for found in (tmp_path / "in").iterdir()] == ["step-000100.pt"]


def test_a_folder_comes_back_under_its_own_name(place, tmp_path):
    uri, access = place
    tree = make_tree(tmp_path / "checkpoint-20")
    ref = publish(tmp_path / "checkpoint-20", uri, step=20, access=access)
    fetched = fetch(ref.uri, tmp_path / "in", access)
    assert fetched == tmp_path / "in/checkpoint-20"
    assert read_tree(fetched) == tree
    assert fetch(ref.uri, tmp_path / "in", access) == fetched
    assert [found.name for found in (tmp_path / "in").iterdir()] == ["checkpoint-20"]


def _kept(file):
    """Return what shows that a file was not written again; the time at which it was read may change."""
    status = file.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@pytest.mark.parametrize("has_parts", [True, False])
def test_a_fetch_that_is_cancelled_leaves_what_lies_there(place, tmp_path, has_parts):
    uri, access = place
    path = make(tmp_path, 1, b"published")
    ref = publish(path, uri, step=1, access=access)
    final, cancel, fetched = tmp_path / "in" / path.name, threading.Event(), []
    final.parent.mkdir()
    # With all that is published nothing has to be copied, and the entry would be replaced all the same.
    final.write_bytes(b"trained on" if has_parts else b"published")
    before = _kept(final)
    cancel.set()
    with pytest.raises(StorageError, match="was cancelled"):
        fetch(ref.uri, final.parent, access, cancel=cancel, on_fetched=fetched.append)
    assert _kept(final) == before
    assert [each.name for each in final.parent.iterdir()] == [path.name]
    assert fetched == []
    fetch(ref.uri, final.parent, access, cancel=threading.Event(), on_fetched=fetched.append)
    assert [each.digest for each in fetched] == [ref.digest]
    assert final.read_bytes() == b"published"


def test_nodes_that_share_a_folder_may_all_fetch_into_it(tmp_path):
    uri = str(tmp_path / "safe")
    tree = make_tree(tmp_path / "checkpoint-20")
    ref = publish(tmp_path / "checkpoint-20", uri, step=20)
    with ThreadPoolExecutor(8) as pool:
        for fetched in pool.map(lambda _: fetch(ref.uri, tmp_path / "in"), range(64)):
            assert fetched == tmp_path / "in/checkpoint-20"
    assert read_tree(fetched) == tree
    assert [found.name for found in (tmp_path / "in").iterdir()] == ["checkpoint-20"]


def test_the_manifest_names_every_file_with_size_and_checksum(place, tmp_path):
    uri, access = place
    before = time.time()
    tree = make_tree(tmp_path / "checkpoint-20", {"a.pt": 3 << 20, "rank/1.pt": 10, "empty": 0})
    manifest = verify(publish(tmp_path / "checkpoint-20", uri, step=20, loss=1.5, access=access).uri, access)
    assert (manifest.name, manifest.step, manifest.loss) == ("checkpoint-20", 20, 1.5)
    assert before <= manifest.created_at <= time.time()
    assert {item.path: (item.size, item.sha256) for item in manifest.files} == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in tree.items()
    }


def test_no_checkpoint_yet_is_none(place):
    uri, access = place
    assert newest(uri, access) is None
    assert keep_last(uri, 1, access) == ()


def test_partial_and_corrupt_checkpoints_are_never_offered(place, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    uri, access = place
    store = open_store(uri, access)
    for step in (1, 2, 3, 4, 5, 6, 7):
        publish(make(tmp_path, step), uri, step=step, access=access)
    name = "step-00000{}.pt".format
    store.delete(f"{name(7)}/manifest.json")
    store.write(f"{name(6)}/manifest.json", b'{"version": 1, "step"')
    store.delete(f"{name(5)}/{name(5)}")
    store.write(f"{name(4)}/{name(4)}", b"short")
    store.write(f"{name(3)}/manifest.json", b"[]")
    manifest = json.loads(store.read(f"{name(2)}/manifest.json"))
    manifest["files"][0]["path"] = "../step-000001.pt/step-000001.pt"
    store.write(f"{name(2)}/manifest.json", json.dumps(manifest).encode())

    assert newest(uri, access).step == 1
    told = caplog.text
    for reason in (
        "no manifest",
        "manifest is corrupt",
        "is missing",
        "5 bytes instead of",
        "refused the name",
    ):
        assert reason in told
    for step in range(2, 8):
        with pytest.raises(CheckpointError, match=name(step)):
            verify(f"{uri}/{name(step)}", access)
        with pytest.raises(CheckpointError):
            fetch(f"{uri}/{name(step)}", tmp_path / "in", access)
    assert not (tmp_path / "in").exists()


def test_a_manifest_of_a_later_version_is_not_guessed_at(place, tmp_path):
    uri, access = place
    ref = publish(make(tmp_path, 1), uri, step=1, access=access)
    store = open_store(ref.uri, access)
    store.write("manifest.json", store.read("manifest.json").replace(b'"version": 2', b'"version": 99'))
    assert newest(uri, access) is None


def test_a_byte_that_was_changed_is_found_before_anything_is_replaced(place, tmp_path):
    uri, access = place
    content = os.urandom(5000)
    ref = publish(make(tmp_path, 1, content), uri, step=1, access=access)
    open_store(ref.uri, access).write("step-000001.pt", bytes([content[0] ^ 1]) + content[1:])
    (tmp_path / "in").mkdir()
    (tmp_path / "in/step-000001.pt").write_bytes(b"the former one")
    with pytest.raises(CheckpointError, match="checksum"):
        fetch(ref.uri, tmp_path / "in", access)
    assert read_tree(tmp_path / "in") == {"step-000001.pt": b"the former one"}


def test_one_name_for_all_checkpoints_gets_a_folder_for_each(place, tmp_path):
    """snapshot.pt, rewritten every epoch: a node that dies while publishing must not lose the one before."""
    uri, access = place
    snapshot = tmp_path / "snapshot.pt"
    refs = []
    for step in (1, 2, 2):
        snapshot.write_bytes(f"state {step} {len(refs)}".encode())
        refs.append(publish(snapshot, uri, step=step, access=access))
    assert len({ref.uri for ref in refs}) == 3
    assert newest(uri, access) == refs[2]
    assert fetch(refs[0].uri, tmp_path / "in", access).read_bytes() == b"state 1 0"
    assert fetch(refs[2].uri, tmp_path / "in", access).read_bytes() == b"state 2 2"
    assert read_tree(tmp_path / "in") == {"snapshot.pt": b"state 2 2"}


def test_a_step_that_is_written_again_does_not_disturb_what_was_published(place, tmp_path):
    uri, access = place
    first = publish(make(tmp_path, 5, b"one"), uri, step=5, access=access)
    second = publish(make(tmp_path, 5, b"two"), uri, step=5, access=access)
    assert newest(uri, access) == second
    assert fetch(first.uri, tmp_path / "in", access).read_bytes() == b"one"


def test_what_is_no_checkpoint_is_refused(tmp_path):
    target = str(tmp_path / "target")
    (tmp_path / "empty-1").mkdir()
    (tmp_path / "linked-1").mkdir()
    (tmp_path / "linked-1/x").symlink_to("/etc/hostname")
    make_tree(tmp_path / "named-1", {"manifest.json": 3})
    for name in ("missing-1", "empty-1", "linked-1", "named-1"):
        with pytest.raises(CheckpointError, match=name):
            publish(tmp_path / name, target, step=1)
    assert newest(target) is None


def test_a_name_that_is_no_text_is_refused_where_only_a_local_folder_could_hold_it(place, tmp_path):
    uri, access = place
    odd = os.fsdecode(b"caf\xe9.bin")
    make_tree(tmp_path / "step-1", {"步.bin": 3, odd: 3})
    if uri.startswith("/"):
        found = publish(tmp_path / "step-1", uri, step=1)
        assert sorted(os.listdir(fetch(found.uri, tmp_path / "in"))) == sorted([odd, "步.bin"])
        return
    with pytest.raises(Unpublishable, match=r"'caf\\udce9\.bin' .* is not UTF-8: rename it"):
        publish(tmp_path / "step-1", uri, step=1, access=access)
    (tmp_path / "step-1" / odd).unlink()
    assert newest(uri, access) is None
    publish(tmp_path / "step-1", uri, step=1, access=access)


def test_a_store_of_objects_says_which_name_it_cannot_hold(bucket, access):
    with pytest.raises(StorageError, match=r"refused the name 'caf\\udce9': it is not UTF-8"):
        open_store(bucket, access).write(os.fsdecode(b"caf\xe9"), b"")


def test_a_checkpoint_that_changes_while_it_is_read_is_not_published(tmp_path, unruly, access, proxy, bucket):
    path = make(tmp_path, 1, os.urandom(40 << 20))
    proxy.faults = [Fault(method="PUT", delay_s=0.3, times=100)]
    threading.Timer(0.2, path.write_bytes, (os.urandom(40 << 20),)).start()
    with pytest.raises(StorageError, match="changed while it was read"):
        publish(path, bucket, step=1, access=unruly)
    assert newest(bucket, access) is None


@pytest.mark.parametrize("lost", ["a", "b/c"])
def test_what_has_lost_a_file_since_it_was_sent_is_not_published(place, tmp_path, lost):
    target, access = place
    make_tree(tmp_path / "step-5", {"a": 10, "b/c": 20})
    folder = open_store(f"{target}/step-5", access)
    with pytest.raises(CheckpointError, match=f"is not complete: {lost} is missing"):
        publish(tmp_path / "step-5", target, step=5, access=access, confirm=lambda: folder.delete(lost))
    assert newest(target, access) is None
    assert publish(tmp_path / "step-5", target, step=5, access=access) == newest(target, access)


def test_a_name_that_is_too_long_for_the_place_is_never_tried_again(tmp_path):
    """The folder of a checkpoint has a longer name than the program gives it."""
    path = tmp_path / ("m" * 250 + ".pt")
    path.write_bytes(b"x")
    with pytest.raises(Unpublishable, match=r"give .* a shorter name"):
        publish(path, str(tmp_path / "place"), step=None)


def test_an_upload_that_fails_publishes_nothing(tmp_path, unruly, access, proxy, bucket):
    publish(make(tmp_path, 1), bucket, step=1, access=access)
    make_tree(tmp_path / "checkpoint-2", {f"{number}": 100 for number in range(30)})
    proxy.faults = [Fault(method="PUT", status=400, skip=20)]
    with pytest.raises(StorageError):
        publish(tmp_path / "checkpoint-2", bucket, step=2, access=unruly)
    assert newest(bucket, access).step == 1
    publish(tmp_path / "checkpoint-2", bucket, step=2, access=unruly)
    assert newest(bucket, access).step == 2


def test_an_outage_is_not_no_checkpoint_yet(unruly, proxy, bucket):
    proxy.faults = [Fault(status=503, times=100)]
    with pytest.raises(StorageError):
        newest(bucket, replace(unruly, max_attempts=1))


def test_retention_keeps_the_newest_and_deletes_older_ones_whole(place, tmp_path):
    uri, access = place
    for step in range(1, 6):
        publish(make(tmp_path, step), uri, step=step, access=access)
    assert sorted(keep_last(uri, 2, access)) == ["step-000001.pt", "step-000002.pt", "step-000003.pt"]
    assert newest(uri, access).step == 5
    left = {entry.name.split("/")[0] for entry in open_store(uri, access).list()}
    assert left == {"fence.json", "step-000004.pt", "step-000005.pt"}


@pytest.mark.parametrize("keep", [1, 0, -1])
def test_retention_never_deletes_the_newest_valid_one(place, tmp_path, keep):
    uri, access = place
    store = open_store(uri, access)
    for step in (1, 2, 3):
        publish(make(tmp_path, step), uri, step=step, access=access)
    store.delete("step-000003.pt/manifest.json")  # a newer one is being written
    keep_last(uri, keep, access)
    assert newest(uri, access).step == 2
    assert store.exists("step-000003.pt/step-000003.pt")
    assert not store.exists("step-000001.pt/step-000001.pt")


def test_retention_deletes_the_manifest_first(unruly, access, proxy, bucket, tmp_path):
    for step in (1, 2):
        publish(make(tmp_path, step), bucket, step=step, access=access)
    proxy.faults = [Fault(method="DELETE", status=400, skip=1)]
    with pytest.raises(StorageError):
        keep_last(bucket, 1, unruly)
    left = [entry.name for entry in open_store(bucket, access).list("step-000001.pt")]
    assert left == ["step-000001.pt/step-000001.pt"]


def test_what_an_interrupted_retention_left_is_removed_when_it_is_old(tmp_path):
    uri = str(tmp_path / "target")
    for step in (1, 2, 3):
        publish(make(tmp_path, step), uri, step=step)
    for step in (1, 2):
        open_store(uri).delete(f"step-00000{step}.pt/manifest.json")
    long_ago = time.time() - 86_400
    os.utime(tmp_path / "target/step-000001.pt/step-000001.pt", (long_ago, long_ago))
    assert keep_last(uri, 2) == ("step-000001.pt",)
    assert sorted(path.name for path in (tmp_path / "target").iterdir()) == [
        "fence.json",
        "step-000002.pt",
        "step-000003.pt",
    ]


class ReadLate(LocalStore):
    """Reads the newest manifest after all others, when two more checkpoints were published and it was retired."""

    def __init__(self, folder, meanwhile):
        super().__init__(folder)
        self.meanwhile, self.left = meanwhile, threading.Semaphore(0)

    def read(self, name):
        if self.meanwhile and "000006" in name:
            assert self.left.acquire(timeout=60)
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        content = super().read(name)
        self.left.release()
        return content


def test_a_checkpoint_that_is_retired_while_it_is_read_makes_no_older_one_the_newest(tmp_path):
    place = tmp_path / "kept"

    def save(*steps):
        for step in steps:
            publish(make(tmp_path, step), place.as_uri(), step=step)

    def go_on():
        save(7, 8)
        keep_last(place.as_uri(), 2)

    save(5, 6)
    assert newest_in(ReadLate(place, go_on)).step == 8


def test_a_reader_always_finds_a_checkpoint_while_others_come_and_go(place, tmp_path):
    """I4 and I5: while one publishes and retains, what is offered is complete and never goes back."""
    uri, access = place
    publish(make(tmp_path, 1), uri, step=1, access=access)
    ended = threading.Event()
    errors = []

    def train():
        try:
            for step in range(2, 10):
                publish(make(tmp_path, step), uri, step=step, access=access)
                keep_last(uri, 2, access)
        except Exception as error:
            errors.append(error)
        finally:
            ended.set()

    trainer = threading.Thread(target=train)
    trainer.start()
    last = 0
    while not ended.is_set():
        found = newest(uri, access)
        assert found is not None
        assert found.step >= last
        last = found.step
    trainer.join()
    assert not errors
    assert newest(uri, access).step == 9
