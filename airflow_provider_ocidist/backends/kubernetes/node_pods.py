"""Which of the pods that an operator has made for one rank is its node. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.backends.kubernetes.objects import Obj, is_deleted
from airflow_provider_ocidist.backends.kubernetes.operator import Operator
from airflow_provider_ocidist.backends.kubernetes.pod_parts import container_has_begun
from airflow_provider_ocidist.model.run import RunRef


def nodes_among(
    ref: RunRef, pods: Mapping[int, Sequence[Obj]], operator: Operator, instances: Mapping[int, str]
) -> dict[int, Obj]:
    """Return the pod of each rank that has any; `instances`: UIDs of pods by the last reports of their nodes."""
    return {
        rank: _node_among(ref, rank, found, operator, instances.get(rank, ""))
        for rank, found in pods.items()
        if found
    }


def _node_among(ref: RunRef, rank: int, pods: Sequence[Obj], operator: Operator, instance: str) -> Obj:
    present = [pod for pod in pods if uid_of(pod) not in ref.lost_runs] or pods
    if own := next((pod for pod in present if instance and uid_of(pod) == instance), None):
        return own
    if operator.restarts_pods and not ref.incarnation(rank):
        # What the operator has made beside the first one is not that node.
        begun = [pod for pod in present if container_has_begun(pod, operator.container)]
        if begun:
            return min(begun, key=_age)
    return max(present, key=_age)


def uid_of(pod: Obj) -> str:
    return str(pod["metadata"].get("uid"))


def _age(pod: Obj) -> tuple[str, bool]:
    """Return what orders pods by their creation, of which only the second is known."""
    phase = (pod.get("status") or {}).get("phase")
    is_over = phase in ("Succeeded", "Failed") or is_deleted(pod)
    return str((pod.get("metadata") or {}).get("creationTimestamp")), not is_over
