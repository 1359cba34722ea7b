"""What a killed node has begun to send is forgotten by the next attempt; nobody else's upload is touched."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import Sending
from airflow_provider_ocidist.storage import fences
from airflow_provider_ocidist.storage.checkpoints import newest, send_part
from airflow_provider_ocidist.storage.copying.in_flight import InFlight
from airflow_provider_ocidist.storage.open_uploads import abort_left_behind, abort_reported, stem_of
from airflow_provider_ocidist.storage.retention import Retention, retain
from airflow_provider_ocidist.storage.stores.base import Origin
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy
from tests.oci_client.test_rest import store_at
from tests.storage.published import publish
from tests.storage.unruly_proxy import Fault

SEED = int(os.environ.get("UPLOADS_SEED", "20261122"))
PART = 1 << 20


@pytest.fixture(params=["oci", "local"])
def place(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "target"), None
    return request.getfixturevalue("bucket"), request.getfixturevalue("access")


def cut_off(uri, access, name):
    """Leave an upload as a node does that is killed while it sends."""
    upload = open_store(uri, access).upload(name, 3 * PART, PART)
    upload.write(0, 0, b"x" * PART)


def names(uri, access):
    return sorted(upload.name for upload in open_store(uri, access).open_uploads())


def test_an_upload_is_open_until_it_is_committed_or_aborted(place):
    uri, access = place
    store = open_store(uri, access)
    assert names(uri, access) == []
    before = time.time()
    kept, given_up = (store.upload(f"step-5/{name}", PART, PART) for name in ("kept", "given up"))
    found = {upload.name: upload for upload in store.open_uploads()}
    assert sorted(found) == ["step-5/given up", "step-5/kept"]
    assert all(before - 5 < upload.begun_at < time.time() + 5 for upload in found.values())
    kept.write(0, 0, b"x" * PART)
    kept.commit()
    given_up.abort()
    assert names(uri, access) == []


def test_the_next_attempt_forgets_what_the_one_before_has_begun(place):
    uri, access = place
    task = f"{uri}/dag-train-0a-g1"
    # Of the fence itself, which nodes of any attempt write.
    cut_off(task, access, "fence.json")
    for owner in ("", ".attempt-2", ".attempt-3", ".attempt-4", ".attempt-2.launch-1.again-2"):
        cut_off(task, access, f"step-5.pt{owner}/step-5.pt")
    fence = Fence(generation=1, attempt=3)
    assert abort_left_behind(task, fence, access) == 3
    left = ["fence.json", "step-5.pt.attempt-3/step-5.pt", "step-5.pt.attempt-4/step-5.pt"]
    assert names(task, access) == left


def test_after_a_clear_what_the_task_had_begun_before_is_forgotten_and_nothing_of_others(place):
    uri, access = place
    left = [
        "dag-train-0a-g2/step-1.pt/x",
        "dag-train-0a-g7/step-1.pt/x",
        # Nobody of this task writes its generation so.
        "dag-train-0a-g02/step-1.pt/x",
        "other-0b-g1/step-1.pt/x",
        "x/y",
        "z",
    ]
    for name in (*left, "dag-train-0a-g0/step-1.pt/x", "dag-train-0a-g1/step-1.pt.attempt-9/x"):
        cut_off(uri, access, name)
    assert abort_left_behind(f"{uri}/dag-train-0a-g2", Fence(generation=2, attempt=1), access) == 2
    assert names(uri, access) == sorted(left)


def test_what_a_node_of_this_attempt_may_be_keeping_aside_is_left_to_it(tmp_path):
    task = f"{tmp_path}/dag-train-0a-g1"
    for name in ("dag-train-0a-g1/unproved/step-5.pt", "dag-train-0a-g0/unproved/step-5.pt"):
        cut_off(str(tmp_path), None, name)
    fence = Fence(generation=1, attempt=2)
    assert abort_left_behind(task, fence, aside=False) == 1
    assert names(task, None) == ["unproved/step-5.pt"]
    # Once all nodes have ended, or before one of this attempt trains.
    assert abort_left_behind(task, fence) == 1


@pytest.mark.parametrize("number", range(5))
def test_only_what_is_older_of_the_same_task_is_ever_aborted(number, tmp_path):
    seed = random.Random(SEED + number)
    uri = str(tmp_path)
    own = Fence(generation=seed.randrange(3), attempt=seed.randrange(1, 4))
    expected = set()
    for at in range(60):
        task = seed.choice(["dag-train-0a", "dag-train-0b", "dag-train-0a-g1-x"])
        generation, attempt = seed.randrange(4), seed.randrange(1, 5)
        suffix = f".attempt-{attempt}" if attempt > 1 else ""
        name = f"{task}-g{generation}/step-{at}.pt{suffix}/x"
        cut_off(uri, None, name)
        if task != "dag-train-0a" or Fence(generation=generation, attempt=attempt) >= own:
            expected.add(name)
    abort_left_behind(f"{uri}/dag-train-0a-g{own.generation}", own)
    assert set(names(uri, None)) == expected, SEED + number


def test_retention_forgets_what_was_begun_long_before_the_newest(tmp_path):
    uri, fence = str(tmp_path / "target"), Fence(attempt=2)
    fences.advance_fence(open_store(uri), fence)
    aside = ("unproved/old.pt/x", "unproved/new.pt/x")
    for name in ("old.attempt-2/x", "new.attempt-2/x", "former/x", "later.attempt-3/x", "fence.json", *aside):
        cut_off(uri, None, name)
    for folder in ("old.attempt-2", "later.attempt-3", "unproved/old.pt"):
        (part,) = (tmp_path / "target" / folder).iterdir()
        os.utime(part, (time.time() - 7200,) * 2)
    for step in (1, 2):
        (tmp_path / f"step-{step}.pt").write_text("weights")
        publish(tmp_path / f"step-{step}.pt", uri, step=step, fence=fence)
    retain(uri, Retention(keep=1), fence=fence)
    assert names(uri, None) == ["fence.json", "later.attempt-3/x", "new.attempt-2/x", "unproved/new.pt/x"]


def test_an_upload_that_goes_on_from_a_journal_begins_anew_when_it_was_forgotten(bucket, access):
    """A node that was taken for dead, or a retry on the same machine."""
    task = f"{bucket}/dag-train-0a-g0"
    origin = Origin(uri="/somewhere/step-5.pt", etag="1", size=2 * PART)
    store = open_store(task, access)
    first = store.upload("step-5.pt/step-5.pt", 2 * PART, PART, origin)
    first.write(0, 0, b"x" * PART)
    first.suspend()
    assert abort_left_behind(task, Fence(attempt=2), access) == 1
    again = store.upload("step-5.pt/step-5.pt", 2 * PART, PART, origin)
    for index in (0, 1):
        if again.missing(index * PART, PART):
            again.write(index, index * PART, b"x" * PART)
    again.commit()
    assert store.stat("step-5.pt/step-5.pt").size == 2 * PART


def test_many_pages_of_the_uploads_of_others_are_passed_over(bucket, access, monkeypatch):
    for number in range(7):
        cut_off(bucket, access, f"other-{number}/x")
    cut_off(f"{bucket}/dag-train-0a-g0", access, "step-1.pt/x")
    store = open_store(f"{bucket}/dag-train-0a-g0", access)
    monkeypatch.setattr("airflow_provider_ocidist.storage.stores.oci.UPLOADS_A_PAGE", 2)
    assert [upload.name for upload in store.open_uploads()] == ["step-1.pt/x"]


def test_images_without_the_sdk_find_and_abort_them_too(bucket, access):
    cut_off(bucket, access, "step-1.pt/x")
    store = store_at(bucket, access)
    (found,) = store.open_uploads()
    assert abs(found.begun_at - time.time()) < 60
    store.abort_upload(found)
    assert store.open_uploads() == []


def test_a_node_that_may_not_list_uploads_goes_on(bucket, access, unruly, proxy, caplog):
    caplog.set_level(logging.INFO)
    proxy.faults = [Fault(method="GET", path="/u?", status=404, times=9)]
    assert abort_left_behind(f"{bucket}/dag-train-0a-g0", Fence(attempt=2), unruly) == 0
    assert "uploads that earlier attempts have left open" in caplog.text
    assert "404" in caplog.text


LOGGER = "airflow_provider_ocidist.storage.open_uploads"


def test_a_place_of_no_usual_name_has_uploads_of_its_own_alone_and_how_many_were_aborted_is_said(
    tmp_path, caplog
):
    caplog.set_level(logging.INFO, LOGGER)
    for name in ("mineX/a.pt/deep/x", "mineX/b.pt.attempt-2/deep/x", "mineX-too/a.pt/x", "mineX/fence.json"):
        cut_off(str(tmp_path), None, name)
    assert abort_left_behind(f"{tmp_path}/mineX//", Fence(attempt=2)) == 1
    assert names(str(tmp_path), None) == [
        "mineX-too/a.pt/x",
        "mineX/b.pt.attempt-2/deep/x",
        "mineX/fence.json",
    ]
    assert abort_left_behind(f"{tmp_path}/mineX", Fence(attempt=2)) == 0
    assert caplog.messages == ["aborted 1 uploads that earlier attempts had left open"]


def test_the_folders_of_all_generations_of_a_task_begin_alike_and_any_other_is_its_own():
    assert [stem_of(each) for each in ("dag-train-0a-g0", "dag-train-0a-g12", "mine")] == [
        "dag-train-0a-g",
        "dag-train-0a-g",
        "mine",
    ]


# Outputs: their folders are not the task's own


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.bin"
    path.write_bytes(b"x" * 3 * PART)
    return str(path)


def test_a_copy_says_which_uploads_it_has_open(model, bucket, access, unruly, proxy):
    noted, amid = [], []
    proxy.faults = [Fault(method="PUT", path="/u/", meanwhile=lambda: amid.append(noted[-1]))]
    copy(model, f"{bucket}/out/", access=unruly, part_size=PART, in_flight=InFlight(noted.append))
    ((sending,),) = amid
    assert (sending.folder, sending.name) == (f"{bucket}/out", "model.bin")
    assert noted == [(sending,), ()]
    assert abort_reported([sending], access) == 1, "it has arrived: there is nothing to abort"
    assert open_store(f"{bucket}/out", access).exists("model.bin")


def test_what_a_killed_copy_was_sending_is_aborted_and_no_other_upload_of_that_name(
    model, bucket, access, unruly, proxy
):
    place, noted = f"{bucket}/out", []
    others = open_store(place, access).upload("model.bin", PART, PART)
    proxy.faults = [Fault(method="PUT", path="/u/", status=503, times=99)]
    with pytest.raises(StorageError):
        # As a killed one, it leaves its upload open.
        copy(
            model,
            f"{place}/",
            access=replace(unruly, max_attempts=1),
            part_size=PART,
            in_flight=InFlight(noted.append),
        )
    assert len(open_store(place, access).open_uploads()) == 2
    assert abort_reported(noted[-1], access) == 1
    (left,) = open_store(place, access).open_uploads()
    assert left.id == others.upload_id


def test_a_copy_that_gives_up_says_that_nothing_is_open(model, bucket, unruly, proxy):
    noted = []
    proxy.faults = [Fault(method="PUT", path="/u/", status=403, times=99)]
    with pytest.raises(StorageError):
        copy(model, f"{bucket}/out/", access=unruly, part_size=PART, in_flight=InFlight(noted.append))
    assert (len(noted[0]), noted[-1]) == (1, ())


def test_an_upload_that_cannot_be_aborted_is_said_and_the_others_are_aborted(bucket, access, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    uploads = {name: open_store(bucket, access).upload(name, PART, PART) for name in ("one", "two")}
    reported = [Sending(folder=bucket, name=name, upload_id=each.upload_id) for name, each in uploads.items()]
    nowhere = Sending(folder="oci://", name="lost", upload_id="x")
    assert abort_reported([reported[0], nowhere, reported[1]], access) == 2
    assert names(bucket, access) == []
    (said,) = caplog.messages
    assert said.startswith(
        "the upload of lost that a node has left open cannot be aborted: oci:// names no bucket"
    )
    assert abort_reported([], access) == 0


# Checkpoints that their node gives up


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_checkpoint_whose_sending_is_cancelled_leaves_no_upload_open(
    tmp_path, bucket, access, unruly, proxy, in_parts
):
    cancel, folder = threading.Event(), tmp_path / "step-1"
    folder.mkdir()
    (folder / "model.bin").write_bytes(bytes(9 << 20))
    # The part is still on its way when the copy sees that it is cancelled.
    proxy.faults = [Fault(method="PUT", path="/u/", meanwhile=lambda: cancel.set() or time.sleep(0.5))]
    send = partial(send_part, folder, f"{bucket}/step-1")
    if not in_parts:
        send = partial(publish, folder, bucket, step=1)
    with pytest.raises(StorageError, match="was cancelled"):
        send(cancel=cancel, access=unruly)
    assert cancel.is_set()
    assert open_store(bucket, access).open_uploads() == []
    assert newest(bucket, access) is None
