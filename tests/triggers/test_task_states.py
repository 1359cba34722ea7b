"""When a task has ended though Airflow cancels no trigger: by two answers a minute apart (docs/failures/airflow.md)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.hooks.ended_states import ENDED_STATES
from airflow_provider_ocidist.triggers import task_states
from airflow_provider_ocidist.triggers.task_states import WaitingTask, asked_for

States = dict[str, dict[str, str]]


def owner(run: str = "run", task: str = "train", dag: str = "dag", **changes: Any) -> dict[str, Any]:
    return {"dag_id": dag, "run_id": run, "task_id": task, **changes}


class Airflow:
    """What Airflow answers, and how long it takes; each pause between two questions goes by at once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.takes = 0.0
        self.states: States = {"run": {"train": "deferred"}}
        self.error: Exception | None = None
        self.asked: list[tuple[str, str, list[str]]] = []
        self.pauses: list[float] = []
        self.on_question: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def answer(self, dag_id: str, task_id: str, run_ids: list[str]) -> States:
        self.asked.append((dag_id, task_id, run_ids))
        self.now += self.takes
        self.on_question()
        if self.error:
            raise self.error
        return self.states

    async def asks(self, times: int) -> None:
        """Wait until so many more questions were asked, and their answers taken."""
        # There is a pause before each question, and one after the last.
        expected = max(len(self.pauses), 1) + times
        while len(self.pauses) < expected:
            await asyncio.sleep(0)


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Airflow:
    found = Airflow()
    monkeypatch.setattr(task_states, "time", SimpleNamespace(monotonic=found.monotonic))
    monkeypatch.setattr(task_states, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": found.sleep}))
    monkeypatch.setattr(task_states, "_states", found.answer)
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


@contextlib.contextmanager
def waits(*owners: dict[str, Any]) -> Iterator[list[tuple[int, str | None]]]:
    """Wait for these tasks; yield which of them were said to have ended, by number, and in which state."""
    ended: list[tuple[int, str | None]] = []
    with contextlib.ExitStack() as waiting:
        for number, each in enumerate(owners):
            waiting.enter_context(asked_for(each, lambda state, number=number: ended.append((number, state))))
        yield ended


# One task


def a_task(ended: Callable[[str | None], object] = lambda _: None, index: int = -1) -> WaitingTask:
    return WaitingTask("dag", "run", "train", index, ended)


@pytest.mark.parametrize("index, name", [(-1, "train"), (0, "train_0"), (1, "train_1"), (12, "train_12")])
def test_a_mapped_task_is_known_by_its_index(index: int, name: str) -> None:
    assert a_task(index=index).name == name


@pytest.mark.parametrize("state", sorted(map(str, (*ENDED_STATES, None))))
def test_a_task_has_ended_by_two_answers_in_a_row_and_that_is_said_once(state: str) -> None:
    said: list[str | None] = []
    task, ended = a_task(said.append), None if state == "None" else state
    for answers, expected in (
        ([ended], []),
        (["deferred", ended], []),
        (["scheduled", None, "failed"], ["failed"]),
        ([ended] * 3, ["failed"]),
        (["running", ended], ["failed"]),
        ([ended], ["failed", ended]),
    ):
        for answer in answers:
            task.take(answer)
        assert said == expected


def test_these_states_are_an_end_and_no_others() -> None:
    assert {"success", "failed", "skipped", "upstream_failed", "removed"} == set(ENDED_STATES)


def test_the_end_is_said_where_the_trigger_writes_its_log() -> None:
    whose = contextvars.ContextVar("whose", default="nobody's")
    said: list[str] = []

    def of_a_trigger() -> WaitingTask:
        whose.set("the trigger's")
        return a_task(lambda _: said.append(whose.get()))

    task = contextvars.copy_context().run(of_a_trigger)
    for _ in range(2):
        task.take(None)
    assert said == ["the trigger's"]


# Questions


def test_it_is_asked_every_minute_and_more_seldom_where_airflow_takes_over_three_seconds(
    airflow: Airflow,
) -> None:
    async def ask() -> None:
        with waits(owner()):
            for seconds in (0.0, 3.0, 3.5, 30.0, 0.1):
                airflow.takes = seconds
                await airflow.asks(1)

    run(ask())
    assert airflow.pauses[:6] == [60.0, 60.0, 60.0, 70.0, 600.0, 60.0]


def test_a_task_that_has_ended_is_said_after_the_second_question(airflow: Airflow) -> None:
    airflow.states = {"run": {"train": "failed"}}

    async def ask() -> None:
        with waits(owner()) as ended:
            await airflow.asks(1)
            assert ended == []
            await airflow.asks(1)
            assert ended == [(0, "failed")]

    run(ask())
    assert set(airflow.pauses) == {60.0}
    assert airflow.asked[0] == ("dag", "train", ["run"])


def test_a_task_that_airflow_does_not_name_is_gone(airflow: Airflow) -> None:
    async def ask() -> None:
        nowhere: list[States] = [{}, {"run": {}}, {"run": {"other": "running"}}]
        for states in nowhere:
            airflow.states = states
            with waits(owner()) as ended:
                await airflow.asks(3)
                assert ended == [(0, None)]

    run(ask())


def test_without_an_owner_nothing_is_asked(airflow: Airflow) -> None:
    async def ask() -> None:
        with waits({}):
            for _ in range(50):
                await asyncio.sleep(0)

    run(ask())
    assert (airflow.pauses, airflow.asked) == ([], [])


def test_each_task_is_asked_for_by_its_dag_and_name_and_a_hundred_runs_at_once(airflow: Airflow) -> None:
    many = [owner(run=f"run{number:03}") for number in range(101)]

    async def ask() -> None:
        with waits(owner(dag="other"), owner(task="eval"), *many, owner(map_index=0), owner(map_index=1)):
            await airflow.asks(1)

    run(ask())
    runs = [each["run_id"] for each in many]
    assert sorted(airflow.asked[:4]) == [
        ("dag", "eval", ["run"]),
        ("dag", "train", ["run", "run100"]),
        ("dag", "train", runs[:100]),
        ("other", "train", ["run"]),
    ]


def test_each_mapped_task_has_its_own_end(airflow: Airflow) -> None:
    airflow.states = {"run": {"train_0": "failed", "train_1": "deferred", "train": "success"}}

    async def ask() -> None:
        with waits(owner(map_index=0), owner(map_index=1), owner(map_index=-1), owner()) as ended:
            await airflow.asks(3)
            assert ended == [(0, "failed"), (2, "success"), (3, "success")]

    run(ask())


def test_no_answer_ends_nothing_and_is_in_the_debug_log(
    airflow: Airflow, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, task_states.__name__)
    airflow.states = {"run": {"train": "failed"}}

    async def ask() -> None:
        with waits(owner()) as ended:
            await airflow.asks(1)
            airflow.error = ConnectionError("no route to the API server")
            await airflow.asks(3)
            assert ended == []
            airflow.error = None
            await airflow.asks(1)
            assert ended == [(0, "failed")]

    run(ask())
    assert "Airflow does not say whether train of dag waits: no route to the API server" in caplog.text


def test_a_task_that_waits_no_more_is_not_asked_for_and_its_end_is_not_said(airflow: Airflow) -> None:
    airflow.states = {"run": {"train": "failed"}, "other": {"train": "failed"}}
    said: list[str] = []
    leaving = contextlib.ExitStack()

    async def ask() -> None:
        with asked_for(owner(), lambda _: said.append("run")):
            leaving.enter_context(asked_for(owner(run="other"), lambda _: said.append("other")))
            await airflow.asks(1)
            # It leaves amid the second question, whose answer would be its second.
            airflow.on_question = leaving.close
            await airflow.asks(2)

    run(ask())
    assert said == ["run"]
    assert airflow.asked[0][2] == ["other", "run"]
    assert airflow.asked[-1][2] == ["run"]


def test_many_triggers_share_one_who_asks_and_the_next_begins_anew(airflow: Airflow) -> None:
    async def ask() -> None:
        with waits(owner()), waits(owner()), waits(owner(run="other")):
            await airflow.asks(2)
            assert len(task_states._asking) == 1
        # Who asks ends with the last that waits.
        await asyncio.gather(*task_states._asking)

    for _ in range(3):
        airflow.asked.clear()
        airflow.pauses.clear()
        run(ask())
        assert airflow.asked[0] == ("dag", "train", ["other", "run"])
        assert len(airflow.pauses) - len(airflow.asked) in (0, 1), "one question after each pause"
    assert task_states._waiting == {}
    assert len(task_states._asking) == 1, "those that are done are forgotten"
