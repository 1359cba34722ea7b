"""Quick: faster versions of what runs millions of times in a campaign, with the same results."""

from __future__ import annotations

import _md5
import dataclasses
import email.utils
import functools
import hashlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

READINGS_KEPT = 512
"""Texts of reports and requests of which the meaning is kept: each node reads what the others have read."""
_REAL_REPLACE = dataclasses.replace


class PlainDataclasses:
    """While it lasts, the frozen dataclasses that are made assign to their fields as those that are not frozen do.

    Half of a schedule's objects are such; `object.__setattr__`, once for each field, takes several times as long. That
    nothing assigns to a field later is what mypy checks.
    """

    def __enter__(self) -> None:
        self._real = dataclasses._field_assign, dataclasses._frozen_get_del_attr
        assign, _ = self._real
        dataclasses._field_assign = lambda _frozen, *names: assign(False, *names)
        dataclasses._frozen_get_del_attr = lambda *_: ()
        dataclasses.replace = replaced

    def __exit__(self, *_: object) -> None:
        dataclasses._field_assign, dataclasses._frozen_get_del_attr = self._real
        dataclasses.replace = _REAL_REPLACE


def replaced(value: Any, /, **changes: Any) -> Any:
    """Do what `dataclasses.replace` does, without a call with each field as an argument."""
    names, copied = _copier(type(value))
    if copied is None or not names.issuperset(changes):
        return _REAL_REPLACE(value, **changes)
    return copied(value, changes)


Copied = Callable[[Any, Mapping[str, Any]], Any]


@functools.cache
def _copier(kind: type) -> tuple[frozenset[str], Copied | None]:
    """Return the names of the fields of a class, and what copies its objects with changes.

    None where more is to be done than to assign to fields.
    """
    if not _is_plain(kind):
        return frozenset(), None
    names = [field.name for field in dataclasses.fields(kind)]
    lines = [
        "def copied(value, changes):",
        " made = new(kind)",
        *(f" made.{name} = value.{name}" for name in names),
        " for name in changes:",
        "  setattr(made, name, changes[name])",
        " return made",
    ]
    found: dict[str, Any] = {"new": object.__new__, "kind": kind}
    exec("\n".join(lines), found)
    return frozenset(names), found["copied"]


def _is_plain(kind: Any) -> bool:
    """Whether an object is made of nothing but its fields, and they can be assigned to."""
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "__post_init__"):
        return False
    is_usual = kind.__new__ is object.__new__ and kind.__setattr__ is object.__setattr__
    fields = kind.__dataclass_fields__.values()
    return (
        is_usual
        # Of none but a generated one is the text not in a file.
        and getattr(kind.__init__, "__code__", None) is not None
        and kind.__init__.__code__.co_filename == "<string>"
        and all(field.init and field._field_type is not dataclasses._FIELD_INITVAR for field in fields)
    )


def install(codec: ModuleType) -> None:
    """Put what is quick in the place of what does the same, before the package has taken it by name."""
    codec.replaced = replaced
    codec.read = _remembered(codec.read)
    # For some hundred bytes it takes a third of the time that OpenSSL's takes.
    hashlib.md5 = _md5.md5
    email.utils.parsedate_to_datetime = functools.lru_cache(email.utils.parsedate_to_datetime)


def _remembered(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return `codec.read` that keeps what it has read: the objects of the package do not change."""
    kept = functools.lru_cache(READINGS_KEPT)(read)

    def read_once(cls: type, text: bytes | str) -> Any:
        # A cursor has a mapping of its own.
        return kept(cls, text) if cls.__name__ in ("NodeReport", "StopRequest") else read(cls, text)

    return read_once
