"""The contract of backends on the stand-ins for Kubernetes and Run:ai."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiOptions
from airflow_provider_ocidist.emulator.server import Emulator
from tests.backends import clusters
from tests.backends.contract import Contract, Home
from tests.views import need_views


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    options = Options(
        grace_s=1.0,
        kubernetes=ClusterSettings(**clusters.FAST, status_delay_s=0.5),
        runai=RunaiOptions(lag_s=0.0),
    )
    need_views()
    with Emulator(options=options) as running:
        yield running


def on_kubernetes(emulator: Emulator, kind: str) -> Home:
    home = clusters.Home(emulator, kind)
    job = {"image": clusters.IMAGE, "env": {"OCI_CONFIG_FILE": emulator.access.config_file}}
    return Home(kind, home.fields, {**job, "backend": {"kind": kind}})


class TestPyTorchJob(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Emulator) -> Home:
        return on_kubernetes(emulator, "pytorchjob")


class TestTrainJob(Contract):
    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, emulator: Emulator) -> Home:
        return on_kubernetes(emulator, "trainjob")


class TestRunai(Contract):
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
