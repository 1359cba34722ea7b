"""Frozen dataclasses to JSON values and back, with the standard library only."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from airflow_provider_ocidist.backports import get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass; fields that hold their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: encode(getattr(value, field.name))
            for field in _fields(type(value))
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
    kind: Any = cls
    readers = _readers(kind)
    return cls(**{key: readers[key](item) for key, item in value.items() if key in readers})


@functools.cache
def _fields(cls: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cls)


@functools.cache
def _readers(cls: Any) -> Mapping[str, Callable[[Any], Any]]:
    """Return how the value of each field is read. Cached, since a thousand gangs are read again at every poll."""
    hints = get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in _fields(cls)}


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False


def _reader(hint: Any) -> Callable[[Any], Any]:
    read = _reader_of_values(hint)
    return lambda value: None if value is None else read(value)


def _reader_of_values(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _reader_of_values(arguments[0])
    if origin in (typing.Union, getattr(types, "UnionType", typing.Union)):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _reader_of_values(inner)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, value))
    if dataclasses.is_dataclass(hint):
        return lambda value: decode(typing.cast("type[Any]", hint), value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return lambda value: value
