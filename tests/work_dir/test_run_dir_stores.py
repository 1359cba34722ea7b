"""The stores of run directories: which gangs share one, for how long it is kept, and what an unusable place means."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause, StorageError
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir import bounded_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores, unusable
from tests.work_dir.hung_mounts import HungMount

SEED = random.randrange(1_000_000)
BUCKET = "oci://bucket@namespace"


class Opener:
    """Opens stores in a folder of this machine under the URIs that it is asked for, and notes these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[str] = []

    def __call__(self, uri: str) -> Store:
        self.opened.append(uri)
        store = LocalStore(self.folder / uri.replace("://", "/"))
        store.uri = uri
        return store


@pytest.fixture
def opener(tmp_path: Path) -> Opener:
    return Opener(tmp_path)


def drawn_work_dir(draw: random.Random) -> str:
    path = "".join(f"/{draw.choice(['a', 'b.d', 'X'])}" for _ in range(draw.randrange(3)))
    return draw.choice([f"{BUCKET}{path}", f"/mnt/nfs{path}", f"s3://bucket/x{path}"])


@pytest.mark.parametrize("number", range(20))
def test_a_place_is_opened_once_for_all_gangs_that_one_listing_serves_until_it_is_forgotten(
    opener: Opener, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    stores = RunDirStores(opener)
    kept: dict[str, Store] = {}
    opened: list[str] = []
    for _ in range(60):
        work_dir, run = drawn_work_dir(draw), f"run{draw.randrange(3)}"
        run_dir = f"{work_dir}/{run}"
        # One listing of a bucket is one request for all gangs; no bucket's root is listed for one of them.
        is_shared = work_dir.startswith(BUCKET) and work_dir != BUCKET
        place, prefix = (work_dir, f"{run}/") if is_shared else (run_dir, "")
        match draw.choice(["at", "at", "at", "write", "forget", "clear"]):
            case "clear" if draw.random() < 0.3:
                stores.clear()
                kept.clear()
            case "forget":
                stores.forget(run_dir)
                if not is_shared:
                    kept.pop(place, None)
            case "write":
                if place not in kept:
                    opened.append(place)
                content = draw.randbytes(3)
                stores.write(run_dir, "report", content)
                kept[place], found = stores.at(run_dir)
                assert kept[place].read(f"{prefix}report") == content
                assert found == prefix
            case _:
                store, found = stores.at(run_dir)
                assert (store.uri, found) == (place, prefix)
                if place not in kept:
                    opened.append(place)
                assert kept.setdefault(place, store) is store
        assert opener.opened == opened


@pytest.mark.parametrize(
    "work_dir, place, prefix",
    [
        (f"{BUCKET}/work", f"{BUCKET}/work", "attempts/"),
        (BUCKET, BUCKET, "attempts/"),
        ("/mnt/nfs", "/mnt/nfs/attempts", ""),
    ],
)
def test_a_folder_of_the_work_directory_is_listed_with_nothing_beside_it(
    opener: Opener, work_dir: str, place: str, prefix: str
) -> None:
    stores = RunDirStores(opener)
    store, found = stores.below(work_dir, "attempts")
    assert (store.uri, found) == (place, prefix)
    assert stores.below(work_dir, "attempts")[0] is store
    assert opener.opened == [place]


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungMount]:
    monkeypatch.setattr(bounded_store, "URGENT_WITHIN", 0.6)
    monkeypatch.setattr(bounded_store, "ANSWERS_WITHIN", 0.1)
    found = HungMount(tmp_path / "mount")
    yield found
    found.close()


@pytest.mark.parametrize("options, seconds", [({"urgent": True}, 1), ({}, 0)])
@pytest.mark.parametrize("hangs", ["the opening", "a call"])
def test_an_opening_and_a_call_have_as_long_as_their_caller_can_wait(
    mount: HungMount, tmp_path: Path, options: dict[str, bool], seconds: int, hangs: str
) -> None:
    release = threading.Event()

    def opening(uri: str) -> Store:
        if hangs == "the opening":
            release.wait(60)
        return mount.store(uri)

    run_dir = str(tmp_path / "run")
    try:
        with pytest.raises(StorageError, match=f"has not answered for {seconds} s: ") as caught:
            RunDirStores(opening, **options).at(run_dir)[0].list()
    finally:
        release.set()
    assert caught.value.uri == run_dir


@pytest.mark.usefixtures("mount")
def test_a_bucket_is_opened_within_limits_of_its_own(opener: Opener) -> None:
    def slowly(uri: str) -> Store:
        time.sleep(0.3)
        return opener(uri)

    store, _ = RunDirStores(slowly).at(f"{BUCKET}/work/run")
    assert store.list() == []


def test_a_work_directory_that_does_not_answer_is_no_matter_of_another(
    mount: HungMount, tmp_path: Path
) -> None:
    hung, fine = tmp_path / "hung", tmp_path / "fine"
    stores = RunDirStores(lambda uri: mount.store(uri) if uri.startswith(str(hung)) else LocalStore(uri))
    for number in range(5):
        with pytest.raises(StorageError, match="has not answered"):
            stores.at(f"{hung}/run{number}")[0].list()
    stores.write(f"{fine}/run", "report", b"content")
    assert (fine / "run" / "report").read_bytes() == b"content"


@pytest.mark.parametrize("doing", ["", "recording the attempt"])
@pytest.mark.parametrize(
    "error, code, passes",
    [
        (StorageError("the mount is silent", retryable=True), None, True),
        (StorageError("no such bucket"), None, False),
        (PermissionError(13, "Permission denied"), None, False),
        (BackendError("refused", status_code=404), 404, False),
        (BackendError("too busy", status_code=503, retryable=True), 503, True),
    ],
)
def test_what_passes_is_the_services_fault_and_anything_else_is_the_users_to_mend(
    error: Exception, code: int | None, passes: bool, doing: str
) -> None:
    cause = error
    if isinstance(cause, BackendError):
        # As a store passes it on.
        error = StorageError(str(cause), retryable=passes)
        error.__cause__ = cause
    assert isinstance(error, (StorageError, OSError))
    found = unusable(error, doing) if doing else unusable(error)
    remedy = "" if passes else "; create its bucket, or name another work_dir"
    what = f"work_dir cannot be used, {doing}" if doing else "work_dir cannot be used"
    assert str(found) == f"{what}: {error}{remedy}"
    assert (found.status_code, found.retryable) == (code, passes)
    assert found.cause == (Cause.SERVICE if passes else Cause.CONFIG)
