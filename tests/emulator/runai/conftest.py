"""The stand-in for Run:ai over a cluster that the test moves, and a client that knows HTTP only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from tests.emulator.runai.clusters import PaperCluster

IMAGE = "nvcr.io/acme/train:1"


class Plane:
    """One client of the control plane."""

    def __init__(self, access: RunaiAccess) -> None:
        self.access = access
        self.http = httpx.Client(base_url=access.url, trust_env=False)
        self.token = self.new_token()

    def new_token(self) -> str:
        form = {
            "grant_type": "client_credentials",
            "client_id": self.access.client_id,
            "client_secret": self.access.client_secret,
        }
        return str(self.http.post("/api/v2/token", data=form).json()["access_token"])

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self.http.request(method, path, headers={"authorization": f"Bearer {self.token}"}, **options)

    def get(self, path: str, **params: Any) -> Any:
        return self.call("GET", path, params=params).json()

    def body(self, name: str = "train", *, kind: str = "distributed", **spec: Any) -> dict[str, Any]:
        own = {"distributedFramework": "PyTorch", "numWorkers": 1} if kind == "distributed" else {}
        return {
            "name": name,
            "projectId": self.access.project_id,
            "clusterId": self.access.cluster_id,
            "spec": {"image": IMAGE, **own, **spec},
        }

    def submit(self, name: str = "train", *, kind: str = "distributed", **spec: Any) -> str:
        answer = self.call("POST", f"/api/v1/workloads/{kind}", json=self.body(name, kind=kind, **spec))
        assert answer.status_code == 202, answer.text
        return str(answer.json()["workloadId"])

    def phase(self, workload_id: str) -> str:
        return str(self.get(f"/api/v1/workloads/{workload_id}").get("phase"))

    def becomes(self, workload_id: str, *phases: str) -> dict[str, Any]:
        """Wait until a workload is in one of the phases; return it."""
        found = self.until(
            lambda: self.get(f"/api/v1/workloads/{workload_id}"), lambda it: it["phase"] in phases
        )
        return dict(found)

    @staticmethod
    def until(look: Callable[[], Any], fits: Callable[[Any], bool], seconds: float = 60) -> Any:
        deadline = time.monotonic() + seconds
        while not fits(found := look()):
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        return found

    def fault(self, **rule: Any) -> None:
        assert self.http.post("/_emulator/faults", json=rule).status_code == 200


@pytest.fixture(scope="session")
def served() -> Iterator[tuple[PaperCluster, Plane]]:
    beneath = PaperCluster()
    with RunaiServer(beneath, RunaiSettings(lag_s=0.0)) as access:
        found = Plane(access)
        yield beneath, found
        found.http.close()


@pytest.fixture
def plane(served: tuple[PaperCluster, Plane]) -> Plane:
    beneath, plane = served
    plane.http.post("/_emulator/reset")
    beneath.clear()
    plane.token = plane.new_token()
    return plane


@pytest.fixture
def cluster(served: tuple[PaperCluster, Plane], plane: Plane) -> PaperCluster:
    """`plane` has reset it."""
    del plane
    return served[0]
