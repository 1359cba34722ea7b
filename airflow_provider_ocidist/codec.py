"""Frozen dataclasses to JSON values and back, with the standard library only."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from airflow_provider_ocidist.backports import get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if not _is_default(field, getattr(value, field.name))
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(cls: type[T], value: Mapping[str, Any]) -> T:
    """Return the dataclass that `encode` wrote; unknown keys are dropped, so that older code reads newer records."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{cls.__name__} must be an object, not {type(value).__name__}")
    hints = get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{key: _decode_as(hints[key], item) for key, item in value.items() if key in known})


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _decode_as(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _decode_as(arguments[0], value)
    if origin in (typing.Union, getattr(types, "UnionType", None)):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _decode_as(inner, value)
    if origin is tuple:
        return tuple(_decode_as(arguments[0], item) for item in value)
    if dataclasses.is_dataclass(hint):
        return decode(typing.cast("type[Any]", hint), value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value
