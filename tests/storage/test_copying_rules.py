"""What decides in a copy, each rule alone: docs/transfer.md, docs/decisions/0006."""

from __future__ import annotations

import contextlib
import mmap
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.copying import changes, lanes, meter, selection
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.lanes import Lanes, Width, next_width
from airflow_provider_ocidist.storage.copying.memory import SMALL, Memory, gathered
from airflow_provider_ocidist.storage.copying.meter import Meter, TransferProgress
from airflow_provider_ocidist.storage.copying.selection import Selection
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.opening import Stores
from tests.storage.shelf import LocalShelf, Shelf
from tests.storage.trees import make_tree

# The budget of copies that go on together


def test_copies_at_the_same_time_share_the_streams_equally_and_each_has_one() -> None:
    budget = CopyBudget(64, 1 << 20)
    assert budget.share == 64
    with budget.member():
        assert budget.share == 64
        with budget.member(), budget.member():
            assert budget.share == 21
        assert budget.share == 64
    with contextlib.suppress(KeyError), budget.member():
        raise KeyError
    with budget.member():
        assert budget.share == 64
    few = CopyBudget(2, 1 << 20)
    with few.member(), few.member(), few.member():
        assert few.share == 1


def test_a_copy_that_ends_gives_back_one_share_alone() -> None:
    budget = CopyBudget(64, 1 << 20)
    copies = [contextlib.ExitStack() for _ in range(4)]
    for copy in copies:
        copy.enter_context(budget.member())
    shares = []
    for copy in copies:
        shares.append(budget.share)
        copy.close()
    assert shares == [16, 21, 32, 64]


def test_eight_parts_may_be_in_memory() -> None:
    assert CopyBudget(64, 1 << 20).memory.limit == 8 << 20
    assert not CopyBudget(64, 1 << 20).interrupted.is_set()


# Memory


def test_memory_is_lent_up_to_its_limit() -> None:
    memory = Memory(10)
    assert memory.take(4, 0)
    assert memory.take(6, 0)
    assert not memory.take(1, 0)
    memory.give(6)
    assert memory.used == 4
    assert not memory.take(7, 0)
    assert memory.take(6, 0)


def test_what_is_larger_than_all_of_it_runs_alone() -> None:
    memory = Memory(10)
    assert memory.take(100, 0)
    assert not memory.take(1, 0)
    memory.give(100)
    assert memory.take(1, 0)
    assert not memory.take(100, 0)


def test_who_waits_for_memory_gets_it_when_it_is_given_back() -> None:
    memory = Memory(10)
    memory.take(10, 0)
    got: list[bool] = []
    waiting = [threading.Thread(target=lambda: got.append(memory.take(5, 60))) for _ in range(2)]
    for thread in waiting:
        thread.start()
    memory.give(10)
    for thread in waiting:
        thread.join(30)
    assert got == [True, True]


@pytest.mark.parametrize("length", [0, 1, SMALL, SMALL + 1, 3 * SMALL + 7])
def test_pieces_become_one_whatever_their_size(length: int) -> None:
    content = random.Random(length).randbytes(length)
    pieces = [content[start : start + 100_000] for start in range(0, length, 100_000)]
    assert bytes(gathered(iter(pieces), length)) == content
    assert len(gathered(iter(pieces[:-1]), length)) == len(b"".join(pieces[:-1]))


def test_small_is_a_quarter_of_a_mebibyte() -> None:
    assert SMALL == 262_144


def test_small_contents_are_plain_and_large_ones_come_from_the_system() -> None:
    small, large = gathered([b"x" * SMALL], SMALL), gathered([b"x" * (SMALL + 1)], SMALL + 1)
    assert isinstance(small, bytes)
    assert isinstance(large, memoryview)
    assert isinstance(large.obj, mmap.mmap)


# How far it has come


def progress(**changed: float) -> TransferProgress:
    fields = {"files_done": 1, "files_total": 2, "bytes_done": 30, "bytes_total": 90, "seconds": 3.0}
    return TransferProgress(**{**fields, **changed})


def test_the_time_that_is_left_follows_from_the_rate_so_far() -> None:
    assert (progress().rate, progress().eta) == (10.0, 6.0)
    assert (progress(seconds=0.5).rate, progress(seconds=0.5).eta) == (60.0, 1.0)
    assert (progress(seconds=0).rate, progress(seconds=0).eta) == (0.0, None)
    assert (progress(bytes_done=0).rate, progress(bytes_done=0).eta) == (0.0, None)
    assert progress(bytes_done=100).eta == 0


def test_what_is_not_copied_as_it_is_at_the_target_is_no_part_of_the_progress() -> None:
    reported: list[TransferProgress] = []
    counting = Meter(reported.append)
    counting.bytes_there = 100
    counting.begin([Entry(name="a", size=5)])
    counting.add(4)
    counting.report(force=True)
    (found,) = reported
    assert (found.bytes_done, found.bytes_total, counting.moved) == (4, 5, 4)
    assert (found.bytes_there, found.bytes_at_target) == (100, 104)


def test_all_that_is_counted_is_reported() -> None:
    told: list[TransferProgress] = []
    counting = Meter(told.append)
    assert counting.moved == 0
    counting.begin([Entry(name="a", size=5), Entry(name="b", size=None), Entry(name="c", size=70)])
    counting.add(4)
    counting.add(3)
    counting.add_resumed(20)
    counting.add_resumed(5)
    counting.add_file()
    counting.add_file()
    counting.report(force=True)
    (found,) = told
    assert (found.files_done, found.files_total) == (2, 3)
    assert (found.bytes_done, found.bytes_total) == (32, 75)
    assert (found.bytes_there, found.bytes_at_target) == (0, 32)
    assert counting.resumed_bytes == 25
    assert counting.moved == 7 + 2 * 65536
    assert 0 <= found.seconds < 60


def test_progress_is_reported_at_most_four_times_a_second_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    told: list[TransferProgress] = []
    counting = Meter(told.append)
    counting.report()
    for _ in range(10):
        now[0] += 0.125
        counting.report()
    assert [item.seconds for item in told] == [0, 0.25, 0.5, 0.75, 1.0, 1.25]
    counting.report(force=True)
    assert len(told) == 7
    now[0] += 0.2
    counting.report()
    assert len(told) == 7


def test_what_is_moved_is_counted_though_nobody_listens() -> None:
    counting = Meter(None)
    counting.add(3)
    counting.report(force=True)
    assert (counting.bytes_done, counting.reported) == (3, 0.0)


# Lanes


def test_lanes_double_while_that_moves_a_tenth_more() -> None:
    width = Width(lanes=8)
    first = next_width(width, 100.0, 64)
    assert first == Width(lanes=16, former=8, former_rate=100.0)
    assert next_width(first, 110.1, 64) == Width(lanes=32, former=16, former_rate=110.1)
    assert next_width(first, 109.9, 64) == Width(lanes=8, hold=15)
    assert next_width(replace(first, former_rate=0.0), 0.0, 64).lanes == 32


def test_nothing_is_tried_for_three_seconds_after_a_step_back() -> None:
    width = Width(lanes=8, hold=15)
    for left in range(14, -1, -1):
        width = next_width(width, 1000.0, 64)
        assert width == Width(lanes=8, hold=left)
    assert next_width(width, 5.0, 64) == Width(lanes=16, former=8, former_rate=5.0)


def test_there_are_never_more_lanes_than_allowed() -> None:
    assert next_width(Width(lanes=40), 5.0, 64) == Width(lanes=64, former=40, former_rate=5.0)
    assert next_width(Width(lanes=64, former=32, former_rate=1.0), 5.0, 64) == Width(lanes=64, hold=15)
    assert next_width(Width(lanes=64), 5.0, 20) == Width(lanes=20, hold=15)
    assert next_width(Width(lanes=64, hold=3), 5.0, 20) == Width(lanes=20, hold=15)
    assert next_width(Width(lanes=64, hold=3), 5.0, 64) == Width(lanes=64, hold=2)
    assert Width(lanes=1) == Width(lanes=1, former=0, former_rate=0.0, hold=0)


class Together:
    """Tasks that wait for one another: how many run at the same time."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()

    def task(self) -> None:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.open.wait(60)
        with self.lock:
            self.running -= 1


def settle(together: Together, expected: int) -> None:
    """Wait until so many run, and see that there are not more a moment later."""
    deadline = time.monotonic() + 30
    while together.running < expected and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    assert together.running == expected


def drain(running: Lanes) -> None:
    deadline = time.monotonic() + 60
    while running.pending:
        running.reap(0.05)
        assert time.monotonic() < deadline


@pytest.mark.parametrize("most,expected", [(64, 16), (3, 3)])
def test_a_copy_begins_with_sixteen_lanes_or_as_many_as_it_may_have(most: int, expected: int) -> None:
    running, together = Lanes(most), Together()
    for _ in range(40):
        running.put(together.task)
    assert running.pending == 40
    settle(together, expected)
    together.open.set()
    drain(running)
    running.close()
    assert together.most == expected


def test_no_thread_is_started_that_has_nothing_to_do() -> None:
    running, together = Lanes(64), Together()
    before = threading.active_count()
    for _ in range(3):
        running.put(together.task)
    assert threading.active_count() == before + 3
    assert sorted(t.name for t in threading.enumerate() if t.name.startswith("copy-")) == [
        "copy-0",
        "copy-1",
        "copy-2",
    ]
    assert all(t.daemon for t in threading.enumerate() if t.name.startswith("copy-"))
    together.open.set()
    drain(running)
    running.close()
    assert threading.active_count() == before


def test_lanes_open_when_more_is_moved_and_close_when_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [50.0]
    monkeypatch.setattr(lanes.time, "monotonic", lambda: now[0])
    running, together = Lanes(64), Together()
    for _ in range(100):
        running.put(together.task)
    now[0] += 0.1
    running.adapt(1000, 64)  # too early to know
    assert running._width.lanes == 16
    now[0] += 0.1
    running.adapt(1000, 64)
    assert running._width == Width(lanes=32, former=16, former_rate=pytest.approx(5000.0))
    now[0] += 0.2
    running.adapt(1900, 64)  # 4500 a second: it did not pay
    assert running._width == Width(lanes=16, hold=15)
    together.open.set()
    monkeypatch.undo()
    drain(running)
    running.close()


def narrowed(most: int, threads: int = 16) -> Lanes:
    """Return lanes whose threads have all seen that only so many are open."""
    running, together = Lanes(64), Together()
    for _ in range(threads):
        running.put(together.task)
    settle(together, threads)
    running._width = Width(lanes=most, hold=5)
    together.open.set()
    drain(running)
    return running


def end(running: Lanes, together: Together) -> None:
    together.open.set()
    drain(running)
    running.close()


@pytest.mark.parametrize("most", [1, 2, 5])
def test_closed_lanes_take_no_task(most: int) -> None:
    running, together = narrowed(most), Together()
    for _ in range(40):
        running.put(together.task)
    settle(together, most)
    end(running, together)


@pytest.mark.parametrize("most,expected", [(1, 2), (2, 4), (20, 40)])
def test_lanes_open_again_and_new_ones_are_added_for_what_waits(
    most: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, together = narrowed(most), Together()
    running._width = Width(lanes=most)
    for _ in range(60):
        running.put(together.task)
    running._measured_at -= 10
    running.adapt(1, 64)
    assert running._width.lanes == expected
    settle(together, expected)
    end(running, together)
    assert len(running._threads) == max(16, expected)


def test_no_more_threads_are_added_than_tasks_wait() -> None:
    running, together = Lanes(64), Together()
    for _ in range(19):
        running.put(together.task)
    settle(together, 16)
    running._measured_at -= 10
    running.adapt(1, 64)
    settle(together, 19)
    assert len(running._threads) == 19
    end(running, together)


def test_tasks_are_begun_in_the_order_in_which_they_came() -> None:
    running, begun = Lanes(1), []
    for number in range(100):
        running.put(lambda number=number: begun.append(number))
    drain(running)
    running.close()
    assert begun == list(range(100))


def test_the_first_error_is_raised_and_all_are_counted() -> None:
    running = Lanes(1)

    def fail(name: str) -> None:
        raise KeyError(name)

    running.put(lambda: None)
    running.put(lambda: fail("one"))
    running.put(lambda: fail("two"))
    for name in ("one", "two"):
        with pytest.raises(KeyError, match=name):
            drain(running)
    assert running.pending == 0
    running.reap(0)
    running.close()


def test_who_waits_for_the_end_is_woken_by_it_and_by_an_error() -> None:
    running, gate = Lanes(4), threading.Event()
    for _ in range(3):
        running.put(lambda: gate.wait(60) and None)
    threading.Timer(0.1, gate.set).start()
    began = time.monotonic()
    while running.pending:
        running.reap(50)
    assert time.monotonic() - began < 30
    still = threading.Event()
    running.put(lambda: still.wait(60) and None)
    running.put(lambda: 1 / 0)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        running.reap(50)
    assert time.monotonic() - began < 30
    still.set()
    drain(running)
    running.close()


class LateEvent(threading.Event):
    def set(self) -> None:
        time.sleep(0.05)
        super().set()


def test_a_signal_of_a_task_that_was_reaped_ends_no_wait_for_the_next() -> None:
    running = Lanes(1)
    running._worth_a_look = LateEvent()

    def fails_later() -> None:
        time.sleep(0.2)
        raise ZeroDivisionError

    running.put(lambda: None)
    while running.pending:
        running.reap(0)
    running.put(fails_later)
    with pytest.raises(ZeroDivisionError):
        running.reap(60)
    running.close()


def test_to_look_without_waiting_takes_no_time() -> None:
    running, gate = Lanes(1), threading.Event()
    running.put(lambda: gate.wait(60) and None)
    began = time.monotonic()
    running.reap(0)
    running.reap(0.01)
    assert time.monotonic() - began < 10
    assert running.pending == 1
    gate.set()
    drain(running)
    running.close()


def test_what_has_not_begun_when_lanes_are_closed_never_begins() -> None:
    running, together, later = Lanes(2), Together(), []
    running.put(together.task)
    running.put(together.task)
    settle(together, 2)
    for _ in range(20):
        running.put(lambda: later.append(1))
    threading.Timer(0.1, together.open.set).start()
    assert running._closed is False
    running.close()
    assert later == []
    assert together.running == 0


def test_lanes_with_nothing_to_do_close_at_once() -> None:
    running = Lanes(8)
    running.put(lambda: None)
    drain(running)
    running._width = Width(lanes=0)
    begun: list[int] = []
    running.put(lambda: begun.append(1))
    running.close()
    assert begun == []
    unused = Lanes(8)
    unused.close()
    assert unused._closed


# Which files are there already


def shelves(
    source: dict[str, bytes], target: dict[str, bytes], *, local: str = "", md5s: bool = True
) -> tuple[Shelf, Shelf]:
    kinds = [LocalShelf if side in local else Shelf for side in ("source", "target")]
    pair = (
        kinds[0]("/s" if "source" in local else "mem://s", source),
        kinds[1]("/t" if "target" in local else "mem://t", target),
    )
    for shelf in pair:
        shelf.md5s = md5s
    return pair


SIDES = ["", "source", "target", "source target"]


@pytest.mark.parametrize("local", SIDES)
def test_size_and_checksum_decide_what_has_changed(local: str) -> None:
    source, target = shelves(
        {"same": b"12", "bytes": b"12", "size": b"12", "new": b"12", "e": b""},
        {"same": b"12", "bytes": b"21", "size": b"123", "old": b"12", "e": b""},
        local=local,
    )
    assert changes.unchanged(source, source.list(), target, None) == {"same", "e"}
    assert changes.proven(source, source.list(), target, None) == {"same", "e"}
    assert changes.verdicts(source, source.list(), target, None) == {
        "same": "same",
        "bytes": "different",
        "size": "different",
        "new": "different",
        "e": "same",
    }
    read = [call[2] for shelf in (source, target) for call in shelf.calls if call[0] == "checksum"]
    assert set(read) <= {None}
    assert bool(read) == bool(local)


@pytest.mark.parametrize("local", ["source", "target"])
def test_what_is_here_is_cut_as_the_far_place_has_cut_it(local: str) -> None:
    source, target = shelves({"x": b"1234567"}, {"x": b"1234567"}, local=local, md5s=False)
    (target if local == "source" else source).part_md5s["x"] = 3
    assert changes.verdicts(source, source.list(), target, None) == {"x": "same"}
    target.files["x"] = b"1234568"
    assert changes.verdicts(source, source.list(), target, None) == {"x": "different"}


def test_digests_of_parts_that_were_cut_differently_say_nothing() -> None:
    source, target = shelves({"x": b"1234567"}, {"x": b"1234567"}, md5s=False)
    source.part_md5s["x"], target.part_md5s["x"] = 3, 4
    assert changes.verdicts(source, source.list(), target, None) == {"x": "same size"}
    target.part_md5s["x"] = 3
    assert changes.verdicts(source, source.list(), target, None) == {"x": "same"}
    target.files["x"] = b"abcdefg"
    assert changes.verdicts(source, source.list(), target, None) == {"x": "different"}


@pytest.mark.parametrize("known", ["source", "target"])
def test_a_digest_that_only_one_side_knows_says_nothing(known: str) -> None:
    source, target = shelves({"x": b"12"}, {"x": b"12"}, md5s=False)
    (source if known == "source" else target).md5s = True
    assert changes.verdicts(source, source.list(), target, None) == {"x": "same size"}
    assert changes.proven(source, source.list(), target, None) == set()
    # Beside a place on this machine that does not know it, the far one's absence is no proof either.
    here, there = shelves({"x": b"12"}, {"x": b"12"}, local=known, md5s=False)
    assert changes.verdicts(here, here.list(), there, None) == {"x": "same size"}


@pytest.mark.parametrize(
    "ours,theirs,same",
    [(5, 5, True), (5, 6, True), (6, 5, False), (None, 5, False), (5, None, False), (None, None, False)],
)
def test_without_checksums_a_copy_that_is_not_older_counts_as_the_same(
    ours: float | None, theirs: float | None, same: bool
) -> None:
    source, target = shelves({"x": b"12"}, {"x": b"12"}, md5s=False)
    if ours:
        source.modified["x"] = ours
    if theirs:
        target.modified["x"] = theirs
    assert changes.unchanged(source, source.list(), target, None) == ({"x"} if same else set())
    assert changes.proven(source, source.list(), target, None) == set()


def test_a_source_of_unknown_size_is_never_unchanged() -> None:
    source, target = shelves({"x": b"12"}, {"x": b"12"})
    source.tells_size = False
    assert changes.unchanged(source, source.list(), target, None) == set()
    assert changes.verdicts(source, source.list(), target, None) == {"x": "same"}
    target.tells_size = False
    assert changes.proven(source, source.list(), target, None) == set()
    target.files["x"] = b"1"
    assert changes.verdicts(source, source.list(), target, None) == {"x": "different"}


def test_a_file_under_another_name_is_looked_for_there() -> None:
    source, target = shelves({"x": b"12"}, {"y": b"12", "x": b"34"})
    (entry,) = source.list()
    assert changes.unchanged(source, [entry], target, "y") == {"x"}
    assert changes.proven(source, [entry], target, "y") == {"x"}
    assert changes.verdicts(source, [entry], target, "y") == {"x": "same"}
    assert changes.unchanged(source, [entry], target, "z") == set()
    assert changes.verdicts(source, [entry], target, "z") == {"x": "different"}
    assert ("list", "") not in target.calls


def test_what_is_only_at_the_target_is_extra() -> None:
    source, target = shelves(
        {"a": b"", "b/c": b"", "later": b""},
        {"a": b"", "b/c": b"", "old": b"", "kept.tmp": b"", "later": b""},
    )
    entries = [source.entry("a"), source.entry("b/c")]
    found = changes.extra(source, entries, target, lambda name: not name.endswith(".tmp"))
    assert found == ["old"]
    assert changes.extra(source, entries, target, lambda _: True) == ["kept.tmp", "old"]
    before = len(source.calls)
    assert changes.extra(source, entries, target, lambda name: name in "a b/c") == []
    assert len(source.calls) == before, "nothing to delete: the source need not be listed again"


def test_what_the_source_has_and_cannot_be_copied_is_not_extra() -> None:
    source, target = shelves({"a": b""}, {"link/x": b"", "link": b"", "linked": b"", "new/y": b""})
    source.skipped = ("link",)
    assert changes.extra(source, source.list(), target, lambda _: True) == ["linked", "new/y"]

    class Growing(Shelf):
        def list(self, prefix: str = "") -> list[Entry]:
            self.skipped = ("new",)
            return super().list(prefix)

    growing = Growing("mem://g", {"a": b""})
    growing.skipped = ("link",)
    assert changes.extra(growing, [growing.entry("a")], target, lambda _: True) == ["linked"]


def test_all_that_is_named_is_deleted_and_an_error_is_raised() -> None:
    _, target = shelves({}, {str(number): b"" for number in range(50)})
    changes.delete_names(target, [str(number) for number in range(49)])
    assert list(target.files) == ["49"]

    def refuse(verb: str, name: str) -> None:
        raise StorageError(f"no {verb} of {name}")

    target.before = refuse
    with pytest.raises(StorageError, match="no delete of 49"):
        changes.delete_names(target, ["49"])


# What is to be copied


@pytest.mark.parametrize(
    "name,pattern,expected",
    [
        ("a.csv", ("*.csv",), True),
        ("A.CSV", ("*.csv",), False),
        ("a/b.csv", ("*.csv",), False),
        ("run-1/b.csv", ("run-*", "*.csv"), True),
        ("run-1/b.txt", ("run-*", "*.csv"), False),
        ("run-1", ("run-*", "*.csv"), False),
        ("run-1/deep/file", ("run-*",), True),
        ("x/run-1", ("run-*",), False),
        ("a/b/c.csv", ("**", "*.csv"), True),
        ("c.csv", ("**", "*.csv"), True),
        ("a/b/c.txt", ("**", "*.csv"), False),
        ("a/b/c/d", ("a", "**", "d"), True),
        ("a/d", ("a", "**", "d"), True),
        ("b/d", ("a", "**", "d"), False),
        ("x1", ("x[0-9]",), True),
        ("xa", ("x[0-9]",), False),
        ("anything/at/all", (), True),
    ],
)
def test_a_pattern_fits_name_by_name(name: str, pattern: tuple[str, ...], expected: bool) -> None:
    assert selection.fits(name, pattern) is expected


@pytest.mark.parametrize(
    "name,include,exclude,expected",
    [
        ("a/b.csv", [], [], True),
        ("a/b.csv", ["*.csv"], [], True),
        ("a/b.csv", ["*.txt"], [], False),
        ("a/b.csv", ["*.txt", "a"], [], True),
        ("a/b.csv", ["a/"], [], True),
        ("a/b.csv", [], ["a"], False),
        ("a/b.csv", [], ["b.csv"], False),
        ("a/b.csv", [], ["a/b.csv"], False),
        ("a/b/c", [], ["a/b"], False),
        ("a/b/c", [], ["b/c"], True),
        ("a/b.csv", ["*.csv"], ["a*"], False),
        ("A/b.csv", [], ["a"], True),
    ],
)
def test_include_and_exclude_fit_relative_names_or_any_part_of_them(
    name: str, include: list[str], exclude: list[str], expected: bool
) -> None:
    assert selection.is_wanted(name, include, exclude) is expected


def names(found: Selection) -> list[str]:
    return [entry.name for entry in found.entries]


def test_a_file_a_folder_and_a_pattern_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path, {"one.csv": 1, "sub/two.csv": 1, "sub/three.txt": 1, "run-1/x/y": 1, "run-2/z": 1})
    file = selection.find(f"{tmp_path}/one.csv", Stores())
    assert (names(file), file.is_tree, file.pattern, file.uri) == (["one.csv"], False, (), str(tmp_path))
    tree = selection.find(f"{tmp_path}/sub", Stores())
    assert (names(tree), tree.is_tree) == (["three.txt", "two.csv"], True)
    assert names(selection.find(f"{tmp_path}/sub/", Stores())) == names(tree)
    some = selection.find(f"{tmp_path}/run-*", Stores())
    assert (names(some), some.is_tree, some.pattern) == (["run-1/x/y", "run-2/z"], True, ("run-*",))
    assert some.uri == f"{tmp_path}/run-*"
    assert names(selection.find(f"{tmp_path}/s*b/*.csv", Stores())) == ["sub/two.csv"]
    assert names(selection.find(f"{tmp_path}/**/*.csv", Stores())) == ["one.csv", "sub/two.csv"]
    assert names(selection.find(f"{tmp_path}/run-[2]/z", Stores())) == ["run-2/z"]
    monkeypatch.chdir(tmp_path)
    assert names(selection.find("*.csv", Stores())) == ["one.csv"]


def test_relative_patterns_begin_where_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path, {"sub/two.csv": 1, "sub/three.txt": 1})
    monkeypatch.chdir(tmp_path)
    assert names(selection.find("sub/t*", Stores())) == ["three.txt", "two.csv"]
    assert names(selection.find("s*/t*", Stores())) == ["sub/three.txt", "sub/two.csv"]


def test_a_file_of_the_very_name_comes_before_the_pattern(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a*": 1, "ab": 1, "d*/x": 1, "dd/x": 1})
    assert names(selection.find(f"{tmp_path}/a*", Stores())) == ["a*"]
    found = selection.find(f"{tmp_path}/d*", Stores())
    assert (names(found), found.pattern) == (["x"], ())


@pytest.mark.parametrize(
    "name,said",
    [
        ("none", "there is nothing at"),
        ("none/", "there is nothing at"),
        ("no*", "matches no*"),
        ("n?/*.csv", "matches n?/"),
    ],
)
def test_nothing_there_is_an_error_that_names_the_place(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(StorageError) as caught:
        selection.find(f"{tmp_path}/{name}", Stores())
    assert said in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert caught.value.uri == f"{tmp_path}/{name}".rstrip("/")


def test_an_empty_folder_is_an_empty_tree(tmp_path: Path) -> None:
    found = selection.find(str(tmp_path), Stores())
    assert (found.entries, found.is_tree) == ([], True)
    (tmp_path / "a*").mkdir()
    assert selection.find(f"{tmp_path}/a*", Stores()).entries == []


class Places(Stores):
    """Stores that are shelves, by their URI."""

    def __init__(self, **shelves: dict[str, bytes]) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.shelves = shelves

    def open(self, uri: str) -> Store:
        self.opened.append(uri)
        bare = uri.split("?", maxsplit=1)[0].rstrip("/")
        return Shelf(bare, self.shelves.get(bare.rpartition("/")[2], {}))


def test_only_what_can_fit_is_listed() -> None:
    places = Places(data={"run-1/x": b"", "run-2/x": b"", "other": b""})
    found = selection.find("mem://bucket/data/run-*/x", places)
    assert isinstance(found.store, Shelf)
    assert names(found) == ["run-1/x", "run-2/x"]
    assert places.opened[-1] == "mem://bucket/data/"
    assert found.store.done("list") == ["run-"]


def test_a_slash_at_the_end_names_the_folder_though_an_object_has_the_same_name() -> None:
    places = Places(bucket={"data": b"1", "data/x": b"2"}, data={"x": b"2"})
    folder = selection.find("mem://bucket/data/", places)
    assert (names(folder), folder.is_tree) == (["x"], True)
    file = selection.find("mem://bucket/data", places)
    assert (names(file), file.is_tree) == (["data"], False)


def test_the_bucket_itself_is_no_pattern() -> None:
    places = Places()
    with pytest.raises(StorageError, match="there is nothing at"):
        selection.find("mem://buck*t/", places)


def test_a_web_address_has_no_patterns_and_keeps_its_query() -> None:
    places = Places(data={"x*": b"1"})
    found = selection.find("https://host/data/x*?token=1", places)
    assert names(found) == ["x*"]
    assert places.opened == ["https://host/data/?token=1"]
    with pytest.raises(StorageError, match="there is nothing at https://host/other/y"):
        selection.find("https://host/other/y*?token=secret", places)


# Trees that lie in one another


def tree(uri: str, *entries: str, pattern: tuple[str, ...] = (), is_tree: bool = True) -> Selection:
    shelf = Shelf(uri, dict.fromkeys(entries, b""))
    return Selection(store=shelf, entries=shelf.list(), is_tree=is_tree, pattern=pattern)


def test_a_tree_is_not_copied_into_itself() -> None:
    for target in ("mem://b/s", "mem://b/s/below"):
        with pytest.raises(StorageError, match=f"{target} lies in mem://b/s: a tree") as caught:
            selection.refuse_overlap(tree("mem://b/s", "x"), target, None)
        assert caught.value.uri == target
    selection.refuse_overlap(tree("mem://b/s", "x"), "mem://b/s2", None)
    selection.refuse_overlap(tree("mem://b/s", "x"), "mem://b", None)


def test_a_copy_does_not_write_over_what_it_reads() -> None:
    with pytest.raises(StorageError, match="mem://b/s/s/x would be written over") as caught:
        selection.refuse_overlap(tree("mem://b/s", "s/x", "x", is_tree=False), "mem://b/s/s", None)
    assert caught.value.uri == "mem://b/s/s/x"
    with pytest.raises(StorageError, match="mem://b/s/a would be written over") as caught:
        selection.refuse_overlap(tree("mem://b/s", "a", is_tree=False), "mem://b/s", "a")
    assert caught.value.uri == "mem://b/s/a"
    selection.refuse_overlap(tree("mem://b/s", "a", is_tree=False), "mem://b/s", "b")
    with pytest.raises(StorageError, match="mem://b/s/s/x would be written over"):
        selection.refuse_overlap(tree("mem://b/s", "s/s/x", "s/x"), "mem://b", None)


def test_what_a_pattern_reads_may_be_copied_beside_it() -> None:
    found = tree("mem://b/s", "x.csv", "y.csv", pattern=("*.csv",))
    selection.refuse_overlap(found, "mem://b/s/copies", None)
    with pytest.raises(StorageError, match="into itself"):
        selection.refuse_overlap(
            tree("mem://b/s", "x.csv", pattern=("**", "*.csv")), "mem://b/s/copies", None
        )
    with pytest.raises(StorageError, match="into itself"):
        selection.refuse_overlap(tree("mem://b/s", "x.csv", pattern=("*.csv",)), "mem://b/s", None)


def test_delete_extra_does_not_delete_the_source() -> None:
    for target in ("mem://b", "mem://b/s"):
        with pytest.raises(StorageError, match="delete_extra would delete the source mem://b/s") as caught:
            selection.refuse_loss(tree("mem://b/s"), target)
        assert f"in the target {target}: give them" in str(caught.value)
        assert caught.value.uri == target
    selection.refuse_loss(tree("mem://b/s"), "mem://b/s/below")
    selection.refuse_loss(tree("mem://b/s"), "mem://b/s2")


def test_two_names_of_a_place_are_the_same_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert selection.absolute(LocalShelf(f"{tmp_path}/link")) == f"{tmp_path}/real"
    assert selection.absolute(LocalShelf(f"{tmp_path}/XX/")) == f"{tmp_path}/XX"
    assert selection.absolute(LocalShelf("/")) == ""
    assert selection.absolute(Shelf("s3a://b/x")) == selection.absolute(Shelf("s3://b/x/")) == "s3://b/x"
    assert selection.absolute(Shelf("gcs:///b/x")) == "gs://b/x"
    assert selection.absolute(Shelf("abfss://b")) == "abfs://b"
    assert selection.absolute(Shelf("oci://b@n/x")) == "oci://b@n/x"
    assert selection.is_below("/a/b", "/a")
    assert selection.is_below("/a", "/a")
    assert not selection.is_below("/ab", "/a")
    assert not selection.is_below("/a", "/a/b")
