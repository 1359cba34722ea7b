"""Exactly once: what becomes of a task's gang when others have tried before. With the emulator."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gang import NOTE, Gang
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.run import NodeState, RunKey, RunRef
from tests.training_jobs import a_job, a_key, wait_until

Ends = Callable[[RunRef], RunRef]


class MemoryNotes(dict[str, Any]):
    """A task state store that forgets with the test."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value


def submit(
    backend: OciDataScience, job: TrainingJob, key: RunKey, notes: MemoryNotes | None = None, **event: bool
) -> RunRef:
    stop = threading.Event()
    if event.get("stopped"):
        stop.set()
    gang = Gang(backend, job, logging.getLogger("test"), notes, stop)
    return gang.adopt_or_submit(key, None).ref


def test_a_live_gang_is_adopted(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=30)
    first = ends(submit(backend, job, key))
    assert submit(backend, job, key) == first


def test_a_gang_that_has_succeeded_is_adopted(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=0.2)
    first = ends(submit(backend, job, key))
    wait_until(backend, first, lambda status: status.ended)
    assert submit(backend, job, key) == first


def test_after_a_failure_the_next_attempt_is_a_new_gang(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(seconds=30)
    first = ends(submit(backend, job, key))
    backend.cancel(first)
    wait_until(backend, first, lambda status: status.ended)
    second = ends(submit(backend, job, key))
    assert second.key == dataclasses.replace(key, attempt=2)
    assert second.job_id != first.job_id


def test_after_a_clear_the_old_gang_has_ended_before_the_new_one_exists(
    backend: OciDataScience, ends: Ends
) -> None:
    key, job = a_key(), a_job(seconds=60)
    old = ends(submit(backend, job, key))
    new = ends(submit(backend, job, dataclasses.replace(key, generation=3)))
    (status,) = backend.status([old])
    assert status.ended
    assert new.key.generation == 3
    assert new.checkpoints_uri != old.checkpoints_uri


def test_half_a_gang_is_completed_while_its_nodes_live(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    plan = backend.plan(job, key)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:4], nodes=2)))
    whole = ends(submit(backend, job, key))
    assert whole.key.attempt == 1
    assert whole.complete
    assert whole.run_ids[:2] == half.run_ids[:2]


def test_half_a_gang_that_lost_a_node_is_given_up(backend: OciDataScience, ends: Ends) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    plan = backend.plan(job, key)
    half = ends(backend.submit(dataclasses.replace(plan, requests=plan.requests[:4], nodes=2)))
    backend.cancel(half)
    wait_until(backend, half, lambda status: status.ended)
    whole = ends(submit(backend, job, key))
    assert whole.key.attempt == 2
    assert whole.complete


def test_the_attempt_that_was_noted_is_begun_again_though_no_list_shows_it(
    backend: OciDataScience, ends: Ends
) -> None:
    key = a_key()
    notes = MemoryNotes({NOTE: {"generation": 0, "attempt": 4}})
    ref = ends(submit(backend, a_job(seconds=5), key, notes))
    assert ref.key.attempt == 4


def test_the_notes_of_an_earlier_generation_count_for_nothing(backend: OciDataScience, ends: Ends) -> None:
    key = dataclasses.replace(a_key(), generation=2)
    notes = MemoryNotes({NOTE: {"generation": 0, "attempt": 4}})
    ref = ends(submit(backend, a_job(seconds=5), key, notes))
    assert ref.key.attempt == 1
    assert notes[NOTE] == {"generation": 2, "attempt": 1}


def test_a_task_that_was_killed_meanwhile_leaves_nothing_running(backend: OciDataScience) -> None:
    key, job = a_key(), a_job(seconds=60)
    with pytest.raises(BackendError, match="stopped"):
        submit(backend, job, key, stopped=True)
    for ref in backend.find(backend.plan(job, key)):
        status = wait_until(backend, ref, lambda status: status.ended)
        assert NodeState.RUNNING not in {node.state for node in status.nodes}
