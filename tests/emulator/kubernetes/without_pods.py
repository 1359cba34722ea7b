"""A cluster with operators whose pods do not run: the test says what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_ocidist.emulator.kubernetes.controllers.garbage import GarbageCollector
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import Manager
from airflow_provider_ocidist.emulator.kubernetes.core_kinds import KINDS
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.operators import Operators
from tests.emulator.kubernetes.waiting import until


@contextmanager
def operating(operators: Operators) -> Iterator[Cluster]:
    cluster, manager = cluster_with(operators)
    manager.start()
    try:
        yield cluster
    finally:
        manager.stop()


def cluster_with(operators: Operators) -> tuple[Cluster, Manager]:
    cluster = Cluster([*KINDS, *operators.kinds])
    cluster.create({"kind": "Namespace", "metadata": {"name": "training"}})
    operators.install(cluster)
    return cluster, Manager(cluster, [GarbageCollector(cluster), *operators.controllers])


def create(cluster: Cluster, obj: dict) -> dict:
    obj["metadata"].pop("uid", None)
    return cluster.create({**obj, "metadata": {**obj["metadata"], "namespace": "training"}})


def pods(cluster: Cluster, count: int) -> list[dict]:
    return until(lambda: (found := cluster.list("Pod", "training")) and len(found) == count and found)


def turn(cluster: Cluster, pod: str, phase: str, code: int | None = None) -> None:
    """Say what became of a pod."""

    def change(obj: dict) -> None:
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        name = obj["spec"]["containers"][0]["name"]
        containers = [{"name": name, "restartCount": 0, "state": state}]
        obj["status"].update(phase=phase, containerStatuses=containers)

    cluster.modify("Pod", "training", pod, change, "status")


def truth(cluster: Cluster, kind: str, name: str, condition: str) -> bool:
    found = cluster.get(kind, "training", name).get("status", {}).get("conditions", ())
    return any(one["type"] == condition and one["status"] == "True" for one in found)


def events(cluster: Cluster, reason: str) -> list[dict]:
    return [event for event in cluster.list("Event", "training") if event["reason"] == reason]
