"""What of a service's object was asked for, in one form for a plan and for what exists. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def bare(value: Any, left_out: Collection[str] = ()) -> Any:
    """Return a value without empty parts, since services also return fields that were never set.

    `left_out`: names of fields that others set.
    """
    if isinstance(value, Mapping):
        items = {name: bare(item, left_out) for name, item in value.items() if name not in left_out}
        return {name: item for name, item in items.items() if item not in (None, {}, [])}
    return [bare(item, left_out) for item in value] if isinstance(value, list | tuple) else value
