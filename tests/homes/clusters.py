"""Cluster: one that is only asked by its API, as `make test-k8s` is given it; else the stand-in, as if foreign."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kubernetes

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.oci_client.credentials import access_of
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import EmulatorProcess
from tests.training_jobs import ASKED_K8S
from tests.views import need_views

IMAGE = "python:3.12"
AGENT, RUN_DIR = "ocidist-agent-", "ocidist/run-dir"
RUNTIME = "torch-distributed"
PATIENCE_S = 120.0
CUSTOM = {
    "pytorchjob": ("kubeflow.org", "v1", "pytorchjobs"),
    "trainjob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
}


@dataclass(frozen=True)
class Cluster:
    """Where gangs may run, in one namespace."""

    kubeconfig: str
    namespace: str
    work_dir: str
    image: str = IMAGE
    section: Mapping[str, Any] = field(default_factory=dict)
    """What `backend` needs besides its kind, so that nodes reach `work_dir`."""
    connection: Mapping[str, Any] = field(default_factory=dict)
    """What the connection needs besides, so that those who wait reach it."""

    @property
    def fields(self) -> dict[str, Any]:
        place = {"kube_config_path": self.kubeconfig, "namespace": self.namespace, "work_dir": self.work_dir}
        return {**place, **self.connection}

    @property
    def store(self) -> Store:
        return open_store(self.work_dir, access_of(self.fields))

    def has(self, kind: str) -> bool:
        """Whether the cluster serves a kind, and has what its objects refer to."""
        group, version, plural = CUSTOM[kind]
        with kubernetes.config.new_client_from_config(self.kubeconfig) as client:
            api = kubernetes.client.CustomObjectsApi(client)
            try:
                served = {each.name for each in api.get_api_resources(group, version).resources}
                if kind == "trainjob" and "runtime" not in self.section:
                    api.get_cluster_custom_object(group, version, "clustertrainingruntimes", RUNTIME)
            except kubernetes.client.ApiException as error:
                # Who may not read a runtime may use it all the same.
                if error.status == 403:
                    return True
                if error.status == 404:
                    return False
                raise
        return plural in served

    def _is_ours(self, kind: str, metadata: Any) -> bool:
        """Whether a gang of these tests has made an object: a namespace of somebody has others, which come and go."""
        plain = isinstance(metadata, dict)
        name = metadata["name"] if plain else metadata.name
        notes = (metadata.get("annotations") if plain else metadata.annotations) or {}
        if kind == "config_map":
            return str(name).startswith(AGENT)
        return str(notes.get(RUN_DIR, "")).startswith(self.work_dir)

    def objects(self) -> set[tuple[str, str]]:
        """Return what there is in the namespace of our gangs, as far as one may see it."""
        found = set()
        with kubernetes.config.new_client_from_config(self.kubeconfig) as client:
            core, custom = kubernetes.client.CoreV1Api(client), kubernetes.client.CustomObjectsApi(client)
            for kind in ("pod", "config_map", "secret"):
                with suppress(kubernetes.client.ApiException):
                    items = getattr(core, f"list_namespaced_{kind}")(self.namespace).items
                    found |= {
                        (kind, item.metadata.name) for item in items if self._is_ours(kind, item.metadata)
                    }
            for kind, (group, version, plural) in CUSTOM.items():
                with suppress(kubernetes.client.ApiException):
                    items = custom.list_namespaced_custom_object(group, version, self.namespace, plural)[
                        "items"
                    ]
                    found |= {
                        (kind, item["metadata"]["name"])
                        for item in items
                        if self._is_ours(kind, item["metadata"])
                    }
        return found

    def clear(self, before: set[tuple[str, str]]) -> None:
        """Delete our gangs, what they have written, and the agent, which is shared, if it was not there before."""
        for kind in filter(self.has, CUSTOM):
            backend = kinds.load("backends", kind).BACKEND.connect(self.fields)
            for ref in backend.recent(1000):
                if ref.run_dir.startswith(self.work_dir):
                    backend.cancel(ref)
                    backend.delete(ref)
        for entry in list(self.store.list()):
            self.store.delete(entry.name)
        if "://" not in self.work_dir:
            # A store has no empty folders; a file system has.
            shutil.rmtree(self.work_dir, ignore_errors=True)
        with kubernetes.config.new_client_from_config(self.kubeconfig) as client:
            core = kubernetes.client.CoreV1Api(client)
            for kind, name in self.objects() - before:
                if kind == "config_map" and name.startswith(AGENT):
                    core.delete_namespaced_config_map(name, self.namespace)


def asked() -> Cluster | None:
    """Return the cluster that `make test-k8s` is given."""
    if not os.environ.get(ASKED_K8S):
        return None
    return Cluster(
        os.environ["KUBECONFIG"],
        os.environ.get("K8S_NAMESPACE") or "default",
        f"{os.environ['K8S_WORK_DIR'].rstrip('/')}/ocidist-test-{uuid.uuid4().hex[:8]}",
        os.environ.get("K8S_IMAGE") or IMAGE,
        json.loads(os.environ.get("K8S_BACKEND") or "{}"),
        json.loads(os.environ.get("K8S_CONNECTION") or "{}"),
    )


@contextmanager
def left_as_found(cluster: Cluster) -> Iterator[None]:
    """Clear the cluster at the end, and see that it has what it had before."""
    before = cluster.objects()
    try:
        yield
    finally:
        cluster.clear(before)
    deadline = time.monotonic() + PATIENCE_S
    while left := cluster.objects() - before:
        assert time.monotonic() < deadline, f"left behind: {sorted(left)}"
        time.sleep(0.5)
    assert list(cluster.store.list()) == []


@contextmanager
def any_cluster(folder: Path) -> Iterator[Cluster]:
    """Return the one that is asked for, else the stand-in: what it prints is a kubeconfig and a namespace."""
    if (found := asked()) is not None:
        yield found
        return
    need_views()
    with EmulatorProcess(folder / "emulator", options=("--kubernetes",)) as access:
        yield Cluster(access.kubeconfig, access.kubernetes_namespace, str(folder / "work"))
