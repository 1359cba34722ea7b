"""`ocidist status | logs | show-config`: the state of one run, its output, and what it has created."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    Unusable,
    colour_of,
    last_output,
    log_text,
    print_json,
    print_json_line,
    print_yaml,
    say,
    state_text,
)
from airflow_provider_ocidist.model.homes import words_of

if TYPE_CHECKING:
    from airflow_provider_ocidist.model.run import NodeStatus, RunRecord, RunStatus


def add_status(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _status)


def add_logs(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _logs)


def add_show_config(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, _show_config)


def _status(options: argparse.Namespace) -> int:
    from airflow_provider_ocidist.gangs.status_line import status_line

    backend, record = note.known(options)
    note.hide_secrets_of(backend, record.ref)
    (status,) = backend.status([record.ref])
    with last_output():
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
    with last_output():
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
    with last_output():
        (print_json if options.json else print_yaml)(info)
    return FINE
