"""Fields of request bodies: those that must be there, and those that change what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_ocidist.emulator.errors import missing


def require(details: Mapping[str, Any], *names: str) -> None:
    """Raise 400 unless each of the fields has a value."""
    for name in names:
        if not details.get(name):
            raise missing(name)


def required_text(details: Mapping[str, Any], name: str) -> str:
    value = details.get(name)
    if not value or not isinstance(value, str):
        raise missing(name)
    return value


def changes(details: Mapping[str, Any], attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return what a request sets, by the names of a record's attributes; null and unknown fields set nothing."""
    given = {name: value for name, value in details.items() if name in attributes and value is not None}
    return {attributes[name]: value for name, value in given.items()}
