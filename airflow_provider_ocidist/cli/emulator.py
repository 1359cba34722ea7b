"""`ocidist emulator`: a local OCI."""

from __future__ import annotations

import argparse

from airflow_provider_ocidist.cli.terminal import Unusable


def add_emulator(parser: argparse.ArgumentParser) -> None:
    try:
        from airflow_provider_ocidist.emulator import arguments, command
    except ImportError as error:
        what = f"the emulator needs {error.name}: pip install 'airflow-provider-ocidist[emulator]'"
        parser.set_defaults(run=lambda _: _refuse(what))
        return
    arguments.add_arguments(parser)
    parser.set_defaults(run=command.run)


def _refuse(message: str) -> int:
    raise Unusable(message)
