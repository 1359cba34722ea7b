"""The trigger alone, on a service in memory: what it hands on, when it ends a gang, and what it leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from airflow_provider_ocidist.backends.base import Backend, LogLine, LogPart
from airflow_provider_ocidist.backends.capabilities import PreparesCancels
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.task_watch import TaskWatch
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger, connections, task_states, threads
from airflow_provider_ocidist.triggers import training as module
from airflow_provider_ocidist.triggers.connections import SharedConnection
from airflow_provider_ocidist.triggers.threads import Threads, in_thread
from airflow_provider_ocidist.triggers.training import PauseTrigger
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_job, a_key
from tests.triggers.supervised import reading, supervised

OWNER = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1, "try_number": 2}
KILLED = "__airflow_user_action__"


class Connection:
    """What the triggers of a process share, as a test wants it."""

    def __init__(self, model: Model) -> None:
        self.backend: Backend = model
        self.model = model
        self.asked_anew: list[bool] = []
        self.watches: list[tuple[Watch, float]] = []
        self.outcome: Exception | None = None
        self.waits = False

    async def open(self) -> Connection:
        return self

    async def until_action(self, watch: Watch, interval: float) -> Exception | None:
        self.watches.append((watch, interval))
        if self.waits:
            await asyncio.sleep(600)
        watch.record = dataclasses.replace(watch.record, deadline=4.0)
        return self.outcome

    async def at_once(self, *, anew: bool) -> Backend:
        self.asked_anew.append(anew)
        return self.backend


class Trigger(DistributedTrainingTrigger):
    """A trigger with a connection of the test's, whose Airflow answers as the test says."""

    shared: Connection
    owned: list[bool | Exception]

    def _still_owned(self, record: RunRecord) -> bool:
        answer = self.owned.pop(0) if len(self.owned) > 1 else self.owned[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def _connection(self) -> Any:
        return self.shared


@pytest.fixture
def ref() -> RunRef:
    return Model().has(a_key(), [LIVE, LIVE], log_group_id="group")


@pytest.fixture
def trigger(ref: RunRef, monkeypatch: pytest.MonkeyPatch) -> Trigger:
    monkeypatch.setattr(module, "FIRST_EVENT_AFTER", 0.0)
    monkeypatch.setattr(module, "END_PAUSE", 0.001)
    return a_trigger(ref)


def a_trigger(ref: RunRef, **changes: Any) -> Trigger:
    model = Model()
    model.existing[ref.job_id], model.states[ref.job_id] = ref, [LIVE, LIVE]
    record = RunRecord.of(ref, a_job(), model.plan(a_job(), ref.key).expects)
    arguments = {
        "conn_id": "oci_x",
        "record": record.to_json(),
        "owner": OWNER,
        "poll_interval": 0.5,
        **changes,
    }
    found = Trigger(**arguments)
    found.shared, found.owned = Connection(model), [False]
    return found


async def first(events: AsyncIterator[Any]) -> Any:
    return await anext(events)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


# What it hands on


def test_a_trigger_survives_the_way_through_airflows_database(ref: RunRef) -> None:
    found = DistributedTrainingTrigger("oci_x", {"ref": {"job_id": "j"}}, OWNER, 7.0)
    path, arguments = found.serialize()
    assert path == "airflow_provider_ocidist.triggers.DistributedTrainingTrigger"
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments == {
        "conn_id": "oci_x",
        "record": {"ref": {"job_id": "j"}},
        "owner": OWNER,
        "poll_interval": 7.0,
    }
    assert DistributedTrainingTrigger(**arguments).serialize() == (path, arguments)


def test_a_trigger_that_is_derived_from_it_is_found_where_it_is_defined(trigger: Trigger) -> None:
    assert trigger.serialize()[0] == f"{__name__}.Trigger"


@pytest.mark.parametrize("owner", [OWNER, {}])
def test_what_a_cancel_needs_is_made_ready_before_one_is_wanted_by_the_owner_alone(
    ref: RunRef, monkeypatch: pytest.MonkeyPatch, owner: dict[str, Any]
) -> None:
    class Prepared(Model, PreparesCancels):
        ready: ClassVar[list[RunRef]] = []

        def ready_to_cancel(self, ref: RunRef) -> None:
            self.ready.append(ref)

    monkeypatch.setattr(module, "FIRST_EVENT_AFTER", 0.0)
    watcher = a_trigger(ref, owner=owner)
    watcher.shared.model.__class__ = Prepared
    run(first(watcher.run()))
    assert Prepared.ready == ([ref] if owner else [])


def test_the_event_is_the_record_as_it_is_by_then(trigger: Trigger, ref: RunRef) -> None:
    event = run(first(trigger.run()))
    record = RunRecord.from_json(event.payload)
    assert record.deadline == 4.0
    assert record.ref.job_id == ref.job_id
    assert trigger.record == event.payload, "what is serialized from then on is what is known by then"
    ((watch, interval),) = trigger.shared.watches
    assert isinstance(watch, TaskWatch)
    assert watch.leaves_the_end
    assert watch._lines._try_number == 2
    assert interval == 0.5
    assert trigger.shared.model.done("cancel") == []


def test_a_watcher_without_an_owner_has_no_log_of_a_try(ref: RunRef, trigger: Trigger) -> None:
    watcher = a_trigger(ref, owner={})
    run(first(watcher.run()))
    ((watch, _),) = watcher.shared.watches
    assert not isinstance(watch, TaskWatch)
    assert watch.leaves_the_end
    assert watch.record.ref == trigger._record().ref


def test_an_error_of_the_service_is_logged_and_left_to_the_task(trigger: Trigger) -> None:
    trigger.shared.outcome = BackendError("the service is down")
    warned: list[str] = []

    class Log:
        def warning(self, text: str, *arguments: object) -> None:
            warned.append(text % arguments)

    trigger._log = Log()  # Airflow's own writes where no test looks
    assert run(first(trigger.run())).payload["deadline"] == 4.0
    assert warned == ["the service is down"]


def test_no_event_comes_before_the_executor_has_seen_that_the_task_deferred(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_EVENT_AFTER", 0.3)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", noted)
    run(first(trigger.run()))
    assert 0 < slept[-1] <= 0.3
    monkeypatch.setattr(module, "FIRST_EVENT_AFTER", -5.0)
    run(first(a_trigger(trigger._record().ref).run()))
    assert slept[-1] == 0.0


def test_the_secrets_of_nodes_are_masked_where_their_lines_are_logged(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Backend, RunRef]] = []
    monkeypatch.setattr(module, "mask_secrets_of_nodes", lambda backend, ref: asked.append((backend, ref)))
    run(first(trigger.run()))
    ref = trigger._record().ref
    assert asked == [(trigger.shared.backend, ref)]
    asked.clear()
    run(first(a_trigger(dataclasses.replace(ref, log_group_id=None)).run()))
    assert asked == []


# When it ends a gang


async def cancelled(trigger: Trigger, *message: str) -> None:
    """Run the trigger, cancel it as Airflow does, and wait for what it has begun."""
    trigger.shared.waits = True
    watching = asyncio.create_task(first(trigger.run()))
    while not trigger.shared.watches:
        await asyncio.sleep(0.005)
    watching.cancel(*message)
    with pytest.raises(asyncio.CancelledError):
        await watching
    if trigger._ending:
        await asyncio.wait({trigger._ending})


def test_a_users_cancel_ends_the_gang(
    trigger: Trigger, ref: RunRef, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        run(cancelled(trigger, KILLED))
    assert trigger.shared.model.done("cancel") == [ref.job_id]
    assert trigger.shared.asked_anew == [False]
    assert f"{ref.key.name}: cancelled because its task was killed" in caplog.text


def test_on_an_airflow_that_announces_no_kills_a_cancel_ends_nothing(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CAN_KILL", False)
    run(cancelled(trigger, KILLED))
    assert trigger.shared.model.done("cancel") == []


def _noting(saved: list[Watch]) -> Callable[[Watch], None]:
    """Return a method that notes whose word is left."""

    def note(self: Watch) -> None:
        saved.append(self)

    return note


@pytest.mark.parametrize("message,leaves_word", [((), True), ((KILLED,), False)])
def test_a_triggerer_that_stops_leaves_word_and_ends_nothing(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch, message: tuple[str, ...], leaves_word: bool
) -> None:
    saved: list[Watch] = []
    monkeypatch.setattr(TaskWatch, "save_cursor", _noting(saved))
    run(cancelled(trigger, *message))
    assert (len(saved) == 1) == leaves_word
    assert bool(trigger.shared.model.done("cancel")) != leaves_word


def test_word_is_left_at_the_end_and_when_the_trigger_breaks(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Watch] = []
    monkeypatch.setattr(TaskWatch, "hand_over", _noting(saved))
    run(first(trigger.run()))
    assert len(saved) == 1

    async def breaks(*_: object) -> None:
        raise ImportError("no such package")

    broken = a_trigger(trigger._record().ref)
    monkeypatch.setattr(broken.shared, "until_action", breaks)
    with pytest.raises(ImportError, match="no such package"):
        run(first(broken.run()))
    assert len(saved) == 2 - (not isinstance(broken._gang, Watch))


def test_word_that_cannot_be_left_in_time_keeps_no_triggerer(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_CURSOR_LIMIT", 0.05)
    monkeypatch.setattr(TaskWatch, "hand_over", lambda _: time.sleep(0.5))
    began = time.monotonic()

    async def timed() -> float:
        await first(trigger.run())
        return time.monotonic() - began

    assert run(timed()) < 0.5


@pytest.mark.parametrize("task_instance", [None, SimpleNamespace(task_id="train")])
@pytest.mark.parametrize("uploaded", [True, False])
def test_the_log_that_stays_on_this_machine_is_set_aside_for_the_next_deferral(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch, task_instance: Any, uploaded: bool
) -> None:
    aside: list[Any] = []
    monkeypatch.setattr(module.log_channel, "is_uploaded", lambda: uploaded)
    monkeypatch.setattr(module.log_channel, "set_aside", aside.append)
    trigger.task_instance = task_instance
    run(first(trigger.run()))
    assert aside == ([task_instance] if task_instance and not uploaded else [])


class Writing(Connection):
    """A gang whose node writes a line as soon as it is watched."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.saved: list[LogCursor] = []
        directories: Any = model.directories
        directories.save_cursor = lambda _, cursor: self.saved.append(cursor)

    async def until_action(self, watch: Watch, interval: float) -> Exception | None:
        at = watch.record.ref.submitted_at + 1
        await in_thread(lambda: watch._take(LogPart([LogLine("id", at, 0, "step 1/80")]), at))
        return await super().until_action(watch, interval)


def handed_over(ref: RunRef, *, stopped: bool) -> list[Any]:
    """Run a trigger that logs a line; return how often it saved the cursor, and from where its task goes on."""
    trigger = a_trigger(ref)
    shared = Writing(trigger.shared.model)
    trigger.shared = shared
    if stopped:
        run(cancelled(trigger))
        return [len(shared.saved), None]
    since = run(first(trigger.run())).payload["logs_since"][0]
    return [len(shared.saved), since]


@pytest.mark.since_airflow("3.3", "the operator defers")
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_only_what_airflows_supervisor_has_read_counts_as_logged(
    trigger: Trigger, ref: RunRef, monkeypatch: pytest.MonkeyPatch, stopped: bool, is_read: bool
) -> None:
    monkeypatch.setattr(module.log_channel, "PATIENCE", 30.0 if is_read else 0.1)
    work = partial(handed_over, ref, stopped=stopped)
    with supervised(work) as supervisor, reading(supervisor) if is_read else contextlib.nullcontext():
        saved, since = supervisor.answer()
    assert saved == int(is_read)
    assert since is None if stopped else since == ref.submitted_at + is_read


def test_a_trigger_that_only_moved_ends_nothing(
    trigger: Trigger, ref: RunRef, caplog: pytest.LogCaptureFixture
) -> None:
    trigger.owned = [True]
    with caplog.at_level(logging.INFO):
        run(trigger.on_kill())
    assert trigger.shared.model.done("cancel") == []
    assert f"{ref.key.name} is left running: its task waits for it elsewhere" in caplog.text


@pytest.mark.parametrize("by_user", [True, False])
@pytest.mark.parametrize("airflow", ["fails", "is silent", "says so late"])
def test_what_a_user_has_ended_is_ended_though_airflow_does_not_answer(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch, by_user: bool, airflow: str
) -> None:
    monkeypatch.setattr(module, "ASK_WITHIN", 0.2)
    monkeypatch.setattr(module, "ASK_INTERVAL", 0.02)
    released = threading.Event()

    def still_owned(_: RunRecord) -> bool:
        if airflow == "fails":
            raise ConnectionError("no API server")
        released.wait(0.05 if airflow == "says so late" else 30)
        return True

    monkeypatch.setattr(trigger, "_still_owned", still_owned)

    async def killed() -> None:
        # Airflow may call `on_kill` first, and says only then that it was a user.
        ending = asyncio.create_task(trigger.on_kill())
        if by_user:
            await cancelled(trigger, KILLED)
        await asyncio.wait({ending}, timeout=1.0)

    try:
        run(killed())
    finally:
        released.set()
    ended = bool(trigger.shared.model.done("cancel"))
    assert ended is (by_user and airflow != "says so late")


@pytest.mark.parametrize("killed", [2, 3, 7, 40])
def test_no_end_waits_for_a_thread_behind_questions_that_airflow_leaves_open(
    ref: RunRef, trigger: Trigger, monkeypatch: pytest.MonkeyPatch, killed: int
) -> None:
    """As where many mapped tasks are marked while Airflow hangs: more than there are threads."""
    monkeypatch.setattr(module, "ASK_WITHIN", 0.2)
    monkeypatch.setattr(module, "ASK_INTERVAL", 0.02)
    monkeypatch.setattr(threads, "_ending_threads", Threads(2, "few-ending"))
    monkeypatch.setattr(threads, "_asking_threads", Threads(2, "few-asking"), raising=False)
    released = threading.Event()
    triggers = [a_trigger(ref) for _ in range(killed)]

    def still_owned(_: RunRecord) -> bool:
        released.wait(60)
        return True

    async def kill_all() -> set[asyncio.Task[None]]:
        for each in triggers:
            monkeypatch.setattr(each, "_still_owned", still_owned)
            each._user_acted = True
        _, left = await asyncio.wait({asyncio.create_task(each.on_kill()) for each in triggers}, timeout=5.0)
        return left

    try:
        assert run(kill_all()) == set()
    finally:
        released.set()
    assert [each.shared.model.done("cancel") for each in triggers] == [[ref.job_id]] * killed


@pytest.mark.parametrize("waiting", [1, 50])
def test_a_connection_that_airflow_does_not_return_delays_no_further_cancel(
    monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    monkeypatch.setattr(connections, "READ_AGAIN_WITHIN", 0.1)
    released, read = threading.Event(), []

    class Hanging(SharedConnection):
        def _anew(self) -> Any:
            read.append(1)
            released.wait(60)
            raise ConnectionError("no API server")

    async def ask_all() -> list[Backend]:
        asked = [connection.at_once(anew=True) for _ in range(waiting)]
        return await asyncio.wait_for(asyncio.gather(*asked), 10)

    connection = Hanging("oci_x", "oci_data_science")
    connection._backend = backend = Model()
    try:
        assert run(ask_all()) == [backend] * waiting
        assert run(connection.at_once(anew=False)) is backend
    finally:
        released.set()
    assert read == [1], "all share one question"


def test_a_watcher_that_owns_nothing_ends_nothing(ref: RunRef, trigger: Trigger) -> None:
    watcher = a_trigger(ref, owner={})
    run(watcher.on_kill())
    assert watcher.shared.model.done("cancel") == []


def test_it_is_ended_once_however_often_airflow_says_so(trigger: Trigger, ref: RunRef) -> None:
    async def thrice() -> None:
        await asyncio.gather(*(trigger.on_kill() for _ in range(3)))

    run(thrice())
    assert trigger.shared.model.done("cancel") == [ref.job_id]


def test_a_kill_that_is_cancelled_itself_still_ends_the_gang(trigger: Trigger, ref: RunRef) -> None:
    async def cut_short() -> None:
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0)
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        assert trigger._ending
        await asyncio.wait({trigger._ending})

    run(cut_short())
    assert trigger.shared.model.done("cancel") == [ref.job_id]


def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let pauses pass at once; return how long they would have been."""
    slept: list[float] = []

    async def at_once(seconds: float) -> None:
        slept.append(seconds)

    # The module's own sleep alone: servers of other tests sleep too, in threads of this process.
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": at_once}))
    return slept


def test_ending_is_tried_again_ever_later_with_the_connection_read_anew(
    trigger: Trigger, ref: RunRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "END_PAUSE", 1.0)
    slept = pauses(monkeypatch)
    trigger.shared.model.refusals["cancel"] = [BackendError("401") for _ in range(7)]
    run(trigger.on_kill())
    assert trigger.shared.model.done("cancel") == [ref.job_id] * 8
    assert slept == [1, 2, 4, 8, 16, 30, 30]
    assert trigger.shared.asked_anew == [False, *[True] * 7]
    assert caplog.text.count(f"{ref.key.name}: could not be cancelled yet (401); trying again") == 7


def test_it_is_asked_again_whether_the_task_waits_elsewhere(
    trigger: Trigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses(monkeypatch)
    trigger.owned = [RuntimeError("database is locked"), OSError("refused"), True]
    run(trigger.on_kill())
    assert trigger.shared.model.done("cancel") == []


def test_ending_is_given_up_in_the_end_with_the_way_to_do_it(
    trigger: Trigger, ref: RunRef, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept = pauses(monkeypatch)
    monkeypatch.setattr(module, "END_WITHIN", 0.2)
    trigger.shared.model.refusals["cancel"] = [BackendError("down") for _ in range(100)]

    async def slowly(seconds: float) -> None:
        slept.append(seconds)
        time.sleep(0.05)

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": slowly}))
    with pytest.raises(BackendError, match="down"):
        run(trigger.on_kill())
    assert 1 <= len(slept) <= 8
    assert f"{ref.key.name}: could not be cancelled; its nodes may run until their lease ends" in caplog.text
    assert (
        f"to end them: ocidist cancel --conn-id=oci_x --backend {ref.backend} {ref.job_id}, or at the service"
        in caplog.text
    )


# Whether the task waits elsewhere


class Airflow:
    """Airflow's answers about tasks and XComs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.providers.common.compat.sdk import XCom
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        self.states: dict[str, dict[str, str]] = {"run": {"train": "deferred"}}
        self.xcom: Any = None
        self.asked: list[dict[str, Any]] = []
        monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", self._states)
        monkeypatch.setattr(XCom, "get_one", self._xcom)

    def _states(self, **asked: Any) -> dict[str, dict[str, str]]:
        return self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> dict[str, dict[str, str]]:
        self.asked.append(asked)
        return self.states

    def _xcom(self, **asked: Any) -> Any:
        self.asked.append(asked)
        return self.xcom


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, ref: RunRef) -> Airflow:
    found = Airflow(monkeypatch)
    found.xcom = {"job_id": ref.job_id}
    return found


def still_owned(ref: RunRef, **owner: Any) -> bool:
    record = a_trigger(ref).record
    trigger = DistributedTrainingTrigger("oci_x", record, {**OWNER, **owner}, 1.0)
    return trigger._still_owned(trigger._record())


def test_a_task_that_is_deferred_for_this_gang_waits_elsewhere(airflow: Airflow, ref: RunRef) -> None:
    assert still_owned(ref) is True
    states, xcom = airflow.asked
    assert states == {"dag_id": "dag", "task_ids": ["train"], "run_ids": ["run"], "map_index": None}
    assert xcom == {"key": "run", "dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}


@pytest.mark.parametrize("name", ["train", "train_3"])
def test_a_mapped_task_is_asked_for_by_its_index(airflow: Airflow, ref: RunRef, name: str) -> None:
    airflow.states = {"run": {name: "deferred"}}
    assert still_owned(ref, map_index=3) is True
    states, xcom = airflow.asked
    assert (states["map_index"], xcom["map_index"]) == (3, 3)
    airflow.states = {"run": {"train_4": "deferred"}}
    assert still_owned(ref, map_index=3) is False
    airflow.states = {"run": {"train_0": "deferred"}}
    assert still_owned(ref, map_index=0) is True
    assert (airflow.asked[-2]["map_index"], airflow.asked[-1]["map_index"]) == (0, 0)


@pytest.mark.parametrize(
    "states", [{}, {"run": {}}, {"other": {"train": "deferred"}}, {"run": {"train": "running"}}]
)
def test_a_task_in_another_state_does_not_wait(airflow: Airflow, ref: RunRef, states: dict[str, Any]) -> None:
    airflow.states = states
    assert still_owned(ref) is False


@pytest.mark.parametrize("xcom", [None, "text", {}, {"job_id": "another"}, ["job_id"]])
def test_a_task_that_waits_for_another_gang_does_not_wait_for_this_one(
    airflow: Airflow, ref: RunRef, xcom: Any
) -> None:
    airflow.xcom = xcom
    assert still_owned(ref) is False


# A cancel that never comes


@pytest.fixture
def watching(trigger: Trigger, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> Trigger:
    """A trigger that waits for long, and asks often for the state of its task."""
    monkeypatch.setattr(task_states, "ASK_EVERY", 0.01)
    monkeypatch.setattr(task_states, "ONE_PART_IN", 0)
    trigger.shared.waits = True
    return trigger


async def watch_until(trigger: Trigger, condition: Callable[[], object]) -> None:
    watching = asyncio.create_task(first(trigger.run()))
    while not condition():
        await asyncio.sleep(0.005)
    if trigger._ending:
        await trigger._ending
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "upstream_failed", "removed", None])
def test_a_task_that_has_ended_ends_its_gang_though_airflow_cancels_no_trigger(
    watching: Trigger, airflow: Airflow, ref: RunRef, state: str | None
) -> None:
    airflow.states = {"run": {"train": state}} if state else {}
    cancelled = watching.shared.model.done
    run(watch_until(watching, lambda: cancelled("cancel")))
    assert cancelled("cancel") == [ref.job_id]


def test_a_task_that_has_ended_ends_its_gang_though_airflow_does_not_say_whether_it_waits_elsewhere(
    watching: Trigger, airflow: Airflow, ref: RunRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ASK_WITHIN", 0.1)
    monkeypatch.setattr(module, "ASK_INTERVAL", 0.02)
    airflow.states = {"run": {"train": "failed"}}
    watching.owned = [ConnectionError("no API server")]
    cancelled = watching.shared.model.done
    run(watch_until(watching, lambda: cancelled("cancel")))
    assert cancelled("cancel") == [ref.job_id]


@pytest.mark.parametrize(
    "state",
    [
        "deferred",
        "scheduled",
        "queued",
        "running",
        "restarting",
        "up_for_retry",
        "up_for_reschedule",
        "awaiting_input",
        "a state of a later Airflow",
    ],
)
def test_a_task_that_may_go_on_keeps_its_gang(watching: Trigger, airflow: Airflow, state: str) -> None:
    airflow.states = {"run": {"train": state}}
    run(watch_until(watching, lambda: len(airflow.asked) > 5))
    assert watching.shared.model.done("cancel") == []


def test_one_answer_that_a_task_has_ended_ends_nothing_nor_does_none(
    watching: Trigger, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(["failed", "deferred", "failed", None, "deferred"] * 3)

    def next_state(asked: dict[str, Any]) -> dict[str, dict[str, str]]:
        airflow.asked.append(asked)
        if (answer := next(answers, "deferred")) is None:
            raise ConnectionError("the API server does not answer")
        return {"run": {"train": answer}}

    monkeypatch.setattr(airflow, "_answer", next_state)
    run(watch_until(watching, lambda: len(airflow.asked) > 15))
    assert watching.shared.model.done("cancel") == []


def test_a_gang_that_was_left_running_can_still_be_ended(watching: Trigger, airflow: Airflow) -> None:
    watching.owned = [True, False]

    async def moved_then_failed() -> None:
        await watching.on_kill()
        airflow.states = {"run": {"train": "failed"}}
        await watch_until(watching, lambda: watching.shared.model.done("cancel"))

    run(moved_then_failed())


def test_the_runs_of_one_task_are_asked_for_together(
    airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_states, "ASK_EVERY", 0.01)
    monkeypatch.setattr(task_states, "AT_ONCE", 3)
    airflow.states = {f"run{number}": {"train": "deferred"} for number in range(4)}
    airflow.states["run0"] = {"train": "failed", "train_7": "deferred"}
    ended: list[str] = []

    async def asked() -> None:
        with contextlib.ExitStack() as waits:
            for number, index in [(0, -1), (0, 7), (1, -1), (2, -1), (3, -1)]:
                owner = {**OWNER, "run_id": f"run{number}", "map_index": index}
                name = f"run{number} {index}"
                waits.enter_context(
                    task_states.asked_for(owner, lambda state, name=name: ended.append(f"{name} {state}"))
                )
            while len(airflow.asked) < 6:
                await asyncio.sleep(0.005)

    run(asked())
    assert ended == ["run0 -1 failed"]
    assert airflow.asked[:2] == [
        {"dag_id": "dag", "task_ids": ["train"], "run_ids": ["run0", "run1"]},
        {"dag_id": "dag", "task_ids": ["train"], "run_ids": ["run2", "run3"]},
    ]


def test_triggers_of_one_connection_and_place_share_it(ref: RunRef) -> None:
    record = a_trigger(ref).record
    one, two = (DistributedTrainingTrigger("oci_x", record, OWNER, 1.0)._connection for _ in range(2))
    assert one is two
    assert (one.conn_id, one.kind) == ("oci_x", "model")
    other = DistributedTrainingTrigger("oci_y", record, OWNER, 1.0)._connection
    assert other is not one
    elsewhere = {**record, "ref": {**record["ref"], "compartment_id": "ocid1.compartment.oc1..other"}}
    places = [DistributedTrainingTrigger("oci_x", each, OWNER, 1.0)._connection for each in [elsewhere] * 2]
    assert places[0] is places[1] is not one
    of_candidate = {**record, "ref": {**record["ref"], "conn_id": "oci_z"}}
    own = DistributedTrainingTrigger("oci_x", of_candidate, OWNER, 1.0)._connection
    assert (one.gangs_conn_id, own.conn_id, own.gangs_conn_id) == (None, "oci_x", "oci_z")


def test_how_long_a_trigger_waits_and_tries() -> None:
    # Airflow's executor has to see first that the task has deferred; nodes without a word end by themselves later.
    assert (module.FIRST_EVENT_AFTER, module.END_WITHIN) == (10.0, 1800.0)
    # A triggerer that is stopped is soon killed.
    assert module.SAVE_CURSOR_LIMIT == 5.0


# Pauses


@pytest.mark.parametrize("ahead,expected", [(60.0, 60.0), (-60.0, 0.0), (0.0, 0.0)])
def test_a_pause_ends_at_its_moment(monkeypatch: pytest.MonkeyPatch, ahead: float, expected: float) -> None:
    slept = pauses(monkeypatch)
    until = time.time() + ahead
    found = PauseTrigger(until)
    assert found.serialize() == ("airflow_provider_ocidist.triggers.PauseTrigger", {"until": until})
    assert run(first(found.run())).payload is None
    assert slept == [pytest.approx(expected, abs=5 if expected else 0)]


@pytest.mark.parametrize("skew", [-280.0, -130.0, 0.0, 130.0, 280.0])
def test_a_pause_takes_as_long_whatever_the_triggerers_clock_says(
    monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    slept = pauses(monkeypatch)
    sent = PauseTrigger(time.time() + 60.0 + skew, 60.0).serialize()
    assert run(first(PauseTrigger(**sent[1]).run())).payload is None
    assert slept == [60.0]
