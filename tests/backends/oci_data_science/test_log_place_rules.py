"""Which place a search of a gang's log names, and how often the service is asked for it, against the emulator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from oci.config import from_file

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.log_places import LogPlaces
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.oci_client import clients
from scripts.emulator_process import Access
from tests.backends.oci_data_science.test_log_places import group_in
from tests.http_client import http
from tests.training_jobs import a_key

JOBS = "ocid1.compartment.oc1..jobs"
Faults = Callable[..., None]


@dataclass
class Asked:
    """The places of one connection's logs, a gang whose log group lies elsewhere, and a clock that is set."""

    places: LogPlaces
    ref: RunRef
    elsewhere: str
    url: str
    now: float = 1000.0

    @property
    def there(self) -> str:
        return f"{self.elsewhere}/{self.ref.log_group_id}/{self.ref.log_id}"

    @property
    def beside_the_job(self) -> str:
        return f"{JOBS}/{self.ref.log_group_id}/{self.ref.log_id}"

    @property
    def path(self) -> str:
        return f".*/logGroups/{self.ref.log_group_id}"

    def place(self) -> str:
        return self.places.of(self.ref)

    def times(self) -> int:
        """Return how often the service was asked for the log group."""
        calls = http.get(f"{self.url}/_emulator/calls", params={"path": self.path}).json()
        return len([call for call in calls if call["method"] == "GET"])


@pytest.fixture
def asked(backend: OciDataScience, emulator: Access) -> Asked:
    key = a_key()
    elsewhere = from_file(backend.access.config_file, backend.access.profile)["tenancy"]
    group = group_in(backend, elsewhere, f"shared-{key.run_id}")
    ref = RunRef(
        backend="oci_data_science",
        key=key,
        nodes=1,
        job_id="job",
        run_ids=("run",),
        run_dir="",
        submitted_at=0.0,
        compartment_id=JOBS,
        log_group_id=group,
        log_id="ocid1.log.oc1..x",
    )
    found = Asked(LogPlaces(lambda: clients.client(backend.access, "logging")), ref, elsewhere, emulator.url)
    found.places = LogPlaces(lambda: clients.client(backend.access, "logging"), lambda: found.now)
    return found


def refused(asked: Asked, faults: Faults, status: int, **rule: Any) -> None:
    faults(path=asked.path, status=status, code="NotAuthorizedOrNotFound", **rule)


def test_a_log_group_is_searched_where_it_lies_and_asked_for_once(asked: Asked) -> None:
    for _ in range(3):
        assert asked.place() == asked.there
        asked.places.ask_again()
        asked.now += 3600
    assert asked.times() == 1


def test_what_has_no_log_group_is_searched_in_the_compartment_of_its_job(asked: Asked) -> None:
    asked.ref = replace(asked.ref, log_group_id=None, log_id=None)
    assert asked.place() == JOBS


def test_without_a_log_of_its_own_all_of_the_group_is_searched(asked: Asked) -> None:
    asked.ref = replace(asked.ref, log_id=None)
    assert asked.place() == f"{asked.elsewhere}/{asked.ref.log_group_id}"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_log_group_that_may_not_be_read_is_asked_for_every_ten_minutes(
    asked: Asked, faults: Faults, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    refused(asked, faults, status, times=1)
    with caplog.at_level(logging.INFO):
        assert asked.place() == asked.beside_the_job
    said = "looking for the compartment of the log group"
    (line,) = [message for message in caplog.messages if said in message]
    assert line.endswith("; its logs are searched in the compartment of the job")
    asked.now += 599.9
    assert asked.place() == asked.beside_the_job
    assert asked.times() == 1
    asked.now += 0.1
    assert asked.place() == asked.there
    assert asked.times() == 2


def test_with_other_credentials_a_refused_log_group_is_asked_for_at_once(
    asked: Asked, faults: Faults
) -> None:
    refused(asked, faults, 404, times=1)
    assert asked.place() == asked.beside_the_job
    asked.places.ask_again()
    assert asked.place() == asked.there


def test_while_the_service_does_not_answer_one_request_a_minute_is_made_for_all_log_groups(
    backend: OciDataScience, asked: Asked, faults: Faults
) -> None:
    """A look at all gangs of the connection waits for each of these requests."""
    groups = [group_in(backend, asked.elsewhere, f"{asked.ref.key.run_id}-{number}") for number in range(4)]
    faults(path=".*/logGroups/.*", status=400, code="InvalidParameter")
    refs = [replace(asked.ref, log_group_id=group) for group in groups]
    for _ in range(60):
        assert {asked.places.of(ref).partition("/")[0] for ref in refs} == {JOBS}
        asked.now += 10
    path = f".*/logGroups/({'|'.join(groups)})"
    calls = http.get(f"{asked.url}/_emulator/calls", params={"path": path}).json()
    assert 4 <= len(calls) <= 10
    assert len({call["path"] for call in calls}) == 4, (
        "one that always fails keeps no other from being asked for"
    )
    http.delete(f"{asked.url}/_emulator/faults")
    asked.now += 600
    assert {asked.places.of(ref).partition("/")[0] for ref in refs} == {asked.elsewhere}


def test_groups_are_told_apart(backend: OciDataScience, asked: Asked, faults: Faults) -> None:
    other = group_in(backend, asked.elsewhere, f"other-{asked.ref.key.run_id}")
    refused(asked, faults, 404, times=1)
    assert asked.place() == asked.beside_the_job
    of_other = asked.places.of(replace(asked.ref, log_group_id=other))
    assert of_other == f"{asked.elsewhere}/{other}/{asked.ref.log_id}"
    assert asked.place() == asked.beside_the_job
