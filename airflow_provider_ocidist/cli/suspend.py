"""`ocidist suspend` and `ocidist resume`: give a run's machines back for a while."""

from __future__ import annotations

import argparse
from functools import partial

from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.cli.terminal import FINE, last_output, print_json, say


def add_suspend(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, partial(_act, suspended=True))


def add_resume(parser: argparse.ArgumentParser) -> None:
    note.add_target(parser, partial(_act, suspended=False))


def _act(options: argparse.Namespace, *, suspended: bool) -> int:
    from airflow_provider_ocidist.backends.capabilities import Suspends

    backend, record = note.known(options)
    able = Suspends.of(backend)
    (able.suspend if suspended else able.resume)(record.ref)
    done = "suspended" if suspended else "resumed"
    with last_output():
        if options.json:
            print_json({"name": record.ref.key.name, "asked": done})
        else:
            say(f"{record.ref.key.name}: requested to be {done}; `ocidist status` shows when it is {done}")
    return FINE
