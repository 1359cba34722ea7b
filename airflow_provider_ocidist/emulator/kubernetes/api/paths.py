"""Paths of the API: which kind, object and part a request is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_provider_ocidist.emulator.kubernetes.kinds import Kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a path names. Without a name: all objects of the kind."""

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class Paths:
    """Reads the paths of the kinds that a cluster has."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds: Mapping[tuple[str, str, str], Kind] = {
            (kind.group, kind.version, kind.plural): kind for kind in kinds
        }

    def target(self, path: str) -> Target | None:
        """Return what a decoded path names; None for a path of no kind."""
        parts = path.strip("/").split("/")
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            return None
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0]))
        if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
            return None
        name, subresource = (*rest[1:], "", "")[:2]
        return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
