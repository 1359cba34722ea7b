"""Where commands get a connection from: the variable that Airflow reads too, and single fields."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.oci_clients import fields_of

DEFAULT_ID = "oci_default"


def add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--conn-id",
        default=DEFAULT_ID,
        metavar="ID",
        help="read the connection from AIRFLOW_CONN_<ID>, JSON or URI (default: %(default)s)",
    )
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of the connection, as compartment_id=ocid1...; may be repeated",
    )


def connection_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the connection's fields, under the names that backends and storage use."""
    variable = f"AIRFLOW_CONN_{options.conn_id.upper()}"
    text = os.environ.get(variable)
    if text is None and options.conn_id != DEFAULT_ID:
        raise Unusable(f"{variable} is not set: it holds the connection, as JSON or as URI")
    try:
        extra = _extra(text) if text else {}
    except ValueError as error:
        # Not the text itself: it may hold a key.
        raise Unusable(f"{variable} holds no connection: {error}") from error
    return {**fields_of(extra), **dict(map(_field, options.field))}


def _extra(text: str) -> Mapping[str, Any]:
    """Return the extra fields of a connection in one of the two forms of Airflow. Raises ValueError."""
    if not text.lstrip().startswith("{"):
        query = dict(parse_qsl(urlsplit(text).query))
        return _mapping(query["__extra__"]) if "__extra__" in query else query
    extra = _mapping(text).get("extra") or {}
    return extra if isinstance(extra, dict) else _mapping(extra)


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError("it is no JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - the text is wrong, not a type of ours
    return value


def _field(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise Unusable(f"--field {text}: write it as NAME=VALUE")
    return name, value
