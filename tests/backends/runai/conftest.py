"""A control plane of Run:ai without a cluster that runs anything, and a backend that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane


@pytest.fixture(scope="module")
def cluster() -> PaperCluster:
    return PaperCluster()


@pytest.fixture(scope="module")
def access(cluster: PaperCluster) -> Iterator[RunaiAccess]:
    with RunaiServer(cluster, RunaiSettings(lag_s=0.0)) as found:
        yield found


@pytest.fixture
def plane(access: RunaiAccess, cluster: PaperCluster) -> Iterator[Plane]:
    found = Plane(access)
    found.http.post("/_emulator/reset")
    cluster.clear()
    yield found
    found.http.close()


@pytest.fixture
def fields(access: RunaiAccess, tmp_path: Path) -> dict[str, Any]:
    extra = {"project": access.project, "work_dir": str(tmp_path / "work")}
    return runai_fields(access.url, access.client_id, access.client_secret, extra)


@pytest.fixture
def backend(plane: Plane, fields: dict[str, Any]) -> Runai:
    del plane
    return Runai.connect(fields)
