"""What Airflow gets to know about the next attempt: docs/airflow.md, the table of causes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_ocidist.errors import BackendError, Cause, TrainingFailed

pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="retry policies came with Airflow 3.3")

from airflow.sdk.definitions.retry_policy import RetryAction

from airflow_provider_ocidist.gangs.capacity import pause_between_requests
from airflow_provider_ocidist.hooks.errors import training_failure
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.operators.retries import TrainingRetries

AT_ONCE = [Cause.NODE, Cause.PREEMPTED, Cause.ABANDONED]
NEVER = [Cause.USER, Cause.OOM, Cause.CONFIG, Cause.DATA, Cause.CANCELED, Cause.BUDGET]
EVER_LATER = [Cause.CAPACITY, Cause.QUOTA]
AS_THE_TASK_SAYS = [Cause.HANG, Cause.IDLE, Cause.DEADLINE, Cause.SERVICE]


def decision(error: BaseException, try_number: int = 1):
    return TrainingRetries().evaluate(error, try_number, 5)


def failure(kind: type[BaseException], cause: Cause) -> BaseException:
    return kind("x", cause=cause)


both = pytest.mark.parametrize("kind", [TrainingFailed, BackendError])


def test_each_cause_has_its_rule():
    assert sorted([*AT_ONCE, *NEVER, *EVER_LATER, *AS_THE_TASK_SAYS]) == sorted(Cause)


@both
@pytest.mark.parametrize("cause", AT_ONCE)
def test_a_lost_node_is_replaced_at_once(kind, cause):
    found = decision(failure(kind, cause))
    assert (found.action, found.retry_delay) == (RetryAction.RETRY, timedelta(0))
    assert found.reason.startswith(cause)


@both
@pytest.mark.parametrize("cause", NEVER)
def test_what_would_fail_again_is_not_tried_again(kind, cause):
    found = decision(failure(kind, cause))
    assert found.action is RetryAction.FAIL
    assert found.reason == f"{cause}: not retried; {MEANINGS[cause].remedy}"


def test_an_end_on_purpose_is_not_called_a_failure_that_would_recur():
    assert decision(failure(TrainingFailed, Cause.CANCELED)).reason == (
        "CANCELED: not retried; clear the task to train again"
    )


@both
@pytest.mark.parametrize("cause", EVER_LATER)
def test_capacity_is_waited_for_ever_longer(kind, cause):
    found = [decision(failure(kind, cause), number) for number in (1, 2, 3)]
    assert [item.action for item in found] == [RetryAction.RETRY] * 3
    assert [item.retry_delay for item in found] == [timedelta(minutes=minutes) for minutes in (1, 2, 4)]
    assert found[2].reason == f"{cause}: looking again in 240 s"
    assert pause_between_requests(50) == 1800


@both
@pytest.mark.parametrize("cause", AS_THE_TASK_SAYS)
def test_other_failures_keep_the_delay_of_the_task(kind, cause):
    assert decision(failure(kind, cause)).action is RetryAction.DEFAULT


def test_errors_of_someone_else_keep_the_delay_of_the_task():
    assert decision(ValueError("of someone else")).action is RetryAction.DEFAULT


def test_the_policy_survives_the_way_through_airflows_database():
    stored = TrainingRetries().serialize()
    assert stored == {}
    assert isinstance(TrainingRetries.deserialize(stored), TrainingRetries)


@pytest.mark.parametrize("cause, fails", [(Cause.HANG, True), (Cause.NODE, False), (Cause.USER, True)])
def test_a_hang_at_the_same_step_for_the_second_time_is_not_tried_again(cause, fails):
    assert isinstance(training_failure(cause, "m", is_crash_loop=True), AirflowFailException) is fails
    assert not isinstance(training_failure(Cause.HANG, "m"), AirflowFailException)
