"""Kinds of objects: what the API server knows of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem

Obj = dict[str, Any]
"""Object as JSON."""
MAX_REPLICAS = 10_000
"""Most pods that one object may ask for; a real cluster would take more, and never have them."""
TOO_MANY = f"Invalid value: the emulator takes at most {MAX_REPLICAS}"


STATUS: Mapping[Any, Any] = {
    "conditions": [
        {
            **dict.fromkeys(("type", "status", "reason", "message", "lastTransitionTime"), "str"),
            "lastUpdateTime": "str",
            "observedGeneration": "int",
        }
    ],
    ...: "object",
}
"""Schema of the status of custom kinds: anybody who may write a status may write any, and controllers read the
conditions."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind. An operator's kinds stand in its controller's module, with their rules."""

    name: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short_names: Sequence[str] = ()
    has_status: bool = False
    """Whether the status is a part of its own: others' writes leave it alone, and its writes leave the rest alone."""
    schema: str | Mapping[Any, Any] | None = None
    """Schema of its fields, by name of a type in field_types.json or written out as `fields` explains; None: any."""
    defaults: Callable[[Obj], None] = field(default=lambda _: None)
    """Function that fills in, at each write, what the client left out."""
    problems: Callable[[Obj, Obj | None], Sequence[Problem]] = field(default=lambda _new, _old: ())
    """Function that returns the problems of an object to be written (and what it was before, if it was): answered as
    422."""
    prepare: Callable[[Obj], None] = field(default=lambda _: None)
    """Function that sets what a new object begins with, whatever the client sent, such as its first status."""
    columns: Sequence[tuple[str, str]] = ()
    """Columns of `kubectl get`: heading, and where the value is, such as `.status.phase`."""
    is_custom: bool = False
    """Whether a CustomResourceDefinition defines it: no strategic merge, and unknown fields are pruned."""
    has_spec: bool = True
    label_named: bool = False
    """Whether names are labels of DNS, not subdomains."""

    @property
    def singular(self) -> str:
        return self.name.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as errors and roles name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def title(self) -> str:
        """The kind with its group."""
        return f"{self.name}.{self.group}" if self.group else self.name
