"""Idle pods: any number of gangs that train on Kubernetes, in an emulator, without a process on any node."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.pytorchjob import BACKEND, OPTIONS
from airflow_provider_ocidist.model.job import Program, TrainingJob
from airflow_provider_ocidist.model.run import Expectations, RunKey, RunRecord
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from scripts.idle_gangs import IdleNodes

AT_A_TIME = 8
NAME = "idle"
ELSEWHERE = "kueue.x-k8s.io/multikueue"
"""The manager of a PyTorchJob that the training operator leaves alone: its pods are ours to make."""
MACHINES = 4
PATIENCE_S = 600.0


@dataclass(frozen=True)
class IdlePods(IdleNodes):
    """Gangs of a PyTorchJob each, with a pod for each node."""

    @property
    def connections(self) -> dict[str, Any]:
        place = {
            "kube_config_path": self.emulator.kubeconfig,
            "namespace": self.emulator.kubernetes_namespace,
        }
        extra = {**place, "work_dir": self.store.uri, "storage_conn_id": "oci_default"}
        return {"kubernetes_default": {"conn_type": "kubernetes", "extra": extra}, **super().connections}

    def asked(self, path: str = "") -> list[dict[str, object]]:
        """Return the requests that the cluster's API server has answered; a pattern of the path chooses among them."""
        wanted = {"path": path} if path else {}
        answer = httpx.get(f"{self.emulator.url}/_emulator/kubernetes/calls", params=wanted)
        return list(answer.raise_for_status().json())

    def forget_asked(self) -> None:
        httpx.delete(f"{self.emulator.url}/_emulator/kubernetes/calls").raise_for_status()

    @contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Let the API server take so long for each answer."""
        faults = f"{self.emulator.url}/_emulator/kubernetes/faults"
        httpx.post(faults, json={"path": ".*", "latency_s": seconds}).raise_for_status()
        try:
            yield
        finally:
            httpx.delete(faults).raise_for_status()


@contextmanager
def idle_pods(emulator: Access, count: int, nodes: int = 1) -> Iterator[IdlePods]:
    """Create gangs whose pods run until the end of the emulator, which was started with `--kubernetes`."""
    batch = f"{NAME}-{uuid.uuid4().hex[:8]}"
    httpx.post(f"{emulator.url}/_emulator/kubernetes/pods", json={"effect": "idle"}).raise_for_status()
    work_dir = f"{emulator.work_dir}/{batch}"
    fields = emulator.connection_fields(work_dir=work_dir)
    maker = _Maker(emulator, {**fields, "kube_config_path": emulator.kubeconfig}, batch, nodes)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        records = list(pool.map(maker.gang, range(count)))
    maker.wait_until_run(count * nodes)
    yield IdlePods(emulator, records, open_store(work_dir, access_of(fields)))


class _Maker:
    """Makes the objects of gangs, as the training operator would."""

    def __init__(self, emulator: Access, fields: Mapping[str, Any], batch: str, nodes: int) -> None:
        self._namespace = emulator.kubernetes_namespace
        self._api = Api(ClusterFields(kube_config_path=emulator.kubeconfig))
        self._backend = BACKEND.connect(fields)
        self._batch = batch
        self._job = TrainingJob(
            name=NAME,
            nodes=nodes,
            image="python:3.12",
            program=Program(script="train", module=True),
            work_dir=fields["work_dir"],
            backend=OPTIONS(kind="pytorchjob"),
        )

    def gang(self, number: int) -> RunRecord:
        key = RunKey(dag_id=NAME, run_id=self._batch, task_id="train", map_index=number)
        plan = self._backend.plan(self._job, key)
        (body,) = [dict(each.body) for each in plan.requests if each.body["kind"] == "PyTorchJob"]
        policy = {**body["spec"]["runPolicy"], "managedBy": ELSEWHERE}
        body["spec"] = {**body["spec"], "runPolicy": policy}
        here = f"/apis/kubeflow.org/v1/namespaces/{self._namespace}/pytorchjobs"
        made = self._api.create(here, body)
        name = made["metadata"]["name"]
        conditions = [{"type": kind, "status": "True", "message": kind} for kind in ("Created", "Running")]
        self._api.patch(f"{here}/{name}/status", {"status": {"conditions": conditions}})
        record = self._backend.open(f"{self._namespace}/{name}")
        for rank, pod in enumerate(record.ref.run_ids):
            self._make_pod(made, pod, "Worker" if rank else "Master", f"node-{number % MACHINES}")
        return replace(
            record,
            expects=Expectations(checkpoint=False),
            deadline=time.time() + 86400,
            start_deadline=None,
            lost_timeout=86400.0,
            hang_timeout=1800.0,
            logs_since=(record.ref.submitted_at,) * record.ref.nodes,
        )

    def _make_pod(self, owner: Mapping[str, Any], name: str, role: str, machine: str) -> None:
        template = owner["spec"]["pytorchReplicaSpecs"][role]["template"]
        reference = {part: owner[part] for part in ("apiVersion", "kind")}
        reference |= {part: owner["metadata"][part] for part in ("name", "uid")}
        metadata = {
            **template["metadata"],
            "name": name,
            "ownerReferences": [{**reference, "controller": True}],
        }
        spec = {**template["spec"], "restartPolicy": "Never", "nodeName": machine}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self._api.create(f"/api/v1/namespaces/{self._namespace}/pods", body)

    def wait_until_run(self, pods: int) -> None:
        path, deadline = f"/api/v1/namespaces/{self._namespace}/pods", time.monotonic() + PATIENCE_S
        while sum(1 for _ in self._api.list(path, fieldSelector="status.phase=Running")) < pods:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{pods} pods do not run within {PATIENCE_S:.0f} s")
            time.sleep(1.0)
