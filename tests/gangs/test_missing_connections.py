"""A connection of Airflow that a gang was created with, and that cannot be had for a moment, or any more."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.gangs.candidates import Candidates
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import RunKey, RunRef
from airflow_provider_ocidist.operators import gang_cleanup
from airflow_provider_ocidist.operators.gang_cleanup import GangCleanup
from airflow_provider_ocidist.operators.gang_ending import GangEnding
from airflow_provider_ocidist.operators.task_jobs import TaskConnection
from airflow_provider_ocidist.plugin.status_cache import StatusCache
from tests.backends.clusters import Home, cluster
from tests.training_jobs import a_key

pytestmark = pytest.mark.airflow

OWN, OTHER = "own_cluster", "other_cluster"
"""Connections to the same cluster and the same namespace."""
log = logging.getLogger("test")


class Stage:
    """A task whose job names another connection; its gangs are suspended, and have no pods."""

    def __init__(self, home: Home, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._folder = folder
        self._patch = patch
        self.define(OWN)
        self.define(OTHER)

    def define(self, conn_id: str, conn_type: str = "oci") -> None:
        fields = {
            **self._home.fields,
            "work_dir": str(self._folder / "work"),
            "namespace": self._home.namespace,
        }
        text = json.dumps({"conn_type": conn_type, "extra": fields})
        self._patch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)

    def remove(self, conn_id: str) -> None:
        """Let Airflow not have a connection, as in 3.3 while the backend of its secrets does not answer."""
        self._patch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}")

    def backend(self) -> KubernetesBackend:
        backend = TaskConnection(OWN).backend(self._home.kind)
        assert isinstance(backend, KubernetesBackend)
        return backend

    def job(self, *candidates: dict[str, Any]) -> TrainingJob:
        options = {"suspend": True, "candidates": list(candidates or [{"conn_id": OTHER}])}
        return self._home.job(backend=options)

    def submitter(self, *candidates: dict[str, Any]) -> GangSubmitter:
        connection = TaskConnection(OWN)
        backend = connection.backend(self._home.kind)
        job = self.job(*candidates)
        return GangSubmitter(backend, job, log, None, threading.Event(), reach=connection.backend)

    def submit_there(self, key: RunKey) -> RunRef:
        """Create a gang at the other connection."""
        several = Candidates(self.backend(), self.job(), log)
        several.refuse(key, "", Cause.CAPACITY, "no machine is free")
        ref = self.submitter().adopt_or_submit(key, None).ref
        assert ref.conn_id == OTHER
        return ref

    def submit_here(self, key: RunKey) -> RunRef:
        """Create a gang at the task's own connection."""
        backend = self.backend()
        plan = backend.plan(self._home.job(backend={"suspend": True}), key)
        backend.gangs.record(Attempt.of(plan))
        return backend.submit(plan)

    def live(self) -> set[str]:
        backend = self.backend()
        found = backend.recent(100)
        return {ref.job_id for ref, each in zip(found, backend.status(found), strict=True) if not each.ended}

    def is_asked_to_stop(self, ref: RunRef) -> bool:
        return self.backend().directories.stop_requested(ref)

    def cleanup(self) -> GangCleanup:
        return GangCleanup(TaskConnection(OWN), self._home.kind, None, 60.0, StopFlag(), log)


@pytest.fixture(scope="module")
def emulated() -> Iterator[Home]:
    with cluster("pytorchjob") as home:
        yield home


@pytest.fixture
def stage(emulated: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(gang_cleanup, "_published_by", lambda _: None)
    monkeypatch.setattr(gang_cleanup, "SETTLED_AFTER", 0.0)
    yield Stage(emulated, tmp_path, monkeypatch)
    emulated.clear()


# a retry


def test_a_retry_with_the_same_job_stops_no_gang_whose_connection_is_missing_for_a_moment(
    stage: Stage,
) -> None:
    key = a_key()
    first = stage.submit_there(key)
    stage.remove(OTHER)
    again = stage.submitter()
    with pytest.raises(
        BackendError, match=rf"may still be running.*'{OTHER}'.*define that connection"
    ) as caught:
        again.adopt_or_submit(key, None, 2)
    assert caught.value.retryable
    assert not _ends_what_earlier_tries_left(caught.value, replace(key, generation=3))
    assert not stage.is_asked_to_stop(first)
    assert stage.live() == {first.job_id}
    stage.define(OTHER)
    assert again.adopt_or_submit(key, None, 3).ref.job_id == first.job_id
    assert stage.live() == {first.job_id}


def _ends_what_earlier_tries_left(error: BackendError, key: RunKey) -> bool:
    """Return whether the second of four tries takes itself for the last, because of an error."""
    ended: list[BaseException] = []

    def end(key: RunKey, try_number: int, why: BaseException) -> list[str]:
        del key, try_number
        ended.append(why)
        return []

    ending = GangEnding(2, StopFlag(), TaskConnection(OWN), log)
    with pytest.raises(BackendError), ending.of_earlier_tries(key, end):
        raise error
    return bool(ended)


def test_the_last_try_leaves_a_stop_request_where_the_connection_is_still_missing(stage: Stage) -> None:
    key = a_key()
    first = stage.submit_there(key)
    stage.remove(OTHER)
    (left,) = stage.submitter().cancel_earlier(key, 2, BackendError("enough"))
    assert f"connection '{OTHER}'" in left
    assert stage.is_asked_to_stop(first)


def test_after_a_clear_a_gang_whose_connection_is_missing_is_asked_to_stop_at_once(stage: Stage) -> None:
    key = a_key()
    first = stage.submit_there(key)
    stage.remove(OTHER)
    with pytest.raises(BackendError, match="define that connection"):
        stage.submitter().adopt_or_submit(replace(key, generation=2), None, 2)
    assert stage.is_asked_to_stop(first)
    assert stage.live() == {first.job_id}, "no second one"


@pytest.mark.parametrize("is_needed", [True, False])
def test_a_candidate_whose_connection_is_missing_may_have_one_at_the_next_try(
    stage: Stage, is_needed: bool
) -> None:
    candidates = [{"conn_id": OTHER}] if is_needed else [{"cpu": 1}, {"conn_id": OTHER}]
    stage.remove(OTHER)
    with pytest.raises(
        BackendError, match=f"candidates.{len(candidates) - 1}.conn_id: .*'{OTHER}'"
    ) as caught:
        stage.submitter(*candidates).adopt_or_submit(a_key(), None)
    assert caught.value.retryable
    assert stage.live() == set()


def test_a_candidate_whose_connection_is_of_a_wrong_type_is_final(stage: Stage) -> None:
    stage.define(OTHER, "ftp")
    with pytest.raises(
        JobFileError, match=f"backend.candidates.0.conn_id: connection '{OTHER}' is of type 'ftp'"
    ):
        stage.submitter().adopt_or_submit(a_key(), None)


# the task that ends what is left


@pytest.mark.parametrize("order", [("there", "here"), ("here", "there")])
def test_what_lives_at_other_connections_is_ended_though_one_is_missing(
    stage: Stage, order: tuple[str, str]
) -> None:
    keys = [replace(a_key(), run_id="mapped", map_index=number) for number in range(2)]
    submit = {"there": stage.submit_there, "here": stage.submit_here}
    gangs = {where: submit[where](key) for where, key in zip(order, keys, strict=True)}
    stage.remove(OTHER)
    with pytest.raises(BackendError, match=f"'{OTHER}'"):
        stage.cleanup().end_all(keys)
    assert stage.live() == {gangs["there"].job_id}
    assert stage.is_asked_to_stop(gangs["there"])
    stage.define(OTHER)
    assert gangs["there"].key.name in stage.cleanup().end_all(keys)
    assert stage.live() == set()


def test_a_connection_at_which_everything_has_ended_is_not_missed(stage: Stage) -> None:
    key = a_key()
    stage.submit_there(key)
    stage.cleanup().end_all([key])
    stage.remove(OTHER)
    assert stage.cleanup().end_all([key]) == []


# two connections to one cluster


def test_a_gang_is_that_of_the_connection_it_was_created_with_wherever_it_is_listed(stage: Stage) -> None:
    key = a_key()
    ref = stage.submit_there(key)
    mine = stage.submit_here(a_key())
    own = stage.backend()
    assert own.connections is not None
    for look in (own, own.connections.at(OTHER)):
        assert isinstance(look, KubernetesBackend)
        assert look.open(ref.job_id).ref.conn_id == OTHER
        assert {each.job_id: each.conn_id for each in look.recent(10)} == {
            ref.job_id: OTHER,
            mine.job_id: None,
        }
        assert [each.conn_id for each in look.live([key])] == [OTHER]


def test_the_end_that_is_seen_from_one_connection_is_that_of_the_attempt_at_the_other(stage: Stage) -> None:
    key = a_key()
    ref = stage.submit_there(key)
    own = stage.backend()
    (seen,) = own.live([key])
    own.gangs.close_ended(seen)
    own.delete(ref)
    assert [each.may_live for each in own.gangs.recorded(key, None, ())] == [False]
    stage.remove(OTHER)
    # Nothing is left at that connection for which a retry would have to wait.
    again = stage.submitter({"cpu": 1}).adopt_or_submit(key, None, 2).ref
    assert (again.conn_id, stage.live()) == (None, {again.job_id})


async def test_the_page_shows_a_gang_at_another_connection_only_where_its_object_says_the_same(
    stage: Stage,
) -> None:
    there, here = stage.submit_there(a_key()), stage.submit_here(a_key())
    cache = StatusCache()
    shown = [await cache.at(OWN, ref) for ref in (there, here)]
    assert [(each.problem, each.status is not None) for each in shown] == [(None, True)] * 2
    forged = [
        await StatusCache().at(OWN, ref)
        for ref in (replace(there, conn_id=None), replace(here, conn_id=OTHER))
    ]
    assert [each.status for each in forged] == [None, None]
