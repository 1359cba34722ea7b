"""Features of Python 3.10 to 3.12, for nodes with Python 3.9, and for Airflow with one before 3.12."""

from __future__ import annotations

import datetime as dt
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self
else:
    Self = object  # nothing reads it when a program runs

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """Strings with names, which are written as their values."""

        __str__ = str.__str__
        __format__ = str.__format__  # type: ignore[assignment]  # str takes no keyword, Enum does


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - the name that functools gives it
        """A property that is computed once; without functools' lock, which the properties of all instances share.

        There, one that waits for a service that does not answer holds up those of all others.
        """

        def __init__(self, function: Callable[[Any], Any]) -> None:
            self._function = function
            self.__doc__ = function.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            # Of two threads that have computed it, both get the value of the first.
            return vars(instance).setdefault(self._name, self._function(instance))


if sys.version_info >= (3, 10):
    from typing import get_type_hints

    if TYPE_CHECKING:
        from dataclasses import dataclass
    else:
        import dataclasses

        def dataclass(cls: type | None = None, **options: bool) -> type:
            """Make a dataclass in slots: one process may hold those of a thousand gangs."""
            return dataclasses.dataclass(cls, slots=True, **options)

else:
    import ast
    import dataclasses
    from typing import TypeVar, Union

    if TYPE_CHECKING:
        from typing_extensions import dataclass_transform
    else:

        def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
            return lambda function: function

    T = TypeVar("T")

    @dataclass_transform(field_specifiers=(dataclasses.field, dataclasses.Field))
    def dataclass(cls: type[T] | None = None, *, kw_only: bool = False, **options: bool) -> Any:
        """Make a dataclass; with `kw_only` its fields may be in any order, and are given by name."""

        def made(cls: type[T]) -> type[T]:
            if kw_only:
                cls.__init__ = _init_by_name  # type: ignore[method-assign]  # dataclass makes none, with init=False
            return dataclasses.dataclass(init=not kw_only, **options)(cls)

        return made if cls is None else made(cls)

    def _init_by_name(self: Any, **values: Any) -> None:
        fields = dataclasses.fields(self)
        missing = [field.name for field in fields if field.name not in values and _is_needed(field)]
        unknown = sorted(values.keys() - {field.name for field in fields if field.init})
        if missing or unknown:
            raise TypeError(f"{type(self).__name__}: missing {missing}, unknown {unknown}")
        for field in fields:
            value = values[field.name] if field.name in values else _default(field)
            object.__setattr__(self, field.name, value)
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    def _is_needed(field: dataclasses.Field[Any]) -> bool:
        return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

    def _default(field: dataclasses.Field[Any]) -> Any:
        if field.default_factory is not dataclasses.MISSING:
            return field.default_factory()
        return field.default

    def get_type_hints(cls: type) -> dict[str, Any]:
        """Return the types of the fields, of which `X | None` and the like are understood."""
        hints = {}
        for base in reversed(cls.__mro__):
            names = {**vars(sys.modules[base.__module__]), "Union": Union}
            for name, text in vars(base).get("__annotations__", {}).items():
                read = ast.fix_missing_locations(_UnionsSpelledOut().visit(ast.parse(text, mode="eval")))
                hints[name] = eval(compile(read, text, "eval"), names)  # noqa: S307 - annotations of our own classes
        return hints

    class _UnionsSpelledOut(ast.NodeTransformer):
        def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
            self.generic_visit(node)
            both = ast.Tuple([node.left, node.right], ast.Load())
            return ast.Subscript(ast.Name("Union", ast.Load()), both, ast.Load())


__all__ = ["UTC", "Self", "StrEnum", "cached_property", "dataclass", "get_type_hints", "moment", "unix_time"]

UTC = dt.timezone.utc

_FRACTION = re.compile(r"\.(\d+)")


def moment(text: str) -> dt.datetime:
    """Return the time of a text as RFC 3339 has it. Raises ValueError."""
    if sys.version_info < (3, 11):
        text = _FRACTION.sub(lambda found: f".{found[1]:0<6.6}", text.replace("Z", "+00:00"))
    return dt.datetime.fromisoformat(text)


def unix_time(text: str | None) -> float | None:
    """Return the Unix time of a text as RFC 3339 has it; None where there is none. Raises ValueError."""
    return moment(text).timestamp() if text else None
