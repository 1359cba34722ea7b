"""Type hints of the job's dataclasses: fields with their types, and what annotates these."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any


def required_of(cls: type[Any]) -> list[str]:
    """Return the names of the fields that have no default."""
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]


def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the type hint of each field, in the fields' order, with its annotations."""
    names = [item.name for item in dataclasses.fields(cls)]
    hints = typing.get_type_hints(cls, include_extras=True)
    return {name: hints[name] for name in names}


def hint_at(cls: type[Any], path: Sequence[int | str]) -> Any:
    """Return the type hint of a value inside a dataclass; `path`: names of fields, keys and indexes that lead to it."""
    hint: Any = cls
    for part in path:
        bare = plain_of(hint)
        if dataclasses.is_dataclass(bare):
            hint = hints_of(typing.cast("type[Any]", bare))[str(part)]
        else:
            hint = typing.get_args(bare)[1 if issubclass(typing.get_origin(bare), Mapping) else 0]
    return hint


def is_optional(hint: Any) -> bool:
    """Return whether a field may be None."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def plain_of(hint: Any) -> Any:
    """Return a hint's type, without None and annotations."""
    hint = _without_none(hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def metadata_of(hint: Any) -> tuple[Any, ...]:
    """Return the annotations of a hint, such as `AtLeast(1)`."""
    hint = _without_none(hint)
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()


def _without_none(hint: Any) -> Any:
    if is_optional(hint):
        (hint,) = [item for item in typing.get_args(hint) if item is not type(None)]
    return hint
