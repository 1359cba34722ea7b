"""A backend whose connection is edited, or whose gang is killed, while it is at work."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.fields import fields_beside
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.errors import BackendError, CancelFailed, JobFileError
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.triggers.connections import location_of, shared_connection
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.training_jobs import BACKEND, a_job, a_key

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
    jobs = (f"ocid1.datasciencejob.oc1.{region}.x" for region in ("iad", "fra"))
    here, there = (location_of("oci_data_science", job, "c") for job in jobs)
    assert shared_connection("conn", "kind", here) is shared_connection("conn", "kind", here)
    assert shared_connection("conn", "kind", here) is not shared_connection("conn", "kind", there)


def test_gangs_of_another_home_share_a_connection_whatever_their_ids_look_like() -> None:
    run_dirs = (f"/srv/v1.2/ocidist.runs/dag-train-{number}-a1" for number in range(10))
    places = {location_of("local", run_dir, None) for run_dir in run_dirs}
    assert len({shared_connection("conn", "local", place) for place in places}) == 1


def test_a_store_is_kept_for_as_long_as_its_gang_is_watched(tmp_path: Any) -> None:
    opened: list[str] = []
    run_dirs = RunDirStores(lambda uri: opened.append(uri) or LocalStore(uri))  # type: ignore[func-returns-value]  # short
    for number in range(3):
        folder = str(tmp_path / str(number))
        for _ in range(2):
            run_dirs.write(folder, "x", b"1")
        run_dirs.forget(folder)
    assert len(opened) == 3
    assert run_dirs._stores == {}
    # One bucket is one store for all run directories in it, and stays.
    shared = RunDirStores(LocalStore)
    shared.at("oci://bucket@namespace/work/a")
    shared.forget("oci://bucket@namespace/work/a")
    assert len(shared._stores) == 1


@pytest.mark.parametrize("connect", [Local.connect, Runai.connect])
def test_a_gang_that_is_forgotten_leaves_no_store_behind(tmp_path: Any, connect: Any) -> None:
    backend = connect({})
    ref = a_ref(str(tmp_path / "run"))
    assert backend.directories.claimed_by(ref) == 0
    backend._run_dirs.at(ref.run_dir)
    backend._urgent_dirs.at(ref.run_dir)
    backend.forget(ref)
    assert (backend._run_dirs._stores, backend._urgent_dirs._stores) == ({}, {})


def test_run_dirs_that_are_cleared_while_one_is_opened_are_opened_all_the_same(tmp_path: Any) -> None:
    def open_store(uri: str) -> LocalStore:
        run_dirs.clear()
        return LocalStore(uri)

    class Cleared(dict[str, Any]):
        """Cleared by another thread after each change."""

        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(name, value)
            self.clear()

    run_dirs = RunDirStores(open_store)
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

    class Written(RunDirStores):
        def write(self, run_dir: str, name: str, data: bytes) -> None:
            super().write(run_dir, name, data)
            answers.set()

    written = Written(LocalStore)
    with pytest.raises(CancelFailed, match="fewer requests"):
        Cancels(Client, RunDirectories(written, written)).cancel(a_ref(str(tmp_path)))
    assert (tmp_path / STOP_FILE).exists()
    assert sorted(asked) == ["a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_a_published_environment_lies_in_the_first_region_that_somebody_names(
    tmp_path: Path, seed: int
) -> None:
    """The job, the connection's conda_region, its region, the profile of its file: as ADS, which asks no more."""
    print("seed", seed)
    dice = random.Random(seed)
    named = {place: f"{place}-1" for place in ("job", "conda", "own", "profile") if dice.random() < 0.5}
    profile = dice.choice(["DEFAULT", "TEAM"])
    file = tmp_path / "config"
    other = "TEAM" if profile == "DEFAULT" else "OTHER"
    region = f"region={named['profile']}\n" if "profile" in named else ""
    file.write_text(
        f"[{profile}]\nuser=u\n{region}[{other}]\n" + ("region=wrong-1\n" if profile != "DEFAULT" else "")
    )
    fields = {"compartment_id": "c", "project_id": "p", "work_dir": "oci://b@n/w", "config_file": str(file)}
    given = {"profile": profile, "conda_region": named.get("conda"), "region": named.get("own")}
    backend = OciDataScience.connect({**fields, **given})
    pack = {"conda_uri": "oci://b@n/p", **({"conda_region": named["job"]} if "job" in named else {})}
    job = a_job(nodes=1, backend={**BACKEND, **pack})
    expected = next((named[place] for place in ("job", "conda", "own", "profile") if place in named), None)
    if expected is None:
        with pytest.raises(JobFileError, match=r"backend\.conda_region: is needed"):
            backend.plan(job, a_key())
    else:
        body = str(backend.plan(job, a_key()).requests[0].body)
        assert f"'CONDA_ENV_REGION': '{expected}'" in body


@pytest.mark.parametrize("seed", range(20))
def test_a_published_environment_lies_where_the_tasks_connection_says_also_for_nodes_at_another(
    tmp_path: Path, seed: int
) -> None:
    """The environment is in a bucket, and all buckets of a job are the task's."""
    print("seed", seed)
    dice = random.Random(seed)
    own, other = ({place for place in ("conda", "own", "profile") if dice.random() < 0.5} for _ in range(2))
    in_job = dice.random() < 0.3

    def fields(whose: str, named: set[str]) -> dict[str, Any]:
        file = tmp_path / whose
        file.write_text("[DEFAULT]\nuser=u\n" + (f"region={whose}-profile\n" if "profile" in named else ""))
        given = {"conda_region": "conda", "region": "own"}
        found = {name: f"{whose}-{place}" for name, place in given.items() if place in named}
        ids = {"compartment_id": "c", "project_id": "p", "work_dir": "oci://b@n/w"}
        return {**ids, "config_file": str(file), **found}

    backend = OciDataScience.connect(fields_beside(fields("task", own), fields("other", other), "other"))
    pack = {"conda_uri": "oci://b@n/p", **({"conda_region": "job"} if in_job else {})}
    job = a_job(nodes=1, backend={**BACKEND, **pack})
    expected = (
        "job"
        if in_job
        else next((f"task-{each}" for each in ("conda", "own", "profile") if each in own), None)
    )
    if not own & {"own", "profile"}:
        with pytest.raises(JobFileError, match="needs the task's connection to name its region"):
            backend.plan(job, a_key())
    else:
        body = str(backend.plan(job, a_key()).requests[0].body)
        assert f"'CONDA_ENV_REGION': '{expected}'" in body
