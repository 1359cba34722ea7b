"""The scheduler: gives each pod a node that has room for it, or says why none has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from airflow_provider_ocidist.emulator.kubernetes import events
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import KeysOf, itself
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Key
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount

COMPONENT = "default-scheduler"
ENDED = ("Succeeded", "Failed")
HARD = ("NoSchedule", "NoExecute")

Amounts = Mapping[str, Fraction]


def requested(spec: Obj) -> dict[str, Fraction]:
    """Return what a pod asks for: the sum of its containers, or what an init container needs if that is more."""
    result: dict[str, Fraction] = {"pods": Fraction(1)}
    for container in spec["containers"]:
        for name, value in _amounts(container).items():
            result[name] = result.get(name, Fraction(0)) + value
    for init in spec.get("initContainers") or ():
        for name, value in _amounts(init).items():
            result[name] = max(result.get(name, Fraction(0)), value)
    return result


def _amounts(container: Obj) -> dict[str, Fraction]:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: amount(value) for name, value in requests.items()}


class Scheduler:
    """Looks at pods without a node, again whenever room may have become free."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return {"Pod": self._pods, "Node": self._waiting, "PersistentVolumeClaim": self._waiting}

    def _pods(self, pod: Obj) -> Iterable[Key]:
        ended = pod["status"].get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]
        return [*itself(pod), *(self._waiting(pod) if ended else ())]

    def _waiting(self, _: Obj) -> Iterable[Key]:
        return [key for pod in self._cluster.stored("Pod") if _waits(pod) for key in itself(pod)]

    def reconcile(self, cluster: Cluster, namespace: str, name: str) -> float | None:
        pod = cluster.find("Pod", namespace, name)
        if pod is None or not _waits(pod):
            return None
        refusals = _missing_claims(cluster, pod) or self._place(cluster, pod)
        if refusals:
            _report(cluster, pod, refusals)
        return None

    def _place(self, cluster: Cluster, pod: Obj) -> Sequence[str]:
        """Bind a pod to the first node that takes it; return the nodes' refusals where none does."""
        refusals = []
        used = _used(cluster)
        nodes = cluster.stored("Node")
        for node in sorted(nodes, key=lambda node: used.get(node["metadata"]["name"], {}).get("pods", 0)):
            why = _refusals(pod, node, used.get(node["metadata"]["name"], {}))
            if not why:
                _bind(cluster, pod, node)
                return []
            refusals += why
        return [_sentence(len(nodes), refusals)]


def _waits(pod: Obj) -> bool:
    gated = pod["spec"].get("schedulingGates")
    ended = pod["status"].get("phase") in ENDED or "deletionTimestamp" in pod["metadata"]
    return not (pod["spec"].get("nodeName") or gated or ended)


def _used(cluster: Cluster) -> dict[str, dict[str, Fraction]]:
    """Return what the pods of each node have."""
    used: dict[str, dict[str, Fraction]] = {}
    for pod in cluster.stored("Pod"):
        node = pod["spec"].get("nodeName")
        if node and pod["status"].get("phase") not in ENDED:
            held = used.setdefault(node, {})
            for name, value in requested(pod["spec"]).items():
                held[name] = held.get(name, Fraction(0)) + value
    return used


def _refusals(pod: Obj, node: Obj, used: Amounts) -> list[str]:
    """Return why a node does not take a pod, as the scheduler words it; nothing where it does."""
    spec = pod["spec"]
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or ():
        if taint.get("effect") in HARD and not _tolerates(spec.get("tolerations") or (), taint):
            return [f"node(s) had untolerated taint {{{taint.get('key', '')}: {taint.get('value', '')}}}"]
    if not _selected(spec, node["metadata"].get("labels") or {}):
        return ["node(s) didn't match Pod's node affinity/selector"]
    room = {name: amount(value) for name, value in node["status"].get("allocatable", {}).items()}
    wanted = requested(spec)
    lacking = [name for name, value in wanted.items() if used.get(name, 0) + value > room.get(name, 0)]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in lacking]


def _tolerates(tolerations: Iterable[Mapping[str, str]], taint: Mapping[str, str]) -> bool:
    return any(
        each.get("effect") in (None, "", taint["effect"])
        and (not each.get("key") or each["key"] == taint.get("key"))
        and (each.get("operator") == "Exists" or each.get("value", "") == taint.get("value", ""))
        for each in tolerations
    )


def _selected(spec: Obj, labels: Mapping[str, str]) -> bool:
    selector = spec.get("nodeSelector") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    return all(labels.get(name) == value for name, value in selector.items()) and (
        not terms or any(_term(term, labels) for term in terms)
    )


def _term(term: Obj, labels: Mapping[str, str]) -> bool:
    return all(_expression(each, labels) for each in term.get("matchExpressions") or ())


def _expression(expression: Obj, labels: Mapping[str, str]) -> bool:
    key, verb = expression["key"], str(expression["operator"])
    values: Sequence[str] = expression.get("values") or []
    if verb in ("Exists", "DoesNotExist"):
        return (key in labels) == (verb == "Exists")
    if verb in ("Gt", "Lt"):
        number = int(labels.get(key, "0"))
        return key in labels and (number > int(values[0]) if verb == "Gt" else number < int(values[0]))
    return (labels.get(key) in set(values)) == (verb == "In")


def _missing_claims(cluster: Cluster, pod: Obj) -> list[str]:
    count = len(cluster.stored("Node"))
    for volume in pod["spec"].get("volumes") or ():
        name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
        if name and cluster.find("PersistentVolumeClaim", pod["metadata"]["namespace"], name) is None:
            return [_sentence(count, [], f'persistentvolumeclaim "{name}" not found.')]
    return []


def _sentence(nodes: int, refusals: Sequence[str], other: str = "") -> str:
    """Return the scheduler's sentence, such as `0/2 nodes are available: 2 Insufficient nvidia.com/gpu. ...`."""
    counted = ", ".join(f"{count} {text}" for text, count in sorted(Counter(refusals).items()))
    if not nodes:
        return "no nodes available to schedule pods"
    hopeless = any(not text.startswith(("Insufficient", "Too many")) for text in refusals) or other
    why = (
        "Preemption is not helpful for scheduling"
        if hopeless
        else "No preemption victims found for incoming pod"
    )
    none = f"0/{nodes} nodes are available:"
    return f"{none} {other or f'{counted}.'} preemption: {none} {nodes} {why}."


def _bind(cluster: Cluster, pod: Obj, node: Obj) -> None:
    metadata, name = pod["metadata"], node["metadata"]["name"]
    _condition(cluster, pod, {"status": "True"})
    cluster.modify(
        "Pod", metadata["namespace"], metadata["name"], lambda new: new["spec"].update(nodeName=name)
    )
    text = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {name}"
    events.record(cluster, pod, "Scheduled", text, component=COMPONENT)


def _report(cluster: Cluster, pod: Obj, refusals: Sequence[str]) -> None:
    _condition(cluster, pod, {"status": "False", "reason": "Unschedulable", "message": refusals[0]})
    events.record(cluster, pod, "FailedScheduling", refusals[0], component=COMPONENT, warning=True)


def _condition(cluster: Cluster, pod: Obj, values: Mapping[str, str]) -> None:
    """Set the condition PodScheduled, unless it says that already."""

    def change(new: Obj) -> None:
        conditions = new["status"].setdefault("conditions", [])
        old: Obj = next((each for each in conditions if each["type"] == "PodScheduled"), {})
        if {name: old.get(name) for name in values} != values:
            others = [each for each in conditions if each["type"] != "PodScheduled"]
            fresh = {"type": "PodScheduled", **values, "lastProbeTime": None, "lastTransitionTime": now()}
            new["status"]["conditions"] = [*others, fresh]

    metadata = pod["metadata"]
    cluster.modify("Pod", metadata["namespace"], metadata["name"], change, "status")
