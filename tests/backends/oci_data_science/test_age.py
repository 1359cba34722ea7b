"""What has grown old: idempotency tokens that the service has forgotten, and tokens of nodes that expire mid-run."""

from __future__ import annotations

import logging
import random
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.calls import pages
from airflow_provider_ocidist.emulator import retry_tokens
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef
from scripts.emulator_process import Access
from tests.training_jobs import a_job, a_key, wait_until


def connected(emulator: Emulator) -> OciDataScience:
    access = emulator.access
    told = {name: getattr(access, name) for name in Access.__dataclass_fields__ if hasattr(access, name)}
    place = Access(**{name: str(value) for name, value in told.items()})
    work_dir = f"oci://{place.bucket}@{place.namespace}/work/{uuid.uuid4().hex[:8]}"
    return OciDataScience.connect(place.connection_fields(work_dir=work_dir))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[OciDataScience]:
    """A service for which 24 hours are over at once."""
    monkeypatch.setattr(retry_tokens, "LIFETIME_S", -1)
    with Emulator() as emulator:
        yield connected(emulator)


def submit(backend: OciDataScience, job: Any, key: RunKey, number: int) -> RunRef:
    gang = GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())
    return gang.adopt_or_submit(key, None, number).ref


def books(backend: OciDataScience) -> tuple[int, int]:
    """Return how many jobs and how many job runs the service has."""
    place = backend.defaults.compartment_id
    jobs, runs = (
        list(pages(list_, place)) for list_ in (backend._client.list_jobs, backend._client.list_job_runs)
    )
    return len(jobs), len(runs)


def test_a_gang_whose_tokens_are_forgotten_is_adopted_by_name(forgetful: OciDataScience) -> None:
    key, job = a_key(), a_job(nodes=3, seconds=60)
    first = submit(forgetful, job, key, 1)
    for number in (2, 3):
        assert submit(forgetful, job, key, number) == first
    assert books(forgetful) == (1, 3)
    forgetful.cancel(first)


@pytest.mark.parametrize("seed", range(3))
def test_half_a_gang_whose_tokens_are_forgotten_is_completed_and_not_doubled(
    forgetful: OciDataScience, seed: int
) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(2, 5)
    missing = sorted(rng.sample(range(nodes), rng.randint(1, nodes)))
    key, job = a_key(), a_job(nodes=nodes, seconds=60)
    plan = forgetful.plan(job, key)
    create_run = forgetful._client.create_job_run

    def dies(details: dict[str, Any], **options: Any) -> Any:
        if int(details["displayName"].rpartition("-")[2]) in missing:
            raise SystemExit  # the worker is gone before it asks for this node
        return create_run(details, **options)

    forgetful._client.create_job_run = dies
    with pytest.raises(SystemExit):
        forgetful.submit(plan)
    forgetful._client.create_job_run = create_run
    ref = submit(forgetful, job, key, 2)
    alive = wait_until(
        forgetful, ref, lambda status: all(node.state is not NodeState.UNKNOWN for node in status.nodes)
    )
    assert len({node.run_id for node in alive.nodes}) == nodes
    (status,) = forgetful.status([ref])
    assert not any(node.state.terminal for node in status.nodes), (seed, status)
    forgetful.cancel(ref)


def test_nodes_whose_tokens_expire_again_and_again_train_to_the_end() -> None:
    with Emulator(options=Options(token_lifetime_s=2)) as emulator:
        backend = connected(emulator)
        ref = backend.submit(backend.plan(a_job(nodes=2, seconds=12), a_key()))
        status = wait_until(backend, ref, lambda status: status.ended)
    assert {node.state for node in status.nodes} == {NodeState.SUCCEEDED}, status
    assert status.checkpoint is not None
