"""Manifests: objects in YAML, read as JSON; what could grow, or take long, is refused before it does."""

from __future__ import annotations

from typing import Any

import yaml

from airflow_provider_ocidist.emulator.body_models import MAX_NESTING
from airflow_provider_ocidist.emulator.wire import encode_json, stored_json

MAX_NODES = 50_000
"""Most nodes of one manifest; PyYAML makes some hundred thousand a second."""
MAX_PLAIN = 1_000
"""Most characters of a plain scalar: a long one takes long to recognise as a number."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # found by its name
    """Reads times as texts, as JSON has them."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(raw: bytes) -> Any:
    """Return what a manifest stands for. Raises ValueError."""
    try:
        _check(raw)
        # By way of JSON: YAML has keys that are no texts, sets, and numbers that are none.
        return stored_json(encode_json(yaml.load(raw, Loader=_Loader)).encode())  # noqa: S506 - a safe one
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error


def _check(raw: bytes) -> None:
    """Look at the parts one by one: to compose them takes a stack as deep as they are nested, and follows aliases."""
    depth = 0
    for number, event in enumerate(yaml.parse(raw, Loader=_Loader)):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias in YAML is not read here")  # noqa: TRY004 - the value is wrong
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and event.implicit[0] and len(event.value) > MAX_PLAIN:
            raise ValueError(f"a plain scalar may have {MAX_PLAIN} characters")
        if depth > MAX_NESTING:
            raise ValueError(f"it is nested more than {MAX_NESTING} levels deep")
        if number > MAX_NODES:
            raise ValueError(f"it has more than {MAX_NODES} parts")
