"""What a task notes of its attempts in Airflow's task state store, and what it makes of such a note."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from airflow_provider_ocidist.gangs import attempt_notes
from airflow_provider_ocidist.gangs.attempt_notes import NOTE, note, noted_in
from airflow_provider_ocidist.model.attempts import Attempt
from tests.gangs.tries import Notes
from tests.service_in_memory import LIVE, Model
from tests.training_jobs import a_job, a_key

LOG = logging.getLogger("test")


def an_attempt() -> Attempt:
    model, key = Model(), a_key()
    return Attempt.of(model.plan(a_job(), key), model.has(key, [LIVE, LIVE]))


def test_what_is_noted_is_read_as_it_was() -> None:
    known, notes = [an_attempt(), an_attempt()], Notes()
    note(notes, known)
    assert noted_in(notes, None, LOG) == known
    assert noted_in(Notes(), None, LOG) == []


def test_a_task_without_a_store_notes_nothing() -> None:
    note(None, [an_attempt()])
    assert noted_in(None, None, LOG) == []


@pytest.mark.parametrize("too_long", [False, True])
def test_a_note_keeps_the_ids_of_the_runs_while_airflow_takes_it(
    monkeypatch: pytest.MonkeyPatch, too_long: bool
) -> None:
    known, notes = an_attempt(), Notes()
    length = len(json.dumps({"attempts": [known.to_json()]}))
    monkeypatch.setattr(attempt_notes, "LONGEST_NOTE", length - too_long)
    note(notes, [known])
    assert notes.attempts == [replace(known, ref=None) if too_long else known]


def test_a_note_of_an_earlier_version_needs_the_jobs_plan(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes({NOTE: {"generation": 2, "attempt": 3}})
    assert noted_in(notes, None, LOG) == []
    said = (
        "the saved state of this task cannot be read from Airflow, and is ignored: it is of an earlier version, "
        "which has noted no place"
    )
    assert caplog.messages == [said]
    plan = Model().plan(a_job(), a_key())
    (found,) = noted_in(notes, plan, LOG)
    assert found.key == replace(plan.key, generation=2, attempt=3)
    assert found.place.run_dir == f"{Model().run_dir}/{found.key.name}"
    assert (found.tries, found.ref) == (None, None)
