"""What a task notes in Airflow's task state store: the attempts whose gangs may live."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.attempts import Attempt
from airflow_provider_ocidist.model.kept_evidence import TaskStateStore
from airflow_provider_ocidist.model.run import Plan, RunKey

NOTE = "ocidist_run"
"""Key of the newest attempt in Airflow's task state store."""
LONGEST_NOTE = 60_000
"""Most characters of a note; Airflow's task state store is made for values of up to 64 KB."""


def note(notes: TaskStateStore | None, attempts: Sequence[Attempt]) -> None:
    """Save where the gangs of this task are: the newest, and those to end first."""
    if notes is None:
        return
    value = {"attempts": [attempt.to_json() for attempt in attempts]}
    if len(json.dumps(value)) > LONGEST_NOTE:
        # The ids of the runs are recorded in the work directory too.
        value = {"attempts": [replace(attempt, ref=None).to_json() for attempt in attempts]}
    notes.set(NOTE, value)


def noted_in(notes: TaskStateStore | None, draft: Plan | None, log: TaskLog) -> list[Attempt]:
    """Return the attempts that Airflow has noted of a task; `draft`: any plan of it, None where its job is unknown."""
    noted = notes.get(NOTE) if notes is not None else None
    if not isinstance(noted, dict):
        return []
    try:
        return _attempts_in(noted, draft)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        log.warning("the saved state of this task cannot be read from Airflow, and is ignored: %s", error)
        return []


def _attempts_in(noted: Mapping[str, Any], draft: Plan | None) -> list[Attempt]:
    if "attempts" in noted:
        return [Attempt.from_json(each) for each in noted["attempts"]]
    if draft is None:
        raise ValueError("it is of an earlier version, which has noted no place")
    # Earlier versions noted the numbers of one attempt, at the place that the job named.
    key = replace(draft.key, generation=int(noted["generation"]), attempt=int(noted["attempt"]))
    return [Attempt.of(replace(draft, key=key, run_dir=_run_dir(draft, key), tries=None))]


def _run_dir(draft: Plan, key: RunKey) -> str:
    return draft.run_dir.removesuffix(draft.key.name) + key.name
