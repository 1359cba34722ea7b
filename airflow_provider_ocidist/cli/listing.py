"""`ocidist list`: the newest runs at the connection's place, with their states."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.connection import add_connection, backend_of, connection_of
from airflow_provider_ocidist.cli.numbers import count
from airflow_provider_ocidist.cli.terminal import FINE, add_json, columns, last_output, print_json, say
from airflow_provider_ocidist.errors import BackendError, OcidistError
from airflow_provider_ocidist.model.amounts import time_text

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.backends.capabilities import ListsGangs
    from airflow_provider_ocidist.model.run import RunRef

AT_A_TIME = 8
"""Number of gangs whose state is requested in parallel."""
STATE_COLOURS = {"SUCCEEDED": "green", "RUNNING": "cyan", "PENDING": "yellow", "ENDING": "yellow"}


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="list only runs whose name contains this text"
    )
    parser.add_argument(
        "--limit", type=count, default=10, metavar="N", help="list at most N runs (default: %(default)s)"
    )
    note.add_backend(parser)
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    backend = backend_of(options, options.backend)
    refs = _lister(options, backend).recent(options.limit, options.name)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = list(pool.map(lambda ref: _gang(backend, ref), refs))
    with last_output():
        if options.json:
            print_json(found)
        elif not found:
            say(
                "there is no run of ocidist"
                + (f" whose name contains {options.name!r}" if options.name else "")
            )
        else:
            _print_gangs(found)
    return FINE


def _lister(options: argparse.Namespace, backend: Backend) -> ListsGangs:
    """Return a backend as one that lists its gangs. Raises BackendError, which says where those of this machine are."""
    from airflow_provider_ocidist.backends.capabilities import ListsGangs
    from airflow_provider_ocidist.backends.local.plans import KIND, folder_in

    try:
        return ListsGangs.of(backend)
    except BackendError as error:
        if backend.kind != KIND:
            raise
        folder = folder_in(connection_of(options))
        raise BackendError(f"{error}: they are the folders in {folder}", cause=error.cause) from error


def _gang(backend: Backend, ref: RunRef) -> dict[str, Any]:
    """Return a gang's row in the list; one that cannot be read now stays in it."""
    found: dict[str, Any] = {
        "name": ref.key.name,
        "state": "UNKNOWN",
        "nodes": ref.nodes,
        "submitted_at": ref.submitted_at,
        "job_id": ref.job_id,
        "main_run_id": ref.main_run_id,
        "dag_id": ref.key.dag_id,
        "run_id": ref.key.run_id,
        "task_id": ref.key.task_id,
        "step": None,
        "checkpoint_uri": None,
    }
    if not any(ref.run_ids):
        # A job without a run: its submission was cut off.
        return {**found, "state": "BEGUN"}
    from airflow_provider_ocidist.gangs.status_line import word_in_list

    try:
        (status,) = backend.status([ref])
    except OcidistError as error:
        return {**found, "problem": str(error)}
    progress, checkpoint = status.progress, status.checkpoint
    return {
        **found,
        "state": word_in_list(status),
        "step": progress.step if progress else None,
        "checkpoint_uri": checkpoint.uri if checkpoint else None,
    }


def _print_gangs(found: list[dict[str, Any]]) -> None:
    now = time.time()
    rows = [["NAME", "STATE", "NODES", "AGE", "STEP", "NEWEST CHECKPOINT", "JOB"]]
    for gang in found:
        step = "" if gang["step"] is None else str(gang["step"])
        age = time_text(now - gang["submitted_at"])
        checkpoint = (gang["checkpoint_uri"] or "").rpartition("/")[2]
        rows.append([gang["name"], gang["state"], str(gang["nodes"]), age, step, checkpoint, gang["job_id"]])
    title, *lines = columns(rows)
    say(title, "bold")
    for line, gang in zip(lines, found, strict=True):
        say(line, STATE_COLOURS.get(gang["state"], "red"))
        if "problem" in gang:
            say(gang["problem"], "yellow", stderr=True)
