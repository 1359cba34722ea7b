"""The contract of backends on the stand-ins for Kubernetes and Run:ai."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
from airflow.sdk import DAG

from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from tests.backends import clusters
from tests.backends.contract import Contract, Home
from tests.views import need_views
from tests.walks.test_capacity import Ti, context


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    options = Options(
        grace_s=1.0,
        kubernetes=ClusterSettings(**clusters.FAST, status_delay_s=0.5, pull_s=0.2),
        runai=RunaiSettings(lag_s=0.0),
    )
    need_views()
    with Emulator(options=options) as running:
        yield running


def on_kubernetes(emulator: Emulator, kind: str) -> Home:
    home = clusters.Home(emulator, kind)
    job = {"image": clusters.IMAGE, "env": {"OCI_CONFIG_FILE": emulator.access.config_file}}
    return Home(kind, home.fields, {**job, "backend": {"kind": kind}})


class OnPods(Contract):
    """Where a node is a pod."""

    gangs: ClassVar[int] = 1
    """Gangs that a try makes when a node is lost: one where another pod takes its place alone."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def loss(cls, home: Home, folder: Path) -> Iterator[Future[Ti]]:
        """A task whose gang loses a node; it begins before all tests, so that their times do not add up."""
        # On a busy machine the loss is noticed seconds later: the other node must train for longer.
        given = home.given(folder, seconds=30)
        given["env"][DRILL_VARIABLE] = "kill-node@training:node=1,step=2"
        with DAG("dag", schedule=None):
            task = DistributedTrainingOperator(
                task_id="train",
                job={**given, "restarts": {"node": 1}},
                conn_id="loss",
                deferrable=False,
                poll_interval=0.2,
            )
        connection = {"conn_type": "oci", "extra": dict(home.fields)}
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
            patch.setenv("AIRFLOW_CONN_LOSS", json.dumps(connection))
            ti = Ti()
            yield pool.submit(lambda: (task.execute(context(ti)), ti)[1])

    def test_what_has_lost_a_node_trains_on_in_the_same_try(self, home: Home, loss: Future[Ti]) -> None:
        xcoms = loss.result().xcoms
        ref = RunRef.from_json(xcoms["run"])
        assert (ref.backend, ref.key.attempt, ref.key.generation) == (home.kind, self.gangs, 0)
        assert [each.rank for each in ref.replaced] == ([1] if self.gangs == 1 else [])
        assert xcoms["checkpoint_uri"]
        assert "failure" not in xcoms


class TestPyTorchJob(OnPods):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Emulator) -> Home:
        return on_kubernetes(emulator, "pytorchjob")


class TestTrainJob(OnPods):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Emulator) -> Home:
        return on_kubernetes(emulator, "trainjob")


class TestRunai(OnPods):
    gangs = 2

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Home:
        access = emulator.access.runai
        assert access is not None
        extra = {
            "project": access["project"],
            "work_dir": str(tmp_path_factory.mktemp("runai") / "work"),
            "kube_config_path": emulator.access.kubeconfig,
        }
        fields = runai_fields(access["url"], access["client_id"], access["client_secret"], extra)
        return Home("runai", fields, {"image": clusters.IMAGE, "backend": {"kind": "runai"}})
