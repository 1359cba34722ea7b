"""The log of a task that several processes write, one after the other: each line of a node once, and none lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs import log_follower, task_watch
from airflow_provider_ocidist.gangs.task_watch import LineMoments, TaskWatch
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.run import Plan, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from tests.gangs.records import record as a_record
from tests.training_jobs import a_job, a_key

BEGAN = 1_000_000.0
NODES = 2


class TaskLog:
    """What a task's log holds: times and texts."""

    def __init__(self) -> None:
        self.lines: list[tuple[str | None, str]] = []

    def info(self, msg: Any, /, *args: Any, timestamp: str | None = None) -> None:
        self.lines.append((timestamp, msg % args))

    warning = error = info


class Place(Backend):
    """A gang that writes lines, some of them found late; and its run directory."""

    directories = property(lambda self: self)

    def __init__(self, *lines: LogLine) -> None:
        self.lines = list(lines)
        self.note: bytes | None = None
        self.notes = 0

    def logs_of(self, wanted: Sequence[tuple[RunRef, Sequence[float]]], most: int = 0) -> list[LogPart]:
        del most
        return [LogPart(self._lines(ref, since)) for ref, since in wanted]

    def _lines(self, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
        return sorted((each for each in self.lines if each.time >= min(since)), key=lambda each: each.time)

    def save_cursor(self, ref: RunRef, cursor: LogCursor) -> None:
        self.notes += 1
        self.note = json.dumps(codec.encode(cursor)).encode()

    def load_cursor(self, ref: RunRef) -> LogCursor | None:
        return None if self.note is None else codec.decode(LogCursor, json.loads(self.note))

    def renew(self, ref: RunRef) -> None:
        """Nobody counts."""

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        raise NotImplementedError

    def connect(self) -> Any:
        raise NotImplementedError

    def plan(self, *_: Any) -> Plan:
        raise NotImplementedError

    def submit(self, *_: Any) -> RunRef:
        raise NotImplementedError

    cancel = delete = forget = reconnect = renew


def a_line(number: int, rank: int = 0, at: float | None = None) -> LogLine:
    return LogLine(f"id-{number}", BEGAN + (number if at is None else at), rank, f"line {number}")


def gang(**changes: Any) -> RunRecord:
    record = a_record(lease=7200.0, logs_since=(BEGAN,) * NODES, **changes)
    return replace(record, ref=replace(record.ref, log_group_id="group", log_id="log"))


def a_watch(
    place: Place, record: RunRecord | None = None, number: int = 1, **options: Any
) -> tuple[TaskWatch, TaskLog]:
    log = TaskLog()
    return TaskWatch(place, record or gang(), log, number, **options), log


def look(watch: TaskWatch, at: float) -> None:
    now = BEGAN + at
    watch._take(LogPart(watch.backend.logs(watch.record.ref, watch.lines_since(now))), now)


def texts(*logs: TaskLog) -> Counter[str]:
    return Counter(text for log in logs for _, text in log.lines)


def test_the_next_process_logs_only_what_is_new_and_what_was_found_late() -> None:
    place = Place(*(a_line(number, number % NODES) for number in range(1, 100)))
    first, first_log = a_watch(place)
    look(first, at=100)
    first.save_cursor()
    place.lines += [a_line(200, at=70.5), a_line(101), a_line(102, 1)]
    second, second_log = a_watch(place)
    second.go_on()
    for at in range(110, 200, 10):
        look(second, at)
    assert set(texts(second_log)) == {"[node 0] line 200", "[node 0] line 101", "[node 1] line 102"}
    assert set(texts(first_log, second_log).values()) == {1}


def test_a_chatty_gang_leaves_a_note_of_bounded_size_and_no_line_is_logged_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_follower, "MOST_IDS", 50)
    place = Place(*(a_line(number, number % NODES, at=number / 100) for number in range(1, 5000)))
    first, first_log = a_watch(place)
    look(first, at=50)
    first.save_cursor()
    assert sum(map(len, place.load_cursor(first.record.ref).lines)) <= 50
    place.lines.append(a_line(6000, at=49.98))
    second, second_log = a_watch(place)
    second.go_on()
    for at in range(60, 200, 10):
        look(second, at)
    assert list(texts(second_log)) == ["[node 0] line 6000"]
    assert set(texts(first_log, second_log).values()) == {1}


def test_a_node_that_is_behind_one_that_writes_much_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "MOST_IDS", 50)
    place = Place(*(a_line(number, at=number / 100) for number in range(1, 5000)))
    first, first_log = a_watch(place)
    look(first, at=50)
    first.save_cursor()
    # Found late, as all of this node.
    place.lines += [a_line(9000 + number, 1, at=number) for number in range(1, 50)]
    second, second_log = a_watch(place)
    second.go_on()
    for at in range(60, 200, 10):
        look(second, at)
    assert len(texts(second_log)) == 49
    assert set(texts(first_log, second_log).values()) == {1}


def test_a_line_that_is_found_late_is_logged_by_the_next_process_however_long_nobody_looked() -> None:
    place = Place(*(a_line(number) for number in range(1, 100)))
    first, _ = a_watch(place)
    look(first, at=100)
    first.save_cursor()
    place.lines += [a_line(500, at=95.5), *(a_line(number) for number in range(100, 400))]
    second, logged = a_watch(place)
    second.go_on()
    for at in range(390, 500, 10):
        look(second, at)
    assert texts(logged)["[node 0] line 500"] == 1
    assert len(logged.lines) == 301


def test_what_several_processes_write_at_once_is_logged_as_several_lines() -> None:
    watch, logged = a_watch(Place(*(LogLine(f"id-{number}", BEGAN + 1, 0, "ready") for number in range(8))))
    look(watch, at=10)
    assert len({at for at, _ in logged.lines}) == 8


def test_another_try_has_a_log_of_its_own_that_begins_anew() -> None:
    place = Place(a_line(1), a_line(2, 1))
    first, _ = a_watch(place, number=1)
    look(first, at=10)
    first.save_cursor()
    second, logged = a_watch(place, number=2)
    look(second.go_on(), at=20)
    assert set(texts(logged)) == {"[node 0] line 1", "[node 1] line 2"}


def test_a_note_that_is_behind_what_the_task_knows_is_not_followed() -> None:
    place = Place(a_line(1), a_line(2, 1))
    first, _ = a_watch(place)
    look(first, at=10)
    first.save_cursor()
    place.lines += [a_line(5), a_line(6, 1)]
    later, logged = a_watch(place, replace(gang(), logs_since=(BEGAN + 5, BEGAN + 6)))
    look(later.go_on(), at=20)
    assert not logged.lines


def test_how_far_the_log_has_come_is_noted_with_each_renewal_if_it_has_come_further() -> None:
    place = Place(a_line(1))
    watch, _ = a_watch(place)
    assert watch.keep_lease()
    assert place.notes == 0
    look(watch, at=10)
    watch._renewals._due = 0.0
    watch.keep_lease()
    watch.keep_lease()
    assert place.notes == 1


def test_the_cursor_covers_no_line_that_may_not_be_in_the_log() -> None:
    place = Place(a_line(1), a_line(2, 1))
    is_written = [False]
    first, _ = a_watch(place, is_written=lambda **_: is_written[0])
    look(first, at=10)
    first.save_cursor()
    assert place.notes == 0
    record = first.hand_over()
    assert place.notes == 0
    assert record.logs_since == (BEGAN, BEGAN)
    # The process is killed: the next one logs the lines.
    second, logged = a_watch(place, record)
    look(second.go_on(), at=20)
    assert set(texts(logged)) == {"[node 0] line 1", "[node 1] line 2"}
    # It lives: the cursor follows when the lines are in the log, though there are no new ones.
    is_written[0] = True
    assert first.hand_over().logs_since == (BEGAN + 1, BEGAN + 2)
    assert place.notes == 1


def test_what_was_saved_before_is_handed_over_though_no_line_has_come_since() -> None:
    watch, _ = a_watch(Place(a_line(1), a_line(2, 1)))
    look(watch, at=10)
    watch.save_cursor()
    assert watch.hand_over().logs_since == (BEGAN + 1, BEGAN + 2)


def test_the_newest_lines_of_a_log_that_may_be_lost_are_logged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_watch, "KEPT_BACK", 10)
    place = Place()
    first, _ = a_watch(place, may_be_lost=True)
    for at in range(1, 36):
        place.lines.append(a_line(at))
        look(first, at=at + 0.5)
        first.save_cursor()
    # After 30 lines it is known that 10 are behind the twentieth.
    second, logged = a_watch(place)
    second.go_on()
    look(second, at=40)
    assert list(texts(logged)) == [f"[node 0] line {number}" for number in range(21, 36)]


def test_all_lines_of_a_log_that_was_handed_over_are_in_it() -> None:
    place = Place(a_line(1))
    first, _ = a_watch(place, may_be_lost=True)
    look(first, at=10)
    first.save_cursor()
    assert place.notes == 0
    assert first.hand_over().logs_since == (BEGAN + 1, BEGAN)
    assert place.notes == 1


def test_lines_are_logged_under_the_time_at_which_their_node_wrote_them() -> None:
    watch, logged = a_watch(Place(a_line(1), a_line(2, 1)))
    look(watch, at=60)
    times = [datetime.fromisoformat(at or "").timestamp() for at, _ in logged.lines]
    assert times == pytest.approx([BEGAN + 1, BEGAN + 2], abs=0.002 * NODES)


def test_what_a_node_writes_at_once_stays_in_order_and_within_a_second_of_its_time() -> None:
    burst = [LogLine(f"id-{number}", BEGAN + 1, 0, f"line {number}") for number in range(3000)]
    watch, logged = a_watch(Place(*burst, a_line(9000, at=3), a_line(9001, 1, at=3)))
    look(watch, at=10)
    at_of = {text: datetime.fromisoformat(at or "").timestamp() for at, text in logged.lines}
    times = [at_of[f"[node 0] line {number}"] for number in range(3000)]
    assert [int(at * 1000) for at in times] == sorted(int(at * 1000) for at in times)
    assert BEGAN + 1 <= times[0] < BEGAN + 1.01
    assert times[-1] < BEGAN + 2.01
    for rank, number in enumerate((9000, 9001)):
        assert at_of[f"[node {rank}] line {number}"] == pytest.approx(BEGAN + 3, abs=0.002 * NODES)


def test_a_line_that_is_found_late_has_the_time_that_it_would_have_had() -> None:
    lines = [a_line(1), a_line(2), a_line(3)]
    in_time, found_late = LineMoments(NODES), LineMoments(NODES)
    assert {line.id: in_time.of(line) for line in lines} == {
        line.id: found_late.of(line) for line in (lines[0], lines[2], lines[1])
    }


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([a_line(number, number % NODES) for number in range(1, 30)], id="apart"),
        pytest.param(
            [a_line(number, number % NODES, at=number // NODES) for number in range(2, 30)], id="nodes"
        ),
        pytest.param(
            [a_line(number, number % NODES, at=number // 20) for number in range(20, 300)], id="bursts"
        ),
        pytest.param(
            [LogLine(f"id-{number}", BEGAN + number // 16, number % 2, "ready") for number in range(16, 99)],
            id="alike",
        ),
    ],
)
def test_airflow_shows_a_line_once_that_two_triggerers_have_written(lines: list[LogLine]) -> None:
    """As it shows a task's log: sorted by time, and the same line once."""
    from airflow.utils.log.file_task_handler import _interleave_logs

    newest = lines[-1].time - BEGAN
    place = Place()
    logs = []
    for last in (newest * 2 // 3, newest):
        watch, logged = a_watch(place)
        for at in (last / 2, last):
            place.lines = [line for line in lines if line.time <= BEGAN + at]
            look(watch, at + 1)
        logs.append(
            [json.dumps({"timestamp": at, "event": text, "level": "info"}) for at, text in logged.lines]
        )
    assert 0 < len(logs[0]) < len(logs[1]) == len(lines)
    # The second one has logged something of its own, by which its lines have other numbers.
    logs[1].insert(0, json.dumps({"timestamp": "2026-01-01T00:00:00Z", "event": "goes on", "level": "info"}))
    shown = Counter(message.event for message in _interleave_logs(*map(iter, logs)))
    assert shown - Counter(["goes on"]) == Counter(f"[node {line.rank}] {line.text}" for line in lines)


def test_the_run_directory_holds_what_was_noted(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes=1, seconds=30), a_key())))
    assert backend.directories.load_cursor(ref) is None
    logged = LogCursor(2, (BEGAN,), (BEGAN - 120,), ({"a": BEGAN - 1, "b": BEGAN},))
    backend.directories.save_cursor(ref, logged)
    assert backend.directories.load_cursor(ref) == logged
    broken = [
        b"{",
        b"[]",
        b'{"number": 2, "newest": [1], "since": [], "lines": []}',
        b'{"number": 2, "newest": "x"}',
    ]
    for text in broken:
        backend._run_dirs.write(ref.run_dir, "told.json", text)
        assert backend.directories.load_cursor(ref) is None


def test_a_triggerer_that_stops_leaves_word_and_the_next_goes_on_from_there(
    backend: OciDataScience, conn_id: str, ends: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(nodes=1, seconds=60)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    owner = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, "try_number": 1}
    record = RunRecord.of(ref, job, plan.expects).to_json()
    logs = []

    async def run_until(enough: Callable[[TaskLog], bool]) -> None:
        trigger = DistributedTrainingTrigger(conn_id, record, owner, 0.2)
        log = TaskLog()
        logs.append(log)
        monkeypatch.setattr(DistributedTrainingTrigger, "log", log)
        watching = asyncio.create_task(anext(trigger.run()))
        deadline = time.monotonic() + 60
        while not enough(log) and time.monotonic() < deadline and not watching.done():
            await asyncio.sleep(0.1)
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    def has_lines(log: TaskLog) -> bool:
        return sum(text.startswith("[node") for _, text in log.lines) > 3

    asyncio.run(run_until(has_lines))
    assert backend.directories.load_cursor(ref) is not None
    asyncio.run(run_until(has_lines))
    logged = [{entry for entry in log.lines if entry[1].startswith("[node")} for log in logs]
    assert not logged[0] & logged[1]
