"""DistributedTrainingTrigger: a cancel by a user ends the gang, whatever happens to `on_kill`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.hooks.task_context import mask_secrets_of_nodes
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.oci_client.job_runs import JobRunsClient
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger, training
from tests.training_jobs import a_job, a_key, wait_until

OWNER = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1}
USER_ACTION = "__airflow_user_action__"
tells_of_kills = pytest.mark.since_airflow("3.3", "a trigger gets to know that its task was killed")


class Trigger(DistributedTrainingTrigger):
    """A trigger whose Airflow answers as the test says: an error for each in `failures`, then `owned`."""

    owned = False
    failures: Iterator[Exception] = iter(())

    def _still_owned(self, record: RunRecord) -> bool:
        for failure in self.failures:
            raise failure
        return self.owned


@pytest.fixture
def trigger(
    backend: OciDataScience, conn_id: str, ends: Callable[[RunRef], RunRef]
) -> DistributedTrainingTrigger:
    job = a_job(nodes=1, seconds=30)
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    return Trigger(conn_id, RunRecord.of(ref, job, plan.expects).to_json(), OWNER, 0.2)


def ref_of(trigger: DistributedTrainingTrigger) -> RunRef:
    return RunRecord.from_json(trigger.record).ref


def canceled(status: RunStatus) -> bool:
    return status.nodes[0].state is NodeState.CANCELED


def state(trigger: DistributedTrainingTrigger, backend: OciDataScience) -> NodeState:
    (status,) = backend.status([ref_of(trigger)])
    return status.nodes[0].state


async def cancelled(trigger: DistributedTrainingTrigger, *message: str, rest: float = 0.0) -> None:
    """Run the trigger for a moment and cancel it, as Airflow does; never call `on_kill`."""

    async def watch() -> None:
        async for event in trigger.run():
            raise AssertionError(f"nothing was to happen, but {event}")

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.5)
    watching.cancel(*message)
    with pytest.raises(asyncio.CancelledError):
        await watching
    await asyncio.sleep(rest)
    if trigger._ending:
        await trigger._ending


@tells_of_kills
def test_a_users_cancel_ends_the_gang_even_if_airflow_never_calls_on_kill(trigger, backend) -> None:
    asyncio.run(cancelled(trigger, USER_ACTION))
    wait_until(backend, ref_of(trigger), canceled)


def test_a_stopping_triggerer_ends_nothing(trigger, backend) -> None:
    asyncio.run(cancelled(trigger, rest=1.0))
    assert not state(trigger, backend).terminal


def test_a_trigger_that_moved_ends_nothing(trigger, backend) -> None:
    trigger.owned = True
    asyncio.run(cancelled(trigger, USER_ACTION, rest=1.0))
    assert not state(trigger, backend).terminal


@tells_of_kills
def test_ending_is_tried_again_when_airflow_cannot_answer(trigger, backend, monkeypatch) -> None:
    monkeypatch.setattr(training, "END_PAUSE", 0.05)
    trigger.failures = iter([RuntimeError("database is locked"), OSError("connection refused")])
    asyncio.run(cancelled(trigger, USER_ACTION))
    wait_until(backend, ref_of(trigger), canceled)


def test_what_nodes_may_print_of_their_secrets_is_masked_in_one_request_for_each_gang(
    backend: OciDataScience, conn_id: str, ends: Callable[[RunRef], RunRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(nodes=1, seconds=30, env={"HF_TOKEN": "hf_abcdef", "EPOCHS": "a-hundred"})
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    masked: list[str] = []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    asked: list[str] = []
    read = JobRunsClient.described_job
    monkeypatch.setattr(
        JobRunsClient, "described_job", lambda self, job_id: asked.append(job_id) or read(self, job_id)
    )
    mask_secrets_of_nodes(backend, ref)
    assert masked == ["hf_abcdef"]
    assert asked == [ref.job_id]


def test_secrets_that_cannot_be_had_are_no_error_and_nothing_is_masked(trigger, backend, monkeypatch) -> None:
    asked, masked = [], []
    monkeypatch.setattr("airflow.sdk.log.mask_secret", masked.append)
    monkeypatch.setattr(JobRunsClient, "described_job", lambda _, job_id: asked.append(job_id) or 1 / 0)
    ref = replace(ref_of(trigger), log_group_id="ocid1.loggroup.oc1.iad.x")
    mask_secrets_of_nodes(backend, ref)
    assert asked == [ref.job_id]
    assert masked == []
