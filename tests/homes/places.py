"""Every home of a gang, and what can befall a gang there. A home joins by one line in HOMES."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import kubernetes
import psutil

from scripts.emulator_process import Access
from tests.homes.clusters import asked
from tests.training_jobs import BACKEND

FOREIGN = asked()
"""A cluster that takes no faults, which `make test-k8s` is given: its homes alone are tried."""
OUTAGE_S = 3.0
"""For how long nobody answers: many times as long as between two looks."""
GPUS = 8
"""More than any stand-in has."""


@dataclass(frozen=True)
class Here:
    """A home that stands, for one DAG."""

    access: Access
    folder: Path
    """Where the programs of the DAG leave word."""

    def oci(self, method: str, place: str, **body: Any) -> None:
        _control(method, f"{self.access.url}/_emulator{place}", body)

    def cluster(self, method: str, place: str, **body: Any) -> None:
        _control(method, f"{self.access.url}/_emulator/kubernetes{place}", body)

    def plane(self, method: str, place: str, **body: Any) -> None:
        _control(method, f"{dict(self.access.runai or {})['url']}/_emulator{place}", body)

    def program_of(self, rank: int) -> psutil.Process:
        return psutil.Process(int((self.folder / str(rank)).read_text()))


def _control(method: str, url: str, body: Mapping[str, Any]) -> None:
    with httpx.Client(trust_env=False) as http:
        http.request(method, url, json=body or None).raise_for_status()


Act = Callable[[Here], None]


def nothing(here: Here) -> None:
    del here


@dataclass(frozen=True)
class Fault:
    """What befalls a gang: from before it is created, or when its nodes have come to where they wait."""

    before: Act = nothing
    amid: Act | None = None
    after: Act = nothing
    goes_on: bool = False
    """Whether the same nodes go on."""


@dataclass(frozen=True)
class Home:
    """Where a job file sends a gang, by nothing but its section `backend`."""

    name: str
    backend: Mapping[str, Any]
    connection: Callable[[Access, Path], Mapping[str, Any]]
    """Airflow's connection, as JSON has it."""
    faults: Mapping[str, Fault]
    """By the name of the DAG."""
    options: tuple[str, ...] = ()
    """Of the emulator."""
    greedy: Mapping[str, Any] = field(default_factory=dict)
    """What the section has besides, to ask for more than there is."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """By the name of the DAG: the cause that this home reports instead, since its service reports less."""
    needs: Callable[[Access], Mapping[str, Any]] = lambda _: {}
    """What the section has besides, so that nodes reach `work_dir`."""


# connections


def oci(access: Access, folder: Path) -> Mapping[str, Any]:
    del folder
    return {"conn_type": "oci", "extra": access.connection_fields()}


def shared_folder(access: Access, folder: Path) -> Mapping[str, Any]:
    del access
    return {"conn_type": "oci", "extra": {"work_dir": str(folder / "work")}}


def kubernetes_connection(access: Access, folder: Path) -> Mapping[str, Any]:
    del folder
    extra = {"kube_config_path": access.kubeconfig, "namespace": access.kubernetes_namespace}
    storage = {"work_dir": access.work_dir, "storage_conn_id": "oci_default"}
    return {"conn_type": "kubernetes", "extra": {**extra, **storage}}


def runai(access: Access, folder: Path) -> Mapping[str, Any]:
    assert access.runai is not None
    ready = access.runai
    extra = {"project": ready["project"], "work_dir": str(folder / "work")}
    return {
        "conn_type": "runai",
        "host": ready["url"],
        "login": ready["client_id"],
        "password": ready["client_secret"],
        "extra": {**extra, "kube_config_path": access.kubeconfig},
    }


# what befalls gangs


def lose_node(here: Here) -> None:
    """End all processes of the last node, as the loss of its machine does."""
    process = here.program_of(1)
    name = process.environ()["OCIDIST_RUN_NAME"]
    while (parent := process.parent()) is not None and _is_of(parent, name):
        process = parent
    for each in (process, *process.children(recursive=True)):
        # Processes of a node die with those that started them.
        with suppress(psutil.NoSuchProcess):
            each.kill()


def _is_of(process: psutil.Process, run_name: str) -> bool:
    """Whether a process belongs to a node of this run: the agent was started with what names it."""
    try:
        environment = process.environ()
    except psutil.Error:
        return False
    return any(run_name in value for value in environment.values())


def pods(here: Here, *, effect: str) -> None:
    # Of this gang: one before it may still be ending.
    gang = here.folder.name.replace("_", "-")
    here.cluster("POST", "/pods", effect=effect, name=f"{gang}-.*-(worker-0|node-0-1-.*)")


def not_started(here: Here, *, why: str) -> None:
    """Let the service fail one node at its start, with these details: it is the only way that it says such a thing."""
    here.oci("POST", "/nodes", failure=why, times=1)


def service_away(here: Here) -> None:
    here.oci("POST", "/faults", path="/20190101/.*", status=503)
    time.sleep(OUTAGE_S)
    here.oci("DELETE", "/faults")


def cluster_away(here: Here) -> None:
    here.cluster("POST", "/away", seconds=600)
    time.sleep(OUTAGE_S)
    here.cluster("DELETE", "/faults")


def plane_away(here: Here) -> None:
    here.plane("POST", "/faults", path="/api/v1/.*", status=503)
    time.sleep(OUTAGE_S)
    here.plane("DELETE", "/faults")


def service_refuses(here: Here) -> None:
    here.oci("POST", "/faults", path="/20190101/.*", status=401, times=2)


def cluster_refuses(here: Here) -> None:
    here.cluster("POST", "/faults", path="/apis/.*", status=401, times=2)


def tokens_expire(here: Here) -> None:
    here.plane("DELETE", "/tokens")


def namespace_is_full(here: Here) -> None:
    body = {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "0"}}}
    _core(here).create_namespaced_resource_quota(here.access.kubernetes_namespace, body)


def namespace_has_room(here: Here) -> None:
    _core(here).delete_namespaced_resource_quota("small", here.access.kubernetes_namespace)


def _core(here: Here) -> Any:
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(here.access.kubeconfig))


def project_is_full(here: Here) -> None:
    here.plane("PUT", "/projects/1", gpus=0, limit=0)


def project_has_room(here: Here) -> None:
    here.plane("PUT", "/projects/1", gpus=None, limit=None)


ON_OCI = {
    "loses_a_node": Fault(amid=lose_node),
    "is_preempted": Fault(before=partial(not_started, why="The instance was preempted."), goes_on=True),
    "outlives_an_outage": Fault(amid=service_away, goes_on=True),
    "outlives_its_token": Fault(amid=service_refuses, goes_on=True),
    "lacks_its_image": Fault(before=partial(not_started, why="Failed to pull the container image.")),
    "lacks_room": Fault(before=partial(not_started, why="The service limit is exceeded.")),
}
ON_PODS = {
    "loses_a_node": Fault(amid=partial(pods, effect="kill")),
    "is_evicted": Fault(amid=partial(pods, effect="evict")),
    "is_preempted": Fault(amid=partial(pods, effect="preempt")),
    "lacks_its_image": Fault(),
}
ON_KUBERNETES = {
    **ON_PODS,
    "outlives_an_outage": Fault(amid=cluster_away, goes_on=True),
    "outlives_its_token": Fault(amid=cluster_refuses, goes_on=True),
    "lacks_room": Fault(before=namespace_is_full, after=namespace_has_room),
}
ON_RUNAI = {
    **ON_PODS,
    "outlives_an_outage": Fault(amid=plane_away, goes_on=True),
    "outlives_its_token": Fault(amid=tokens_expire, goes_on=True),
    "lacks_room": Fault(before=project_is_full, after=project_has_room),
}


# homes


def of_oci(topology: str) -> Home:
    return Home(topology, {**BACKEND, "topology": topology}, oci, ON_OCI)


def of_kubernetes(kind: str, container: str) -> Home:
    """Return a home on a cluster; its nodes reach `work_dir` with a config file, as its pod template says."""
    if FOREIGN is not None:
        connection = {"conn_type": "kubernetes", "extra": FOREIGN.fields}
        return Home(
            kind, {"kind": kind, **FOREIGN.section}, lambda *_: connection, {"lacks_its_image": Fault()}
        )

    def own(access: Access) -> Mapping[str, Any]:
        env = [{"name": "OCI_CONFIG_FILE", "value": access.config_file}]
        return {"pod_template": {"spec": {"containers": [{"name": container, "env": env}]}}}

    return Home(
        kind, {"kind": kind}, kubernetes_connection, ON_KUBERNETES, options=("--kubernetes",), needs=own
    )


ON_CLUSTERS = tuple(
    of_kubernetes(kind, container)
    for kind, container in {"pytorchjob": "pytorch", "trainjob": "node"}.items()
    # A cluster of somebody may have one operator only.
    if FOREIGN is None or FOREIGN.has(kind)
)
ELSEWHERE = (
    Home("local", {"kind": "local"}, shared_folder, {"loses_a_node": Fault(amid=lose_node)}),
    of_oci("job_runs"),
    of_oci("multi_node"),
    Home(
        "runai",
        {"kind": "runai"},
        runai,
        ON_RUNAI,
        options=("--runai",),
        greedy={"gpus": GPUS},
        causes={"is_evicted": "NODE", "is_preempted": "NODE"},
    ),
)
HOMES = {each.name: each for each in (*ON_CLUSTERS, *(() if FOREIGN else ELSEWHERE))}
