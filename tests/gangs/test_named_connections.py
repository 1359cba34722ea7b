"""A message with the command that ends a gang names the connection of its task, where that is not the usual one."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.connections import Connections, named_for
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Overtaken
from airflow_provider_ocidist.gangs import canceller as cancelling
from airflow_provider_ocidist.gangs import kills
from airflow_provider_ocidist.gangs.canceller import Canceller
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.ownership import give_way
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.homes import cancel_command
from airflow_provider_ocidist.model.run import Ending, NodeState, NodeStatus, RunRecord, RunStatus, Tries
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_job, a_key

LOG = logging.getLogger("test")
OWN = "oci_prod"


@pytest.fixture(params=[None, OWN])
def model(request: pytest.FixtureRequest) -> Model:
    found = Model()
    found.connections = Connections(found, lambda _: found, request.param)
    return found


def names_it(model: Model, said: str) -> bool:
    """Whether a message names the connection, and does so only where it has to."""
    assert "ocidist cancel " in said
    return (f"ocidist cancel --conn-id={OWN} " in said) is (named_for(model) == OWN) and (
        "--conn-id" in said
    ) is (named_for(model) is not None)


def test_a_gang_at_another_connection_is_ended_there(model: Model) -> None:
    ref = replace(model.has(a_key(), [LIVE]), conn_id="oci_fra")
    assert "--conn-id=oci_fra " in cancel_command(ref, OWN)
    assert OWN not in cancel_command(ref, OWN)


def test_nodes_that_do_not_end_at_the_end_of_their_gang(model: Model) -> None:
    ref = model.has(a_key(), [LIVE])
    watch = Watch(model, RunRecord(ref=ref, ending=Ending(cause=None, message="", since=0.0)), LOG)
    lives = RunStatus(nodes=(NodeStatus(rank=0, run_id="a", state=NodeState.RUNNING),))
    action: Any = decide(watch.record, lives, 1e9)
    assert names_it(model, action.message)


def test_nodes_of_an_earlier_try_that_do_not_end(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = model.has(a_key(), [LIVE])
    model.ends_at_once = False
    now = iter(range(0, 10_000_000, 60))
    clock = SimpleNamespace(monotonic=lambda: float(next(now)), time=lambda: 0.0)
    monkeypatch.setattr(cancelling, "time", clock)
    monkeypatch.setattr(Canceller, "_pause", lambda *_: None)
    with pytest.raises(BackendError) as caught:
        Canceller(model, LOG, threading.Event()).end([ref], "it is old")
    assert names_it(model, str(caught.value))


def test_a_gang_of_a_later_try(model: Model) -> None:
    key = a_key()
    ref = model.has(key, [LIVE])
    place = Place(backend=model.kind, run_dir="runs")
    later = Attempt(key=key, place=place, tries=Tries(try_number=5, max_tries=0), ref=ref)
    with pytest.raises(Overtaken) as caught:
        give_way(model, model.plan(a_job(), key), [later], 4)
    assert names_it(model, str(caught.value))


def test_a_gang_that_is_given_up_and_not_ended(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    ref = model.has(a_key(), [LIVE])

    def refuse(*_: object) -> None:
        raise CancelFailed(BackendError("not you", status_code=401), stop_requested=True)

    model.cancel = refuse  # type: ignore[method-assign]  # the service refuses it
    kills.end_before_giving_up(model, ref, 1, RuntimeError("why"), LOG, threading.Event(), lambda: None)
    assert names_it(model, caplog.text)


def test_a_watch_names_the_connection_of_now_and_not_that_of_an_earlier_process(model: Model) -> None:
    ref = model.has(a_key(), [LIVE])
    ending = Ending(cause=None, message="", since=0.0)
    watch = Watch(model, RunRecord(ref=ref, ending=ending, named="oci_before"), LOG)
    lives = RunStatus(nodes=(NodeStatus(rank=0, run_id="a", state=NodeState.RUNNING),))
    action: Any = decide(watch.record, lives, 1e9)
    assert names_it(model, action.message)
