"""LimitRange: what a namespace gives containers that do not say it, and what it takes of pods at least and at most.

Source: the admission plugin LimitRanger, by its documentation and its messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.pod_specs import quality
from airflow_provider_ocidist.emulator.kubernetes.quantities import amount
from airflow_provider_ocidist.emulator.kubernetes.statuses import forbidden

NOTE = "kubernetes.io/limit-ranger"
"""Annotation of a pod with what was given to its containers."""


@dataclass(frozen=True, slots=True)
class _Quantity:
    value: Fraction
    text: str


_Amounts = Mapping[str, _Quantity]


def admit(cluster: Cluster, pod: Obj, old: Obj | None) -> None:
    """Give the containers of a new pod what they do not say; refuse with 403 a pod that is beyond a limit."""
    if old is not None:
        return
    metadata = pod["metadata"]
    ranges = cluster.stored("LimitRange", metadata["namespace"])
    for each in ranges:
        _give(pod, each)
    for each in ranges:
        if found := [*_excesses(pod["spec"], each)]:
            name = metadata.get("name") or metadata.get("generateName", "")
            raise forbidden("pods", name, found[0] if len(found) == 1 else f"[{', '.join(found)}]")


def _items(limit_range: Obj, kind: str) -> list[Obj]:
    return [item for item in limit_range["spec"].get("limits") or () if item.get("type") == kind]


def _give(pod: Obj, limit_range: Obj) -> None:
    spec, metadata = pod["spec"], pod["metadata"]
    requests: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for item in _items(limit_range, "Container"):
        requests |= item.get("defaultRequest") or {}
        limits |= item.get("default") or {}
    said = [
        text
        for part, noun in (("containers", "container"), ("initContainers", "init container"))
        for container in spec.get(part) or ()
        for text in _given(container, noun, {"request": requests, "limit": limits})
    ]
    if said:
        note = {NOTE: f"LimitRanger plugin set: {'; '.join(said)}"}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **note}
        pod["status"]["qosClass"] = quality(spec)


def _given(container: Obj, noun: str, amounts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Give a container what it does not say; yield what that was."""
    for word, given in amounts.items():
        own = container["resources"].get(f"{word}s") or {}
        new = {name: value for name, value in given.items() if name not in own}
        if new:
            container["resources"][f"{word}s"] = {**own, **new}
            yield f"{', '.join(sorted(new))} {word} for {noun} {container['name']}"


def _excesses(spec: Obj, limit_range: Obj) -> Iterator[str]:
    containers = [_resources(each) for each in spec["containers"]]
    inits = [_resources(each) for each in spec.get("initContainers") or ()]
    for item in _items(limit_range, "Container"):
        for requests, limits in (*containers, *inits):
            yield from _beyond(item, requests, limits)
    for item in _items(limit_range, "Pod"):
        requests = _of_pod([each for each, _ in containers], [each for each, _ in inits])
        limits = _of_pod([each for _, each in containers], [each for _, each in inits])
        yield from _beyond(item, requests, limits)


def _resources(container: Obj) -> tuple[_Amounts, _Amounts]:
    own = container.get("resources") or {}
    return _quantities(own.get("requests")), _quantities(own.get("limits"))


def _quantities(given: Mapping[str, Any] | None) -> dict[str, _Quantity]:
    return {name: _Quantity(amount(value), str(value)) for name, value in (given or {}).items()}


def _of_pod(containers: list[_Amounts], inits: list[_Amounts]) -> _Amounts:
    """Return what a pod has: the sum of its containers, or what one init container has, if that is more."""
    found: dict[str, _Quantity] = {}
    for each in containers:
        for name, more in each.items():
            found[name] = _sum(found[name], more) if name in found else more
    for each in inits:
        for name, one in each.items():
            found[name] = max(found.get(name, one), one, key=lambda quantity: quantity.value)
    return found


def _sum(one: _Quantity, other: _Quantity) -> _Quantity:
    value = one.value + other.value
    return _Quantity(value, str(value) if value.denominator == 1 else f"{-(-value * 1000 // 1)}m")


def _beyond(item: Obj, requests: _Amounts, limits: _Amounts) -> Iterator[str]:
    """Yield in which ways requests and limits are beyond an item of a LimitRange."""
    per = f"usage per {item['type']} is"
    for name, least in _quantities(item.get("min")).items():
        if why := _below(least, requests.get(name), limits.get(name)):
            yield f"minimum {name} {per} {least.text}{why}"
    for name, most in _quantities(item.get("max")).items():
        if why := _above(most, requests.get(name), limits.get(name)):
            yield f"maximum {name} {per} {most.text}{why}"
    for name, ratio in _quantities(item.get("maxLimitRequestRatio")).items():
        if why := _apart(ratio, requests.get(name), limits.get(name)):
            yield f"{name} max limit to request ratio per {item['type']} is {ratio.text}, but {why}"


def _below(least: _Quantity, request: _Quantity | None, limit: _Quantity | None) -> str:
    if request is None:
        return ". No request is specified"
    if request.value < least.value:
        return f", but request is {request.text}"
    return f", but limit is {limit.text}" if limit is not None and limit.value < least.value else ""


def _above(most: _Quantity, request: _Quantity | None, limit: _Quantity | None) -> str:
    if limit is None:
        return ". No limit is specified"
    if limit.value > most.value:
        return f", but limit is {limit.text}"
    return f", but request is {request.text}" if request is not None and request.value > most.value else ""


def _apart(ratio: _Quantity, request: _Quantity | None, limit: _Quantity | None) -> str:
    for word, quantity in (("request", request), ("limit", limit)):
        if quantity is None or not quantity.value:
            return f"no {word} is specified or {word} is 0"
    assert request is not None
    assert limit is not None
    found = limit.value / request.value
    return f"provided ratio is {float(found):f}" if found > ratio.value else ""
