"""One look at a gang by itself: what is waited out and for how long, what is logged and how often, what is ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.capabilities import (
    CountsMissing,
    EndsLeftovers,
    KeepsTime,
    SpansRegions,
)
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause, GaveUp
from airflow_provider_ocidist.gangs import last_lines
from airflow_provider_ocidist.gangs.decisions import Cancel, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.reconnection import RefusedCredentials
from airflow_provider_ocidist.gangs.shared_look import PollResult, look_together
from airflow_provider_ocidist.gangs.spending import Spending
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.evidence import ANSWERED, Unanswered
from airflow_provider_ocidist.model.kept_evidence import Kept, Missed
from airflow_provider_ocidist.model.report import Phase, Progress
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    Lacking,
    NodeState,
    RunRecord,
    RunRef,
    RunStatus,
)
from tests.gangs.test_decisions import START, gang, node, record, report
from tests.gangs.test_elastic_rules import FEWER, elastic, fewer
from tests.gangs.test_replacement_rules import LOST, a_node, a_report
from tests.gangs.test_watch import Late
from tests.service_in_memory import NoDirectories

RUNNING, SUCCEEDED = NodeState.RUNNING, NodeState.SUCCEEDED
LIVES = gang(RUNNING, RUNNING)
DENIED = BackendError("denied (request 1)", status_code=403)
OUTAGE = BackendError("no answer", retryable=True)
DONE = RunStatus(
    nodes=tuple(
        node(rank, SUCCEEDED, report=report(rank, phase=Phase.DONE, exit_code=0, progress=Progress(step=9)))
        for rank in range(2)
    )
)


class Service(Backend, KeepsTime, EndsLeftovers, CountsMissing):
    """A service that answers as the test says, the last answer again and again; its time is the test's."""

    directories = NoDirectories()

    def __init__(self, *statuses: RunStatus | Exception) -> None:
        self.statuses = list(statuses or [LIVES])
        self.parts: list[LogPart | Exception] = [LogPart()]
        self.refusals: list[Exception | None] = []
        self.clock = 1000.0
        self.asked: list[list[str]] = []
        self.asked_for_lines: list[list[str]] = []
        self.asked_since: list[Sequence[float]] = []
        self.cancelled: list[tuple[str, Ending | None]] = []
        self.ended_leftovers: list[str] = []
        self.recalled: list[Mapping[str, Missed]] = []

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        self.asked.append([ref.job_id for ref in refs])
        return [_said(self.statuses)] * len(refs)

    def logs_of(self, wanted: Any, most: int = 0) -> list[LogPart]:
        self.asked_for_lines.append([ref.job_id for ref, _ in wanted])
        self.asked_since += [since for _, since in wanted]
        return [_said(self.parts)] * len(wanted)

    def cancel(self, ref: RunRef, ending: Ending | None = None) -> None:
        self.cancelled.append((ref.job_id, ending))
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise refusal

    def now(self) -> float:
        return START + self.clock

    def end_leftovers(self, ref: RunRef) -> None:
        self.ended_leftovers.append(ref.job_id)
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise refusal

    def missed(self, ref: RunRef) -> Mapping[str, Missed]:
        return {ref.main_run_id: Missed(answers=2, seconds=30.0)}

    def recall_missed(self, missed: Mapping[str, Missed]) -> None:
        self.recalled.append(missed)

    connect = plan = submit = logs = delete = None


Service.__abstractmethods__ = frozenset()


def _said(answers: list[Any]) -> Any:
    answer = answers.pop(0) if len(answers) > 1 else answers[0]
    if isinstance(answer, Exception):
        raise answer
    return answer


class Log:
    """The log of a task."""

    def __init__(self) -> None:
        self.infos: list[str] = []
        self.warnings: list[str] = []

    def info(self, msg: Any, /, *args: Any) -> None:
        self.infos.append(msg % args)

    def warning(self, msg: Any, /, *args: Any) -> None:
        self.warnings.append(msg % args)

    def error(self, msg: Any, /, *args: Any) -> None:
        raise AssertionError(msg % args)


def watched(service: Service, known: RunRecord | None = None, **options: Any) -> tuple[Watch, Log]:
    log = Log()
    watch = Watch(service, known or record(), log, clock=lambda: service.clock, **options)
    return watch, log


def look_at(watch: Watch, seconds: float) -> Any:
    """Look so many seconds after the beginning; return the action, or the error."""
    service: Any = watch.backend
    service.clock = 1000.0 + seconds
    try:
        return watch.look(service.now())
    except Exception as error:
        return error


# Without an answer


def test_a_refusal_is_waited_out_until_five_in_fifteen_minutes_with_new_credentials() -> None:
    service = Service(DENIED)
    watch, log = watched(service)
    renewed: list[float] = []
    watch.reconnect = lambda: renewed.append(service.clock - 1000.0)
    assert [look_at(watch, seconds) for seconds in (0.0, 10.0, 400.0, 800.0)] == [Wait()] * 4
    assert watch.refusal is DENIED
    found = look_at(watch, 900.0)
    assert isinstance(found, GaveUp)
    assert str(found) == (
        f"{watch.record.ref.key.name}: no state of its nodes from the service for 900 s (asked 5 times); "
        "last error: denied (request 1)"
    )
    assert renewed == [0.0, 400.0, 800.0, 900.0], "at most every 30 s"
    assert log.warnings[0] == "denied (request 1); will ask again"


def test_credentials_are_read_again_after_exactly_half_a_minute() -> None:
    service = Service(DENIED)
    watch, _ = watched(service)
    renewed: list[float] = []
    watch.reconnect = lambda: renewed.append(service.clock - 1000.0)
    for seconds in (0.0, 29.5, 30.0, 59.5, 60.0):
        look_at(watch, seconds)
    assert renewed == [0.0, 30.0, 60.0]


def test_a_connection_that_cannot_be_read_again_proves_nothing() -> None:
    watch, log = watched(Service(DENIED))

    def refuse() -> None:
        raise OSError("the database is locked")

    watch.reconnect = refuse
    assert [look_at(watch, seconds) for seconds in (0.0, 300.0, 600.0, 900.0, 1200.0)] == [Wait()] * 5
    assert "the connection could not be read again: the database is locked" in log.warnings


def test_a_connection_that_is_refused_as_the_request_was_is_no_other_warning() -> None:
    watch, log = watched(Service(DENIED))

    def refuse() -> None:
        raise BackendError("denied (request 2)", status_code=403)

    watch.reconnect = refuse
    assert look_at(watch, 0.0) == Wait()
    assert log.warnings == ["denied (request 1); will ask again"]


def test_an_outage_is_waited_out_and_reads_no_connection() -> None:
    watch, _ = watched(Service(OUTAGE))
    renewed: list[int] = []
    watch.reconnect = lambda: renewed.append(1)
    assert [look_at(watch, hours * 3600.0) for hours in range(24)] == [Wait()] * 24
    assert (renewed, watch.refusal) == ([], None)
    assert isinstance(look_at(watch, 24 * 3600.0), GaveUp)


def test_of_a_gang_that_is_being_ended_no_answer_is_waited_for_an_hour() -> None:
    ending = Ending(cause=Cause.USER, message="x", since=START)
    watch, _ = watched(Service(OUTAGE), record(ending=ending))
    assert [look_at(watch, seconds) for seconds in (0.0, 10.0, 3599.5)] == [Wait()] * 3
    assert isinstance(look_at(watch, 3600.0), GaveUp)


def test_the_hour_without_an_answer_begins_with_the_gangs_cancel_however_long_the_outage_has_lasted() -> None:
    service = Service(OUTAGE)
    watch, _ = watched(service, record(deadline=START + 1000.0 + 18_000.0))
    assert [look_at(watch, hours * 3600.0) for hours in range(5)] == [Wait()] * 5
    due = look_at(watch, 18_000.0)
    assert isinstance(due, Cancel)
    service.refusals = [CancelFailed(OUTAGE, stop_requested=True)]
    service.clock += 100.0
    assert watch.end(due.ending)
    assert [look_at(watch, 18_100.0 + seconds) for seconds in (1.0, 1800.0, 3599.5)] == [Wait()] * 3
    found = look_at(watch, 18_100.0 + 3600.0)
    assert isinstance(found, GaveUp)
    assert "from the service for 3600 s" in str(found)


@pytest.mark.parametrize("cut_off_for", [1790.0, 1900.0, 3500.0])
def test_nodes_that_no_cancel_could_reach_in_an_outage_are_cancelled_after_it_and_have_their_time_to_end(
    cut_off_for: float,
) -> None:
    service = Service(OUTAGE)
    service.refusals = [CancelFailed(OUTAGE, stop_requested=False)]
    watch, _ = watched(service, record(deadline=START + 1010.0))
    due = look_at(watch, 10.0)
    assert isinstance(due, Cancel)
    assert not watch.end(due.ending)
    assert look_at(watch, 20.0) == Wait()
    assert look_at(watch, cut_off_for) == Wait()
    service.statuses = [LIVES]
    again = look_at(watch, cut_off_for + 60.0)
    assert isinstance(again, Cancel)
    assert watch.end(again.ending)
    service.statuses = [gang(NodeState.ENDING, NodeState.ENDING)]
    assert look_at(watch, cut_off_for + 1700.0) == Wait()
    late = look_at(watch, cut_off_for + 3000.0)
    assert isinstance(late, Fail), "they have their time once"
    assert late.cause is Cause.DEADLINE


def test_a_cancel_that_is_repeated_begins_no_further_hour() -> None:
    service = Service(OUTAGE)
    watch, _ = watched(service)
    look_at(watch, 0.0)
    first = Ending(cause=Cause.USER, message="x", since=service.now())
    watch.end(first)
    look_at(watch, 1800.0)
    watch.end(replace(first, since=service.now(), began=first.since))
    assert look_at(watch, 3599.5) == Wait()
    assert isinstance(look_at(watch, 3600.0), GaveUp)


@pytest.mark.parametrize("what", ["a report", "the checkpoint"])
def test_what_one_process_has_proved_to_be_missing_is_so_for_the_next_that_sees_it_for_the_first_time(
    what: str,
) -> None:
    lacking = RunStatus(nodes=(DONE.nodes[0], replace(DONE.nodes[1], report=None)))
    problem = replace(DONE, checkpoint_problem="x.pt is not there")
    which = Lacking.REPORT if what == "a report" else Lacking.CHECKPOINT
    proved = replace(lacking if what == "a report" else problem, proved=(which,))
    doubtful = replace(proved, proved=(), doubtful=(which,))
    if what == "a report":
        doubtful = replace(doubtful, reports_readable=False)
    else:
        doubtful = replace(doubtful, checkpoint_readable=False)
    unread = tuple(replace(node, report=None) for node in DONE.nodes)
    out = RunStatus(nodes=unread, reports_readable=False)
    known = record(expects=Expectations(checkpoint=False))
    first, _ = watched(Service(doubtful, proved), known)
    assert look_at(first, 0.0) == Wait()
    assert isinstance(look_at(first, 120.0), Fail)
    # The worker after its trigger; a store that is out proves nothing.
    handed = RunRecord.from_json(json.loads(json.dumps(first.hand_over().to_json())))
    after, _ = watched(Service(out, doubtful, DONE, doubtful), handed)
    assert look_at(after, 121.0) == Wait()
    assert isinstance(look_at(after, 122.0), Fail)
    assert look_at(after, 123.0) == Succeed()
    assert look_at(after, 124.0) == Wait()


REPORT, CHECKPOINT = Lacking.REPORT, Lacking.CHECKPOINT


@pytest.mark.parametrize("of_then", [{}, {"is_proved": True}, {"is_proved": False}])
@pytest.mark.parametrize("what", list(Lacking))
@pytest.mark.parametrize("is_wrong", [True, False])
def test_what_a_process_of_an_earlier_version_has_proved_is_looked_at_again(
    what: Lacking, of_then: dict[str, bool], *, is_wrong: bool
) -> None:
    """Its record does not say of what: so nothing is proved by it, and nothing that is there is lost for it."""
    lacking = RunStatus(nodes=(DONE.nodes[0], replace(DONE.nodes[1], report=None)))
    problem = replace(DONE, checkpoint_problem="x.pt is not there")
    proved = replace(lacking if what is REPORT else problem, proved=(what,))
    unread = {"reports_readable": False} if what is REPORT else {"checkpoint_readable": False}
    doubtful = replace(proved, proved=(), doubtful=(what,), **unread)
    known = record(expects=Expectations(checkpoint=False)).to_json()
    handed = RunRecord.from_json(json.loads(json.dumps({**known, **of_then})))
    watch, _ = watched(Service(doubtful, doubtful, DONE if is_wrong else proved), handed)
    assert [look_at(watch, seconds) for seconds in (0.0, 60.0)] == [Wait(), Wait()]
    last = look_at(watch, 120.0)
    assert last == Succeed() if is_wrong else isinstance(last, Fail)


@pytest.mark.parametrize(
    "proved, doubtful, unread",
    [
        # What is unread and not doubtful is so for an outage.
        (CHECKPOINT, (REPORT,), (REPORT, CHECKPOINT)),
        (CHECKPOINT, (REPORT, CHECKPOINT), (REPORT, CHECKPOINT)),
        (CHECKPOINT, (CHECKPOINT,), (REPORT, CHECKPOINT)),
        (CHECKPOINT, (REPORT,), (REPORT,)),
        (REPORT, (CHECKPOINT,), (CHECKPOINT,)),
    ],
)
def test_what_was_proved_of_one_thing_says_nothing_of_another(
    proved: Lacking, doubtful: tuple[Lacking, ...], unread: tuple[Lacking, ...]
) -> None:
    lacking = replace(DONE.nodes[1], report=None) if REPORT in unread else DONE.nodes[1]
    seen = RunStatus(
        nodes=(DONE.nodes[0], lacking),
        checkpoint_problem="x.pt cannot be read" if CHECKPOINT in unread else None,
        reports_readable=REPORT not in unread,
        checkpoint_readable=CHECKPOINT not in unread,
        doubtful=doubtful,
    )
    watch, _ = watched(Service(seen), record(expects=Expectations(checkpoint=False), proved=(proved,)))
    assert look_at(watch, 0.0) == Wait()
    assert look_at(watch, 10.0) == Wait()


def test_an_answer_ends_the_row_of_those_that_were_none() -> None:
    watch, _ = watched(Service(DENIED, DENIED, LIVES, DENIED))
    look_at(watch, 0.0)
    look_at(watch, 50.0)
    assert (watch.record.unanswered.questions, watch.record.unanswered.seconds) == (2, 50.0)
    assert look_at(watch, 60.0) == Wait()
    assert (watch.record.unanswered, watch.refusal) == (ANSWERED, None)
    look_at(watch, 500.0)
    assert (watch.record.unanswered.questions, watch.record.unanswered.seconds) == (1, 0.0)


def test_a_look_without_an_answer_is_made_more_seldom() -> None:
    watch, _ = watched(Service(OUTAGE, OUTAGE, LIVES))
    assert watch.pause(10.0) == 10.0
    for seconds, pause in ((0.0, 10.0), (10.0, 20.0), (30.0, 10.0)):
        look_at(watch, seconds)
        assert watch.pause(10.0) == pause


def test_the_deadline_ends_a_gang_also_without_an_answer() -> None:
    known = record(deadline=START + 1060.0, expects=Expectations(reports=False))
    watch, _ = watched(Service(OUTAGE), known)
    assert look_at(watch, 59.5) == Wait()
    message = "not finished within 1060 s (limits.max_runtime or the task's execution_timeout)"
    due = Ending(cause=Cause.DEADLINE, message=message, since=START + 1060.0)
    assert look_at(watch, 60.0) == Cancel(due)
    for other in (replace(known, ending=due), replace(known, deadline=None)):
        watch, _ = watched(Service(OUTAGE), other)
        assert look_at(watch, 100.0) == Wait()


def test_an_error_that_nobody_foresaw_may_pass_twice_in_a_row() -> None:
    odd = RuntimeError("odd")
    watch, log = watched(Service(odd, odd, LIVES, odd))
    assert [look_at(watch, seconds) for seconds in (0.0, 10.0, 20.0, 30.0, 40.0)] == [Wait()] * 5
    assert look_at(watch, 50.0) is odd
    assert log.warnings[0] == "RuntimeError: odd; will look again"


def test_what_an_earlier_process_has_met_goes_on_to_count() -> None:
    service = Service(OUTAGE)
    watch, _ = watched(service)
    met = Unanswered(questions=3, seconds=100.0)
    missed = {"run0": Missed(answers=1, seconds=5.0)}
    watch.go_on_after(Kept(unanswered=met, missed=missed, unread_since=START), 40.0)
    assert service.recalled == [{"run0": Missed(answers=1, seconds=45.0)}]
    look_at(watch, 10.0)
    assert (watch.record.unanswered.questions, watch.record.unanswered.seconds) == (4, 150.0)
    assert watch.kept == Kept(
        unanswered=watch.record.unanswered,
        missed={"run0": Missed(answers=2, seconds=30.0)},
        unread_since=START,
    )
    fresh, _ = watched(service)
    fresh.go_on_after(Kept(), 40.0)
    look_at(fresh, 10.0)
    assert fresh.record.unanswered.seconds == 0.0, "the service had answered the last question"


# The log


def test_a_warning_is_repeated_after_a_minute_and_another_comes_at_once() -> None:
    watch, log = watched(Service())
    for now, text in (
        (1000.0, "denied (request 1)"),
        (1059.5, "denied (request 2)"),
        (1060.0, "denied (request 3)"),
        (1061.0, "busy"),
        (1062.0, "denied (request 4)"),
        (1122.0, "denied (request 5)"),
        (1123.0, "denied (request 6) of (job 7)"),
        (1124.0, "busy (request 8)"),
    ):
        watch.warn("%s; again", BackendError(text), now)
    assert log.warnings == [
        "denied (request 1); again",
        "denied (request 3); again",
        "busy; again",
        "denied (request 4); again",
        "denied (request 5); again",
        "busy (request 8); again",
    ]


def a_line(text: str, rank: int = 0) -> LogLine:
    return LogLine(text, START + 1000.0, rank, text)


def with_log(known: RunRecord) -> RunRecord:
    ref = replace(known.ref, log_group_id="group")
    return replace(known, ref=ref, logs_since=(START,) * known.ref.nodes)


@pytest.mark.parametrize("leaves", [True, False])
def test_lines_beside_an_end_are_left_to_who_acts_on_it_where_that_is_asked_for(leaves: bool) -> None:
    service = Service(LIVES, DONE)
    service.parts = [LogPart([a_line("one", 1)]), LogPart([a_line("one", 1), a_line("two")])]
    watch, log = watched(service, with_log(record()), leaves_the_end=leaves)
    assert look_at(watch, 0.0) == Wait()
    assert log.infos == ["[node 1] one", "nodes: 2 RUNNING"]
    assert watch.record.logs_since == (START, START + 1000.0)
    log.infos.clear()
    assert isinstance(look_at(watch, 1.0), Succeed)
    assert log.infos == ([] if leaves else ["[node 0] two", "nodes: 2 SUCCEEDED; step 9"])


def test_a_secret_in_a_line_is_masked() -> None:
    service = Service()
    service.parts = [LogPart([a_line("login --password=hunter2hunter2 now")])]
    watch, log = watched(service, with_log(record()))
    look_at(watch, 0.0)
    assert "hunter2" not in "".join(log.infos)


def training(step: int, *, printed: bool) -> RunStatus:
    shown = Progress(step=step, printed=printed)
    return RunStatus(
        nodes=tuple(node(rank, RUNNING, report=report(rank, progress=shown)) for rank in range(2))
    )


@pytest.mark.parametrize("printed", [True, False])
@pytest.mark.parametrize("has_lines", [True, False])
def test_a_step_is_logged_unless_the_lines_of_the_program_show_it(printed: bool, has_lines: bool) -> None:
    service = Service(*(training(step, printed=printed) for step in (1, 1, 2)))
    service.parts = [LogPart([a_line("step 1")] if has_lines else ())]
    watch, log = watched(service, with_log(record()))
    for seconds in (0.0, 10.0, 20.0):
        look_at(watch, seconds)
    line = "nodes: 2 RUNNING (TRAINING)"
    own = [line] if printed and has_lines else [f"{line}; step 1", f"{line}; step 2"]
    assert log.infos == (["[node 0] step 1"] if has_lines else []) + own


def test_the_time_of_the_service_counts_and_else_that_of_who_watches() -> None:
    known = record(deadline=START + 60)
    for at, now, ends in ((60.0, 0.0, True), (59.5, 100.0, False), (None, 60.0, True), (None, 59.5, False)):
        watch, _ = watched(Service(), known)
        status = replace(LIVES, at=None if at is None else START + at)
        action = watch.observe(status, None, START + now, START + now)
        assert isinstance(action, Cancel if ends else Wait)
        if isinstance(action, Cancel):
            assert action.ending.since == START + 60


def test_how_long_a_node_is_silent_is_measured_by_the_clock_of_who_watches() -> None:
    silent = RunStatus(nodes=tuple(node(rank, RUNNING, report=report(rank)) for rank in range(2)))
    for last, expected in ((120.0, Wait), (120.5, Cancel)):
        watch, _ = watched(Service(silent), record(lost_timeout=120.0))
        looks = [look_at(watch, seconds) for seconds in (0.0, 50.0, last)]
        assert looks[:2] == [Wait(), Wait()]
        assert isinstance(looks[2], expected)


def test_who_is_held_up_by_a_look_or_has_no_answer_sees_no_silence_of_the_nodes() -> None:
    silent = RunStatus(nodes=tuple(node(rank, RUNNING, report=report(rank)) for rank in range(2)))

    class Slow(Service):
        def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
            self.clock += 60.0
            return super().status(refs)

    watch, _ = watched(Slow(silent), record(lost_timeout=120.0))
    # Between the end of one look and the beginning of the next are 50 s, 50 s, 20 s and 1 s.
    assert [look_at(watch, seconds) for seconds in (0.0, 110.0, 220.0, 300.0)] == [Wait()] * 4
    assert isinstance(look_at(watch, 361.0), Cancel)
    # What kept the service from answering may have kept the nodes from writing: 10 s of it count.
    for last, expected in ((209.0, Wait), (211.0, Cancel)):
        watch, _ = watched(Service(silent, OUTAGE, silent), record(lost_timeout=120.0))
        assert [look_at(watch, seconds) for seconds in (0.0, 50.0, 100.0)] == [Wait()] * 3
        assert isinstance(look_at(watch, last), expected)


def spends(seconds: float = 3600.0, *, at: float = START, over: bool = False) -> RunStatus:
    """Return a gang whose two nodes have run for so long."""
    nodes = DONE.nodes if over else LIVES.nodes
    ended = at if over else None
    return RunStatus(
        nodes=tuple(replace(each, started_at=at - seconds, finished_at=ended) for each in nodes), at=at
    )


def test_what_a_run_has_used_is_logged_every_ten_minutes_and_once_at_its_end() -> None:
    service = Service(spends())
    watch, log = watched(service)
    taken: list[Spending] = []
    watch.spending_log.publish = taken.append
    assert (watch.spent, watch.spending_log.newest) == ({}, None)
    for seconds, count in ((0.0, 0), (599.5, 0), (600.0, 1), (1199.5, 1), (1200.0, 2), (1210.0, 2)):
        look_at(watch, seconds)
        assert len([line for line in log.infos if line.startswith("used")]) == len(taken) == count
    assert [each.spent.node_seconds for each in taken] == [7200.0, 7200.0]
    assert watch.spent == {"node_hours": 2.0}
    service.statuses = [spends(7200.0, over=True)]
    for _ in range(2):
        look_at(watch, 1220.0)
        assert [line for line in log.infos if line.startswith("used:")] == ["used: 4.00 node-hours"]
    assert watch.spent == {"node_hours": 4.0}
    result = watch.result("doubtful")
    assert (result["node_hours"], result["warning"], result["job_id"]) == (4.0, "doubtful", "job")


def test_a_run_that_has_used_nothing_yet_has_no_such_line() -> None:
    watch, log = watched(Service(gang(NodeState.PENDING, NodeState.PENDING)))
    for seconds in (0.0, 600.0, 1200.0):
        look_at(watch, seconds)
    assert [line for line in log.infos if line.startswith("used")] == []


def test_what_the_rest_will_use_is_foretold_while_the_gang_lives() -> None:
    def at_step(step: int) -> RunStatus:
        nodes = training(step, printed=False).nodes
        shown = [
            replace(each.report, progress=Progress(step=step, steps=400, updated_at=START + step))
            for each in nodes
            if each.report
        ]
        return RunStatus(
            nodes=tuple(
                replace(each, report=said, started_at=START - 3600)
                for each, said in zip(nodes, shown, strict=True)
            ),
            at=START,
        )

    watch, log = watched(Service(at_step(20), at_step(40)))
    look_at(watch, 0.0)
    look_at(watch, 600.0)
    # 360 steps at one a second, on two nodes.
    assert "used so far: 2.00 node-hours, about 2.20 node-hours at the end" in log.infos


def quick(monkeypatch: pytest.MonkeyPatch, service: Service) -> list[float]:
    """Have pauses after the end go by at once; return them."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        service.clock += seconds

    clock = SimpleNamespace(sleep=sleep, time=service.now, monotonic=lambda: service.clock)
    monkeypatch.setattr(last_lines, "time", clock)
    return pauses


def test_the_last_lines_are_asked_for_until_there_are_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    pauses = quick(monkeypatch, service)
    rest = LogPart([a_line("one")], {0: START + 1000.0})
    service.parts = [OUTAGE, rest, OUTAGE, LogPart([a_line("two")])]
    watch, log = watched(service, with_log(record()))
    watch.write_the_rest()
    assert log.infos == ["[node 0] one", "[node 0] two"]
    assert pauses == [2.0] * 4
    assert log.warnings == ["no answer; waiting for the last lines"]


def test_the_last_lines_are_given_up_after_a_minute_or_where_they_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error, tries in ((OUTAGE, 31), (DENIED, 1), (ValueError("odd"), 1)):
        service = Service()
        pauses = quick(monkeypatch, service)
        service.parts = [error]
        watch, log = watched(service, with_log(record()))
        watch.write_the_rest()
        assert len(pauses) == tries
        assert log.warnings[-1] == f"{error}; lines may be missing here: the service's log has them"


def test_a_minute_begins_anew_with_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    pauses = quick(monkeypatch, service)
    service.parts = [*[OUTAGE] * 29, LogPart([], {0: START}), *[OUTAGE] * 29, LogPart()]
    watch, log = watched(service, with_log(record()))
    watch.write_the_rest()
    assert len(pauses) == 60
    assert not any("missing" in line for line in log.warnings)


def test_lines_that_can_never_be_read_are_waited_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    pauses = quick(monkeypatch, service)
    service.parts = [LogPart([], {0: START})]
    watch, log = watched(service, with_log(record()))
    watch.write_the_rest()
    # The first answer is news: the minute begins there.
    assert len(pauses) == 32
    assert log.warnings == ["the last lines of some nodes cannot be read; their own logs have them"]


def test_a_gang_without_a_log_is_not_asked_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    assert quick(monkeypatch, service) == []
    watched(service)[0].write_the_rest()
    assert (service.clock, service.asked_for_lines) == (1000.0, [])


# The end

LATE = Ending(cause=Cause.DEADLINE, message="too late", since=START + 5, began=START)


def test_a_gang_is_ended_and_the_reason_recorded() -> None:
    service = Service()
    watch, log = watched(service)
    assert watch.end(LATE) is True
    assert (service.cancelled, watch.record.ending) == ([("job", LATE)], LATE)
    assert log.warnings == ["DEADLINE: ending all nodes: too late"]


@pytest.mark.parametrize(
    "refusal, ended, renews",
    [
        (OUTAGE, False, False),
        (DENIED, False, True),
        (CancelFailed(OUTAGE, stop_requested=False), False, False),
        (CancelFailed(OUTAGE, stop_requested=True), True, False),
        (CancelFailed(DENIED, stop_requested=True), True, True),
    ],
)
def test_a_cancel_that_is_refused_is_due_again_unless_the_nodes_find_a_stop_request(
    refusal: BackendError, ended: bool, renews: bool
) -> None:
    service = Service()
    service.refusals = [refusal]
    watch, log = watched(service)
    renewed: list[int] = []
    watch.reconnect = lambda: renewed.append(1)
    assert watch.end(LATE) is ended
    assert watch.record.ending == (LATE if ended else replace(LATE, since=LATE.since - 15))
    assert log.warnings[1] == f"{refusal}; will cancel again"
    assert bool(renewed) is renews
    first = replace(LATE, began=None)
    service.refusals = [OUTAGE]
    assert watch.end(first) is False
    assert watch.record.ending == replace(first, since=START - 10, began=START + 5)


def test_what_still_runs_is_ended_once_all_nodes_have_ended() -> None:
    service = Service(LIVES, DONE)
    watch, log = watched(service)
    watch.end_leftovers()
    look_at(watch, 0.0)
    watch.end_leftovers()
    assert service.ended_leftovers == []
    look_at(watch, 10.0)
    service.refusals = [OUTAGE]
    watch.end_leftovers()
    assert service.ended_leftovers == ["job"]
    assert log.warnings == ["what still runs of the gang could not be ended: no answer"]


# In the place of a lost node


@pytest.mark.parametrize("reads", [True, False], ids=["read again", "not read again"])
def test_a_refused_request_for_another_node_is_believed_as_a_refused_state_is(*, reads: bool) -> None:
    service = Service()
    watch, _ = watched(service)
    known, renewed = watch.record, list[float]()
    watch.reconnect = (lambda: renewed.append(service.clock)) if reads else None

    def asks_again(seconds: float, error: BackendError = DENIED) -> bool:
        service.clock = 1000.0 + seconds
        return watch.note_unreplaced(error)

    times = (0.0, 10.0, 400.0, 899.0)
    assert all(asks_again(seconds) for seconds in times)
    assert asks_again(900.0, OUTAGE)
    # A second reading would come too soon after the first.
    assert renewed == ([1000.0, 1400.0, 1899.0] if reads else [])
    assert asks_again(900.0) is not reads
    assert asks_again(3599.0) is not reads
    assert not asks_again(3600.0)
    assert watch.record == known, "the states of nodes were answered"
    watch.note_replaced()
    assert all(asks_again(10_000.0 + seconds) for seconds in (*times, 899.5)), "what is long begins anew"


def test_what_is_wrong_with_a_request_for_another_node_is_believed_at_once_and_no_outage_ever_is() -> None:
    service = Service()
    watch, _ = watched(service)
    assert not watch.note_unreplaced(BackendError("no such shape", status_code=400))
    for service.clock in (1000.0, 50_000.0, 99_000.0):
        assert watch.note_unreplaced(OUTAGE)
    assert watch.note_unreplaced(BackendError("no quota", status_code=400, retryable=True))


# Many at once


def many(service: Service, *places: tuple[str, str | None]) -> tuple[list[Watch], list[Log]]:
    """Return watches of gangs, each with its compartment and its log group."""
    watches, logs = [], []
    for number, (compartment, group) in enumerate(places):
        known = with_log(record())
        ref = replace(
            known.ref, job_id=f"job{number}", compartment_id=compartment, log_group_id=group, log_id=group
        )
        watch, log = watched(service, replace(known, ref=ref))
        watches.append(watch)
        logs.append(log)
    return watches, logs


def test_gangs_of_one_compartment_are_looked_at_together_and_lines_of_one_log_read_together() -> None:
    service = Service()
    watches, _ = many(service, ("a", "g"), ("b", "g"), ("a", "h"), ("a", "g"))
    found = look_together(service, watches, START)
    assert (found.outcomes, found.trouble, found.unanswered) == ((Wait(),) * 4, None, False)
    assert service.asked == [["job0", "job2", "job3"], ["job1"]]
    # Gangs of two compartments may share a log.
    assert service.asked_for_lines == [["job0", "job3", "job1"], ["job2"]]
    # Without one, each compartment has its own.
    service = Service()
    look_together(service, many(service, ("a", None), ("b", None), ("a", None))[0], START)
    assert service.asked_for_lines == [["job0", "job2"], ["job1"]]


def test_what_is_not_answered_for_some_does_not_concern_the_others() -> None:
    for error, trouble in ((OUTAGE, OUTAGE), (RuntimeError("odd"), None)):
        service = Service(error, DONE)
        watches, logs = many(service, ("a", "g"), ("b", "g"), ("a", "g"))
        found = look_together(service, watches, START)
        assert [type(each) for each in found.outcomes] == [Wait, Succeed, Wait]
        assert (found.trouble, found.unanswered) == (trouble, trouble is not None)
        assert [len(log.warnings) for log in logs] == [1, 0, 1]
        assert service.asked_for_lines == [["job1"]]


@pytest.mark.parametrize(
    "error, said",
    [
        (OUTAGE, "no answer; the log lines will follow later"),
        (RuntimeError("odd"), "its log lines could not be read (odd); will try again"),
    ],
)
def test_lines_that_cannot_be_read_follow_later_and_the_state_counts(error: Exception, said: str) -> None:
    service = Service(DONE)
    service.parts = [error, LogPart([a_line("of the other")])]
    watches, logs = many(service, ("a", "g"), ("a", "h"))
    found = look_together(service, watches, START)
    assert [type(each) for each in found.outcomes] == [Succeed, Succeed]
    assert (found.trouble, found.unanswered) == (error if error is OUTAGE else None, False)
    assert [log.warnings for log in logs] == [[said], []]
    assert "[node 0] of the other" in logs[1].infos
    assert not any("of the other" in line for line in logs[0].infos)


def test_an_error_with_one_gang_is_its_own() -> None:
    service = Service()
    watches, _ = many(service, ("a", "g"), ("a", "g"))
    broken = ValueError("its log is closed")

    def refuse(*_: Any) -> None:
        raise broken

    watches[0].spending_log = SimpleNamespace(add=refuse)
    assert look_together(service, watches, START).outcomes == (broken, Wait())


# Near the end


def saving(*ranks: int, phase: Phase = Phase.SAVING) -> RunStatus:
    def phase_of(rank: int) -> Phase:
        return phase if rank in ranks else Phase.TRAINING

    return RunStatus(
        nodes=tuple(node(rank, RUNNING, report=report(rank, phase=phase_of(rank))) for rank in range(2))
    )


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.DONE])
def test_one_node_that_saves_or_is_done_is_enough_to_look_more_often(phase: Phase) -> None:
    watch, _ = watched(Service(saving(), saving(1, phase=phase)))
    look_at(watch, 0.0)
    assert watch.pause(10.0) == 10.0
    for seconds, pause in ((50.0, 1.0), (70.0, 1.0), (90.0, 2.0)):
        look_at(watch, seconds)
        assert watch.pause(10.0) == pytest.approx(pause)


def test_a_pause_is_no_longer_than_the_caller_wants_it() -> None:
    watch, _ = watched(Service(saving(0)))
    look_at(watch, 0.0)
    look_at(watch, 500.0)
    for interval in (0.5, 10.0, 60.0):
        assert watch.pause(interval) == min(25.0, interval)


def test_a_lease_is_renewed_once_when_it_is_due_and_a_store_that_refuses_is_reported() -> None:
    class Directories(NoDirectories):
        def renew(self, ref: RunRef) -> None:
            renewed.append(ref.job_id)

    renewed: list[str] = []
    service = Service()
    watch, log = watched(service, record(lease=7200.0))
    assert watch.keep_lease() is False, "this service knows no leases"
    assert log.warnings[0].endswith("knows no leases; will renew the lease (limits.lease) later")
    service.directories = Directories()
    watch, _ = watched(service, record(lease=7200.0))
    assert [watch.keep_lease(), watch.keep_lease()] == [True, True]
    assert renewed == ["job"]
    assert watched(service)[0].lease_due_at == math.inf


# What is left of the last look


def unread(*, reports: bool = True, checkpoint: bool = True) -> RunStatus:
    """Return a gang that has ended, as far as what it left can be read."""
    problem = None if checkpoint else "no route to the bucket"
    return replace(DONE, reports_readable=reports, checkpoint_readable=checkpoint, checkpoint_problem=problem)


@pytest.mark.parametrize(
    "hidden, why",
    [
        (unread(reports=False), "their reports cannot be read, in oci://b@n/work/x"),
        (unread(checkpoint=False), "no route to the bucket"),
        (unread(reports=False, checkpoint=False), "no route to the bucket"),
    ],
)
def test_what_cannot_be_read_after_the_end_is_waited_for_from_then_on_and_said_every_minute(
    hidden: RunStatus, why: str
) -> None:
    if hidden.checkpoint_readable:
        hidden = replace(hidden, nodes=tuple(replace(each, report=None) for each in hidden.nodes))
    service = Service(LIVES, replace(LIVES, reports_readable=False), hidden)
    watch, log = watched(service, record(expects=Expectations(checkpoint=True)))
    for seconds in (0.0, 5.0):
        assert look_at(watch, seconds) == Wait()
        assert watch.record.unread_since is None
    for seconds in (10.0, 40.0, 70.0):
        assert look_at(watch, seconds) == Wait()
        assert watch.record.unread_since == START + 1010.0
    assert log.warnings == [f"the nodes have ended, but {why}; will ask again"] * 2
    service.statuses = [unread()]
    look_at(watch, 80.0)
    assert watch.record.unread_since is None


def test_a_loss_of_one_look_is_no_loss_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    for error, said in (
        (OUTAGE, "no answer; the log lines will follow later"),
        (RuntimeError("odd"), "its log lines could not be read (odd); will try again"),
    ):
        service = Service()
        service.parts = [error]
        watch, log = watched(service, with_log(record()))
        assert [look_at(watch, seconds) for seconds in (0.0, 30.0, 60.0)] == [Wait()] * 3
        assert log.warnings == [said] * 2
    assert "the log lines of 1 gangs could not be read" in caplog.text
    for _ in range(2):
        look_together(
            Service(RuntimeError("odd")), many(Service(RuntimeError("odd")), ("a", "g"), ("a", "g"))[0], 0.0
        )
    assert "the states of 2 gangs could not be read" in caplog.text


def test_a_connection_that_cannot_be_read_is_said_every_minute() -> None:
    watch, log = watched(Service(DENIED))

    def refuse() -> None:
        raise OSError("locked")

    watch.reconnect = refuse
    for now in (1000.0, 1030.0, 1060.0):
        watch._credentials = RefusedCredentials(lambda: 0.0, read_at=-30.0)
        watch._renew_credentials(now)
    assert log.warnings == ["the connection could not be read again: locked"] * 2


def test_a_watch_that_begins_when_its_clock_does_reads_credentials_at_once() -> None:
    service = Service(DENIED)
    watch, _ = watched(service)
    renewed: list[int] = []
    watch.reconnect = lambda: renewed.append(1)
    assert watch.refusal is None
    look_at(watch, -1000.0)
    assert renewed == [1]


def test_lines_are_asked_for_from_the_last_look_on_by_the_clock_that_stamps_them() -> None:
    service = Service()
    watch, _ = watched(service, with_log(record()))
    for seconds in (0.0, 5.0):
        service.clock = 1000.0 + seconds
        # The clock of who watches is another.
        watch.look(5.0)
    assert service.asked_since == [[START, START], [START + 985.0] * 2]


def test_the_last_lines_are_asked_for_with_those_that_were_late(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    quick(monkeypatch, service)
    watch, _ = watched(service, with_log(record()))
    look_at(watch, 1.0)
    service.parts = [LogPart([], {0: START}), LogPart()]
    watch.write_the_rest()
    assert service.asked_since[1] == [START + 1001.0 - 120.0] * 2
    # The node whose lines did not fit goes on where they ended.
    assert service.asked_since[2] == [START, START + 1003.0 - 120.0]


def test_a_new_watch_goes_on_with_what_was_measured_and_adds_nothing_of_its_own() -> None:
    silent = RunStatus(nodes=tuple(node(rank, RUNNING, report=report(rank)) for rank in range(2)))
    first, _ = watched(Service(silent), record(lost_timeout=120.0))
    for seconds in (0.0, 120.0):
        assert look_at(first, seconds) == Wait()
    second, _ = watched(Service(silent), RunRecord.from_json(first.record.to_json()))
    assert look_at(second, 0.0) == Wait()
    assert isinstance(look_at(second, 0.5), Cancel)


def test_a_node_that_takes_no_part_hurries_nobody() -> None:
    late = a_node(2, report=a_report(2, phase=Phase.SAVING, restarts=(LOST, FEWER)))
    watch, _ = watched(Service(fewer(late)), elastic())
    look_at(watch, 0.0)
    assert watch.pause(10.0) == 10.0


def test_what_a_run_costs_is_logged_by_its_price_and_foretold_only_while_it_lives() -> None:
    known = record()
    watch, _ = watched(Service(spends()), replace(known, ref=replace(known.ref, price=2.0)))
    look_at(watch, 600.0)
    assert watch.spent == {"node_hours": 2.0, "cost": 4.0}
    taken: list[Spending] = []
    pace = Progress(step=9, steps=90, updated_at=START + 9)
    ended = spends(over=True)
    nodes = [replace(each, report=replace(each.report, progress=pace)) for each in ended.nodes if each.report]
    watch, _ = watched(Service(spends(), replace(ended, nodes=tuple(nodes))))
    watch.spending_log.publish = taken.append
    watch.spending_log._pace.add(training(1, printed=False), START + 1)
    watch.spending_log._pace.add(replace(ended, nodes=tuple(nodes)), START + 9)
    look_at(watch, 0.0)
    look_at(watch, 0.0)
    assert [(each.ended, each.ahead) for each in taken] == [(True, None)]


def test_what_a_run_has_used_is_logged_from_the_first_second_and_also_where_nobody_takes_it() -> None:
    watch, log = watched(Service(spends(0.5)))
    for seconds in (0.0, 600.0):
        look_at(watch, seconds)
    assert "used so far: 0.00 node-hours" in log.infos
    assert log.warnings == []


def test_metrics_that_are_refused_end_nothing() -> None:
    watch, log = watched(Service(spends()))

    def refuse(_: Spending) -> None:
        raise OSError("no route")

    watch.spending_log.publish = refuse
    assert look_at(watch, 600.0) == Wait()
    assert log.warnings == ["the metrics of what the run has used could not be published: no route"]


class Regional(Service, SpansRegions):
    """A service in two regions."""

    def near(self, ref: RunRef) -> Backend:
        self.asked.append([ref.job_id, "near"])
        return self


Regional.__abstractmethods__ = frozenset()


def test_what_still_runs_is_ended_in_the_region_of_the_gang() -> None:
    service = Regional(DONE)
    watch, _ = watched(service)
    look_at(watch, 0.0)
    watch.end_leftovers()
    assert service.asked[1:] == [["job", "near"]]


def test_a_service_that_counts_nothing_has_nothing_to_hand_on() -> None:
    watch = Watch(Late(LogPart()), record(), Log())
    watch.go_on_after(Kept(missed={"run0": Missed(answers=1, seconds=5.0)}), 1.0)
    assert watch.kept == Kept()


def test_a_poll_without_trouble_has_none() -> None:
    assert PollResult(()) == PollResult((), None, unanswered=False)
    assert (PollResult(()).trouble, PollResult(()).unanswered) == (None, False)


def test_these_times_are_documented() -> None:
    assert (last_lines.LAST_LINES_AFTER, last_lines.LAST_LINES_PATIENCE) == (2.0, 60.0)


def test_who_cannot_read_the_connection_again_does_not_try() -> None:
    service = Service(DENIED)
    service.refusals = [DENIED]
    watch, log = watched(service)
    look_at(watch, 0.0)
    watch.end(LATE)
    assert [line.partition(";")[2] for line in log.warnings if "denied" in line] == [
        " will ask again",
        " will cancel again",
    ]
    assert len(log.warnings) == 3


def test_a_cancel_that_is_refused_again_and_again_says_once_that_the_connection_cannot_be_read() -> None:
    service = Service()
    service.refusals = [DENIED, DENIED]
    watch, log = watched(service)

    def refuse() -> None:
        raise OSError("locked")

    watch.reconnect = refuse
    for seconds in (0.0, 30.0):
        service.clock = 1000.0 + seconds
        assert watch.end(LATE) is False
    assert log.warnings.count("the connection could not be read again: locked") == 1
    assert len(service.cancelled) == 2
