"""Which cause the service's words about a job run stand for. The words are a guess: Oracle documents none of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_ocidist.backends.oci_data_science.answers import CAUSES_IN_DETAILS, cause_in_details
from airflow_provider_ocidist.errors import Cause

SAID = [
    ("Out of host capacity.", Cause.CAPACITY),
    ("The job run exceeded its maximum runtime.", Cause.DEADLINE),
    ("The service limit of this shape is reached.", Cause.QUOTA),
    ("Compartment quota exceeded.", Cause.QUOTA),
    ("The instance was preempted.", Cause.PREEMPTED),
    ("Preemption of a preemptible instance.", Cause.PREEMPTED),
    ("The container image cannot be pulled.", Cause.CONFIG),
]


@pytest.mark.parametrize("details, cause", SAID)
def test_the_services_words_stand_for_a_cause(details: str, cause: Cause) -> None:
    assert cause_in_details(SimpleNamespace(lifecycle_details=details)) is cause
    assert cause_in_details(SimpleNamespace(lifecycle_details=details.upper())) is cause


def test_each_cause_that_is_guessed_is_shown_above() -> None:
    assert {cause for _, cause in SAID} == {cause for _, cause in CAUSES_IN_DETAILS}


@pytest.mark.parametrize("details", [None, "", "Job run artifact execution failed with exit code 1."])
def test_words_that_say_nothing_of_it_have_no_cause(details: str | None) -> None:
    assert cause_in_details(SimpleNamespace(lifecycle_details=details)) is None
    assert cause_in_details(None) is None
