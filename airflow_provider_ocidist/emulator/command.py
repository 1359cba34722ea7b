"""The `emulator` command: what it prints, signals, exit codes."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_provider_ocidist.emulator.arguments import add_arguments, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_ocidist.emulator.access import Access, ClientSetup
    from airflow_provider_ocidist.emulator.context import Options
    from airflow_provider_ocidist.emulator.server import Emulator

EXIT_UNUSABLE = 2
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m airflow_provider_ocidist.emulator")
    add_arguments(parser)
    return run(parser.parse_args(argv))


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Return 0 after SIGTERM, 130 after SIGINT, 2 when it cannot start."""
    from airflow_provider_ocidist.emulator.errors import StartupError

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    options = options_of(args)
    # Before the server starts: a stop during the start must leave no processes.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        received = _serve_until_stopped(args, options)
    except StartupError as error:
        sys.stderr.write(f"ocidist emulator: {error}\n")
        return EXIT_UNUSABLE
    return 130 if received == signal.SIGINT else 0


def _serve_until_stopped(args: argparse.Namespace, options: Options) -> signal.Signals:
    """Serve; return the signal that has ended it."""
    from airflow_provider_ocidist.emulator.server import Emulator

    emulator = Emulator(
        state=args.state,
        host=args.host,
        port=args.port,
        expose=args.expose,
        proxy_port=args.proxy_port,
        options=options,
    )
    with emulator, _announced(args, emulator, options.seed):
        return signal.Signals(signal.sigwait(STOP_SIGNALS))


@contextmanager
def _announced(args: argparse.Namespace, emulator: Emulator, seed: int | None) -> Iterator[None]:
    """Print where the emulator serves, and write it to the file of `--ready` while it does."""
    from airflow_provider_ocidist.emulator.server import write_ready_file

    if not args.quiet:
        sys.stdout.write(guide(emulator.access, seed))
        sys.stdout.flush()
    if args.ready:
        write_ready_file(args.ready, asdict(emulator.access))
    try:
        yield
    finally:
        if args.ready:
            # A program that waits for the next start must not read this one's address.
            args.ready.unlink(missing_ok=True)


def guide(access: Access, seed: int | None) -> str:
    """Return how to point each client at the emulator; every line can be pasted."""
    from airflow_provider_ocidist.emulator.access import clients

    described = "\n".join(_described(client) for client in clients(access))
    return f"""The OCI emulator serves {access.url}   (Ctrl-C stops it and all its nodes)

  browser    {access.url}/ shows jobs, logs, objects and calls as they come
{described}

  namespace  {access.namespace}      bucket  {access.bucket}
  compartment {access.compartment_id}
  project     {access.project_id}
  log         {access.log_id}
  seed        --seed {seed} repeats this run's faults with a probability
"""


def _described(client: ClientSetup) -> str:
    first, *others = [*([client.note] if client.note else []), *client.text.splitlines()]
    return "\n".join([f"  {client.name:<10} {first}", *(f"{'':13}{line}" for line in others)])
