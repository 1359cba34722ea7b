"""ResourceQuota: what a namespace may have at most; more is refused with the sentence that people look for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import KeysOf
from airflow_provider_ocidist.emulator.kubernetes.controllers.steps import phase
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Key
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import forbidden

# Names of a quota that are short for a request.
_SHORT = {"cpu": "requests.cpu", "memory": "requests.memory"}


def admit(cluster: Cluster, obj: Obj, old: Obj | None) -> None:
    """Refuse with 403 what would go beyond a quota of the namespace."""
    if old is not None:
        return
    kind, metadata = cluster.kind(obj["kind"]), obj["metadata"]
    for quota in cluster.stored("ResourceQuota", metadata["namespace"]):
        if why := _excess(cluster, quota, obj):
            name = metadata.get("name") or metadata.get("generateName", "")
            raise forbidden(kind.resource, name, why)


def _excess(cluster: Cluster, quota: Obj, obj: Obj) -> str | None:
    hard = {name: amount(value) for name, value in (quota["spec"].get("hard") or {}).items()}
    name = quota["metadata"]["name"]
    asked = _usage(cluster, [obj])
    if unsaid := _unsaid(hard, obj):
        return f"failed quota: {name}: must specify {unsaid}"
    used = _used(cluster, quota)
    over = [
        each for each in hard if asked.get(each) and used.get(each, Fraction(0)) + asked[each] > hard[each]
    ]
    if not over:
        return None
    parts = {"requested": asked, "used": used, "limited": hard}
    shown = ", ".join(
        f"{word}: {','.join(f'{each}={_shown(amounts.get(each, Fraction(0)))}' for each in sorted(over))}"
        for word, amounts in parts.items()
    )
    return f"exceeded quota: {name}, {shown}"


def _unsaid(hard: Mapping[str, Fraction], obj: Obj) -> str:
    """Return what a pod has to say of each container under such a quota, and does not."""
    if obj["kind"] != "Pod":
        return ""
    found = []
    for name in sorted(hard):
        part, _, resource = _SHORT.get(name, name).partition(".")
        if part in ("requests", "limits") and resource in ("cpu", "memory"):
            silent = [
                container["name"]
                for container in obj["spec"]["containers"]
                if resource not in ((container.get("resources") or {}).get(part) or {})
            ]
            found += [f"{name} for: {','.join(silent)}"] if silent else []
    return "; ".join(found)


def _used(cluster: Cluster, quota: Obj) -> Mapping[str, Fraction]:
    namespace = quota["metadata"]["namespace"]
    live = [pod for pod in cluster.stored("Pod", namespace) if phase(pod) not in ("Succeeded", "Failed")]
    counted = [
        obj
        for kind in cluster.kinds
        if kind.namespaced and f"count/{kind.resource}" in quota["spec"].get("hard", {})
        for obj in cluster.stored(kind.name, namespace)
        if kind.name != "Pod"
    ]
    return _usage(cluster, [*live, *counted])


def _usage(cluster: Cluster, objects: Iterable[Obj]) -> Mapping[str, Fraction]:
    found: dict[str, Fraction] = {}
    for obj in objects:
        names = [f"count/{cluster.kind(obj['kind']).resource}"]
        for name in [*names, *(["pods"] if obj["kind"] == "Pod" else [])]:
            found[name] = found.get(name, Fraction(0)) + 1
        for name, value in _resources(obj):
            found[name] = found.get(name, Fraction(0)) + value
    return found


def _resources(obj: Obj) -> Iterable[tuple[str, Fraction]]:
    if obj["kind"] != "Pod":
        return
    for container in obj["spec"]["containers"]:
        resources = container.get("resources") or {}
        for part in ("requests", "limits"):
            for name, value in (resources.get(part) or {}).items():
                yield f"{part}.{name}", amount(value)
                if part == "requests" and name in _SHORT:
                    yield name, amount(value)


def _shown(value: Fraction) -> str:
    return str(int(value)) if value == int(value) else f"{-(-value * 1000 // 1)}m"


class Quotas:
    """Writes what is used into the status of each quota."""

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        return dict.fromkeys(("ResourceQuota", "Pod"), _namespace)

    def reconcile(self, cluster: Cluster, namespace: str, _: str) -> float | None:
        quotas: Sequence[Obj] = cluster.list("ResourceQuota", namespace)
        for quota in quotas:
            used = _used(cluster, quota)
            hard = quota["spec"].get("hard") or {}
            status = {"hard": hard, "used": {name: _shown(used.get(name, Fraction(0))) for name in hard}}
            if status != quota.get("status"):
                cluster.update({**quota, "status": status}, "status")
        return None


def _namespace(obj: Obj) -> Iterable[Key]:
    return [(obj["metadata"]["namespace"], "")]
