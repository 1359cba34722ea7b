"""A gang of which a part is refused is ended or completed: without their Secret its pods would wait on machines."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.kubernetes import backend as module
from airflow_provider_ocidist.backends.kubernetes import states
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef
from tests.backends.clusters import FAST, Home
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import a_key, wait_until

LOG = logging.getLogger(__name__)
NO_IMAGE = "missing:1"
SECRETS = "/api/v1/namespaces/.*/secrets"
QUOTA = (
    'Operation cannot be fulfilled on resourcequotas "objects": the object has been modified; '
    "please apply your changes to the latest version and try again"
)
"""Answer of an API server to several creates at once in a namespace with a ResourceQuota, by its admission plugin."""
CREATED = {
    "the agent": "/api/v1/namespaces/.*/configmaps",
    "the gang": "/apis/.*/namespaces/.*/(pytorchjobs|trainjobs)",
    "its secret": "/api/v1/namespaces/.*/secrets",
}


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(options=Options(kubernetes=ClusterSettings(**FAST))) as running:
        yield running


@pytest.fixture(params=["pytorchjob", "trainjob"])
def home(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[Home]:
    found = Home(emulator, request.param)
    yield found
    found.clear()


@pytest.fixture
def backend(home: Home) -> KubernetesBackend:
    found: KubernetesBackend = kinds.load("backends", home.kind).BACKEND.connect(home.fields)
    return found


def submit(home: Home, backend: KubernetesBackend, key: RunKey) -> Any:
    job = home.job(image=NO_IMAGE, env={"API_KEY": "sk-1f0c77aa9b"})
    return GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(key, None).ref


@pytest.mark.parametrize("said", ["secrets are forbidden", "exceeded quota: secrets"])
def test_a_gang_whose_secret_is_refused_is_ended_and_the_next_one_is_another(
    home: Home, backend: KubernetesBackend, said: str
) -> None:
    key = a_key()
    home.control("/faults", method="POST", path=SECRETS, status=403, message=said)
    with pytest.raises(BackendError, match=said) as caught:
        submit(home, backend, key)
    assert caught.value.after_acceptance, "the same try asks again"
    until(lambda: not backend.recent(10))
    home.control("/faults", method="DELETE")
    ref = submit(home, backend, key)
    assert (ref.key.attempt, [each.key for each in backend.recent(10)]) == (2, [ref.key])


def test_a_gang_whose_secret_waits_for_an_outage_to_pass_is_completed(
    home: Home, backend: KubernetesBackend
) -> None:
    key = a_key()
    home.control("/faults", method="POST", path=SECRETS, status=503, message="not now")
    with pytest.raises(BackendError, match="not now") as caught:
        submit(home, backend, key)
    assert caught.value.after_acceptance
    (begun,) = backend.recent(10)
    home.control("/faults", method="DELETE")
    assert submit(home, backend, key).job_id == begun.job_id
    assert backend.secrets_of(begun) >= {"sk-1f0c77aa9b"}


def test_pods_that_have_waited_long_for_their_secret_train_once_it_comes(
    home: Home, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "IMAGE_PATIENCE", 0.2)
    monkeypatch.setattr(module, "SECRET_IS_LATE", 1.0)
    key, job = a_key(), home.job(env={"API_KEY": "sk-1f0c77aa9b"})
    home.control("/faults", method="POST", path=SECRETS, status=503, message="not now")

    def adopt_or_submit() -> RunRef:
        return GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(key, None).ref

    with pytest.raises(BackendError, match="not now"):
        adopt_or_submit()
    (begun,) = backend.recent(10)
    waits = wait_until(backend, begun, lambda found: "secret" in str(found.nodes[0].details))
    # By its start, which is known to the second.
    time.sleep(1.5)
    waits = wait_until(
        backend, begun, lambda found: found.at is not None and found.at > (waits.at or 0.0) + 1
    )
    assert [node.state for node in waits.nodes] == [NodeState.PENDING] * 2, waits.nodes
    home.control("/faults", method="DELETE")
    completed = adopt_or_submit()
    assert completed.job_id == begun.job_id
    # `limits.start_timeout` counts from when a node could start.
    assert completed.submitted_at >= begun.submitted_at + 1
    assert adopt_or_submit().submitted_at == completed.submitted_at
    done = wait_until(backend, begun, lambda found: found.ended)
    assert [node.state for node in done.nodes] == [NodeState.SUCCEEDED] * 2


@pytest.mark.parametrize("what", CREATED)
def test_a_create_that_met_another_one_at_a_quota_is_tried_again_and_makes_one_gang(
    home: Home, backend: KubernetesBackend, what: str
) -> None:
    key = a_key()
    home.control("/faults", method="POST", path=CREATED[what], status=409, code="Conflict", message=QUOTA)
    with pytest.raises(BackendError, match="resourcequotas") as caught:
        submit(home, backend, key)
    assert (caught.value.retryable, caught.value.cause) == (True, Cause.SERVICE), caught.value
    home.control("/faults", method="DELETE")
    ref = submit(home, backend, key)
    until(lambda: [each.job_id for each in backend.recent(10)] == [ref.job_id])
    assert backend.secrets_of(ref) >= {"sk-1f0c77aa9b"}
