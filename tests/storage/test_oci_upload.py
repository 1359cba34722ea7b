"""Multipart uploads to Object Storage: gone on with after a kill, committed once, and never another's object."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import random
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores import checksums
from airflow_provider_ocidist.storage.stores.base import Origin, Upload
from airflow_provider_ocidist.storage.stores.checksums import in_text, md5_of
from airflow_provider_ocidist.storage.stores.oci import OciStore
from airflow_provider_ocidist.storage.stores.oci_upload import OciUpload, part_size_for
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.storage.unruly_proxy import Fault, UnrulyProxy

PART = 100


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ocidist" / "transfers"


@pytest.fixture
def store(unruly: OciAccess, bucket: str) -> OciStore:
    """A folder behind the proxy; a request is sent once."""
    found = open_store(bucket, replace(unruly, max_attempts=1))
    assert isinstance(found, OciStore)
    return found


def origin(**changed: Any) -> Origin:
    return Origin(**{"uri": "/data/x", "etag": "one", "size": 4 * PART, **changed})


def parts_of(size: int, seed: int = 1) -> list[bytes]:
    content = random.Random(seed).randbytes(size)
    return [content[start : start + PART] for start in range(0, size, PART)]


def begun(store: OciStore, came_from: Origin | None, part_size: int = PART) -> OciUpload:
    found = store.upload("x", 4 * PART, part_size, came_from)
    assert isinstance(found, OciUpload)
    return found


def send(upload: Upload, parts: list[bytes], *indexes: int) -> None:
    for index in indexes or range(len(parts)):
        upload.write(index, index * PART, parts[index])


def missing(upload: Upload, count: int) -> list[int]:
    return [index for index in range(count) if upload.missing(index * PART, PART)]


def left_open(store: OciStore) -> list[str]:
    found = store.client.list_multipart_uploads(*store.bucket).data
    return [item.upload_id for item in found if item.object.startswith(store.prefix)]


def md5(parts: list[bytes]) -> str:
    return in_text([md5_of([part]) for part in parts], whole=False)


# Whole


def test_parts_in_any_order_become_one_object_and_nothing_is_visible_before(
    store: OciStore, cache: Path
) -> None:
    parts = parts_of(4 * PART - 7)
    upload = begun(store, origin())
    assert missing(upload, 4) == [0, 1, 2, 3]
    assert upload.missing(3 * PART, 93) == [(3 * PART, 93)]
    assert upload.missing(3 * PART + 10, 5) == [(3 * PART + 10, 5)]
    send(upload, parts, 2, 0, 3, 1)
    assert missing(upload, 5) == [4]
    assert upload.missing(3 * PART + 10, 5) == []
    assert store.list() == []
    etag = upload.commit()
    assert store.read("x") == b"".join(parts)
    assert etag == store.stat("x").etag
    assert left_open(store) == []
    assert list(cache.iterdir()) == []


def test_parts_that_threads_send_are_all_committed(store: OciStore) -> None:
    parts = parts_of(24 * PART)
    upload = begun(store, None)
    threads = [threading.Thread(target=send, args=(upload, parts, index)) for index in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    upload.commit()
    assert store.read("x") == b"".join(parts)


def test_the_object_says_how_it_was_cut(store: OciStore) -> None:
    upload = begun(store, None)
    send(upload, parts_of(4 * PART))
    upload.commit()
    headers = store.client.head_object(*store.bucket, store.object_name("x")).headers
    assert headers["opc-meta-ocidist-part-size"] == str(PART)
    assert headers["opc-multipart-md5"] == md5(parts_of(4 * PART))


def test_each_part_goes_with_its_digest(store: OciStore, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begun(store, None)
    monkeypatch.setattr(checksums, "md5_of", lambda _: hashlib.md5(b"what we meant to send").digest())
    with pytest.raises(StorageError, match=r"^writing oci://.*/x: .*\(400 "):
        send(upload, parts_of(PART))


# Gone on with


@pytest.mark.parametrize("seed", range(8))
def test_the_next_attempt_sends_only_what_is_missing(
    store: OciStore, proxy: UnrulyProxy, cache: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    count = chosen.randint(2, 9)
    parts = parts_of(count * PART - chosen.randrange(PART), seed)
    sent = chosen.sample(range(count), chosen.randint(0, count))
    first = begun(store, origin())
    for index in sent:
        send(first, parts, index)
    first.suspend()
    assert len(left_open(store)) == 1
    again = begun(store, origin())
    assert again.upload_id == first.upload_id
    assert missing(again, count) == sorted(set(range(count)) - set(sent))
    proxy.seen.clear()
    for index in missing(again, count):
        send(again, parts, index)
    again.commit()
    assert proxy.count("PUT", "/u/") == count - len(sent)
    assert store.read("x") == b"".join(parts)
    assert list(cache.iterdir()) == []


def test_all_pages_of_the_parts_that_are_there_are_read(
    store: OciStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(7 * PART)
    first = begun(store, origin())
    send(first, parts, 0, 1, 2, 3, 4, 6)
    first.suspend()
    pages: list[str | None] = []
    read = store.client.list_multipart_upload_parts

    def two_a_page(*arguments: Any, **more: Any) -> Any:
        pages.append(more.get("page"))
        return functools.partial(read, limit=2)(*arguments, **more)

    monkeypatch.setattr(store.client, "list_multipart_upload_parts", two_a_page)
    again = begun(store, origin())
    assert missing(again, 7) == [5]
    assert len(pages) == len(set(pages)) == 3
    assert pages[0] is None
    send(again, parts, 5)
    again.commit()
    assert store.read("x") == b"".join(parts)


@pytest.mark.parametrize(
    "changed",
    [{"etag": "two"}, {"size": 5 * PART}, {"part_size": 2 * PART}],
    ids=lambda item: next(iter(item)),
)
def test_what_was_begun_of_another_source_is_aborted_and_begun_anew(
    store: OciStore, changed: dict[str, Any]
) -> None:
    part_size = changed.pop("part_size", PART)
    first = begun(store, origin())
    send(first, parts_of(PART))
    first.suspend()
    again = begun(store, origin(**changed), part_size)
    assert again.upload_id != first.upload_id
    assert left_open(store) == [again.upload_id]
    assert missing(again, 1) == [0]
    again.suspend()
    assert begun(store, origin(**changed), part_size).upload_id == again.upload_id


@pytest.mark.parametrize("place", [{"uri": "/data/y"}, {}])
def test_another_source_or_target_is_another_upload(store: OciStore, place: dict[str, str]) -> None:
    first = begun(store, origin())
    second = begun(store, origin(**place)) if place else store.upload("y", PART, PART, origin())
    assert isinstance(second, OciUpload)
    assert second.journal is not None
    assert sorted(left_open(store)) == sorted([first.upload_id, second.upload_id])


def test_the_journal_says_of_what_and_where(store: OciStore, cache: Path) -> None:
    upload = begun(store, origin(uri="https://me:pw@host/x?sig=1"))
    (journal,) = cache.iterdir()
    assert journal.name.startswith("upload-")
    subject, record = map(json.loads, journal.read_text().splitlines())
    expected = {"from": "https://host/x", "etag": "one", "size": 4 * PART, "part_size": PART}
    assert subject == {**expected, "to": f"{store.uri}/x"}
    assert record == upload.upload_id


def test_of_two_at_the_same_time_the_second_goes_without_a_journal(store: OciStore) -> None:
    first, second = begun(store, origin()), begun(store, origin())
    assert second.upload_id != first.upload_id
    assert second.journal is None
    second.suspend()
    assert left_open(store) == [first.upload_id]
    assert begun(store, None).journal is None


def test_an_upload_that_somebody_aborted_is_begun_anew(store: OciStore) -> None:
    first = begun(store, origin())
    send(first, parts_of(PART))
    first.suspend()
    store.client.abort_multipart_upload(*store.bucket, store.object_name("x"), first.upload_id)
    again = begun(store, origin())
    assert again.upload_id != first.upload_id
    assert missing(again, 1) == [0]
    again.suspend()
    # What was aborted is forgotten.
    third = begun(store, origin())
    assert third.upload_id == again.upload_id
    assert third.journal is not None
    assert third.journal.records == [again.upload_id]


def test_when_it_cannot_be_seen_what_is_there_nothing_is_begun_and_nothing_lost(
    store: OciStore, proxy: UnrulyProxy
) -> None:
    first = begun(store, origin())
    send(first, parts_of(PART))
    first.suspend()
    proxy.faults = [Fault(method="GET", path="/u/", status=503)]
    with pytest.raises(StorageError, match="looking at the upload of oci://"):
        begun(store, origin())
    assert left_open(store) == [first.upload_id]
    again = begun(store, origin())
    assert again.upload_id == first.upload_id
    assert missing(again, 2) == [1]


def test_an_upload_that_cannot_be_begun_is_an_error_and_the_next_can(
    store: OciStore, proxy: UnrulyProxy
) -> None:
    for came_from in (origin(), None):
        proxy.faults = [Fault(method="POST", path="/u", status=503)]
        with pytest.raises(StorageError, match=r"^writing oci://.*/x: "):
            begun(store, came_from)
        upload = begun(store, came_from)
        assert (upload.journal is None) == (came_from is None)
        upload.abort()


# The end


@pytest.mark.parametrize("journaled", [True, False])
def test_what_is_given_up_leaves_nothing(store: OciStore, cache: Path, journaled: bool) -> None:
    upload = begun(store, origin() if journaled else None)
    send(upload, parts_of(PART))
    upload.abort()
    assert left_open(store) == []
    assert not cache.exists() or list(cache.iterdir()) == []
    assert store.list() == []


def test_without_a_journal_nobody_could_go_on_so_nothing_is_left(store: OciStore) -> None:
    upload = begun(store, None)
    upload.suspend()
    assert left_open(store) == []


def test_parts_that_cannot_be_given_up_are_reported(
    store: OciStore, proxy: UnrulyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    upload = begun(store, origin())
    proxy.faults = [Fault(method="DELETE", path="/u/", status=500)]
    upload.abort()
    assert caplog.text.count("giving up the upload of oci://") == 1
    assert "its parts stay in the bucket until someone deletes them" in caplog.text
    caplog.clear()
    upload.abort()
    upload.abort()  # it is gone: no error
    assert caplog.text == ""
    assert left_open(store) == []


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "airflow_provider_ocidist.storage.stores.oci_upload")


def test_a_commit_whose_answer_was_lost_has_happened(
    unruly: OciAccess, bucket: str, proxy: UnrulyProxy, cache: Path
) -> None:
    store = open_store(bucket, replace(unruly, max_attempts=4))
    assert isinstance(store, OciStore)
    parts = parts_of(3 * PART)
    upload = begun(store, origin())
    send(upload, parts)
    proxy.faults = [Fault(method="POST", path="/u/", lose_answer=True)]
    etag = upload.commit()
    assert store.read("x") == b"".join(parts)
    assert etag == store.stat("x").etag
    assert list(cache.iterdir()) == []


def test_a_commit_that_is_refused_as_a_conflict_counts_where_its_object_is_there(
    store: OciStore, proxy: UnrulyProxy
) -> None:
    upload = begun(store, origin())
    send(upload, parts_of(3 * PART))
    upload._commit()
    proxy.faults = [Fault(method="POST", path="/u/", status=409)]
    assert upload.commit() == store.stat("x").etag


@pytest.mark.parametrize("there", ["another object", "nothing", "the same content in one piece"])
def test_a_lost_commit_counts_only_for_this_very_object(store: OciStore, there: str) -> None:
    parts = parts_of(3 * PART)
    upload = begun(store, origin())
    send(upload, parts)
    store.client.abort_multipart_upload(*store.bucket, store.object_name("x"), upload.upload_id)
    if there == "another object":
        other = begun(store, None)
        send(other, parts_of(3 * PART, seed=2))
        other.commit()
    elif there != "nothing":
        store.write("x", b"".join(parts))
    with pytest.raises(StorageError, match=r"^writing oci://.*/x: .*\(404 "):
        upload.commit()
    assert upload.journal is not None
    assert upload.journal.path.exists()


@pytest.mark.parametrize("status", [500, 400, 412])
def test_a_commit_that_was_refused_for_another_reason_has_not_happened(
    store: OciStore, proxy: UnrulyProxy, status: int
) -> None:
    parts = parts_of(3 * PART)
    before = begun(store, None)
    send(before, parts)
    before.commit()
    upload = begun(store, origin())
    send(upload, parts)
    proxy.faults = [Fault(method="POST", path="/u/", status=status)]
    with pytest.raises(StorageError, match=rf"\({status} "):
        upload.commit()


@pytest.mark.parametrize("commit", [404, 409])
@pytest.mark.parametrize("seen", [{"status": 503}, {"lose_answer": True}])
def test_when_it_cannot_be_seen_what_is_there_the_commit_may_be_repeated(
    store: OciStore, proxy: UnrulyProxy, commit: int, seen: dict[str, Any]
) -> None:
    upload = begun(store, origin())
    send(upload, parts_of(3 * PART))
    proxy.faults = [
        Fault(method="POST", path="/u/", status=commit),
        Fault(method="HEAD", path="/o/", **seen),
    ]
    with pytest.raises(StorageError, match="looking for") as caught:
        upload.commit()
    assert caught.value.retryable


def test_an_object_whose_checksum_is_wrong_is_an_error(store: OciStore) -> None:
    parts = parts_of(3 * PART)
    upload = begun(store, origin())
    send(upload, parts)
    upload.digests[1] = hashlib.md5(b"what we meant to send").digest()
    with pytest.raises(StorageError, match="x: the checksum of what was stored is wrong") as caught:
        upload.commit()
    assert caught.value.uri == f"{store.uri}/x"


def test_a_part_that_the_store_does_not_take_is_an_error_and_still_missing(
    store: OciStore, proxy: UnrulyProxy
) -> None:
    upload = begun(store, None)
    proxy.faults = [Fault(method="PUT", path="/u/", status=503)]
    with pytest.raises(StorageError, match=r"^writing oci://.*/x: .*503") as caught:
        send(upload, parts_of(PART))
    assert caught.value.retryable
    assert caught.value.uri == f"{store.uri}/x"
    assert missing(upload, 1) == [0]


# The size of parts


@pytest.mark.parametrize(
    "size,asked,expected",
    [
        (None, 8 << 20, 8 << 20),
        (0, 100, 100),
        (1_000_000, 100, 100),
        (1_000_001, 100, 1 << 20),
        (10_000 * (8 << 20), 8 << 20, 8 << 20),
        (10_000 * (8 << 20) + 1, 8 << 20, 9 << 20),
        (10_000 * (9 << 20), 8 << 20, 9 << 20),
        (10_000 * (9 << 20) + 1, 8 << 20, 10 << 20),
    ],
)
def test_there_are_never_more_than_ten_thousand_parts(size: int | None, asked: int, expected: int) -> None:
    assert part_size_for(size, asked) == expected
    assert -(-(size or 0) // expected) <= 10_000


def test_names_of_objects_are_free(store: OciStore) -> None:
    name = f"ünï code/{uuid.uuid4().hex} +&?#%.bin"
    upload = store.upload(name, PART, PART)
    upload.write(0, 0, os.urandom(PART))
    upload.commit()
    assert [entry.name for entry in store.list()] == [name]
