"""How files move: in parts, in order, within bounds, checked as a whole, and what an interrupted copy leaves."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.copying import destination as destinations
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.destination import Destination, destination, landing
from airflow_provider_ocidist.storage.copying.engine import Engine, is_interruption
from airflow_provider_ocidist.storage.copying.meter import Meter, TransferProgress
from airflow_provider_ocidist.storage.copying.open_file import Copied, OpenFile
from airflow_provider_ocidist.storage.copying.selection import Selection
from airflow_provider_ocidist.storage.stores.base import Checksum, Entry, Origin
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.opening import Stores
from tests.storage.shelf import Shelf, ShelfDownload, ShelfUpload, checksum_of
from tests.storage.trees import make_tree, read_tree

PART = 1000


class Passing(StorageError):
    """An error that may pass."""

    def __init__(self) -> None:
        super().__init__("the network ended", retryable=True)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def engine(source: Shelf, target: Shelf, **options: Any) -> Engine:
    chosen = {"part_size": PART, "cancel": None, "budget": CopyBudget(8, PART), "meter": Meter(None)}
    return Engine(source, target, **{**chosen, **options})


def copy(source: Shelf, target: Shelf, rename: str | None = None, **options: Any) -> list[Copied]:
    return engine(source, target, **options).run(source.list(), rename)


FILES = {
    "a": content(5),
    "b/part": content(PART),
    "c": content(3 * PART + 7),
    "e": b"",
    "f": content(2 * PART),
}


# Whole, however places work


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("reads_back", [True, False])
@pytest.mark.parametrize("downloads", [True, False])
@pytest.mark.parametrize("tells_size", [True, False])
def test_all_arrives_as_it_is_and_is_reported(
    ordered: bool, reads_back: bool, downloads: bool, tells_size: bool
) -> None:
    source, target = Shelf("mem://s", FILES), Shelf("mem://t")
    source.downloads, source.tells_size = downloads, tells_size
    target.ordered, target.reads_back, target.streams = ordered, reads_back, reads_back
    told: list[TransferProgress] = []
    found = copy(source, target, sha256=True, meter=Meter(told.append))
    assert target.files == FILES
    assert [item.name for item in found] == sorted(FILES)
    for item in found:
        assert item.size == len(FILES[item.name])
        assert item.sha256 == hashlib.sha256(FILES[item.name]).hexdigest()
        assert item.etag == target.entry(item.name).etag
    assert (told[-1].files_done, told[-1].files_total) == (5, 5)
    assert told[-1].bytes_done == sum(map(len, FILES.values()))
    assert told[-1].bytes_total == (told[-1].bytes_done if tells_size else 0)
    assert {upload.end for upload in target.uploads} <= {"committed"}
    if ordered:
        assert all(upload.order == sorted(upload.order) for upload in target.uploads)


@pytest.mark.parametrize("seed", range(12))
def test_any_mix_of_sizes_arrives(seed: int) -> None:
    chosen = random.Random(seed)
    files = {
        f"{number}": chosen.randbytes(
            chosen.choice([0, 1, PART - 1, PART, PART + 1, chosen.randrange(9 * PART)])
        )
        for number in range(25)
    }
    source, target = Shelf("mem://s", files), Shelf("mem://t")
    source.downloads = chosen.random() < 0.7
    source.md5s = chosen.random() < 0.5
    target.ordered = chosen.random() < 0.5
    found = copy(source, target, sha256=chosen.random() < 0.5, budget=CopyBudget(chosen.randint(1, 9), PART))
    assert target.files == files
    assert sum(item.size for item in found) == sum(map(len, files.values()))


def test_without_being_asked_nobody_computes_a_digest() -> None:
    assert {item.sha256 for item in copy(Shelf("mem://s", FILES), Shelf("mem://t"))} == {None}


def test_a_single_file_gets_its_new_name() -> None:
    for size in (5, 3 * PART):
        source, target = Shelf("mem://s", {"x": content(size)}), Shelf("mem://t")
        found = copy(source, target, "y")
        assert target.files == {"y": content(size)}
        assert [item.name for item in found] == ["y"]


def test_small_files_go_whole_and_large_ones_in_parts() -> None:
    source, target = Shelf("mem://s", FILES), Shelf("mem://t")
    copy(source, target)
    assert sorted(map(str, target.done("write"))) == ["a", "b/part", "e"]
    assert sorted(map(str, target.done("upload"))) == ["c", "f"]
    parts = [call[2:] for call in target.calls if call[0] == "part" and call[1] == "c"]
    assert sorted(parts) == [(0, 0, PART), (1, PART, PART), (2, 2 * PART, PART), (3, 3 * PART, 7)]
    reads = [call[2:] for call in source.calls if call[0] == "pieces" and call[1] == "c"]
    assert sorted(reads) == [(0, PART), (PART, PART), (2 * PART, PART), (3 * PART, 7)]
    assert not [call for call in source.calls if call[:2] == ("pieces", "e")]
    assert sorted(map(str, source.done("finish"))) == sorted(FILES)


def test_the_target_says_how_large_parts_must_be() -> None:
    class Coarse(Shelf):
        def part_size_for(self, size: int | None, part_size: int) -> int:
            assert part_size == PART
            return 2 * PART if size else part_size

    source, target = Shelf("mem://s", {"x": content(3 * PART)}), Coarse("mem://t")
    copy(source, target)
    assert [call[2:] for call in source.calls if call[0] == "download"] == [(2 * PART,)]
    assert [call[2:4] for call in target.calls if call[0] == "upload"] == [(3 * PART, 2 * PART)]


def test_small_files_to_a_place_that_takes_pieces_still_go_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.storage.copying.engine.SMALL", 100)
    source, target = Shelf("mem://s", {"x": content(100), "y": content(101)}), Shelf("mem://t")
    target.streams = target.reads_back = True
    copy(source, target)
    assert (target.done("write"), target.done("upload")) == (["x"], ["y"])


def test_names_that_leave_the_folder_are_refused_before_anything_is_copied() -> None:
    source, target = Shelf("mem://s", {"a": b"1", "../x": b"1"}), Shelf("mem://t")
    with pytest.raises(StorageError, match="refused the name"):
        copy(source, target)
    assert target.files == {}


# What a place fetches by itself


def test_what_the_target_fetches_does_not_come_through_here() -> None:
    source, target = Shelf("mem://s", FILES), Shelf("mem://t")
    target.takes, target.refuses = True, {"c"}
    told: list[TransferProgress] = []
    found = copy(source, target, meter=Meter(told.append))
    assert target.files == FILES
    assert sorted(map(str, target.done("take"))) == sorted(FILES)
    assert source.done("download") == ["c"]
    assert [item.size for item in found] == [len(FILES[name]) for name in sorted(FILES)]
    assert [item.etag for item in found] == [target.entry(name).etag for name in sorted(FILES)]
    assert told[-1].bytes_done == sum(map(len, FILES.values()))
    assert told[-1].files_done == 5


def test_what_a_place_would_not_fetch_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    source, target = Shelf("mem://s", {"c": b"1"}), Shelf("mem://t")
    target.takes, target.refuses = True, {"c"}
    with caplog.at_level(logging.INFO):
        copy(source, target)
    assert "c is too much for me; it is copied through this machine" in caplog.text


def test_a_digest_needs_the_content_here() -> None:
    source, target = Shelf("mem://s", FILES), Shelf("mem://t")
    target.takes = True
    copy(source, target, sha256=True)
    assert target.done("take") == []


# Checked


@pytest.mark.parametrize("parts", [None, PART])
@pytest.mark.parametrize("reads_back", [True, False])
def test_what_arrives_is_held_against_what_the_source_knows(parts: int | None, reads_back: bool) -> None:
    right, wrong = content(4 * PART + 3), content(4 * PART + 3, seed=2)
    for stored, fits in ((right, True), (wrong, False)):

        class Turned(Shelf):
            def checksum(self, entry: Entry) -> Checksum:
                return checksum_of(right, parts)

        source, target = Turned("mem://s", {"x": stored}), Shelf("mem://t")
        target.reads_back = reads_back
        if fits:
            copy(source, target)
            assert target.files == {"x": right}
        else:
            with pytest.raises(StorageError, match="mem://s/x: the checksum of what arrived is wrong"):
                copy(source, target)
            assert target.files == {}
            assert [upload.end for upload in target.uploads] == ["aborted"]


@pytest.mark.parametrize("size", [5, 3 * PART + 7])
@pytest.mark.parametrize("downloads", [True, False])
@pytest.mark.parametrize("change", [-2, 2])
def test_a_file_of_another_size_than_it_was_listed_with_is_refused(
    size: int, downloads: bool, change: int
) -> None:
    source, target = Shelf("mem://s", {"x": content(size)}), Shelf("mem://t")
    source.downloads = downloads
    entries = source.list()
    source.files["x"] = content(size + change)
    if downloads and change > 0:
        return  # ranges never read beyond what was listed; the store's `finish` sees the change
    with pytest.raises(StorageError, match=f"x: expected {size} bytes, got"):
        engine(source, target).run(entries)
    assert target.files == {}
    assert {upload.end for upload in target.uploads} <= {"aborted"}


def test_a_source_that_changed_in_the_end_is_refused_before_it_appears() -> None:
    for size in (5, 3 * PART):
        source, target = Shelf("mem://s", {"x": content(size)}), Shelf("mem://t")
        source.before = _raiser("finish", StorageError("x changed while it was read"))
        with pytest.raises(StorageError, match="changed while it was read"):
            copy(source, target)
        assert target.files == {}


@pytest.mark.parametrize("size", [5, 3 * PART])
@pytest.mark.parametrize("downloads,takes", [(True, False), (False, False), (True, True)])
def test_a_file_that_vanishes_is_an_error_that_names_it(size: int, downloads: bool, takes: bool) -> None:
    source, target = Shelf("mem://s", {"x": content(size)}), Shelf("mem://t")
    source.downloads, target.takes = downloads, takes
    entries = source.list()
    del source.files["x"]
    if downloads and not takes:
        source.checksum = lambda _: None
    with pytest.raises(StorageError, match=r"^mem://s/x disappeared while it was copied$") as caught:
        engine(source, target).run(entries)
    assert caught.value.uri == "mem://s/x"


def _raiser(verb: str, error: BaseException, *, skip: int = 0) -> Callable[[str, str], None]:
    left = [skip]

    def raise_it(what: str, _name: str) -> None:
        if what == verb:
            left[0] -= 1
            if left[0] < 0:
                raise error

    return raise_it


# Errors, ends and what they leave


@pytest.mark.parametrize("error,left", [(Passing(), "suspended"), (StorageError("no"), "aborted")])
def test_what_may_pass_leaves_the_upload_and_what_cannot_leaves_nothing(
    error: StorageError, left: str
) -> None:
    source, target = Shelf("mem://s", {"x": content(9 * PART), "y": content(9 * PART)}), Shelf("mem://t")
    source.before = _raiser("pieces", error, skip=3)
    with pytest.raises(type(error)):
        copy(source, target)
    assert {upload.end for upload in target.uploads} == {left}


def test_what_is_committed_stays_when_another_file_fails() -> None:
    source, target = Shelf("mem://s", {"a": content(2 * PART), "z": content(2 * PART)}), Shelf("mem://t")

    def fail(verb: str, name: str) -> None:
        if verb == "pieces" and name == "z":
            _until(lambda: target.done("commit") == ["a"])
            raise StorageError("no")

    source.before = fail
    with pytest.raises(StorageError, match="no"):
        copy(source, target)
    assert [upload.end for upload in target.uploads] == ["committed", "aborted"]


@pytest.mark.parametrize("downloads", [True, False])
def test_a_stream_that_breaks_leaves_nothing(downloads: bool) -> None:
    source, target = Shelf("mem://s", {"x": content(5 * PART)}), Shelf("mem://t")
    source.downloads = downloads
    source.before = _raiser("pieces" if downloads else "chunk", StorageError("no"), skip=2)
    with pytest.raises(StorageError, match="no"):
        copy(source, target)
    assert [upload.end for upload in target.uploads] == ["aborted"]
    assert target.files == {}


def test_no_thread_stays_behind() -> None:
    before = threading.active_count()
    copy(Shelf("mem://s", FILES), Shelf("mem://t"))
    source = Shelf("mem://s", FILES)
    source.before = _raiser("pieces", StorageError("no"))
    with pytest.raises(StorageError, match="no"):
        copy(source, Shelf("mem://t"))
    assert threading.active_count() == before


@pytest.mark.parametrize("downloads", [True, False])
@pytest.mark.parametrize("how", ["cancel", "interrupt"])
def test_a_copy_ends_when_it_is_asked_to(downloads: bool, how: str) -> None:
    source, target = Shelf("mem://s", {str(n): content(4 * PART) for n in range(50)}), Shelf("mem://t")
    source.downloads = downloads
    cancel, budget = threading.Event(), CopyBudget(2, PART)
    begun = threading.Event()

    def ask(verb: str, name: str) -> None:
        if verb in ("pieces", "chunk"):
            begun.set()
            (cancel if how == "cancel" else budget.interrupted).set()

    source.before = ask
    said = "was cancelled" if how == "cancel" else "was interrupted"
    with pytest.raises(StorageError, match=f"^the copy from mem://s {said}$") as caught:
        copy(source, target, cancel=cancel, budget=budget)
    assert begun.is_set()
    assert caught.value.retryable is (how == "interrupt")
    assert caught.value.uri == ("mem://s" if how == "cancel" else caught.value.uri)
    assert len(target.files) < 50
    assert budget.memory.used == 0
    if downloads:
        expected = "aborted" if how == "cancel" else "suspended"
        assert {upload.end for upload in target.uploads} <= {expected, "committed"}


def test_a_copy_that_waits_for_memory_ends_when_it_is_asked_to() -> None:
    source, target = Shelf("mem://s", {str(n): content(PART) for n in range(50)}), Shelf("mem://t")
    cancel, open_now = threading.Event(), threading.Event()
    source.before = lambda verb, _: None if verb != "pieces" else _wait(open_now)
    threading.Timer(0.2, cancel.set).start()
    threading.Timer(0.6, open_now.set).start()
    with pytest.raises(StorageError, match="was cancelled"):
        copy(source, target, cancel=cancel)


def _wait(event: threading.Event) -> None:
    event.wait(60)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_the_end_is_reported_also_after_an_error() -> None:
    told: list[TransferProgress] = []
    source = Shelf("mem://s", FILES)
    source.before = _raiser("pieces", StorageError("no"))
    with pytest.raises(StorageError, match="no"):
        copy(source, Shelf("mem://t"), meter=Meter(told.append))
    assert told[-1].files_total == 5


def test_what_is_held_in_memory_is_bounded_and_given_back() -> None:
    source, target = Shelf("mem://s", {"x": content(60 * PART), "y": content(60 * PART)}), Shelf("mem://t")
    budget = CopyBudget(16, PART)
    most = [0]

    def look(verb: str, _name: str) -> None:
        if verb == "part":
            most[0] = max(most[0], budget.memory.used)
            time.sleep(0.001)

    target.before = look
    copy(source, target, budget=budget)
    assert 0 < most[0] <= 8 * PART
    assert budget.memory.used == 0


@pytest.mark.parametrize("reads_back,charge", [(False, 3 << 20), (True, 1 << 20)])
def test_a_part_that_goes_piece_by_piece_counts_for_a_mebibyte(reads_back: bool, charge: int) -> None:
    source, target = Shelf("mem://s", {"x": bytes(6 << 20)}), Shelf("mem://t")
    target.reads_back = reads_back
    budget = CopyBudget(1, 3 << 20)
    charges: list[int] = []
    take = budget.memory.take
    budget.memory.take = lambda amount, timeout: charges.append(amount) or take(amount, timeout)
    copy(source, target, part_size=3 << 20, budget=budget)
    assert set(charges) == {charge}


def test_the_smallest_file_counts_for_16_kib() -> None:
    source, target = Shelf("mem://s", {"x": b"1", "y": bytes(20 << 10), "e": b""}), Shelf("mem://t")
    budget = CopyBudget(1, 1 << 20)
    charges: list[int] = []
    take = budget.memory.take
    budget.memory.take = lambda amount, timeout: charges.append(amount) or take(amount, timeout)
    copy(source, target, part_size=1 << 20, budget=budget)
    assert sorted(charges) == [16 << 10, 16 << 10, 20 << 10]


def test_a_copy_opens_as_many_lanes_as_its_share_of_the_streams() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def slowly(verb: str, _name: str) -> None:
        if verb == "pieces":
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(0.02)
            with lock:
                running[0] -= 1

    source = Shelf("mem://s", {str(n): content(10) for n in range(40)})
    source.before = slowly
    budget = CopyBudget(6, 1 << 20)
    with budget.member(), budget.member():
        copy(source, Shelf("mem://t"), budget=budget, part_size=1 << 20)
    assert most[0] == 3


# Going on


def test_what_an_earlier_attempt_has_moved_is_not_moved_again() -> None:
    for reads_back in (True, False):
        data = content(4 * PART)
        source, target = Shelf("mem://s", {"x": data}), Shelf("mem://t")
        source.md5s = True
        target.reads_back = reads_back
        target.kept = {PART: data[PART : 2 * PART], 3 * PART: data[3 * PART :]}
        meter = Meter(None)
        copy(source, target, resume=True, meter=meter)
        assert target.files == {"x": data}
        assert meter.resumed_bytes == 2 * PART
        assert meter.bytes_done == 4 * PART
        assert sorted(call[2] for call in source.calls if call[0] == "pieces") == [0, 2 * PART]


def test_of_a_part_only_what_is_missing_is_moved() -> None:
    data = content(3 * PART)
    for wrong in (False, True):
        source, target = Shelf("mem://s", {"x": data}), Shelf("mem://t")
        source.part_md5s["x"] = PART
        target.reads_back = True
        had = content(400, seed=9) if wrong else data[PART : PART + 400]
        target.kept = {PART: had}
        meter = Meter(None)
        if wrong:
            with pytest.raises(StorageError, match="checksum"):
                copy(source, target, resume=True, meter=meter)
        else:
            copy(source, target, resume=True, meter=meter)
            assert target.files == {"x": data}
        assert meter.resumed_bytes == 400
        reads = sorted(call[2:] for call in source.calls if call[0] == "pieces")
        assert reads == [(0, PART), (PART + 400, PART - 400), (2 * PART, PART)]


def test_a_later_attempt_is_given_the_very_same_source() -> None:
    source, target = Shelf("mem://s", {"x": content(2 * PART), "one": content(PART)}), Shelf("mem://t")
    (entry,) = [entry for entry in source.list() if entry.name == "x"]
    copy(source, target, resume=True)
    origin = Origin(uri="mem://s/x", etag=str(entry.etag), size=2 * PART)
    assert [call[4] for call in target.calls if call[0] == "upload"] == [origin]
    again = Shelf("mem://t")
    copy(source, again)
    assert [call[4] for call in again.calls if call[0] == "upload"] == [None]

    class Unversioned(Shelf):
        def entry(self, name: str) -> Entry:
            found = super().entry(name)
            return Entry(name=name, size=found.size)

    never = Shelf("mem://t")
    copy(Unversioned("mem://s", source.files), never, resume=True)
    assert [call[4] for call in never.calls if call[0] == "upload"] == [None]


def test_a_file_of_one_part_is_begun_anew() -> None:
    source, target = Shelf("mem://s", {"x": content(PART)}), Shelf("mem://t")
    target.streams = target.reads_back = True
    engine_ = engine(source, target, resume=True, part_size=PART)
    from airflow_provider_ocidist.storage.copying import engine as module

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "SMALL", 10)
        engine_.run(source.list())
    assert [call[4] for call in target.calls if call[0] == "upload"] == [None]


@pytest.mark.parametrize(
    "error,expected",
    [
        (Passing(), True),
        (StorageError("no"), False),
        (ValueError("a fault of ours"), False),
        (KeyboardInterrupt(), True),
        (SystemExit(), True),
    ],
)
def test_what_may_succeed_when_it_is_tried_again_is_an_interruption(
    error: BaseException, expected: bool
) -> None:
    assert is_interruption(error) is expected


def test_each_file_is_reported_when_it_has_arrived() -> None:
    source, target = Shelf("mem://s", FILES), Shelf("mem://t")
    arrived: list[tuple[Entry, Copied]] = []
    found = copy(source, target, on_arrival=lambda entry, copied: arrived.append((entry, copied)))
    assert sorted(entry.name for entry, _ in arrived) == sorted(FILES)
    assert {copied for _, copied in arrived} == set(found)
    assert all(entry == source.entry(entry.name) for entry, _ in arrived)


# One file


def open_file(size: int = 4 * PART, **fields: Any) -> OpenFile:
    file = OpenFile(Entry(name="x", size=size), "y", "mem://s/x", threading.Event(), sha256=True)
    for name, value in fields.items():
        setattr(file, name, value)
    return file


def test_digests_are_taken_part_after_part_whatever_the_order_of_arrival() -> None:
    file = open_file()
    data = content(4 * PART)
    threads = [
        threading.Thread(target=file.digest, args=(index, data[index * PART : (index + 1) * PART]))
        for index in (3, 1, 2)
    ]
    for thread in threads:
        thread.start()
    file.digest(0, data[:PART])
    for thread in threads:
        thread.join(30)
    assert file.result().sha256 == hashlib.sha256(data).hexdigest()


def test_who_waits_for_its_turn_ends_when_the_copy_does() -> None:
    file = open_file()
    threading.Timer(0.05, file.stopped.set).start()
    with pytest.raises(StorageError, match=r"^the copy of x was stopped$"):
        file.digest(1, b"")
    file.upload = ShelfUpload(Shelf("mem://t"), "y", PART)
    file.upload.ordered = True
    with pytest.raises(StorageError, match="the copy of x was stopped"):
        file.write(1, PART, b"")


def test_a_part_that_moves_piece_by_piece_stops_between_two_pieces() -> None:
    source, target = Shelf("mem://s", {"x": content(3 * PART)}), Shelf("mem://t")
    target.reads_back = True
    file = open_file(3 * PART)
    file.download = ShelfDownload(source, source.entry("x"), PART)
    file.upload = ShelfUpload(target, "y", PART)
    target.before = lambda *_: file.stopped.set()
    with pytest.raises(StorageError, match="the copy of x was stopped"):
        file.move(0, 0, PART, lambda _: None)
    assert len(target.done("part")) == 1


def test_other_nodes_get_a_part_before_its_turn_in_the_digest_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nodes that take parts from one another in turn would move one at a time."""
    monkeypatch.setattr("airflow_provider_ocidist.storage.copying.engine.SMALL", 10)
    has_landed = threading.Event()

    class Shared(ShelfDownload):
        def pieces(self, offset: int, length: int) -> Iterator[bytes]:
            assert offset or has_landed.wait(60), "another node gives the first part once it has the second"
            yield from super().pieces(offset, length)

        def landed(self, path: Path, offset: int, length: int) -> None:
            assert path.exists()
            if (offset, length) == (PART, PART):
                has_landed.set()

    class Source(Shelf):
        def download(self, entry: Entry, part_size: int) -> ShelfDownload:
            return Shared(self, entry, part_size)

    whole = content(2 * PART)
    (copied,) = copy(Source("mem://s", {"x": whole}), LocalStore(tmp_path), sha256=True)
    assert copied.sha256 == hashlib.sha256(whole).hexdigest()
    assert (tmp_path / "x").read_bytes() == whole


def test_the_last_part_is_known() -> None:
    file = open_file()
    file.parts_left = 3
    assert [file.part_done(10), file.part_done(20), file.part_done(5)] == [False, False, True]
    assert file.size == 35


# Where it goes


def selection(files: dict[str, bytes], *, is_tree: bool = True, uri: str = "mem://s") -> Selection:
    shelf = Shelf(uri, files)
    return Selection(store=shelf, entries=shelf.list(), is_tree=is_tree)


class Shelves(Stores):
    """Opens shelves, and real folders."""

    def open(self, uri: str) -> Any:
        return Shelf(uri.rstrip("/")) if "://" in uri else LocalStore(uri)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ocidist" / "transfers"


def test_a_file_becomes_its_target_or_goes_into_a_folder(tmp_path: Path) -> None:
    one = selection({"x": b"1"}, is_tree=False)
    (tmp_path / "folder").mkdir()
    found = {
        target: (store.uri, rename)
        for target in (f"{tmp_path}/new", f"{tmp_path}/new/", f"{tmp_path}/folder", "mem://b/y", "mem://b/y/")
        for store, rename in [landing(target, one, Shelves())]
    }
    assert found == {
        f"{tmp_path}/new": (f"{tmp_path}/", "new"),
        f"{tmp_path}/new/": (f"{tmp_path}/new/", "x"),
        f"{tmp_path}/folder": (f"{tmp_path}/folder", "x"),
        "mem://b/y": ("mem://b", "y"),
        "mem://b/y/": ("mem://b/y", "x"),
    }
    store, rename = landing("oci://b@n", one, Shelves())
    assert (store.uri, rename) == ("oci://b@n", "x")


def test_a_tree_does_not_go_onto_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="is a file, and the source is a folder: name a folder") as caught:
        landing(f"{tmp_path}/file", selection({"x": b"1"}), Shelves())
    assert caught.value.uri == f"{tmp_path}/file"
    store, rename = landing(f"{tmp_path}/new", selection({"x": b"1"}), Shelves())
    assert (store.uri, rename) == (f"{tmp_path}/new", None)


def test_a_copy_into_its_own_source_is_refused() -> None:
    with pytest.raises(StorageError, match="into itself"):
        landing("mem://s/below", selection({"x": b"1"}), Shelves())
    with pytest.raises(StorageError, match="written over"):
        landing("mem://s/x", selection({"x": b"1"}, is_tree=False), Shelves())


def place_at(
    target: str, found: Selection, *, resume: bool
) -> contextlib.AbstractContextManager[Destination]:
    return destination(landing(target, found, Shelves()), found, resume=resume)


def arrive(
    target: str, found: Selection, *, resume: bool = True, fail: BaseException | None = None
) -> set[str]:
    """Copy a selection as `transfer.copy` does; return what had arrived before."""
    with place_at(target, found, resume=resume) as made:
        had = made.arrived(found.entries)
        for entry in found.entries:
            if entry.name in had:
                continue
            assert isinstance(found.store, Shelf)
            if fail and entry.name.startswith("z"):
                raise fail
            etag = made.store.write(made.rename or entry.name, found.store.files[entry.name])
            made.note(entry, Copied(name=entry.name, size=1, etag=etag))
    return had


TREE = {"a": b"1", "b/c": b"22", "z": b"333"}


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if locations.is_partial_file(path.name))


def test_a_new_folder_appears_at_once_and_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "new"
    found = selection(TREE)
    with place_at(str(target), found, resume=True) as made:
        assert made.is_staged
        assert made.rename is None
        made.store.write("a", b"1")
        assert not target.exists()
        assert len(hidden(tmp_path)) == 2
    assert read_tree(target) == {"a": b"1"}
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("resume", [True, False])
def test_after_an_error_that_cannot_pass_nothing_is_left_of_a_new_folder(
    tmp_path: Path, resume: bool
) -> None:
    with pytest.raises(StorageError, match="no"):
        arrive(f"{tmp_path}/new", selection(TREE), resume=resume, fail=StorageError("no"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Passing):
        arrive(f"{tmp_path}/new", selection(TREE), resume=False, fail=Passing())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("error", [Passing(), KeyboardInterrupt()])
def test_an_interrupted_tree_goes_on_file_by_file(tmp_path: Path, exists: bool, error: BaseException) -> None:
    target = tmp_path / "new"
    if exists:
        target.mkdir()
    with pytest.raises(type(error)):
        arrive(str(target), selection(TREE), fail=error)
    assert target.exists() == exists
    assert hidden(tmp_path)
    assert arrive(str(target), selection(TREE)) == {"a", "b/c"}
    assert read_tree(target) == TREE
    assert hidden(tmp_path) == []


def test_an_interrupted_tree_in_a_bucket_is_remembered_in_the_cache(cache: Path) -> None:
    with pytest.raises(Passing):
        arrive("mem://b/t", selection(TREE), fail=Passing())
    (kept,) = cache.iterdir()
    assert kept.name.startswith("tree-")
    first, *records = kept.read_text().splitlines()
    assert first == '{"from": "mem://s", "to": "mem://b/t"}'
    assert len(records) == 2
    arrive("mem://b/t", selection({"a": b"1"}))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("exists", [True, False])
def test_what_changed_since_on_either_side_is_copied_again(tmp_path: Path, exists: bool) -> None:
    target = tmp_path / "new"
    if exists:
        target.mkdir()
    many = {"a": b"1", "b": b"22", "c": b"333", "z": b"4"}
    with pytest.raises(Passing):
        arrive(str(target), selection(many), fail=Passing())
    (folder,) = [target] if exists else [path for path in tmp_path.iterdir() if path.is_dir()]
    (folder / "b").write_bytes(b"turned")
    changed = {**many, "a": b"one"}
    assert arrive(str(target), selection(changed)) == {"c"}
    assert read_tree(target) == changed


def test_what_the_source_lost_since_does_not_appear_in_a_new_folder(tmp_path: Path) -> None:
    with pytest.raises(Passing):
        arrive(f"{tmp_path}/new", selection(TREE), fail=Passing())
    (staging,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    (staging / locations.unfinished_name("half", "0" * 8)).touch()
    assert arrive(f"{tmp_path}/new", selection({"b/c": b"22", "z": b"333"})) == {"b/c"}
    assert sorted(read_tree(tmp_path / "new")) == ["b/c", "z"]


def test_in_a_folder_that_was_there_other_files_stay(tmp_path: Path) -> None:
    make_tree(tmp_path / "old", {"mine": 3})
    with pytest.raises(Passing):
        arrive(f"{tmp_path}/old", selection(TREE), fail=Passing())
    arrive(f"{tmp_path}/old", selection({"b/c": b"22"}))
    assert sorted(read_tree(tmp_path / "old")) == ["a", "b/c", "mine"]


def test_files_without_a_version_are_copied_again(tmp_path: Path) -> None:
    made = Destination(store=Shelf("mem://t"))
    assert made.arrived([Entry(name="x", size=1, etag="1")]) == set()
    made.note(Entry(name="x", size=1, etag="1"), Copied(name="x", size=1, etag="2"))
    (tmp_path / "t").mkdir()
    found = Selection(store=Shelf("mem://s"), entries=[Entry(name="x", size=1)], is_tree=True)
    with contextlib.suppress(Passing), place_at(f"{tmp_path}/t", found, resume=True) as made:
        made.note(Entry(name="x", size=1), Copied(name="x", size=1, etag="2"))
        made.note(Entry(name="x", size=1, etag="1"), Copied(name="x", size=1))
        raise Passing
    with place_at(f"{tmp_path}/t", found, resume=True) as made:
        assert made.journal
        assert made.journal.records == []
        made.journal.records = [["x", None, None]]
        assert made.arrived(found.entries) == set()


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_trusted_that_was_there_before_the_machine_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    target = tmp_path / "new"
    if exists:
        target.mkdir()
    with pytest.raises(Passing):
        arrive(str(target), selection(TREE), fail=Passing())
    monkeypatch.setattr(destinations, "this_boot", lambda: "another")
    assert arrive(str(target), selection(TREE)) == set()
    assert read_tree(target) == TREE


def test_of_two_copies_to_one_new_folder_one_goes_without_a_journal(tmp_path: Path) -> None:
    target, found = tmp_path / "new", selection(TREE)
    with place_at(str(target), found, resume=True) as first:
        with place_at(str(target), found, resume=True) as second:
            assert first.journal
            assert second.journal is None
            assert second.arrived(found.entries) == set()
            assert first.store.uri != second.store.uri
            first.store.write("a", b"first")
            first.store.write("deep/b", b"first")
            second.store.write("a", b"second")
        assert read_tree(target) == {"a": b"second"}
    assert read_tree(target) == {"a": b"first", "deep/b": b"first"}
    assert hidden(tmp_path) == []


def test_what_became_a_file_meanwhile_is_an_error_and_nothing_is_left(tmp_path: Path) -> None:
    target = tmp_path / "new"
    made = place_at(str(target), selection(TREE), resume=True)
    made.__enter__().store.write("a", b"1")
    target.write_bytes(b"a file")
    with pytest.raises(StorageError, match="new"):
        made.__exit__(None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert target.read_bytes() == b"a file"


def test_leftovers_without_a_journal_are_begun_anew(tmp_path: Path) -> None:
    with pytest.raises(Passing):
        arrive(f"{tmp_path}/new", selection(TREE), fail=Passing())
    for path in tmp_path.iterdir():
        if path.is_file():
            path.unlink()
        else:
            (path / "other").write_bytes(b"from before")
    assert arrive(f"{tmp_path}/new", selection(TREE)) == set()
    assert read_tree(tmp_path / "new") == TREE


def test_the_journal_of_a_folder_names_where_from_and_where_to(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for target in ("t", "new"):
        with pytest.raises(Passing):
            arrive(f"{tmp_path}/{target}", selection(TREE), fail=Passing())
        (journal,) = [
            path for path in tmp_path.rglob(".*journal*") if path.is_file() and path.stat().st_size != 0
        ]
        subject = journal.read_text().splitlines()[0]
        assert '"from": "mem://s"' in subject
        assert f'"to": "{tmp_path}/{target}"' in subject
        assert '"boot": "' in subject
        journal.unlink()


def test_a_folder_with_a_long_name_is_staged_under_a_shorter_one(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 250)
    with pytest.raises(Passing):
        arrive(str(target), selection(TREE), fail=Passing())
    assert any(".journal." in name for name in hidden(tmp_path))
    assert arrive(str(target), selection(TREE)) == {"a", "b/c"}
    assert read_tree(target) == TREE


def test_a_single_file_goes_straight_to_its_name(tmp_path: Path) -> None:
    one = selection({"x": b"1"}, is_tree=False)
    with place_at(f"{tmp_path}/new", one, resume=True) as made:
        assert (made.rename, made.is_staged, made.journal) == ("new", False, None)
        made.store.write("new", b"1")
        assert read_tree(tmp_path) == {"new": b"1"}


def test_a_tree_into_a_folder_without_resume_keeps_no_journal(tmp_path: Path) -> None:
    with place_at(str(tmp_path), selection(TREE), resume=False) as made:
        assert (made.rename, made.is_staged, made.journal) == (None, False, None)
        assert made.store.uri == str(tmp_path)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [True, False])
def test_folders_above_a_new_one_are_made_and_an_empty_tree_is_an_empty_folder(
    tmp_path: Path, resume: bool
) -> None:
    with place_at(f"{tmp_path}/deep/er/new", selection({}), resume=resume) as made:
        assert made.is_staged
    assert (tmp_path / "deep/er/new").is_dir()
    assert hidden(tmp_path) == []


def test_a_new_folder_below_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = place_at(f"{tmp_path}/file/er/new", selection(TREE), resume=False)
    with pytest.raises(StorageError) as caught:
        made.__enter__()
    assert caught.value.uri == f"{tmp_path}/file/er/new"


def test_two_folders_whose_names_begin_alike_do_not_share_a_journal(tmp_path: Path) -> None:
    name = "n" * 60
    with (
        place_at(f"{tmp_path}/{name}1", selection(TREE), resume=True) as one,
        place_at(f"{tmp_path}/{name}2", selection(TREE), resume=True) as two,
    ):
        assert one.journal
        assert two.journal
        one.store.write("a", b"1")
        two.store.write("a", b"2")
    assert read_tree(tmp_path) == {f"{name}1/a": b"1", f"{name}2/a": b"2"}


def test_what_is_handed_over_file_by_file_may_lie_deep(tmp_path: Path) -> None:
    target = tmp_path / "new"
    with place_at(str(target), selection(TREE), resume=True) as made:
        made.store.write("very/deep/file", b"1")
        target.mkdir()
        (target / "mine").write_bytes(b"2")
    assert read_tree(tmp_path) == {"new/very/deep/file": b"1", "new/mine": b"2"}
