"""The one table of what causes mean."""

from __future__ import annotations

import re
from dataclasses import fields

from airflow_provider_ocidist.agent.diagnose import outcome
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.causes import MEANINGS, exit_code_of
from airflow_provider_ocidist.model.job import Restarts


def test_every_cause_has_its_row() -> None:
    assert set(MEANINGS) == set(Cause)
    assert all(row.remedy for row in MEANINGS.values())


def test_exit_codes_distinguish_causes_and_are_never_success() -> None:
    own = [row.exit_code for row in MEANINGS.values() if row.exit_code is not None]
    assert len(own) == len(set(own))
    assert all(0 < exit_code_of(cause) < 126 for cause in Cause)


def test_what_the_same_training_would_meet_again_costs_no_retry() -> None:
    hopeless = {cause for cause, row in MEANINGS.items() if row.retry.hopeless}
    assert hopeless == {Cause.USER, Cause.OOM, Cause.CONFIG, Cause.DATA, Cause.CANCELED, Cause.BUDGET}


def test_the_page_of_exit_codes_lists_those_of_the_table() -> None:
    listed = {int(code) for code in re.findall(r"^ +(\d+)  ", str(outcome.__doc__), re.MULTILINE)}
    assert listed == {row.exit_code for row in MEANINGS.values() if row.exit_code} | {outcome.STOPPED_CODE}


def test_each_budget_of_restarts_is_charged_for_something() -> None:
    assert {row.restart for row in MEANINGS.values()} == {None, *(each.name for each in fields(Restarts))}


def test_on_the_command_line_no_remedy_speaks_of_a_task() -> None:
    said = {cause: row.on_terminal or row.remedy for cause, row in MEANINGS.items()}
    of_tasks = re.compile(r"\b(task|retry|retries|attempt|clear|Airflow|execution_timeout)\b")
    assert {cause: text for cause, text in said.items() if of_tasks.search(text)} == {}
