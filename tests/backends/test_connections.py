"""A backend whose connection is edited, or whose gang is killed, while it is at work."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.agent.report import STOP_FILE
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.run_dirs import RunDirs
from airflow_provider_ocidist.errors import BackendError, CancelFailed
from airflow_provider_ocidist.run import NodeState, RunKey, RunRef
from airflow_provider_ocidist.shared_connections import place_of, shared_connection
from airflow_provider_ocidist.storage.local_store import LocalStore

BEFORE = {"region": "us-ashburn-1", "tenancy": "ocid1.tenancy.oc1..a", "profile": "OLD", "work_dir": "old"}
AFTER = {
    "region": "eu-frankfurt-1",
    "tenancy": "ocid1.tenancy.oc1..b",
    "endpoint": "http://127.0.0.1:9",
    "profile": "NEW",
    "auth": "session_token",
    "pass_phrase": "x",
    "compartment_id": "new",
}


def a_ref(run_dir: str) -> RunRef:
    key = RunKey(dag_id="dag", run_id="run", task_id="x")
    return RunRef(
        backend="x", key=key, nodes=2, job_id="job", run_ids=("a", "b"), run_dir=run_dir, submitted_at=1.0
    )


def test_an_edited_connection_lends_its_credentials_to_gangs_that_stay_where_they_are() -> None:
    backend = OciDataScience.connect(BEFORE)
    backend.reconnect(AFTER)
    access = backend.access
    assert (access.region, access.tenancy, access.endpoint) == (BEFORE["region"], BEFORE["tenancy"], None)
    assert (access.profile, access.auth, access.pass_phrase) == ("NEW", "session_token", "x")
    assert backend.defaults.compartment_id == "new"


def test_a_region_that_only_the_profile_names_stays_too(fields: dict[str, Any]) -> None:
    backend = OciDataScience.connect({name: value for name, value in fields.items() if name != "region"})
    used = backend._client.base_client.config["region"]
    backend.reconnect({**fields, "region": "eu-frankfurt-1"})
    assert backend.access.region == used != "eu-frankfurt-1"


def test_a_run_in_another_region_than_the_connections_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = OciDataScience.connect({"region": "eu-frankfurt-1"})
    monkeypatch.setattr(backend._run_states, "of_job", lambda *_: {})
    runs = ("ocid1.datasciencejobrun.oc1.iad.x", "")
    with pytest.raises(BackendError, match="lies in us-ashburn-1, and the connection names eu-frankfurt-1"):
        backend.status([replace(a_ref("/nowhere"), run_ids=runs)])
    near = ("ocid1.datasciencejobrun.oc1.fra.x", "")
    (status,) = backend.status([replace(a_ref("/nowhere"), run_ids=near)])
    assert {node.state for node in status.nodes} == {NodeState.MISSING}


def test_gangs_in_another_region_have_a_connection_of_their_own() -> None:
    here, there = (place_of(f"ocid1.datasciencejob.oc1.{region}.x", "c") for region in ("iad", "fra"))
    assert shared_connection("conn", "kind", here) is shared_connection("conn", "kind", here)
    assert shared_connection("conn", "kind", here) is not shared_connection("conn", "kind", there)


def test_run_dirs_that_are_cleared_while_one_is_opened_are_opened_all_the_same(tmp_path: Any) -> None:
    def open_store(uri: str) -> LocalStore:
        run_dirs.clear()
        return LocalStore(uri)

    class Cleared(dict[str, Any]):
        """Cleared by another thread after each change."""

        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(name, value)
            self.clear()

    run_dirs = RunDirs(open_store)
    run_dirs._stores = Cleared()
    run_dirs.write(str(tmp_path), "x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"


def test_nodes_are_left_word_to_stop_while_the_service_still_keeps_the_cancel_waiting(
    tmp_path: Any,
) -> None:
    asked, answers = [], threading.Event()

    class Client:
        """Keeps every cancel waiting until the stop request is there."""

        def cancel_job_run(self, run_id: str) -> None:
            asked.append(run_id)
            assert answers.wait(20)
            raise oci.exceptions.ServiceError(429, "TooManyRequests", {}, "fewer requests")

    class Written(RunDirs):
        def write(self, run_dir: str, name: str, data: bytes) -> None:
            super().write(run_dir, name, data)
            answers.set()

    with pytest.raises(CancelFailed, match="fewer requests"):
        Cancels(Client, Written(LocalStore)).cancel(a_ref(str(tmp_path)))
    assert (tmp_path / STOP_FILE).exists()
    assert sorted(asked) == ["a", "b"]
