"""`ocidist cancel`: end all nodes of a run."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.cli import note, watch
from airflow_provider_ocidist.cli.status import status_json
from airflow_provider_ocidist.cli.terminal import FINE, last_output, print_json, say
from airflow_provider_ocidist.errors import BackendError, CancelFailed

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.model.run import RunRecord

PATIENCE = 60.0
"""Seconds to wait for the end of the nodes."""


def add_cancel(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, run)
    watch.add_interval(parser)


def run(options: argparse.Namespace) -> int:
    backend, record = note.known(options)
    deadline = time.monotonic() + PATIENCE
    refused = _cancel(backend, record)
    while not (status := backend.status([record.ref])[0]).ended:
        if time.monotonic() > deadline:
            if refused is not None:
                raise refused
            raise BackendError(
                f"the nodes have not ended within {PATIENCE:.0f} s; check again with `ocidist status`"
            )
        time.sleep(options.interval)
        if refused is not None:
            refused = _cancel(backend, record)
    if not note.is_id(options.target, options.backend):
        note.note_cancel(Path(options.target), status, now_at(backend))
    with last_output():
        if options.json:
            print_json(status_json(record, status))
        else:
            say(f"{record.ref.key.name}: {', '.join(sorted({node.state for node in status.nodes}))}")
    return FINE


def _cancel(backend: Backend, record: RunRecord) -> CancelFailed | None:
    """Return the service's error if it refused a cancel now and may accept it later."""
    try:
        backend.cancel(record.ref)
    except CancelFailed as error:
        if not error.retryable:
            raise
        say(f"{error}; cancelling again", "yellow", stderr=True)
        return error
    return None
