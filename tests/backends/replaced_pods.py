"""Gangs of which a pod is lost, on any kind of operator: their job, what befalls them, how they are waited for."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes

from airflow_provider_ocidist.backends.kubernetes.replacing import ReplacingBackend
from airflow_provider_ocidist.gangs.actions import (
    EndSilent,
    Fail,
    GiveUpSilent,
    GoOnWithout,
    Replace,
    Succeed,
)
from airflow_provider_ocidist.gangs.replacements import change_nodes
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.model.work_dir import lost_report_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.backends.clusters import Home
from tests.training_jobs import a_key

LOG = logging.getLogger("replaced-pods")
STEPS = 14
PROGRAM = f"""
import json, os, pathlib, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
saved = max(folder.glob("step-*.json"), default=None)
state = json.loads(saved.read_text()) if saved else {{"step": 0, "weights": 1}}
for step in range(state["step"] + 1, {STEPS} + 1):
    time.sleep(float(sys.argv[1]))
    state = {{"step": step, "weights": state["weights"] * 31 % 1_000_003 + step}}
    print(f"step {{step}}/{STEPS} loss 1.0", flush=True)
    if rank == 0 and step % 3 == 0 or step == {STEPS}:
        (folder / ".new").write_text(json.dumps(state))
        (folder / ".new").rename(folder / f"step-{{step:03}}.json")
"""


def trained() -> dict[str, int]:
    """Return what the program has in the end, if nothing disturbs it."""
    weights = 1
    for step in range(1, STEPS + 1):
        weights = weights * 31 % 1_000_003 + step
    return {"step": STEPS, "weights": weights}


def a_job(home: Home, folder: Path, **changes: Any) -> TrainingJob:
    return parsing.build(written(home, folder, **changes))


def written(
    home: Home,
    folder: Path,
    pause: float = 1.0,
    *,
    backend: dict[str, Any] | None = None,
    losses: int = 1,
    **limits: Any,
) -> dict[str, Any]:
    """`pause`: in seconds, for each step: a training that ends before the fault shows nothing."""
    source = folder / "program"
    source.mkdir(exist_ok=True)
    (source / "train.py").write_text(PROGRAM)
    return {
        "name": "steps",
        "nodes": 3,
        "image": "python:3.12",
        "program": {"source": str(source), "script": "train.py", "args": [str(pause)]},
        "launcher": {"kind": "python"},
        "env": {"OCI_CONFIG_FILE": home.emulator.access.config_file},
        "checkpoints": {},
        "restarts": {"node": losses},
        "limits": {"stop_grace": 1, "lease": 600, **limits},
        "backend": {"kind": home.kind, **(backend or {})},
    }


def submitted(backend: ReplacingBackend, job: TrainingJob) -> RunRecord:
    return GangSubmitter(backend, job, LOG, None, threading.Event()).adopt_or_submit(a_key(), None)


def uids(home: Home, ref: RunRef) -> list[str | None]:
    """Return the UIDs of a gang's pods, by rank; None for a pod that is not there."""
    found = {rank: pod.metadata.uid for rank, pod in pods(home, ref).items()}
    return [found.get(rank) for rank in range(ref.nodes)]


def pods(home: Home, ref: RunRef) -> dict[int, Any]:
    """Return the pods of a gang that are not over, by rank; of several of a rank the newest."""
    with home.client as client:
        found = kubernetes.client.CoreV1Api(client).list_namespaced_pod(home.namespace).items
    alive = [
        pod
        for pod in sorted(found, key=lambda pod: int(pod.metadata.resource_version))
        if pod.status.phase not in ("Succeeded", "Failed") and pod.metadata.deletion_timestamp is None
    ]
    return {
        rank: pod
        for rank, name in enumerate(ref.run_ids)
        for pod in alive
        # Those of a Job end in five random letters.
        if pod.metadata.name == name or pod.metadata.name[:-6] == name
    }


def alone(home: Home, ref: RunRef) -> list[int]:
    """Return the ranks whose pods have their machines for themselves."""
    machines = {rank: pod.spec.node_name for rank, pod in pods(home, ref).items()}
    return [rank for rank, name in machines.items() if [*machines.values()].count(name) == 1]


def cordon(home: Home, *, held: bool) -> None:
    """Let no machine take another pod, or any again."""
    with home.client as client:
        api = kubernetes.client.CoreV1Api(client)
        for machine in api.list_node().items:
            api.patch_node(machine.metadata.name, {"spec": {"unschedulable": held}})


def has_saved(status: RunStatus) -> bool:
    """Whether all train, and have come beyond a checkpoint."""
    phases = {node.report and node.report.phase for node in status.nodes}
    return status.checkpoint is not None and phases == {Phase.TRAINING}


def followed(
    backend: ReplacingBackend,
    record: RunRecord,
    seconds: float = 150.0,
    enough: Callable[[RunRef], bool] = lambda _: False,
) -> tuple[Watch, Succeed | Fail | None, list[Any]]:
    """Wait as a task does; return how that ended, and what was decided about nodes.

    `enough`: whether a gang has come so far that nobody waits on.
    """
    watch, changes, until = Watch(backend, record, LOG), list[Any](), time.monotonic() + seconds
    while time.monotonic() < until:
        if enough(watch.record.ref):
            return watch, None, changes
        action = watch.look(time.time())
        if isinstance(action, Succeed | Fail):
            return watch, action, changes
        if isinstance(action, Replace | GiveUpSilent | EndSilent | GoOnWithout):
            changes.append(action)
            change_nodes(watch, action, LOG)
        time.sleep(0.1)
    raise AssertionError(f"no end: {watch.status}")


def befall(home: Home, effect: str, ref: RunRef, rank: int) -> None:
    """Let something happen to the pod that a rank has now."""
    pod = pods(home, ref)[rank].metadata.name
    if effect != "delete":
        return home.control("/pods", effect=effect, name=pod)
    with home.client as client:
        kubernetes.client.CoreV1Api(client).delete_namespaced_pod(pod, home.namespace)
    return None


def check_replaced(backend: ReplacingBackend, watch: Watch, before: list[str | None], rank: int) -> None:
    ref = watch.record.ref
    assert [each.rank for each in ref.replaced] == [rank]
    assert ref.lost_runs == (before[rank],)
    assert ref.lost_seconds > 0
    (status,) = backend.status([ref])
    reports = [node.report for node in status.nodes]
    assert all(reports)
    assert [each.incarnation for each in reports if each] == [int(each == rank) for each in range(ref.nodes)]
    for each, report in enumerate(reports):
        assert report
        assert (report.instance == before[each]) == (each != rank), "only the lost pod was made anew"
    store = open_store(ref.run_dir, backend._access)
    lost = NodeReport.from_json(store.read(lost_report_of(rank, 0)))
    assert lost.instance == before[rank]
    place = status.checkpoint
    assert place
    assert weights(backend, place.uri) == trained()
    assert backend.open(ref.job_id).ref.replaced == ref.replaced


def weights(backend: ReplacingBackend, uri: str) -> Any:
    store = open_store(uri, backend._access)
    (name,) = [entry.name for entry in store.list() if entry.name.endswith(f"step-{STEPS:03}.json")]
    return json.loads(store.read(name))
