"""Frozen dataclasses to JSON values and back, with the standard library only; what is read is of the declared types."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from airflow_provider_ocidist.backports import get_type_hints

T = TypeVar("T")
_Values = Callable[[Any], "tuple[Any, ...]"]
"""Function that returns the values of a dataclass's fields."""
_KEY = "key in JSON"


def key(name: str) -> Mapping[str, str]:
    """Return the metadata of a field that has another name in JSON: the one that earlier versions write and read."""
    return {_KEY: name}


def encode(value: Any) -> Any:
    """Return the JSON value of a dataclass; fields that hold their default are left out."""
    kind: Any = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is tuple:
        # The losses of a report are a hundred pairs, written at every beat.
        return [item if type(item) in _AS_THEY_ARE else encode(item) for item in value]
    written = _written(kind)
    if written is not None:
        return _encoded(value, *written)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def replaced(value: T, **changes: Any) -> T:
    """Return a dataclass with other values for some: `dataclasses.replace`, in half of its time.

    A report has forty fields, and is made anew at every beat.
    """
    kind: Any = type(value)
    names, values_of = _fields(kind)
    made: T = kind(**{**dict(zip(names, values_of(value))), **changes})
    return made


@functools.cache
def _fields(cls: Any) -> tuple[tuple[str, ...], _Values]:
    """Return the names of a dataclass's fields, and the function that returns their values."""
    names = tuple(field.name for field in dataclasses.fields(cls))
    if len(names) < 2:
        # An attrgetter of one name returns no tuple.
        return names, lambda value: tuple(getattr(value, name) for name in names)
    return names, operator.attrgetter(*names)


def _encoded(value: Any, values_of: _Values, fields: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    """Return the fields that do not hold their default, as most of a report do, which is written at every beat."""
    found = {}
    for item, (key, default) in zip(values_of(value), fields):
        if item is not default and (default is dataclasses.MISSING or item != default):
            found[key] = item if type(item) in _AS_THEY_ARE else encode(item)
    return found


def decode(cls: type[T], value: Mapping[str, Any]) -> T:
    """Return the dataclass that `encode` wrote; unknown keys are dropped, so that older code reads newer records.

    Raises TypeError or ValueError, which name the field and never show the value, where it is of another type.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(f"{cls.__name__} must be an object, not {type(value).__name__}")
    kind: Any = cls
    readers, found = _readers(kind), {}
    for key, item in value.items():
        if key in readers:
            name, plain, reader = readers[key]
            found[name] = item if type(item) in plain else reader(item)
    return cls(**found)


def read(cls: type[T], text: bytes | str) -> T:
    """Return the dataclass that a text of JSON holds; raises as `decode`, and ValueError where it is not JSON."""
    try:
        return decode(cls, json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})
"""Types that JSON has as Python has them."""


def _key_of(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get(_KEY, field.name))


@functools.cache
def _written(cls: Any) -> tuple[_Values, tuple[tuple[str, Any], ...]] | None:
    """Return what returns the values of the fields, and of each its key in JSON and its default, MISSING without one.

    None of a class that is no dataclass.
    """
    if not hasattr(cls, "__dataclass_fields__"):
        return None
    return _fields(cls)[1], tuple((_key_of(field), _default_of(field)) for field in dataclasses.fields(cls))


def _default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@functools.cache
def _readers(cls: Any) -> Mapping[str, tuple[str, frozenset[type], Callable[[Any], Any]]]:
    """Return the name of each field, the types of values that stay as they are, and the function that reads others.

    By the field's key in JSON.

    Cached, since a thousand gangs are read again at every poll.
    """
    hints = get_type_hints(cls)
    return {
        _key_of(field): (
            field.name,
            _plain(hints[field.name]),
            _reader(hints[field.name], f"{cls.__name__}.{field.name}"),
        )
        for field in dataclasses.fields(cls)
    }


def _plain(hint: Any) -> frozenset[type]:
    """Return the types of JSON's values that a field of a type holds as they are."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _plain(arguments[0])
    if origin in _UNIONS:
        return frozenset().union(*map(_plain, arguments))
    return frozenset({hint} if hint is type(None) else _SCALARS.get(hint, ()))


_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def _reader(hint: Any, name: str) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type; `name` is how errors call the value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _reader(arguments[0], name)
    if origin in _UNIONS:
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        present = _reader(inner, name)
        return lambda value: None if value is None else present(value)
    if origin is tuple:
        return _tuple_reader(arguments[0], name)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        item = _reader(arguments[1], name)
        return lambda value: {key: item(one) for key, one in _checked(value, (Mapping,), name).items()}
    if dataclasses.is_dataclass(hint):
        return lambda value: decode(typing.cast("type[Any]", hint), value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: _member(hint, value, name)
    if hint in _SCALARS:
        types_ = _SCALARS[hint]
        return lambda value: value if type(value) in types_ else _checked(value, types_, name)
    return lambda value: value


def _tuple_reader(hint: Any, name: str) -> Callable[[Any], tuple[Any, ...]]:
    item, plain = _reader(hint, name), frozenset(_SCALARS.get(hint, ()))

    def read_tuple(value: Any) -> tuple[Any, ...]:
        values = _checked(value, (list, tuple), name)
        # The losses of a report are a hundred pairs, read at every poll.
        return tuple(values) if plain.issuperset(map(type, values)) else tuple(map(item, values))

    return read_tuple


_SCALARS: Mapping[Any, tuple[type, ...]] = {str: (str,), bool: (bool,), int: (int,), float: (float, int)}
"""Python's types for each field type of one value; a whole number is a float too, as in JSON."""


def _checked(value: Any, types_: tuple[type, ...], name: str) -> Any:
    # A bool is an int in Python, and nowhere else.
    if not isinstance(value, types_) or (isinstance(value, bool) and bool not in types_):
        raise TypeError(f"{name} must be of type {types_[0].__name__}, not {type(value).__name__}")
    return value


def _member(kind: type[Enum], value: Any, name: str) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} is none of {', '.join(str(each.value) for each in kind)}") from None
