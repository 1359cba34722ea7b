"""`ocidist cancel`: end all nodes of a run."""

from __future__ import annotations

import argparse
import time

from airflow_provider_ocidist.cli import follow, note
from airflow_provider_ocidist.cli.look import status_json
from airflow_provider_ocidist.cli.terminal import FINE, print_json, say
from airflow_provider_ocidist.errors import BackendError

PATIENCE = 60.0
"""Seconds that the nodes get to end."""


def add_cancel(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser)
    follow.add_interval(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    backend, record = note.known(options)
    backend.cancel(record.ref)
    deadline = time.monotonic() + PATIENCE
    while not (status := backend.status([record.ref])[0]).ended:
        if time.monotonic() > deadline:
            raise BackendError(
                f"the nodes have not ended within {PATIENCE:.0f} s; look again with `ocidist status`"
            )
        time.sleep(options.interval)
    if options.json:
        print_json(status_json(record, status))
    else:
        say(f"{record.ref.key.name}: {', '.join(sorted({node.state for node in status.nodes}))}")
    return FINE
