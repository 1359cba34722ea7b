"""How a lost node is replaced, step by step, and what a refusal of each step means: on a home in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import ReplacesNodes, SpansRegions, now_at
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs import durations
from airflow_provider_ocidist.gangs.actions import EndSilent, GiveUpSilent, GoOnWithout, NodeChange, Replace
from airflow_provider_ocidist.gangs.durations import observe, seconds
from airflow_provider_ocidist.gangs.replacements import catch_up, change_nodes, replace_lost
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from tests.gangs.test_elastic_rules import FEWER, elastic, fewer
from tests.gangs.test_replacement_rules import LOST, a_record, a_ref, gone
from tests.gangs.test_watch_rules import Log

BUSY, WRONG = BackendError("busy", retryable=True), BackendError("no such shape", status_code=400)
REFUSALS = [BackendError("denied", status_code=status) for status in (401, 403, 404)]
STEPS = ["current", "launch_again", "replace_nodes", "renew"]
SECOND = replace(LOST, rank=2, message="node 2: gone", cause=Cause.PREEMPTED)
REF = a_ref()


class Home(Backend, ReplacesNodes, SpansRegions):
    """A home that replaces nodes, and fails at a step as the test says."""

    def __init__(self, now: RunRef | None = None, **errors: Exception) -> None:
        self.now = now or REF
        self.errors = errors
        self.launches = self.goes_on = True
        self.judged: list[Any] = []
        """Which launch was judged when another was asked for, and whether the lost nodes live."""
        self.done: list[Any] = []

    def _does(self, step: str, *what: Any) -> None:
        self.done.append((step, *what))
        if step in self.errors:
            raise self.errors[step]

    def near(self, ref: RunRef) -> Backend:
        assert isinstance(ref, RunRef)
        return self

    def current(self, ref: RunRef) -> RunRef:
        assert isinstance(ref, RunRef)
        self._does("current", ref)
        return self.now

    def replace_nodes(self, ref: RunRef, failures: Sequence[Restart]) -> RunRef:
        self._does("replace_nodes", ref, failures)
        run_ids = list(ref.run_ids)
        for each in failures:
            run_ids[each.rank or 0] += "b"
        return replace(ref, run_ids=tuple(run_ids), replaced=(*ref.replaced, *failures))

    def end_nodes(self, ref: RunRef, ranks: Sequence[int]) -> None:
        self._does("end_nodes", ref, list(ranks))

    def launch_again(
        self, ref: RunRef, failures: Sequence[Restart], launch: int | None = None, *, alive: bool = False
    ) -> bool:
        self._does("launch_again", ref, failures)
        self.judged.append((launch, alive))
        return self.launches

    def goes_on_after(self, ref: RunRef, launch: int) -> bool:
        self._does("goes_on_after", ref, launch)
        return self.goes_on

    def go_on_without(self, ref: RunRef, change: Restart) -> bool:
        self._does("go_on_without", ref, change)
        return True

    def renew(self, ref: RunRef) -> None:
        self._does("renew", ref)

    directories = gangs = property(lambda self: self)
    connect = plan = submit = logs = logs_of = status = cancel = delete = None


Home.__abstractmethods__ = frozenset()


class Following(Watch):
    """A watch whose gang has no log; it notes when it would read the rest of one."""

    def write_the_rest(self) -> None:
        home: Any = self.backend
        home.done.append("rest")


def watching(
    home: Any, record: RunRecord | None = None, clock: Callable[[], float] = lambda: 0.0
) -> tuple[Watch, Log]:
    log = Log()
    return Following(home, record or a_record(REF), log, clock=clock), log


def steps(home: Home) -> list[str]:
    return [each if isinstance(each, str) else each[0] for each in home.done]


def test_the_nodes_agree_then_a_node_is_made_then_it_is_recorded_then_it_is_watched() -> None:
    home, failures = Home(), (LOST, SECOND)
    watch, log = watching(home, a_record(REF, irreplaceable="for a while"))
    assert change_nodes(watch, Replace(failures), log) is True
    found = watch.record.ref
    assert home.done == [
        ("current", REF),
        ("launch_again", REF, failures),
        ("replace_nodes", REF, failures),
        ("renew", found),
        "rest",
    ]
    assert (found.run_ids, found.replaced) == (("run0", "run1b", "run2b"), failures)
    assert watch.record.irreplaceable == ""
    assert log.warnings == [
        "NODE: node 1: gone; run1b takes its place",
        "PREEMPTED: node 2: gone; run2b takes its place",
    ]


def test_what_another_process_has_replaced_is_not_replaced_again() -> None:
    known = replace(REF, replaced=(LOST,), run_ids=("run0", "run1b", "run2"))
    home = Home(replace(known, replaced=(LOST, SECOND), run_ids=("run0", "run1b", "run2b")))
    watch, log = watching(home, a_record(known))
    assert replace_lost(watch, [SECOND], log) is True
    assert steps(home) == ["current", "renew", "rest"]
    assert watch.record.ref == home.now
    assert log.warnings == ["PREEMPTED: node 2: gone; run2b takes its place"], "only the new one"


def test_of_a_gang_that_is_to_end_no_node_is_replaced() -> None:
    home = Home()
    home.launches = False
    watch, log = watching(home)
    assert replace_lost(watch, [LOST], log) is False
    assert steps(home) == ["current", "launch_again"]
    assert watch.record == a_record(REF, irreplaceable="its nodes are to end")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [BUSY, WRONG, *REFUSALS], ids=str)
def test_what_passes_is_left_to_the_next_look_and_what_does_not_ends_the_wait(
    step: str, error: BackendError
) -> None:
    home = Home(**{step: error})
    watch, log = watching(home)
    assert replace_lost(watch, [LOST], log) is False
    assert steps(home)[-1] == step
    assert watch.record == a_record(REF, irreplaceable="no such shape" if error is WRONG else "")
    assert log.warnings == [
        f"{error}; the lost node is {'not replaced' if error is WRONG else 'replaced later'}"
    ]


NO_QUOTA = BackendError("no quota", status_code=400, retryable=True, cause=Cause.QUOTA)
NO_HOST = BackendError("no host", status_code=500, retryable=True, cause=Cause.CAPACITY)


@pytest.mark.parametrize("error", [NO_QUOTA, NO_HOST], ids=str)
def test_a_refusal_for_want_of_machines_is_kept_until_one_is_granted(error: BackendError) -> None:
    home = Home(replace_nodes=error)
    watch, log = watching(home)
    assert replace_lost(watch, [LOST], log) is False
    refused = watch.record.refused
    assert refused
    assert (refused.cause, refused.message, refused.nodes) == (error.cause, str(error), REF.nodes)
    assert refused.holds(REF.nodes, now_at(home))
    assert watch.record.irreplaceable == "", "it is asked for again"
    assert RunRecord.from_json(watch.record.to_json()).refused == refused, "the next process knows it"
    home.errors = {"replace_nodes": BUSY}
    assert replace_lost(watch, [LOST], log) is False
    assert watch.record.refused == refused
    home.errors = {}
    assert replace_lost(watch, [LOST], log) is True
    assert watch.record.refused is None


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: str(error.status_code))
def test_after_a_refusal_the_credentials_are_read_again_and_the_next_look_replaces_the_node(
    step: str, error: BackendError
) -> None:
    home = Home(**{step: error})
    watch, log = watching(home)
    # What was read again is not refused.
    watch.reconnect = home.errors.clear
    assert replace_lost(watch, [LOST], log) is False
    assert replace_lost(watch, [LOST], log) is True
    assert watch.record.ref.run_ids == ("run0", "run1b", "run2")


@pytest.mark.parametrize("seed", range(20))
def test_a_refusal_that_stays_is_believed_after_five_in_fifteen_minutes_whatever_outages_lie_between(
    seed: int,
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    home, now, refused_at = Home(), 0.0, list[float]()
    watch, log = watching(home, clock=lambda: now)
    watch.reconnect = lambda: None
    step, refusal, often = dice.choice(STEPS), dice.choice(REFUSALS), dice.uniform(0.3, 1.0)
    while not watch.record.irreplaceable:
        now += dice.uniform(1.0, 600.0)
        is_refused = dice.random() < often
        home.errors = {step: refusal if is_refused else BUSY}
        assert replace_lost(watch, [LOST], log) is False
        refused_at += [now] if is_refused else []
        is_enough = len(refused_at) >= 5 and now - refused_at[0] >= 900.0
        assert bool(watch.record.irreplaceable) is (is_refused and is_enough)
    assert log.warnings[-1] == "denied; the lost node is not replaced"


def test_refusals_before_a_replacement_that_came_about_count_no_more() -> None:
    clock = SimpleNamespace(now=0.0)
    home = Home(replace_nodes=REFUSALS[0])
    watch, log = watching(home, clock=lambda: clock.now)
    watch.reconnect = lambda: None
    for clock.now in (0.0, 500.0, 1000.0):
        assert replace_lost(watch, [LOST], log) is False
    home.errors = {}
    assert replace_lost(watch, [LOST], log) is True
    home.now, home.errors = watch.record.ref, {"replace_nodes": REFUSALS[0]}
    for clock.now in (2000.0, 2100.0):
        assert replace_lost(watch, [SECOND], log) is False
    assert watch.record.irreplaceable == ""


def test_before_a_silent_node_is_ended_the_others_are_asked_to_wait_for_another() -> None:
    home = Home()
    watch, log = watching(home)
    assert change_nodes(watch, GiveUpSilent((LOST,)), log) is False
    assert change_nodes(watch, EndSilent((LOST, SECOND)), log) is False
    assert home.done == [("launch_again", REF, (LOST,)), ("end_nodes", REF, [1, 2])]
    assert watch.record == a_record(REF)
    assert log.warnings == [
        "node 1: gone: the others wait for another in its place",
        "node 1: gone; node 2: gone: each is ended and asked for again",
    ]


@pytest.mark.parametrize("launch", [None, 0, 2])
def test_who_is_asked_for_another_launch_hears_which_one_was_judged_and_whether_the_lost_node_lives(
    launch: int | None,
) -> None:
    for change, lives in (
        (GiveUpSilent((LOST,), launch=launch), True),
        (Replace((LOST,), launch=launch), False),
    ):
        home = Home()
        watch, log = watching(home)
        change_nodes(watch, change, log)
        assert home.judged == [(launch, lives)]


@pytest.mark.parametrize("goes_on", [True, False])
def test_where_the_others_have_ended_a_node_is_replaced_only_for_a_launch_that_is_agreed_already(
    *, goes_on: bool
) -> None:
    home = Home()
    home.goes_on = goes_on
    watch, log = watching(home)
    assert change_nodes(watch, Replace((LOST,), launch=1, over=1), log) is goes_on
    assert home.done[:2] == [("current", REF), ("goes_on_after", REF, 1)]
    assert steps(home)[2:] == ([*STEPS[1:], "rest"] if goes_on else [])
    if not goes_on:
        assert watch.record == a_record(REF), "whether the gang is ended is decided at a later look"


@pytest.mark.parametrize("change", [GiveUpSilent((LOST,)), EndSilent((LOST,))], ids=["asks", "ends"])
@pytest.mark.parametrize("error", [BUSY, WRONG, *REFUSALS], ids=str)
def test_a_silent_node_that_cannot_be_ended_now_is_ended_at_a_later_look(
    error: BackendError, change: NodeChange
) -> None:
    home = Home(launch_again=error, end_nodes=error)
    watch, log = watching(home)
    renewed: list[int] = []
    watch.reconnect = lambda: renewed.append(1)
    assert change_nodes(watch, change, log) is False
    assert watch.record == a_record(REF)
    assert log.warnings[1:] == [f"{error}; will ask again"]
    assert bool(renewed) is (error in REFUSALS)


def test_of_a_gang_that_is_to_end_no_silent_node_is_replaced() -> None:
    home = Home()
    home.launches = False
    watch, log = watching(home)
    assert change_nodes(watch, GiveUpSilent((LOST,)), log) is False
    assert watch.record == a_record(REF, irreplaceable="its nodes are to end")


def test_where_nodes_cannot_be_replaced_it_is_given_up() -> None:
    watch, log = watching(SimpleNamespace(kind="elsewhere", conn_id=None, connections=None, done=[]))
    assert replace_lost(watch, [LOST], log) is False
    assert watch.record.irreplaceable == "backend 'elsewhere' cannot replace a node"


def with_fewer() -> RunRecord:
    """Return the record of a gang that has gone on without node 2 for a while."""
    status = fewer(gone(2))
    return observe(observe(elastic(), status, 0.0), status, 60.0)


def test_nodes_that_train_are_not_asked_for_a_launch_when_a_missing_one_is_asked_for() -> None:
    home = Home()
    watch, log = watching(home, with_fewer())
    assert replace_lost(watch, [SECOND], log) is True
    assert steps(home) == ["current", "replace_nodes", "renew", "rest"]


def test_one_that_takes_part_and_is_lost_is_waited_for_also_among_fewer() -> None:
    home = Home()
    watch, log = watching(home, with_fewer())
    assert replace_lost(watch, [LOST], log) is True
    assert steps(home)[1] == "launch_again"


@pytest.mark.parametrize("error", [BUSY, WRONG, *REFUSALS], ids=str)
def test_a_refusal_of_a_missing_machine_ends_nothing_and_it_is_asked_for_again_after_a_while(
    error: BackendError,
) -> None:
    before = with_fewer()
    assert seconds(before, durations.FEWER) == 60.0
    for failures in ([SECOND], [LOST, SECOND]):
        watch, log = watching(Home(replace_nodes=error), before)
        assert replace_lost(watch, failures, log) is False
        assert watch.record == durations.begin_again(before, durations.FEWER)
        assert seconds(watch.record, durations.FEWER) == 0.0
        assert log.warnings == [f"{error}; the training goes on with fewer nodes"]


def test_nodes_that_go_on_are_asked_in_the_run_directory_and_the_gang_has_no_others_yet() -> None:
    home = Home()
    watch, log = watching(home)
    assert change_nodes(watch, GoOnWithout(FEWER), log) is False
    assert home.done == [("go_on_without", REF, FEWER)]
    assert log.warnings == []
    watch, log = watching(Home(go_on_without=BUSY))
    assert change_nodes(watch, GoOnWithout(FEWER), log) is False
    assert log.warnings == ["busy; will ask again"]
    assert watch.record == a_record(REF)


def test_another_that_watches_follows_what_the_owner_has_replaced() -> None:
    home = Home()
    watch, log = watching(home)
    catch_up(watch, log)
    assert (steps(home), log.warnings) == (["current"], [])
    home.now = replace(REF, replaced=(LOST,), run_ids=("run0", "run1b", "run2"))
    catch_up(watch, log)
    assert watch.record.ref == home.now
    assert steps(home) == ["current", "current", "rest"]
    assert log.warnings == ["NODE: node 1: gone; run1b takes its place"]
    home.errors = {"current": BUSY}
    catch_up(watch, log)
    assert log.warnings[1:] == ["busy; will ask again"]
