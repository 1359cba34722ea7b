"""What waits asks for job runs as the SDK's client does, and does not load the SDK's models of the whole service."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import oci
import pytest

from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.oci_client.clients import client
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.job_runs import FILTERS, JobRunState
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleGangs, idle_gangs
from tests.storage.conftest import access, emulator, web  # noqa: F401 - fixtures
from tests.training_jobs import wait_until

Call = Callable[[Any], Any]
VARYING = {"authorization", "date", "opc-request-id"}
"""Headers that differ from request to request."""


@pytest.fixture(scope="module")
def idle(emulator: Access) -> Iterator[IdleGangs]:
    with idle_gangs(emulator, 1, 2) as gangs:
        yield gangs


def sent(made: Any, call: Call) -> tuple[Any, ...]:
    """Return the one request that a call sends, whatever the answer is."""
    answers: list[Any] = []
    made.base_client.session.hooks["response"].append(lambda answer, *_, **__: answers.append(answer))
    with contextlib.suppress(oci.exceptions.ServiceError):
        call(made)
    (answer,) = answers
    asked = answer.request
    headers = {name.lower(): value for name, value in asked.headers.items()}
    address = urlsplit(asked.url)
    place = address.netloc, address.path, sorted(parse_qsl(address.query))
    return asked.method, place, asked.body, {name: headers[name] for name in headers.keys() - VARYING}


def everything(made: Any) -> Any:
    """List with every filter that there is."""
    filters = {
        "job_id": "j 1",
        "lifecycle_state": "ACCEPTED",
        "sort_by": "timeCreated",
        "sort_order": "ASC",
        "limit": 7,
        "page": "p/2",
    }
    assert filters.keys() == FILTERS.keys()
    return made.list_job_runs("ocid1.compartment.oc1..a/b", **filters)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (everything, everything),
        (lambda ours: ours.list_job_runs(None), lambda theirs: theirs.list_job_runs(None)),
        (lambda ours: ours.get_job_run("run a/b"), lambda theirs: theirs.get_job_run("run a/b")),
        (lambda ours: ours.described_run("run"), lambda theirs: theirs.get_job_run("run")),
        (lambda ours: ours.cancel_job_run("run"), lambda theirs: theirs.cancel_job_run("run")),
        (lambda ours: ours.described_job("job"), lambda theirs: theirs.get_job("job")),
    ],
    ids=["list", "list of no compartment", "run", "whole run", "cancel", "job"],
)
def test_each_request_is_the_one_that_the_sdks_client_sends(
    access: OciAccess,
    ours: Call,
    theirs: Call,
) -> None:
    assert sent(client(access, "data_science_runs"), ours) == sent(client(access, "data_science"), theirs)


@pytest.mark.parametrize("name", ["get_job_run", "described_run", "cancel_job_run", "described_job"])
def test_an_id_that_is_not_known_is_asked_for_at_no_address_of_other_things(
    access: OciAccess, name: str
) -> None:
    ours = client(access, "data_science_runs")
    answers: list[Any] = []
    ours.base_client.session.hooks["response"].append(lambda answer, *_, **__: answers.append(answer))
    with pytest.raises(BackendError, match="without an id"):
        getattr(ours, name)("")
    assert not answers


@pytest.mark.parametrize("region", ["us-ashburn-1", "eu-frankfurt-1", "us-langley-1", "uk-gov-london-1"])
def test_it_is_sent_to_the_host_to_which_the_sdks_client_sends_it(
    access: OciAccess,
    region: str,
) -> None:
    there = replace(access, endpoint=None, region=region)
    ours, theirs = client(there, "data_science_runs"), client(there, "data_science")
    assert ours.base_client.endpoint == theirs.base_client.endpoint


def test_a_run_is_read_as_the_sdks_model_shows_it(idle: IdleGangs, access: OciAccess) -> None:
    ours, theirs = client(access, "data_science_runs"), client(access, "data_science")
    (record,) = idle.records
    wait_until(
        idle.backend, record.ref, lambda status: {node.state for node in status.nodes} == {NodeState.RUNNING}
    )
    for listed, shown in zip(
        ours.list_job_runs(record.ref.compartment_id, job_id=record.ref.job_id).data,
        theirs.list_job_runs(record.ref.compartment_id, job_id=record.ref.job_id).data,
        strict=True,
    ):
        as_shown = {name: getattr(shown, name) for name in (field.name for field in fields(JobRunState))}
        assert asdict(listed) == as_shown
        assert ours.get_job_run(listed.id).data == listed
        assert ours.described_run(listed.id)["jobId"] == record.ref.job_id
    assert ours.described_job(record.ref.job_id)["id"] == record.ref.job_id


@pytest.mark.parametrize("text", ["<html>Sign in</html>", '{"code": 1}', "null"])
def test_an_answer_that_is_not_the_services_is_an_error_that_may_pass(
    web: tuple[str, Path],
    access: OciAccess,
    text: str,
) -> None:
    url, folder = web
    (folder / "20190101").mkdir()
    (folder / "20190101/jobRuns").write_text(text)
    elsewhere = client(replace(access, endpoint=url), "data_science_runs")
    with pytest.raises(BackendError, match="is not OCI Data Science's") as caught:
        elsewhere.list_job_runs("c")
    assert caught.value.retryable


WAITS = """
import json, logging, sys
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.kills import make_ready
from airflow_provider_ocidist.model.run import RunRecord
fields, record = json.loads(sys.stdin.read())
backend, ref = OciDataScience.connect(fields), RunRecord.from_json(record).ref
make_ready(backend, ref, logging.getLogger())
backend.directories.load_cursor(ref)
(status,) = backend.status([ref])
backend.logs_of([(ref, [0.0, 0.0])])
backend.cancel(ref)
print(*(node.state for node in status.nodes), "oci" in sys.modules, "oci.data_science" in sys.modules)
"""


def test_a_process_that_waits_for_a_gang_and_cancels_it_does_not_load_the_sdks_models(
    idle: IdleGangs,
) -> None:
    (record,) = idle.records
    given = json.dumps([idle.connections["oci_default"]["extra"], record.to_json()])
    done = subprocess.run(
        [sys.executable, "-c", WAITS], input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *states, sdk, models = done.stdout.split()
    assert (sdk, models) == ("True", "False"), done.stdout
    assert set(states) <= {"PENDING", "RUNNING"}
