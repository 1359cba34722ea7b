"""A gang that cannot be created whole is ended: without their Secret its pods would wait for ever, on machines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import RunKey
from tests.backends.clusters import FAST, Home
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import a_key

LOG = logging.getLogger(__name__)
NO_IMAGE = "missing:1"
SECRETS = "/api/v1/namespaces/.*/secrets"


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
