"""A gang that is watched, against the emulator."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.capabilities import KeepsTime
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause
from airflow_provider_ocidist.gangs import last_lines
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.gang_log import GangLog
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
)
from scripts.emulator_process import Access
from tests.http_client import http
from tests.service_in_memory import Model, NoDirectories
from tests.training_jobs import a_job, a_key, wait_until

START = 1_000_000.0


def test_a_gang_that_cannot_be_ended_now_is_ended_later(
    fields: dict[str, Any], emulator: Access, ends: Callable[[RunRef], RunRef]
) -> None:
    backend = OciDataScience.connect({**fields, "max_attempts": 1})
    job = a_job(seconds=60)
    ref = ends(backend.submit(backend.plan(job, a_key())))
    watch = Watch(backend, RunRecord.of(ref, job, Expectations()), logging.getLogger("test"))
    ending = Ending(cause=Cause.DEADLINE, message="too late", since=time.time())
    rules = (
        {"path": f".*/{ref.main_run_id}/actions/cancelJobRun", "status": 503},
        {"path": ".*/o/.*", "status": 503},
    )
    for rule in rules:
        http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        assert not watch.end(ending)
    finally:
        http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert watch.record.ending is not None
    assert watch.record.ending.first == ending.since
    assert isinstance(decide(watch.record, status_of(backend, ref), ending.since), Cancel)
    assert watch.end(ending)
    assert watch.record.ending == ending
    wait_until(backend, ref, lambda status: status.ended)


def status_of(backend: Backend, ref: RunRef) -> RunStatus:
    (status,) = backend.status([ref])
    return status


@pytest.mark.parametrize("seed", range(20))
def test_a_cancel_that_is_refused_is_not_repeated_without_end(seed: int) -> None:
    """Whatever refuses it, after half an hour the task fails for the reason of the cancel and names what lives."""
    print("seed", seed)
    dice = random.Random(seed)
    service = Model()
    service.ends_at_once = False
    job = a_job(nodes=dice.randint(1, 4), limits={"stop_grace": dice.randint(1, 600)})
    ref = service.has(a_key(), [NodeState.RUNNING] * job.nodes)
    refused = CancelFailed(
        BackendError("no", status_code=dice.choice([401, 403, 409, 429, 500])), stop_requested=False
    )
    service.refusals["cancel"] = [refused] * 100_000
    record = replace(RunRecord.of(ref, job, Expectations()), deadline=1000.0, start_deadline=None)
    watch = Watch(service, record, logging.getLogger("test"))
    now, first = 1000.0 + dice.uniform(0, 100), None
    action = watch.look(now)
    while not isinstance(action, Fail):
        if isinstance(action, Cancel):
            first = now if first is None else first
            assert not watch.end(action.ending)
            # As in the triggerer, on another worker.
            watch = Watch(service, RunRecord.from_json(watch.record.to_json()), logging.getLogger("test"))
        now += dice.uniform(1, 120)
        assert now < 10_000, "without end"
        action = watch.look(now)
    assert first is not None
    limit = 1800 + job.limits.stop_grace
    assert limit <= now - first <= limit + 120
    assert len(service.done("cancel")) >= limit / 120
    assert action.cause is Cause.DEADLINE
    assert all(run_id in action.message for run_id in ref.run_ids)
    assert f"ocidist cancel --backend {ref.backend} {ref.job_id}" in action.message


class Late(Backend):
    """A gang that has ended, and its log: answers of the log service, the last one again and again."""

    directories = NoDirectories()

    def __init__(self, *answers: LogPart | BackendError) -> None:
        self.answers = list(answers)
        self.asked: list[Sequence[float]] = []

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        node = NodeStatus(rank=0, run_id="run", state=NodeState.SUCCEEDED)
        return [RunStatus(nodes=(node,)) for _ in refs]

    def logs_of(self, wanted: Any, most: int = 0) -> list[LogPart]:
        self.asked += [since for _, since in wanted]
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BackendError):
            raise answer
        return [answer]

    connect = plan = submit = logs = cancel = delete = None


Late.__abstractmethods__ = frozenset()


def ended(backend: Backend) -> Watch:
    key = RunKey(dag_id="dag", run_id="run", task_id="train")
    began = time.time() - 100
    ref = RunRef(
        backend="x",
        key=key,
        nodes=1,
        job_id="job",
        run_ids=("run",),
        run_dir="dir",
        submitted_at=began,
        log_group_id="g",
    )
    record = RunRecord(ref=ref, expects=Expectations(reports=False), logs_since=(began,))
    return Watch(backend, record, logging.getLogger("test"))


class Saving(Late):
    """A gang whose node goes from phase to phase, one at each look."""

    def __init__(self, *phases: Phase) -> None:
        super().__init__(LogPart(lines=()))
        self.phases = list(phases)

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        phase = self.phases.pop(0) if len(self.phases) > 1 else self.phases[0]
        report = NodeReport(rank=0, address="10.0.0.1", phase=phase, started_at=START, heartbeat_at=START)
        node = NodeStatus(rank=0, run_id="run", state=NodeState.RUNNING, report=report)
        return [RunStatus(nodes=(node,)) for _ in refs]


def test_nodes_that_save_are_looked_at_each_second_at_first_and_seldom_once_that_takes_minutes() -> None:
    backend = Saving(Phase.TRAINING, Phase.SAVING)
    clock = [0.0]
    watch = Watch(backend, ended(backend).record, logging.getLogger("test"), clock=lambda: clock[0])
    watch.look(START)
    assert watch.pause(10.0) == 10.0
    for waited, pause in ((0.0, 1.0), (19.0, 1.0), (60.0, 3.0), (500.0, 10.0)):
        clock[0] = 100.0 + waited
        watch.look(START)
        assert watch.pause(10.0) == pytest.approx(pause)
        assert watch.pause(0.5) == 0.5, "never more seldom than it was asked for"
    backend.phases = [Phase.TRAINING, Phase.SAVING]
    watch.look(START)
    assert watch.pause(10.0) == 10.0
    watch.look(START)
    assert watch.pause(10.0) == 1.0, "the next save is a save of its own"


def a_line(number: int) -> LogLine:
    return LogLine(str(number), time.time() - 50 + number, 0, f"line {number}")


class Unreadable(Late):
    """A gang that has ended long ago, and whose reports cannot be read as long as the test says so."""

    readable = False

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        return [replace(status, reports_readable=self.readable) for status in super().status(refs)]


def test_reports_that_cannot_be_read_are_waited_for_from_the_first_look_that_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend = Unreadable(LogPart([]))
    watch = ended(backend)
    watch.record = replace(watch.record, expects=Expectations(checkpoint=True))
    now = time.time()
    assert watch.look(now) == Wait()
    assert "the nodes have ended, but their reports cannot be read, in dir; will ask again" in caplog.text
    assert watch.look(now + 1799) == Wait()
    failed = watch.look(now + 1801)
    assert isinstance(failed, Fail)
    assert failed.cause is Cause.SERVICE
    backend.readable = True
    assert isinstance(watch.look(now + 1802), Fail)
    assert watch.record.unread_since is None


def test_the_last_lines_are_logged_though_the_log_fails_at_the_end_and_has_some_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.01)
    caplog.set_level(logging.INFO)
    first, second, third = map(a_line, range(3))
    cut = LogPart([first, second], {0: second.time})
    log_fails = BackendError("the log search does not answer", retryable=True)
    backend = Late(log_fails, log_fails, cut, LogPart([second, third]))
    watch = ended(backend)
    assert watch.look(time.time()) == Succeed()
    watch.write_the_rest()
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[node")]
    assert told == [f"[node 0] line {number}" for number in range(3)]
    assert backend.asked[-1] == [second.time]


def test_a_line_that_is_found_only_after_the_end_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.01)
    caplog.set_level(logging.INFO)
    early, late = a_line(5), a_line(4)
    watch = ended(Late(LogPart([early]), LogPart([late, early])))
    watch.look(time.time())
    watch.write_the_rest()
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("[node")]
    assert told == ["[node 0] line 5", "[node 0] line 4"]


def test_a_log_service_that_stays_silent_does_not_hold_up_the_outcome(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(last_lines, "LAST_LINES_AFTER", 0.01)
    monkeypatch.setattr(last_lines, "LAST_LINES_PATIENCE", 0.1)
    watch = ended(Late(BackendError("the log search does not answer", retryable=True)))
    watch.look(time.time())
    watch.write_the_rest()
    assert "lines may be missing here" in caplog.text


class Shifted(Late, KeepsTime):
    """A service whose clock differs from the watcher's: it stamps the lines, which can be found some seconds later."""

    def __init__(self, lines: Sequence[tuple[LogLine, float]], ends_at: float) -> None:
        super().__init__(LogPart())
        self.true = START
        self.lines = lines
        """With the time from which each can be found."""
        self.ends_at = ends_at

    def now(self) -> float:
        return self.true

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        state = NodeState.RUNNING if self.true < self.ends_at else NodeState.SUCCEEDED
        nodes = tuple(NodeStatus(rank=rank, run_id=f"run{rank}", state=state) for rank in range(2))
        return [RunStatus(nodes=nodes, at=float(int(self.true))) for _ in refs]

    def logs_of(self, wanted: Any, most: int = 0) -> list[LogPart]:
        ((_, since),) = wanted
        found = [line for line, at in self.lines if at <= self.true and line.time > since[line.rank]]
        return [LogPart(sorted(found, key=lambda line: line.time))]


Shifted.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("seed", range(24))
def test_each_line_is_shown_once_and_soon_whatever_the_watchers_clock_says(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    skew = dice.choice([dice.uniform(-280, 280), dice.uniform(100, 280)])
    lines = [
        (LogLine(f"id{number}", at, dice.randrange(2), f"line {number}"), at + dice.uniform(0, 14))
        for number, at in enumerate(sorted(START + dice.uniform(1, 400) for _ in range(80)))
    ]
    service = Shifted(lines, START + 405)
    monkeypatch.setattr(
        last_lines,
        "time",
        SimpleNamespace(
            time=lambda: service.true + skew,
            monotonic=lambda: service.true,
            sleep=lambda seconds: setattr(service, "true", service.true + 20),
        ),
    )
    record = ended(service).record
    ref = replace(record.ref, nodes=2, run_ids=("run0", "run1"))
    record = replace(record, ref=ref, logs_since=(START, START))
    shown: dict[str, float] = {}

    def take(line: LogLine) -> None:
        assert line.id not in shown
        shown[line.id] = service.true - line.time

    lines = GangLog(logging.getLogger("test"), record.logs_since)
    lines.write_line = take
    watch = Watch(service, record, logging.getLogger("test"), gang_log=lines, clock=lambda: service.true)
    while service.true < START + 410:
        watch.look(service.true + skew)
        service.true += 10
    assert all(delay < 60 for delay in shown.values()), skew
    watch.write_the_rest()
    assert len(shown) == 80, skew
