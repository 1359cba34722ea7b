"""What Airflow is told about the next attempt."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause, TrainingFailed

pytest.importorskip("airflow.sdk.definitions.retry_policy", reason="retry policies came with Airflow 3.3")

from airflow.sdk.definitions.retry_policy import RetryAction

from airflow_provider_ocidist.capacity import pause_after
from airflow_provider_ocidist.retries import TrainingRetries


def decision(error: BaseException, try_number: int = 1):
    return TrainingRetries().evaluate(error, try_number, 5)


def test_a_lost_node_is_replaced_at_once():
    found = decision(TrainingFailed("x", cause=Cause.NODE))
    assert (found.action, found.retry_delay) == (RetryAction.RETRY, timedelta(0))


@pytest.mark.parametrize("cause", [Cause.USER, Cause.OOM, Cause.CONFIG, Cause.DATA])
def test_what_would_fail_again_is_not_tried_again(cause):
    assert decision(TrainingFailed("x", cause=cause)).action is RetryAction.FAIL


def test_capacity_is_waited_for_ever_longer():
    delays = [
        decision(BackendError("none free", cause=Cause.CAPACITY), number).retry_delay for number in (1, 2, 3)
    ]
    assert delays == [timedelta(minutes=1), timedelta(minutes=2), timedelta(minutes=4)]
    assert pause_after(50) == 1800


@pytest.mark.parametrize("error", [TrainingFailed("x", cause=Cause.SERVICE), ValueError("of someone else")])
def test_other_failures_keep_the_delay_of_the_task(error):
    assert decision(error).action is RetryAction.DEFAULT
