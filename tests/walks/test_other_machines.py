"""A gang whose queue or project is full becomes, in the same try, one in another that its job names: on clusters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.access import connection
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.plugin.view import task_view
from tests.backends.clusters import FAST, IMAGE, Home
from tests.plugin.gangs import NOW, record, running
from tests.training_jobs import PROGRAMS
from tests.views import need_views
from tests.walks.test_capacity import Ti, context

pytestmark = pytest.mark.slow

GPU = "nvidia.com/gpu"
START_TIMEOUT = 8.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    need_views()
    capacity = {**ClusterSettings().node_capacity, GPU: "8"}
    options = Options(
        grace_s=1.0,
        kubernetes=ClusterSettings(**{**FAST, "node_capacity": capacity}),
        runai=RunaiSettings(lag_s=0.0),
    )
    with Emulator(options=options) as running:
        yield running


def a_task(section: dict[str, Any], **changes: Any) -> DistributedTrainingOperator:
    job = {
        "name": "steps",
        "nodes": 2,
        "image": IMAGE,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "0.2"]},
        "launcher": {"kind": "python"},
        "checkpoints": {},
        "limits": {"stop_grace": 1, "start_timeout": START_TIMEOUT},
        "backend": section,
        **changes,
    }
    with DAG("dag", schedule=None):
        return DistributedTrainingOperator(
            task_id="train", job=job, conn_id="home", deferrable=False, poll_interval=0.2
        )


def require_moved(result: dict[str, Any], ti: Ti, backend: Backend, candidate: str) -> RunRef:
    """Raise AssertionError unless the task has trained as this candidate, in one try, and says so everywhere."""
    ref = RunRef.from_json(ti.xcoms["run"])
    assert (result["candidate"], ref.candidate, ref.key.attempt) == (candidate, candidate, 2)
    assert [node["state"] for node in result["nodes"]] == [NodeState.SUCCEEDED] * 2
    assert "failure" not in ti.xcoms
    assert [node.state for node in backend.status([ref])[0].nodes] == [NodeState.SUCCEEDED] * 2
    assert task_view(record(ref), running(), NOW)["gang"]["candidate"] == candidate
    return ref


def test_a_gang_in_a_full_queue_of_kueue_becomes_one_in_another(
    emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, ti = Home(emulator, "pytorchjob"), Ti()
    cluster = emulator.kubernetes.cluster
    for name, gpus in (("full", 1), ("spare", 2)):
        flavors = [{"name": "default-flavor", "resources": [{"name": GPU, "nominalQuota": gpus}]}]
        groups = [{"coveredResources": [GPU], "flavors": flavors}]
        metadata = {"name": name, "namespace": home.namespace}
        cluster.create(
            {"kind": "ClusterQueue", "metadata": {"name": name}, "spec": {"resourceGroups": groups}}
        )
        cluster.create({"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name}})
    access = emulator.access
    extra = {"kube_config_path": access.kubeconfig, "namespace": home.namespace}
    extra |= {"work_dir": home.fields["work_dir"], "storage_conn_id": "oci_default"}
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", connection(access))
    section = {"kind": "pytorchjob", "gpus": 1, "queue": "full", "candidates": [{"queue": "spare"}]}
    try:
        task = a_task(section, env={"OCI_CONFIG_FILE": access.config_file})
        backend = kinds.load("backends", "pytorchjob").BACKEND.connect(home.fields)
        ref = require_moved(task.execute(context(ti)), ti, backend, "queue spare")
        labels = cluster.get("PyTorchJob", home.namespace, ref.job_id.rpartition("/")[2])["metadata"][
            "labels"
        ]
        assert labels["kueue.x-k8s.io/queue-name"] == "spare"
    finally:
        home.clear()


@pytest.fixture(scope="module")
def second() -> Iterator[Emulator]:
    """Another cluster, with GPUs that the first lacks."""
    capacity = {**ClusterSettings().node_capacity, GPU: "8"}
    with Emulator(
        options=Options(grace_s=1.0, kubernetes=ClusterSettings(**{**FAST, "node_capacity": capacity}))
    ) as running:
        yield running


def test_a_gang_that_finds_no_room_in_a_cluster_becomes_one_in_another(
    emulator: Emulator, second: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, other, ti = Home(emulator, "pytorchjob"), Home(second, "pytorchjob"), Ti()
    access = emulator.access
    extra = {"kube_config_path": access.kubeconfig, "namespace": home.namespace}
    extra |= {"work_dir": home.fields["work_dir"], "storage_conn_id": "oci_default"}
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    there = {"kube_config_path": second.access.kubeconfig, "namespace": other.namespace}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER_2", json.dumps({"conn_type": "kubernetes", "extra": there}))
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", connection(access))
    # More than any machine of the first cluster has.
    section = {"kind": "pytorchjob", "node_selector": {"pool": "absent"}}
    section["candidates"] = [{"conn_id": "cluster_2", "node_selector": {}}]
    try:
        task = a_task(section, env={"OCI_CONFIG_FILE": access.config_file})
        backend = kinds.load("backends", "pytorchjob").BACKEND.connect(
            {**home.fields, "kube_config_path": second.access.kubeconfig}
        )
        ref = require_moved(task.execute(context(ti)), ti, backend, "conn_id cluster_2, node_selector {}")
        assert ref.conn_id == "cluster_2"
        assert emulator.kubernetes.cluster.list("PyTorchJob", home.namespace) == [] or all(
            item["metadata"]["name"] != ref.job_id.rpartition("/")[2]
            for item in emulator.kubernetes.cluster.list("PyTorchJob", home.namespace)
        )
    finally:
        home.clear()
        other.clear()


def test_a_gang_in_a_full_project_of_runai_becomes_one_in_another(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ti, access = Ti(), emulator.access.runai
    assert access is not None
    extra = {"project": access["project"], "work_dir": str(tmp_path / "work")}
    extra["kube_config_path"] = emulator.access.kubeconfig
    login = {"host": access["url"], "login": access["client_id"], "password": access["client_secret"]}
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps({"conn_type": "runai", **login, "extra": extra}))
    fields = runai_fields(access["url"], access["client_id"], access["client_secret"], extra)
    backend = kinds.load("backends", "runai").BACKEND.connect(fields)
    quota(access["url"], limit=0)
    try:
        task = a_task({"kind": "runai", "gpus": 1, "candidates": [{"project": "others"}]})
        ref = require_moved(task.execute(context(ti)), ti, backend, "project others")
        backend.delete(ref)
    finally:
        quota(access["url"], limit=None)


def quota(url: str, **changes: Any) -> None:
    """Change the quota of the project that the connection names."""
    with httpx.Client(trust_env=False) as http:
        http.put(f"{url}/_emulator/projects/1", json=changes).raise_for_status()
