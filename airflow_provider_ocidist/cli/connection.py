"""The connection of a command: from the variable that Airflow reads too, and single fields."""

from __future__ import annotations

import argparse
import difflib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_provider_ocidist.backends.connection_fields import (
    ANY_TYPE,
    fields_of,
    known_fields,
    unknown_fields,
)
from airflow_provider_ocidist.cli.completion import CONN_VARIABLE, complete_with, connection_ids
from airflow_provider_ocidist.cli.terminal import Unusable, say
from airflow_provider_ocidist.oci_client import credentials
from airflow_provider_ocidist.provider_info import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.errors import Problem

ON_THIS_MACHINE_KIND = "local"
ON_THIS_MACHINE = f"--set backend.kind={ON_THIS_MACHINE_KIND} --wait"
"""Arguments of `run` with which a job of any backend trains without a service."""


def add_connection(parser: argparse.ArgumentParser) -> None:
    conn_id = parser.add_argument(
        "--conn-id",
        default=DEFAULT_CONN_ID,
        metavar="ID",
        help="read the connection from the variable AIRFLOW_CONN_<ID>, as JSON or URI (default: %(default)s)",
    )
    complete_with(conn_id, connection_ids)
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a field of the connection, such as compartment_id=ocid1...; may be repeated",
    )


def named_by(options: argparse.Namespace) -> str | None:
    """Return the connection that a command names, for the next command; None: the usual one."""
    return None if options.conn_id == DEFAULT_CONN_ID else str(options.conn_id)


def connection_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the connection's fields, by the names that backends and storage use; warn of unknown ones.

    Raises Unusable.
    """
    _warn_of_unknown(options.conn_id)
    return _connection_of(options)


def _connection_of(options: argparse.Namespace) -> dict[str, Any]:
    given = _fields_in(options.conn_id, may_lack=options.conn_id == DEFAULT_CONN_ID)
    return _with_storage(given | credentials.oci_fields(dict(map(_field, options.field))), (options.conn_id,))


def _fields_in(conn_id: str, *, may_lack: bool = False, why: str = "") -> dict[str, Any]:
    """Return the fields of the connection in a variable. Raises Unusable, which begins with `why`."""
    given = _written(conn_id)
    if given is None and not may_lack:
        raise Unusable(f"{why}{_variable(conn_id)} is not set: {_remedy()}")
    return fields_of(*given) if given else {}


def _written(conn_id: str) -> Written | None:
    """Return a connection as its variable has it; None where that is not set. Raises Unusable."""
    text = os.environ.get(_variable(conn_id))
    try:
        return _given(text) if text else None if text is None else Written()
    except ValueError as error:
        # Without the text itself: it may hold a key.
        raise Unusable(f"{_variable(conn_id)} does not contain a connection: {error}") from error


def _variable(conn_id: str) -> str:
    return f"{CONN_VARIABLE}{conn_id.upper()}"


def _warn_of_unknown(conn_id: str) -> None:
    given = _written(conn_id)
    for name in unknown_fields(given.extra, given.conn_type) if given else []:
        say(f"{_variable(conn_id)}: a connection has no field {name}; it is ignored", "yellow", stderr=True)


def _with_storage(fields: dict[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields with those of the connection for storage, which they win over, as in the hook."""
    storage = fields.get("storage_conn_id")
    if not storage:
        return fields
    if storage in above:
        raise Unusable(
            f"storage_conn_id of the connection {above[-1]} is {storage}, which leads back to itself"
        )
    why = f"storage_conn_id is {storage}, and "
    return _with_storage(_fields_in(str(storage), why=why), (*above, str(storage))) | fields


def with_connections(backend: Backend, own: Mapping[str, Any], named: str | None = None) -> Backend:
    """Return a backend that reaches those of other connections, which candidates name; `own`: its own fields.

    `named`: as for `Connections`.
    """
    from airflow_provider_ocidist.backends.connections import Connections

    def at(conn_id: str | None) -> Backend:
        try:
            return type(backend).connect(_fields_at(conn_id, own))
        except Unusable as error:
            raise LookupError(str(error)) from error

    backend.connections = Connections(backend, at, named)
    return backend


def _fields_at(conn_id: str | None, own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a backend of `with_connections`. Raises Unusable where the connection is not set."""
    from airflow_provider_ocidist.backends.fields import fields_beside

    if conn_id is None:
        return own
    return fields_beside(own, _with_storage(_fields_in(conn_id), (conn_id,)), conn_id)


def absence_of(options: argparse.Namespace, kind: str) -> Callable[[Sequence[Problem]], str] | None:
    """Return what makes the message for a job that lacks fields of a connection, when there is none; else None.

    `kind`: of the job's backend; that of this machine lacks nothing which only a connection has.
    """
    if kind == ON_THIS_MACHINE_KIND or _connection_of(options):
        return None
    variable = _variable(options.conn_id)
    here = f"without an account: ocidist run {options.file} {ON_THIS_MACHINE}"
    if os.environ.get(variable):
        return lambda problems: (
            f"{variable} has no fields; it needs {_lacking(problems)} (docs/connection.md); {here}"
        )
    return lambda _: f"there is no connection: {variable} is not set; {_remedy()}; {here}"


def _lacking(problems: Sequence[Problem]) -> str:
    """Return the fields that a connection can set, among those that a job lacks."""
    names = dict.fromkeys(each.path.rpartition(".")[2] for each in problems)
    return ", ".join(name for name in names if name in known_fields())


def _require_type(conn_id: str, backend: type[Backend]) -> None:
    """Raise Unusable where a backend cannot use the connection, by its type; it may work without one."""
    given = _written(conn_id)
    if given and backend.needs_connection and given.conn_type not in (*ANY_TYPE, *backend.conn_types):
        raise Unusable(
            f"{_variable(conn_id)} has the type {given.conn_type!r}; backend {backend.kind} needs "
            + " or ".join(map(repr, backend.conn_types))
        )


def backend_of(options: argparse.Namespace, kind: str, **fields: Any) -> Backend:
    """Return the connected backend; `fields` are defaults for the connection's. Raises Unusable."""
    from airflow_provider_ocidist import kinds

    try:
        found = kinds.load("backends", kind).BACKEND
    except LookupError as error:
        raise Unusable(str(error.args[0])) from error
    _require_type(options.conn_id, found)
    own = {**fields, **connection_of(options)}
    backend: Backend = found.connect(own)
    return with_connections(backend, own, named_by(options))


def reconnect(options: argparse.Namespace, backend: Backend, **fields: Any) -> None:
    """Let a backend of this command use its connection as it is now; `fields` as in `backend_of`. Raises Unusable.

    A backend of another connection than the command's stays at that one.
    """
    backend.reconnect(_fields_at(backend.conn_id, {**fields, **_connection_of(options)}))


def _remedy() -> str:
    known = connection_ids()
    others = f", or name one that is set: {', '.join(known)}" if known else ""
    return f"put the connection there, as JSON or as URI (docs/connection.md){others}"


class Written(NamedTuple):
    """What a connection has, as `fields_of` takes it."""

    conn_type: str | None = None
    host: str | None = None
    login: str | None = None
    password: str | None = None
    extra: Mapping[str, Any] = {}


def _given(text: str) -> Written:
    """Return a connection in either of Airflow's two forms. Raises ValueError."""
    if not text.lstrip().startswith("{"):
        parts = urlsplit(text)
        query = dict(parse_qsl(parts.query))
        extra = _mapping(query["__extra__"]) if "__extra__" in query else query
        # Airflow quotes what stands before the query, and a host may be a URL of its own.
        user, _, place = parts.netloc.rpartition("@")
        login, _, password = user.partition(":")
        return Written(parts.scheme, unquote(place), unquote(login), unquote(password), extra)
    value = _mapping(text)
    extra = value.get("extra") or {}
    extra = extra if isinstance(extra, dict) else _mapping(extra)
    return Written(
        value.get("conn_type"), value.get("host"), value.get("login"), value.get("password"), extra
    )


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - the text is wrong, not a type of ours
    return value


def _field(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise Unusable(f"--field {name}: write it as NAME=VALUE")
    known = known_fields()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
        raise Unusable(f"--field {name}: a connection has no such field; {hint}")
    return name, value
