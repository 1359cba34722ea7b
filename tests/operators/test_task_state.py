"""Airflow's task state store: absent, emptied by a user, unreadable, or too small. The gang is found all the same."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.attempt_notes import LONGEST_NOTE, NOTE
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.attempts import Attempt, Place
from airflow_provider_ocidist.model.run import RunKey, RunRef
from tests.training_jobs import a_job, a_key

LIMIT = 65_535
"""Airflow's default of [state_store] max_value_storage_bytes."""


class Notes(dict[str, Any]):
    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


def a_gang(notes: Notes | None, backend: Any = None, job: Any = None) -> GangSubmitter:
    return GangSubmitter(backend, job, logging.getLogger("test"), notes, threading.Event())


@pytest.mark.parametrize(
    "left",
    [
        *(None, {}, {NOTE: "text"}, {NOTE: []}, {NOTE: 7}, {NOTE: {"attempts": "text"}}),
        *({NOTE: {"attempts": [{"key": 3}]}}, {NOTE: {"generation": "x"}}, {NOTE: {}}),
    ],
    ids=str,
)
def test_a_gang_is_found_by_its_name_where_the_store_does_not_help(
    left: dict[str, Any] | None, backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    key, job = a_key(), a_job(nodes=2, seconds=30)
    first = ends(a_gang(Notes(), backend, job).adopt_or_submit(key, None).ref)
    notes = None if left is None else Notes(left)
    assert a_gang(notes, backend, job).adopt_or_submit(key, None, 2).ref == first


@pytest.mark.parametrize("seed", range(10))
def test_what_is_noted_fits_whatever_the_size_of_the_gangs(seed: int) -> None:
    rng = random.Random(seed)
    notes, gang = Notes(), a_gang(None)
    gang._notes = notes
    key = RunKey(dag_id="d" * 200, run_id="r" * 200, task_id="t" * 200)
    attempts = []
    for number in range(1, rng.randint(2, 6)):
        nodes = rng.choice([1, 8, 250, 1000])
        ref = RunRef(
            backend="oci_data_science",
            key=replace(key, attempt=number),
            nodes=nodes,
            job_id=f"ocid1.datasciencejob.oc1.iad.{'a' * 60}",
            run_ids=tuple(f"ocid1.datasciencejobrun.oc1.iad.{rank:060d}" for rank in range(nodes)),
            run_dir="oci://b@n/" + "w" * 500,
            submitted_at=0.0,
        )
        place = Place(backend=ref.backend, run_dir=ref.run_dir)
        attempts.append(Attempt(key=ref.key, place=place, ref=ref))
    gang._note(attempts)
    assert len(json.dumps(notes[NOTE])) <= LONGEST_NOTE < LIMIT
    noted = [Attempt.from_json(each) for each in notes[NOTE]["attempts"]]
    assert [(each.key, each.place) for each in noted] == [(each.key, each.place) for each in attempts]
