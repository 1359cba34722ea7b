"""Patches: merge, strategic merge and JSON patches, as functions from an object to an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_provider_ocidist.emulator import patterns
from airflow_provider_ocidist.emulator.body_models import MAX_NESTING
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

MERGE_KEYS: Mapping[str, Sequence[str]] = {
    "containers": ["name"],
    "initContainers": ["name"],
    "ephemeralContainers": ["name"],
    "volumes": ["name"],
    "imagePullSecrets": ["name"],
    "env": ["name"],
    "ports": ["containerPort", "port"],
    "volumeMounts": ["mountPath"],
    "conditions": ["type"],
    "hostAliases": ["ip"],
    "ownerReferences": ["uid"],
    "secrets": ["name"],
    "addresses": ["type"],
    "topologySpreadConstraints": ["topologyKey"],
}
"""Lists that a strategic merge patch merges by a key of their entries (`x-kubernetes-patch-merge-key`)."""
MERGED_SETS = ("finalizers",)
MAX_BYTES = 3 * 512 * 1024
"""Most bytes of an object, as etcd takes."""
MAX_OPERATIONS = 10_000
"""Most operations of one JSON patch, as the API server's limit."""
PATCH_S = 0.3
"""Seconds of a processor that one JSON patch may take."""
MAX_COMPARISONS = 1_000_000
"""Most comparisons of members of two lists."""


def merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: lists of named things are merged by name."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        _set(result, name, value)
    return result


def _set(result: Obj, name: str, value: Any) -> None:
    if name.startswith("$deleteFromPrimitiveList/"):
        field = name.partition("/")[2]
        present = result.get(field) or []
        if len(present) * len(value) > MAX_COMPARISONS:
            raise too_large()
        result[field] = [each for each in present if each not in value]
    elif name.startswith("$retainKeys"):
        for key in set(result) - set(value):
            del result[key]
    elif name.startswith("$"):
        return  # the order of lists, which ours keep
    elif value is None:
        result.pop(name, None)
    elif isinstance(value, list):
        result[name] = _merged_list(name, result.get(name) or [], value)
    else:
        result[name] = strategic(result.get(name), value)


def _merged_list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if len(old) * len(patch) > MAX_COMPARISONS:
        raise too_large()
    if name in MERGED_SETS:
        return [*old, *(each for each in patch if each not in old)]
    entries = [each for each in patch if isinstance(each, dict)]
    key = next((key for key in MERGE_KEYS.get(name, ()) if all(key in each for each in entries)), None)
    replaces = any(each.get("$patch") == "replace" and len(each) == 1 for each in entries)
    if key is None or len(entries) != len(patch) or replaces:
        return [each for each in patch if not isinstance(each, dict) or "$patch" not in each]
    merged = list(old)
    for each in patch:
        _merge_entry(merged, key, each)
    return merged


def _merge_entry(merged: list[Any], key: str, entry: Obj) -> None:
    index = next((i for i, each in enumerate(merged) if each.get(key) == entry[key]), None)
    if entry.get("$patch") == "delete":
        if index is not None:
            del merged[index]
    elif index is None:
        merged.append(strategic(None, entry))
    else:
        merged[index] = strategic(merged[index], entry)


def applied(patch: Callable[[Obj], Any], target: Obj) -> Any:
    """Apply any patch. Raises 422 where it does not fit, 413 where it makes something too large."""
    try:
        result = patch(target)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        text = f"the server rejected our request due to an error in our request: {error!r:.300}"
        raise KubernetesError(422, "Invalid", text) from error
    _check_size(result)
    return result


def _check_size(value: Any) -> None:
    """Raise 413 for what would be too large as JSON, or nested too deep: parts that a patch has copied are one part."""
    left, level = MAX_BYTES, [value]
    for _ in range(MAX_NESTING):
        following: list[Any] = []
        for each in level:
            left -= len(each) + 2 if isinstance(each, str) else 2
            if isinstance(each, dict):
                left -= sum(map(len, each)) + 4 * len(each)
                following += each.values()
            elif isinstance(each, list):
                following += each
            if left < 2 * len(following):
                raise too_large()
        if not following:
            return
        level = following
    raise too_large()


def too_large() -> KubernetesError:
    text = f"Request entity too large: limit is {MAX_BYTES}"
    return KubernetesError(413, "RequestEntityTooLarge", text)


def json_patch(target: Obj, operations: Sequence[Mapping[str, Any]]) -> Any:
    """Apply a JSON patch (RFC 6902)."""
    if len(operations) > MAX_OPERATIONS:
        text = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise KubernetesError(413, "RequestEntityTooLarge", text)
    result: Any = target
    budget = patterns.MatchingTime(PATCH_S)
    for operation in operations:
        try:
            budget.check()
        except patterns.TooSlow:
            raise too_large() from None
        result = _operated(result, operation)
    return result


def _operated(target: Any, operation: Mapping[str, Any]) -> Any:
    verb, path = operation["op"], _steps(operation["path"])
    if verb == "test":
        if _at(target, path) != operation["value"]:
            raise ValueError(f"testing path {operation['path']} failed")
        return target
    if verb == "remove":
        return _without(target, path)
    if verb in ("move", "copy"):
        source = _steps(operation["from"])
        value = _at(target, source)
        return _with(_without(target, source) if verb == "move" else target, path, value, adds=True)
    if verb in ("add", "replace"):
        return _with(target, path, operation["value"], adds=verb == "add")
    raise ValueError(f"unknown operation {verb}")


def _steps(pointer: str) -> list[str]:
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if len(steps) > MAX_NESTING:
        raise ValueError(f"a path may have {MAX_NESTING} steps")
    return steps


def _at(target: Any, path: Sequence[str]) -> Any:
    for step in path:
        target = target[int(step)] if isinstance(target, list) else target[step]
    return target


def _with(target: Any, path: Sequence[str], value: Any, *, adds: bool) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(target, list):
        index = len(target) if step == "-" else int(step)
        if rest:
            return [*target[:index], _with(target[index], rest, value, adds=adds), *target[index + 1 :]]
        if not 0 <= index <= len(target) - (not adds):
            raise IndexError(f"index {step} is out of bounds")
        return [*target[:index], value, *target[index + (not adds) :]]
    if rest or not adds:
        target[step]
    return {**target, step: _with(target[step], rest, value, adds=adds) if rest else value}


def _without(target: Any, path: Sequence[str]) -> Any:
    step, rest = path[0], path[1:]
    if rest:
        return _with(target, [step], _without(_at(target, [step]), rest), adds=False)
    if isinstance(target, list):
        target[int(step)]
        return [*target[: int(step)], *target[int(step) + 1 :]]
    target[step]
    return {name: value for name, value in target.items() if name != step}
