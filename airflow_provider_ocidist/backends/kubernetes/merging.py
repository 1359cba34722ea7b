"""Pod templates, one laid over another as Kubernetes' strategic merge lays them. Pure."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Key that identifies an entry, for each list of named entries (`patchMergeKey` in Kubernetes' API types)."""
REPLACED_WHOLE = {"volumes", "env", "volumeMounts", "volumeDevices", "ports", "hostAliases"}
"""Lists of these whose entries replace one another: a volume has one source, a variable one value."""
APPENDED = {"tolerations", "envFrom"}
"""Lists of alternatives, of which a node may need the entries of both sides."""


def merged_manifest(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `over` laid over it; neither is changed. A value of None in `over` takes a key away."""
    found = copy.deepcopy(dict(base))
    for name, value in over.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged_value(name, found.get(name), value)
    return found


def _merged_value(name: str, old: Any, new: Any) -> Any:
    if isinstance(new, Mapping):
        return merged_manifest(old if isinstance(old, Mapping) else {}, new)
    if isinstance(new, list | tuple) and isinstance(old, list | tuple):
        if name in APPENDED:
            return [*old, *(copy.deepcopy(item) for item in new if item not in old)]
        if name in LIST_KEYS:
            return _by_key(old, new, LIST_KEYS[name], whole=name in REPLACED_WHOLE)
    return [copy.deepcopy(item) for item in new] if isinstance(new, list | tuple) else copy.deepcopy(new)


def _by_key(old: Sequence[Any], new: Sequence[Any], key: str, *, whole: bool) -> list[Any]:
    found = {_name(item, key, number): item for number, item in enumerate(old)}
    for number, item in enumerate(new):
        name = _name(item, key, len(old) + number)
        before = found.get(name)
        if whole or not isinstance(item, Mapping) or not isinstance(before, Mapping):
            found[name] = copy.deepcopy(item)
        else:
            found[name] = merged_manifest(before, item)
    return list(found.values())


def _name(item: Any, key: str, number: int) -> Any:
    """Return what identifies an entry; one without a name is like no other."""
    named = item.get(key) if isinstance(item, Mapping) else None
    return (None, number) if named is None else named
