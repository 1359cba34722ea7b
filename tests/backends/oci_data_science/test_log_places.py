"""Where the log of a gang lies, and what a search of it may refuse, against the emulator."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from oci.config import from_file

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.oci_client import clients
from scripts.emulator_process import Access
from tests.training_jobs import BACKEND, a_job, a_key, wait_until

SEARCH = "/20190909/search"


@pytest.fixture
def faults(emulator: Access) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{emulator.url}/_emulator/", trust_env=False) as control:
        control.delete("faults")
        yield control
        control.delete("faults")


def group_in(backend: OciDataScience, compartment_id: str, name: str) -> str:
    """Make a log group in a compartment; return its OCID."""
    logging = clients.client(backend.access, "logging")
    logging.create_log_group({"compartmentId": compartment_id, "displayName": name})
    deadline = time.monotonic() + 60
    while not (found := logging.list_log_groups(compartment_id, display_name=name).data):
        assert time.monotonic() < deadline
    return str(found[0].id)


def a_talking_job(**backend: Any) -> Any:
    return a_job(nodes=1, checkpoints={"required": False}, backend={**BACKEND, **backend})


def steps_of(backend: OciDataScience, ref: RunRef) -> list[str]:
    return [line.text for line in backend.logs(ref, [0.0]) if line.text.startswith("step ")]


def in_another_compartment(backend: OciDataScience, ends: Any) -> RunRef:
    """Return a gang that has ended, whose log group does not lie beside its job."""
    tenancy = from_file(backend.access.config_file, backend.access.profile)["tenancy"]
    key = a_key()
    group = group_in(backend, tenancy, f"shared-{key.run_id}")
    ref = ends(backend.submit(backend.plan(a_talking_job(log_group_id=group), key)))
    assert ref.compartment_id != tenancy
    assert ref.log_group_id == group
    wait_until(backend, ref, lambda status: status.ended)
    return ref


def test_lines_are_found_in_a_log_group_of_another_compartment(
    backend: OciDataScience, ends: Any, faults: httpx.Client
) -> None:
    ref = in_another_compartment(backend, ends)
    assert steps_of(backend, ref)
    # As a link to them names it, too.
    tenancy = from_file(backend.access.config_file, backend.access.profile)["tenancy"]
    assert backend.log_place(ref).startswith(f"{tenancy}/{ref.log_group_id}")
    for _ in range(2):
        assert backend.logs_of([(ref, [0.0])])[0].lines
    asked = faults.get("calls", params={"path": f".*/logGroups/{ref.log_group_id}"}).json()
    assert len([call for call in asked if call["method"] == "GET"]) == 1


def test_a_log_group_that_may_not_be_read_is_searched_beside_the_job(
    backend: OciDataScience, ends: Any, faults: httpx.Client
) -> None:
    rule = {"path": ".*/logGroups/[^/]+", "status": 404, "code": "NotAuthorizedOrNotFound"}
    assert faults.post("faults", json=rule).status_code == 200
    ref = ends(backend.submit(backend.plan(a_talking_job(), a_key())))
    wait_until(backend, ref, lambda status: status.ended)
    assert steps_of(backend, ref)


@pytest.mark.parametrize("times", [1, 3])
def test_a_search_that_finds_too_much_is_divided_and_each_line_arrives_once(
    backend: OciDataScience, ends: Any, faults: httpx.Client, times: int
) -> None:
    ref = ends(backend.submit(backend.plan(a_talking_job(), a_key())))
    wait_until(backend, ref, lambda status: status.ended)
    whole = backend.logs(ref, [0.0])
    # The words are those that Oracle ADS looks for.
    rule = {"path": SEARCH, "status": 400, "code": "InvalidParameter", "times": times}
    message = "The search result is too large. Reduce the time range."
    assert faults.post("faults", json={**rule, "message": message}).status_code == 200
    assert backend.logs(ref, [0.0]) == whole
    assert len({line.id for line in whole}) == len(whole) > 0


def test_any_other_refusal_of_a_search_is_a_refusal(
    backend: OciDataScience, ends: Any, faults: httpx.Client
) -> None:
    ref = ends(backend.submit(backend.plan(a_talking_job(), a_key())))
    rule = {"path": SEARCH, "status": 400, "code": "InvalidParameter", "message": "no such field"}
    assert faults.post("faults", json=rule).status_code == 200
    with pytest.raises(BackendError, match="no such field"):
        backend.logs(ref, [0.0])
