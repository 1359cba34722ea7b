"""Limits on the values of fields, as annotations: only `job_file` checks them, with pydantic, which no node needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from airflow_provider_ocidist.backports import dataclass

STRICT = {"extra": "forbid", "coerce_numbers_to_str": True}
"""Settings with which pydantic reads these classes in `job_file`; without pydantic they have no effect."""


@dataclass(frozen=True)
class AtLeast:
    """A lower limit that pydantic checks; a class of our own so that nodes need no pydantic."""

    minimum: float

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "ge": self.minimum}


@dataclass(frozen=True)
class Above:
    """A limit that pydantic checks, and that is itself too small."""

    limit: float

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(source), "gt": self.limit, "allow_inf_nan": False}


@dataclass(frozen=True)
class Duration:
    """Seconds, written as a number or as `90s`, `15m`, `2h`, `1d`."""

    zero: bool = False
    """Whether 0 is a valid value too."""
    UNITS: ClassVar = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Return the seconds of a number with a unit; any other value as it is, for pydantic to judge."""
        text = str(value).strip()
        if text[-1:] in cls.UNITS and text[:-1].replace(".", "", 1).isdigit():
            return float(text[:-1]) * cls.UNITS[text[-1]]
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema

        least, above = (0, None) if self.zero else (None, 0)
        seconds = core_schema.float_schema(ge=least, gt=above, allow_inf_nan=False)
        return core_schema.no_info_before_validator_function(self.parse, seconds)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0},
                {"type": "string", "pattern": r"^\d+(\.\d+)?[smhd]$"},
            ]
        }


Seconds = Annotated[float, Duration()]
SecondsOrZero = Annotated[float, Duration(zero=True)]
