"""Queues: which of the waiting workloads have room. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.workloads import (
    Amounts,
    in_order,
    is_finished,
    is_reserved,
    requests,
    total,
)
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a workload has room, or why it has none."""

    cluster_queue: str | None
    reason: str = "QuotaReserved"
    message: str = ""


@dataclass(slots=True)
class _Queue:
    name: str
    quota: Mapping[str, tuple[str, Fraction]]
    """Flavor and amount of each resource."""
    used: dict[str, Fraction]
    is_strict: bool
    is_blocked: bool = False

    def take(self, amounts: Amounts) -> None:
        for name, value in amounts.items():
            self.used[name] = self.used.get(name, Fraction(0)) + value


def places(
    workloads: Sequence[Obj], local_queues: Sequence[Obj], cluster_queues: Sequence[Obj]
) -> dict[str, QueuePlace]:
    """Return the place of each workload that waits, by uid. All pods of a workload have room, or none."""
    queues = {queue["metadata"]["name"]: queue_of(queue) for queue in cluster_queues}
    for one in workloads:
        if is_reserved(one) and not is_finished(one):
            queue = queues.get((one["status"].get("admission") or {}).get("clusterQueue", ""))
            if queue is not None:
                queue.take(total(one))
    waiting = [one for one in workloads if not is_reserved(one) and not is_finished(one)]
    return {one["metadata"]["uid"]: _place(one, local_queues, queues) for one in in_order(waiting)}


def queue_of(queue: Obj) -> _Queue:
    """Return a ClusterQueue of which nothing is used."""
    quota = {}
    for group in queue["spec"].get("resourceGroups") or ():
        for flavor in group["flavors"][:1]:
            for one in flavor["resources"]:
                quota[one["name"]] = (flavor["name"], amount(one["nominalQuota"]))
    strict = queue["spec"].get("queueingStrategy") == "StrictFIFO"
    held = queue["spec"].get("stopPolicy", "None") != "None"
    return _Queue(queue["metadata"]["name"], quota, {}, strict, held)


def _place(one: Obj, local_queues: Sequence[Obj], queues: Mapping[str, _Queue]) -> QueuePlace:
    name, namespace = one["spec"].get("queueName", ""), one["metadata"]["namespace"]
    if not one["spec"].get("active", True):
        return QueuePlace(None, "Inadmissible", "The workload is deactivated")
    local = [
        queue
        for queue in local_queues
        if (queue["metadata"]["namespace"], queue["metadata"]["name"]) == (namespace, name)
    ]
    if not local:
        return QueuePlace(None, "Inadmissible", f"LocalQueue {name} doesn't exist")
    wanted = local[0]["spec"].get("clusterQueue", "")
    queue = queues.get(wanted)
    if queue is None:
        return QueuePlace(None, "Inadmissible", f"ClusterQueue {wanted} doesn't exist")
    return _place_in(one, queue)


def _place_in(one: Obj, queue: _Queue) -> QueuePlace:
    if queue.is_blocked:
        return QueuePlace(
            None, "Pending", f"ClusterQueue {queue.name} is inactive or waits for its first workload"
        )
    if why := next(_obstacles(one, queue), None):
        queue.is_blocked = queue.is_strict
        return QueuePlace(None, "Pending", why)
    queue.take(total(one))
    return QueuePlace(queue.name, message=f"Quota reserved in ClusterQueue {queue.name}")


def _obstacles(one: Obj, queue: _Queue) -> Iterator[str]:
    asked: dict[str, Fraction] = {}
    for pod_set in one["spec"].get("podSets") or ():
        start = f"couldn't assign flavors to pod set {pod_set.get('name')}: "
        for name, value in requests(pod_set).items():
            if name not in queue.quota:
                if name != "pods":
                    yield f"{start}resource {name} unavailable in ClusterQueue"
                continue
            flavor, quota = queue.quota[name]
            asked[name] = asked.get(name, Fraction(0)) + value
            missing = queue.used.get(name, Fraction(0)) + asked[name] - quota
            if asked[name] > quota:
                text = f"request > maximum capacity ({_shown(asked[name])} > {_shown(quota)})"
                yield f"{start}insufficient quota for {name} in flavor {flavor}, {text}"
            if missing > 0:
                unused = f"insufficient unused quota for {name} in flavor {flavor}"
                yield f"{start}{unused}, {_shown(missing)} more needed"


def _shown(value: Fraction) -> str:
    return str(int(value)) if value == int(value) else f"{-(-value * 1000 // 1)}m"
