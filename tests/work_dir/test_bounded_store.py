"""Small files at a place whose calls may never return: who waits for it, for how long, and what is left open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores.base import OpenUpload, Origin, Store
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir import bounded_store
from airflow_provider_ocidist.work_dir.bounded_store import (
    LONGEST_PAUSE,
    BoundedStore,
    UnansweredCalls,
    bounded,
)
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.work_dir.hung_mounts import HungMount

CALLS: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("a"),
    "write": lambda store: store.write("b", b"new"),
    "write_if": lambda store: store.write_if("c", b"new", None),
    "list": lambda store: store.list(),
    "list_each": lambda store: store.list_each(["a"]),
    "stat": lambda store: store.stat("a"),
    "sync": lambda store: store.sync(["a"]),
    "exists": lambda store: store.exists("a"),
    "delete": lambda store: store.delete("d"),
    "open_uploads": lambda store: store.open_uploads(),
    "abort_upload": lambda store: store.abort_upload(OpenUpload(name="x", id="1", begun_at=0.0)),
}


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungMount]:
    monkeypatch.setattr(bounded_store, "ANSWERS_WITHIN", 0.2)
    monkeypatch.setattr(bounded_store, "URGENT_WITHIN", 0.1)
    found = HungMount(tmp_path / "mount")
    yield found
    found.close()


def test_the_limits_are_those_of_the_page_of_waits() -> None:
    words = "30 s, 3 s while another request there is open; for the same gang none but one after 60 s, 120 s"
    page = Path(__file__).parents[2] / "docs" / "failures" / "waits.md"
    (line,) = [each for each in page.read_text().splitlines() if words in each]
    assert "5 s for a cancel; one second more for each MB to write" in line
    limits = (bounded_store.ANSWERS_WITHIN, bounded_store.AMID_SILENCE, bounded_store.ASKED_AGAIN)
    assert limits == (30, 3, 60)
    assert (bounded_store.URGENT_WITHIN, bounded_store.SLOWEST) == (5, 10**6)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("call", CALLS)
def test_each_call_ends_though_the_place_does_not_answer(mount: HungMount, tmp_path: Path, call: str) -> None:
    store = BoundedStore(mount.store(str(tmp_path / "run")), UnansweredCalls())
    with pytest.raises(StorageError, match="has not answered for 0 s: is it on a mount") as caught:
        CALLS[call](store)
    assert caught.value.retryable
    assert caught.value.uri == str(tmp_path / "run")
    with pytest.raises(StorageError, match="has not answered an earlier request yet"):
        CALLS[call](store)
    assert len(mount.calls) == 1, "each call that hangs keeps a thread"


@pytest.mark.parametrize("call", CALLS)
def test_the_answers_are_those_of_the_store(tmp_path: Path, call: str) -> None:
    stores = [LocalStore(tmp_path / "one"), LocalStore(tmp_path / "two")]
    for store in stores:
        for name in ("a", "d"):
            store.write(name, b"content")
    plain, same = stores[0], BoundedStore(stores[1], UnansweredCalls())
    expected, found = CALLS[call](plain), CALLS[call](same)
    if call in ("read", "write_if", "exists", "delete"):
        assert found == expected
    assert [(entry.name, entry.size) for entry in plain.list()] == [
        (entry.name, entry.size) for entry in same.list()
    ]
    assert same.uri_of("a") == stores[1].uri_of("a")
    assert (same.uri, same.folder, same.streams) == (stores[1].uri, stores[1].folder, stores[1].streams)
    download = same.download(same.stat("a"), 3)
    assert download
    assert download.part_size == 3
    with pytest.raises(FileNotFoundError):
        same.read("missing")


def test_what_was_left_to_itself_arrives_and_the_place_is_asked_again(
    mount: HungMount, tmp_path: Path
) -> None:
    store = BoundedStore(mount.store(str(tmp_path / "run")), UnansweredCalls())
    with pytest.raises(StorageError):
        store.write("late", b"content")
    mount.answer()
    until((tmp_path / "run" / "late").exists)
    until(lambda: _answers(store))
    assert store.read("late") == b"content"


def _answers(store: Store) -> bool:
    try:
        store.list()
    except StorageError:
        return False
    return True


def test_each_gang_of_a_work_directory_that_hangs_leaves_one_call_open(
    mount: HungMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_store, "SHORTEST", 0.01)
    dirs = RunDirStores(mount.store)
    for _ in range(3):
        for number in range(12):
            with pytest.raises(StorageError, match="has not answered"):
                dirs.at(str(tmp_path / "work" / f"run{number}"))[0].list()
    assert len(mount.calls) == 12


@pytest.mark.parametrize("is_answer", [False, True])
def test_a_call_that_ends_late_counts_as_an_answer_unless_it_has_timed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_answer: bool
) -> None:
    monkeypatch.setattr(bounded_store, "ANSWERS_WITHIN", 0.02)
    ends, calls = threading.Event(), []

    class Late(LocalStore):
        def list(self, prefix: str = "") -> list[Any]:
            calls.append(threading.current_thread())
            ends.wait(20)
            raise FileNotFoundError(prefix) if is_answer else StorageError("timed out", retryable=True)

    store = BoundedStore(Late(tmp_path), UnansweredCalls())
    with pytest.raises(StorageError, match="has not answered for"):
        store.list()
    ends.set()
    calls[0].join()
    with pytest.raises(FileNotFoundError if is_answer else StorageError):
        store.list()
    assert len(calls) == (2 if is_answer else 1)


def test_one_file_that_hangs_keeps_the_other_gangs_of_its_work_directory_readable(
    mount: HungMount, tmp_path: Path
) -> None:
    def opening(uri: str) -> Store:
        return mount.store(uri) if uri.endswith("hung") else LocalStore(uri)

    dirs = RunDirStores(opening)
    with pytest.raises(StorageError, match="has not answered for"):
        dirs.at(str(tmp_path / "work" / "hung"))[0].list()
    dirs.clear()
    with pytest.raises(StorageError, match="earlier request"):
        dirs.at(str(tmp_path / "work" / "hung"))[0].list()
    for number in range(10):
        store, _ = dirs.at(str(tmp_path / "work" / f"run{number}"))
        store.write("a", b"content")
        assert store.read("a") == b"content"
    assert len(mount.calls) == 1


def test_a_driver_that_never_connects_holds_up_its_caller_no_longer(mount: HungMount) -> None:
    release = threading.Event()

    def opening(uri: str) -> Store:
        release.wait(60)
        return LocalStore(uri)

    try:
        with pytest.raises(StorageError, match="has not answered"):
            RunDirStores(opening, urgent=True).at("sftp://host/work/run")
    finally:
        release.set()


def test_object_storage_has_limits_of_its_own() -> None:
    class InABucket(LocalStore):
        def __init__(self) -> None:
            super().__init__("x")
            self.uri = "oci://bucket@namespace/work"

    store = InABucket()
    assert bounded(store, UnansweredCalls()) is store
    opened = RunDirStores(lambda _: store)
    assert opened.at("oci://bucket@namespace/work/run")[0] is store


def test_a_place_that_stays_silent_is_asked_after_a_minute_and_then_after_twice_as_long(
    mount: HungMount, tmp_path: Path
) -> None:
    now = [1000.0]
    store = BoundedStore(mount.store(str(tmp_path / "run")), UnansweredCalls(lambda: now[0]))
    asked = []
    for _ in range(430):
        with pytest.raises(StorageError, match="has not answered"):
            store.list()
        if len(mount.calls) > len(asked):
            asked.append(now[0] - 1000.0)
        now[0] += 1.0
    assert asked == [0.0, 60.0, 180.0, 420.0]


@pytest.mark.parametrize(
    "options, seconds",
    [({}, 0), ({"urgent": True}, 1), ({"within": 0.6}, 1), ({"urgent": True, "within": 0.1}, 0)],
)
def test_a_place_has_as_long_as_its_caller_can_wait(
    mount: HungMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seconds: int
) -> None:
    monkeypatch.setattr(bounded_store, "URGENT_WITHIN", 0.6)
    store = bounded(mount.store(str(tmp_path / "run")), UnansweredCalls(), **options)
    with pytest.raises(StorageError, match=f"has not answered for {seconds} s: "):
        store.list()


def test_a_large_file_goes_on_where_an_earlier_attempt_was_cut_off(tmp_path: Path) -> None:
    store = bounded(LocalStore(tmp_path), UnansweredCalls())
    mine = Origin(uri="oci://b@n/x", etag="1", size=6)
    first = store.upload("x", 6, 3, mine)
    first.write(0, 0, b"123")
    first.suspend()
    again = store.upload("x", 6, 3, mine)
    assert again.missing(0, 6) == [(3, 3)]
    again.write(1, 3, b"456")
    again.commit()
    assert store.read("x") == b"123456"


def test_more_bytes_have_more_time(mount: HungMount, tmp_path: Path) -> None:
    store = BoundedStore(mount.store(str(tmp_path / "run")), UnansweredCalls())
    with pytest.raises(StorageError, match="has not answered for 2 s"):
        store.write("archive", bytes(2 * bounded_store.SLOWEST))


def test_more_bytes_have_more_time_also_while_another_gang_has_no_answer(
    mount: HungMount, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_store, "AMID_SILENCE", 0.1)
    left_open = UnansweredCalls()
    with pytest.raises(StorageError):
        BoundedStore(mount.store(str(tmp_path / "hung")), left_open).list()

    class Slow(LocalStore):
        def write(self, name: str, data: Any) -> str | None:
            time.sleep(0.5)
            return super().write(name, data)

    store = BoundedStore(Slow(tmp_path / "run"), left_open)
    store.write("archive", bytes(20 * bounded_store.SLOWEST))
    with pytest.raises(StorageError):
        store.write("report", b"small")


@dataclass
class Folder:
    """Run directories in one work directory, on a clock of their own; those in `hung` do not answer."""

    mount: HungMount
    root: Path
    left_open: UnansweredCalls
    hung: set[str] = field(default_factory=set)

    def store(self, name: str) -> Store:
        hung, fine = self.mount.store(str(self.root / name)), LocalStore(self.root / name)
        silent = self.hung

        class There(LocalStore):
            def list(self, prefix: str = "") -> list[Any]:
                return (hung if name in silent else fine).list(prefix)

        return BoundedStore(There(self.root / name), self.left_open)


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def folder(mount: HungMount, tmp_path: Path, now: list[float], monkeypatch: pytest.MonkeyPatch) -> Folder:
    for limit in ("ANSWERS_WITHIN", "AMID_SILENCE", "SHORTEST"):
        monkeypatch.setattr(bounded_store, limit, 0.04)
    return Folder(mount, tmp_path, UnansweredCalls(lambda: now[0]))


@pytest.mark.parametrize("draw", range(8))
def test_however_many_gangs_hang_one_that_answers_is_read_on(
    folder: Folder, now: list[float], draw: int
) -> None:
    chance = Random(draw)
    names = [f"run{number}" for number in range(chance.randint(2, 30))]
    folder.hung.update(chance.sample(names, chance.randint(1, len(names) - 1)))
    # Those that hang may be asked first each time.
    order = sorted(names, key=lambda name: (name not in folder.hung, name)) if draw % 2 else names
    stores = {name: folder.store(name) for name in order}
    answered = dict.fromkeys(set(names) - folder.hung, 0.0)
    for _ in range(400):
        for name, store in stores.items():
            if _answers(store):
                answered[name] = now[0]
        # One that a busy machine has kept waiting is read again in the next look.
        assert now[0] - min(answered.values()) <= 240.0, (
            f"draw {draw}: {folder.hung} of {order} keep others unread"
        )
        now[0] += chance.choice([5.0, 10.0, 120.0])
    assert len(folder.mount.calls) <= len(folder.hung) + 5 + 12 * now[0] / 3600, "each keeps a thread"


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_place_that_is_mounted_anew_is_read_again_though_no_earlier_call_ever_returns(
    folder: Folder, now: list[float], is_reversed: bool
) -> None:
    names = [f"run{number}" for number in range(6)]
    folder.hung.update(names)
    stores = [folder.store(name) for name in names]
    for store in stores:
        with pytest.raises(StorageError):
            store.list()
    calls = len(folder.mount.calls)
    assert calls == len(names)
    if is_reversed:
        stores.reverse()
    # Of all of them one is asked, more and more seldom.
    for _ in range(100):
        now[0] += 60.0
        for store in stores:
            with pytest.raises(StorageError):
                store.list()
    assert calls + 10 <= len(folder.mount.calls) <= calls + 24
    folder.hung.clear()
    began = now[0]
    answers = [False]
    while not all(answers):
        answers = [_answers(store) for store in stores]
        now[0] += 60.0
        assert now[0] - began <= 2 * LONGEST_PAUSE, "leases of its gangs end"


def test_a_folder_that_hangs_once_more_is_asked_as_seldom_as_before(folder: Folder, now: list[float]) -> None:
    names = [f"run{number}" for number in range(20)]
    folder.hung.update(names)
    stores = [folder.store(name) for name in names]

    def look() -> None:
        for store in stores:
            _answers(store)
        now[0] += 10.0

    while now[0] < 4 * 3600:
        look()
    folder.hung.clear()
    while not any(_answers(store) for store in stores):
        now[0] += 10.0
    folder.hung.update(names)
    before = len(folder.mount.calls)
    began = now[0]
    while now[0] < began + 3600:
        look()
    assert len(folder.mount.calls) - before <= 20, "each call that hangs keeps a thread"


def test_one_of_few_silent_gangs_that_answers_brings_the_others_back(
    folder: Folder, now: list[float]
) -> None:
    folder.hung.update({"a", "b"})
    a, b = folder.store("a"), folder.store("b")
    while now[0] < 3600:
        _answers(a)
        _answers(b)
        now[0] += 10.0
    folder.hung.clear()
    answers = {a: False, b: False}
    first = None
    while not all(answers.values()):
        answers = {store: _answers(store) for store in answers}
        first = now[0] if first is None and any(answers.values()) else first
        now[0] += 10.0
        assert first is None or now[0] - first <= 120.0


def test_what_is_asked_of_a_gang_that_ends_waits_for_no_other_gang(mount: HungMount, tmp_path: Path) -> None:
    def opening(uri: str) -> Store:
        return mount.store(uri) if "hung" in uri else LocalStore(uri)

    dirs = RunDirStores(opening, urgent=True)
    for number in range(8):
        with pytest.raises(StorageError):
            dirs.write(str(tmp_path / "work" / f"hung{number}"), "stop", b"{}")
    dirs.write(str(tmp_path / "work" / "run"), "stop", b"{}")
    assert (tmp_path / "work" / "run" / "stop").exists()
