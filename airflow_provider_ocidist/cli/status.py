"""`ocidist status | logs | show-config | list`: which runs exist, and their state."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.connection import add_connection, backend_of
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    Unusable,
    add_json,
    colour_of,
    columns,
    log_text,
    print_json,
    print_json_line,
    print_yaml,
    say,
    state_text,
)
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.amounts import time_text
from airflow_provider_ocidist.model.homes import words_of

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.model.run import NodeStatus, RunRecord, RunRef, RunStatus

AT_A_TIME = 8
"""Number of gangs whose state is requested in parallel."""
STATE_COLOURS = {"SUCCEEDED": "green", "RUNNING": "cyan", "PENDING": "yellow", "ENDING": "yellow"}


def add_status(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _status)


def add_logs(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _logs)


def add_show_config(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _show_config)


def add_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", default="", metavar="NAME", help="list only runs whose name contains this text"
    )
    parser.add_argument(
        "--limit", type=int, default=10, metavar="N", help="list at most N runs (default: %(default)s)"
    )
    note.add_backend(parser)
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=_list)


def _status(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.gangs.status_line import status_line

    backend, record = note.known(options)
    note.hide_secrets_of(backend, record.ref)
    (status,) = backend.status([record.ref])
    if options.json:
        print_json(status_json(record, status))
        return FINE
    say(status_line(status), "bold")
    for node in status.nodes:
        say(_node_line(node), colour_of(node.rank))
    return FINE


def _node_line(node: NodeStatus) -> str:
    cause = f" {node.report.cause}" if node.report and node.report.cause else ""
    said = (node.report and node.report.message) or node.details or ""
    return f"node {node.rank}: {state_text(node)}{cause}  {said}".rstrip()


def status_json(record: RunRecord, status: RunStatus) -> dict[str, Any]:
    from airflow_provider_ocidist.model.run import TrainingResult

    return {**TrainingResult.of(record, status).to_json(), "ended": status.ended}


def _logs(options: argparse.Namespace) -> int:
    backend, record = note.known(options)
    if not record.ref.has_log:
        remedy = words_of(record.ref.backend).keep_log
        raise Unusable(f"{record.ref.key.name}: its nodes' output is not kept; for the next run {remedy}")
    note.hide_secrets_of(backend, record.ref)
    for line in backend.logs(record.ref, record.logs_since):
        if options.json:
            print_json_line({"time": line.time, "rank": line.rank, "text": line.text})
        else:
            say(log_text(line), colour_of(line.rank))
    return FINE


def _show_config(options: argparse.Namespace) -> int:
    # A note is shown as it is, without a request.
    info = (
        note.info_of(note.known(options)[1])
        if note.is_id(options.target, options.backend)
        else note.read(Path(options.target))
    )
    (print_json if options.json else print_yaml)(info)
    return FINE


# list


def _list(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.backends.capabilities import ListsGangs

    backend = backend_of(options, options.backend)
    refs = ListsGangs.of(backend).recent(options.limit, options.name)
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        found = list(pool.map(lambda ref: _gang(backend, ref), refs))
    if options.json:
        print_json(found)
    elif not found:
        say("there is no run of ocidist" + (f" whose name contains {options.name!r}" if options.name else ""))
    else:
        _print_gangs(found)
    return FINE


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
    try:
        (status,) = backend.status([ref])
    except OcidistError as error:
        return {**found, "problem": str(error)}
    progress, checkpoint = status.progress, status.checkpoint
    return {
        **found,
        "state": state_of(status),
        "step": progress.step if progress else None,
        "checkpoint_uri": checkpoint.uri if checkpoint else None,
    }


def state_of(status: RunStatus) -> str:
    """Return one word for the gang: its members' state, or the most important one if they differ."""
    if status.of_members.ended and not status.ended:
        # What came late is ended, too.
        return "ENDING"
    states = {str(node.state) for node in status.of_members.nodes}
    if len(states) == 1:
        return states.pop()
    order = ("FAILED", "MISSING", "CANCELED") if status.ended else ("ENDING", "RUNNING", "PENDING", "UNKNOWN")
    return next((state for state in order if state in states), "RUNNING")


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
