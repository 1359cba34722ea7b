"""`python -m ...storage.copy_program ORDER`: copy what an order file names, on a node of the platform."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import CopyInterrupted, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.batch import copy_all
from airflow_provider_ocidist.storage.copy_items import CopyItem
from airflow_provider_ocidist.storage.survey import Sides

REPORT = "report.json"
"""File that is written to the working directory when all has arrived."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a node is to copy."""

    items: tuple[CopyItem, ...]
    label: str
    endpoint: str | None = None
    """Endpoint of every service, for the emulator; None: the region's own."""
    region: str | None = None
    """Region of the buckets; None: that of the node, which may be at a candidate's connection."""


def main(arguments: Sequence[str]) -> None:
    """Copy and write the report. Raises StorageError, or CopyInterrupted, with what failed."""
    # Our own traceback does not help a user who named a wrong bucket.
    sys.tracebacklimit = 0
    order = codec.decode(Order, json.loads(Path(arguments[0]).read_text()))
    cancel = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: cancel.set())
    copy_order(order, os.environ, cancel)


def copy_order(order: Order, environ: Mapping[str, str], cancel: threading.Event) -> None:
    access = OciAccess.from_environment(environ, order.endpoint, order.region)
    try:
        report = copy_all(
            order.items,
            sides=Sides.of(access, access),
            write=_print,
            label=order.label,
            repeated=(RunKey.attempt_in(environ.get("OCIDIST_RUN_NAME", "")) or 1) > 1,
            cancel=cancel,
        )
    except StorageError as error:
        raise _in_one_line(error) from None
    if report.error is not None:
        raise _in_one_line(report.error)
    Path(REPORT).write_text(json.dumps(report.to_json()))


def _in_one_line(error: StorageError) -> StorageError:
    """Return the error for a node's report: one line, and a class that says whether to retry."""
    text = " ".join(str(error).split())
    return CopyInterrupted(text) if error.retryable else StorageError(text)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
