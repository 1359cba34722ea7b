"""A cluster beside an OCI, for backends on Kubernetes: both are the emulator, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import kubernetes
import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from tests.training_jobs import PROGRAMS
from tests.views import need_views

FAST = {"backoff_s": 0.2, "backoff_max_s": 0.4, "mount_retry_s": 0.05, "bookmark_s": 0.2, "eviction_s": 0.3}
ROLE = Path(__file__).parents[2] / "container/kubernetes/role.yaml"
IMAGE = "python:3.12"
"""Every image of the stand-in is the Python of this machine; one whose name holds `missing` cannot be pulled."""


@dataclass(frozen=True)
class Home:
    """Where gangs of one kind run."""

    emulator: Emulator
    kind: str

    @property
    def namespace(self) -> str:
        return self.emulator.access.kubernetes_namespace

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a connection: the cluster's, and those of the Object Storage that holds `work_dir`."""
        access = self.emulator.access
        return {
            "kube_config_path": access.kubeconfig,
            "auth": "config_file",
            "config_file": access.config_file,
            "profile": access.profile,
            "region": "us-ashburn-1",
            "endpoint": access.url,
            "work_dir": f"oci://{access.bucket}@{access.namespace}/ocidist",
        }

    def job(
        self, nodes: int = 2, seconds: float = 0.3, script: str = "steps.py", **changes: Any
    ) -> TrainingJob:
        given = {
            "name": "steps",
            "nodes": nodes,
            "image": IMAGE,
            "program": {"source": str(PROGRAMS), "script": script, "args": ["--seconds", str(seconds)]},
            "launcher": {"kind": "python"},
            "checkpoints": {},
            "limits": {"stop_grace": 1},
            **changes,
        }
        own = {"OCI_CONFIG_FILE": self.emulator.access.config_file}
        given["env"] = {**own, **changes.get("env", {})}
        given["backend"] = {"kind": self.kind, **changes.get("backend", {})}
        return parsing.build(given)

    @property
    def client(self) -> kubernetes.client.ApiClient:
        return kubernetes.config.new_client_from_config(self.emulator.access.kubeconfig)

    def pods(self) -> list[str]:
        with self.client as client:
            found = kubernetes.client.CoreV1Api(client).list_namespaced_pod(self.namespace)
            return [pod.metadata.name for pod in found.items]

    def control(self, where: str, method: str = "POST", **body: Any) -> None:
        with httpx.Client(trust_env=False) as http:
            url = f"{self.emulator.url}/_emulator/kubernetes{where}"
            http.request(method, url, json=body or None).raise_for_status()

    def calls(self) -> list[str]:
        """Return the paths of the requests to the API server, with their queries."""
        with httpx.Client(trust_env=False) as http:
            found = http.get(f"{self.emulator.url}/_emulator/kubernetes/calls").raise_for_status().json()
        return [str(call["path"]) for call in found]

    def clear(self) -> None:
        """End all gangs and faults."""
        self.control("/faults", method="DELETE")
        self.control("/pods", method="DELETE")
        backend = kinds.load("backends", self.kind).BACKEND.connect(self.fields)
        for ref in (found := backend.recent(1000)):
            backend.delete(ref)
        deadline = time.monotonic() + 60
        while found and not all(status.ended for status in backend.status(found)):
            assert time.monotonic() < deadline, "pods live on"
            time.sleep(0.05)

    def user(self, name: str, lifetime_s: float | None = None) -> dict[str, Any]:
        """Return the fields of a connection as a user for whom only bindings count."""
        from airflow_provider_ocidist.emulator.kubernetes.users import named

        _, config = self.emulator.kubernetes.new_user(named(name, []), lifetime_s)
        return {**self.fields, "kube_config_path": None, "kube_config": yaml.safe_load(config)}

    def bind(self, user: str, *, without: str = "") -> None:
        """Give a user the Role that the documents name; `without`: but for this verb."""
        role = yaml.safe_load(ROLE.read_text())
        role["metadata"]["name"] = user
        for rule in role["rules"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != without]
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        }
        with self.client as client:
            api = kubernetes.client.RbacAuthorizationV1Api(client)
            api.create_namespaced_role(self.namespace, role)
            api.create_namespaced_role_binding(self.namespace, binding)


@contextmanager
def cluster(kind: str, **settings: Any) -> Iterator[Home]:
    """Start both, and end them with all their pods."""
    need_views()
    with Emulator(options=Options(kubernetes=ClusterSettings(**{**FAST, **settings}))) as emulator:
        yield Home(emulator, kind)
