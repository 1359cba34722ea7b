"""The example DAGs that choose a home, and the one that compares, by dag.test(), on a cluster beside OCI, and here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml

from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.checkpoints import verify
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access, EmulatorProcess
from tests.dag_runs import DagRuns
from tests.launchers.nodes import PYTHON
from tests.views import need_views

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(540)]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
LAUNCHERS = Path(PYTHON).parents[1]
STEPS = 200
"""Epochs of train/demand.py."""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    # What compare_nodes needs is in this environment: pip finds it there, and asks no index.
    options = ("--kubernetes", "--conda", f"your_pytorch_p311_env={LAUNCHERS}")
    need_views()
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as access:
        secret = {"metadata": {"name": "oci-config"}, "stringData": {"OCI_CONFIG_FILE": access.config_file}}
        core(access).create_namespaced_secret(access.kubernetes_namespace, secret)
        yield access


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, database: Path, emulator: Access) -> Iterator[DagRuns]:
    extra = {
        "kube_config_path": emulator.kubeconfig,
        "namespace": emulator.kubernetes_namespace,
        "work_dir": emulator.work_dir,
        "storage_conn_id": "oci_default",
    }
    cluster = json.dumps({"conn_type": "kubernetes", "extra": extra})
    env = {**emulator.airflow_env(), "AIRFLOW_CONN_KUBERNETES_DEFAULT": cluster}
    folder = tmp_path_factory.mktemp("runs")
    with DagRuns(folder, dags=EXAMPLES, env=env, database=database) as found:
        yield found


def core(access: Access) -> Any:
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(access.kubeconfig))


def test_a_cluster_with_room_trains_and_the_cloud_is_not_asked(runs: DagRuns, emulator: Access) -> None:
    runs.begin("fall_over")
    assert runs.state() == "success", runs.log[-8000:]
    states = runs.states()
    assert (states["on_cluster"], states["in_cloud"]) == ("success", "skipped")
    uri = runs.xcom("model")
    assert uri == runs.xcom("on_cluster", "checkpoint_uri")
    assert verify(uri, access_of(emulator.connection_fields())).step == STEPS


def test_a_cluster_without_room_hands_over_to_the_cloud(runs: DagRuns, emulator: Access) -> None:
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    core(emulator).create_namespaced_resource_quota(emulator.kubernetes_namespace, quota)
    try:
        runs.begin("fall_over", patience="3s")
        assert runs.state() == "success", runs.log[-8000:]
    finally:
        core(emulator).delete_namespaced_resource_quota("small", emulator.kubernetes_namespace)
    states = runs.states()
    assert (states["on_cluster"], states["in_cloud"]) == ("failed", "success")
    assert runs.xcom("on_cluster", "failure")["cause"] == "QUOTA"
    assert runs.xcom("model") == runs.xcom("in_cloud", "checkpoint_uri")
    pods = core(emulator).list_namespaced_pod(emulator.kubernetes_namespace).items
    assert {pod.status.phase for pod in pods} <= {"Succeeded", "Failed"}


def test_a_program_that_would_fail_elsewhere_too_does_not_move(runs: DagRuns, tmp_path: Path) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("hour,temperature,demand\n")
    runs.begin("fall_over", data_uri=empty.as_uri())
    assert runs.state() == "failed", runs.log[-8000:]
    states = runs.states()
    assert (states["on_cluster"], states["in_cloud"], states["model"]) == (
        "failed",
        "skipped",
        "upstream_failed",
    )
    assert "no hour with a reading" in "\n".join(runs.xcom("on_cluster", "failure")["last_lines"])


@pytest.mark.parametrize("cheap, dear", [("in_cloud", "on_cluster"), ("on_cluster", "in_cloud")])
def test_the_cheaper_home_trains_and_the_bill_is_for_its_nodes(runs: DagRuns, cheap: str, dear: str) -> None:
    runs.begin("train_where_cheaper", prices={cheap: 1.0, dear: 3.0}, hours={cheap: 2.0, dear: 1.0})
    assert runs.state() == "success", runs.log[-8000:]
    states = runs.states()
    assert (states[cheap], states[dear]) == ("success", "skipped")
    bill, result = runs.xcom("bill"), runs.xcom(cheap)
    seconds = sum(node["finished_at"] - node["started_at"] for node in result["nodes"])
    assert (bill["home"], len(result["nodes"])) == (cheap, 2)
    assert bill["cost"] == pytest.approx(seconds / 3600)


def test_one_node_and_three_are_put_side_by_side_with_a_plot(runs: DagRuns, emulator: Access) -> None:
    runs.begin("compare_nodes", epochs=2, images=192)
    store = open_store(f"{emulator.work_dir}/compare", access_of(emulator.connection_fields()))
    judge_comparison(runs, store)


def test_another_section_backend_compares_the_nodes_of_another_home(tmp_path: Path, database: Path) -> None:
    """The nodes are processes of this machine, whose connection has nothing of OCI."""
    dags, work = tmp_path / "dags", tmp_path / "work"
    for name in ("compare_nodes.py", "jobs/compare.yaml", "train/digits.py"):
        (dags / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(EXAMPLES / name, dags / name)
    job = dags / "jobs" / "compare.yaml"
    given, _, _ = job.read_text().partition("backend:")
    job.write_text(given + yaml.safe_dump({"backend": {"kind": "local", "python": PYTHON}}))
    dag = dags / "compare_nodes.py"
    dag.write_text(dag.read_text().replace('HOME = "oci_default"', 'HOME = "here"'))
    env = {"AIRFLOW_CONN_HERE": json.dumps({"conn_type": "oci", "extra": {"work_dir": str(work)}})}
    (tmp_path / "runs").mkdir()
    with DagRuns(tmp_path / "runs", dags=dags, env=env, database=database) as runs:
        runs.begin("compare_nodes", epochs=2, images=192)
        judge_comparison(runs, open_store(str(work / "compare")))


def judge_comparison(runs: DagRuns, store: Store) -> None:
    assert runs.state() == "success", runs.log[-8000:]
    one, three = runs.xcom("compare")
    assert (one["nodes"], three["nodes"]) == (1, 3)
    # 192 images in batches of 16, twice: each of three processes takes a third of the steps.
    assert (one["steps of each process"], three["steps of each process"]) == (24, 8)
    for row in (one, three):
        assert row["seconds"] > 0
        assert 0 < row["accuracy"] <= 1
    (plot,) = [entry.name for entry in store.list() if entry.name.endswith("plot.svg")]
    drawing = store.read(plot).decode()
    assert drawing.count("<rect") == 6
    assert "nodes: 3" in drawing
    assert json.loads(store.read(plot.replace("plot.svg", "rows.json"))) == [one, three]
