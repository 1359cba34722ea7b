"""Submits a gang again and again, and is killed on the way: `python -m tests.chaos.submitter`, orders on stdin.

Each order is a line of JSON: `fields` of the connection, `job`, `key`, `number` of the try, `notes` (a file, or null),
and `kill_after`: seconds, or null. The answer is one line: what was submitted, or that it was killed. Everything is
imported once; a fork does the work, so that an order costs no start of Python.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import oci.data_science  # noqa: F401 - imported here, not in the part that is killed
import oci.object_storage  # noqa: F401 - as above

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.run import RunKey


class FileNotes:
    """A task state store that outlives its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Any:
        return json.loads(self._path.read_text()).get(key) if self._path.exists() else None

    def set(self, key: str, value: Any) -> None:
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps({key: value}))
        draft.replace(self._path)


def submit(order: dict[str, Any]) -> str:
    backend = OciDataScience.connect(order["fields"])
    notes = FileNotes(Path(order["notes"])) if order["notes"] else None
    gang = GangSubmitter(
        backend, parsing.build(order["job"]), logging.getLogger("submit"), notes, threading.Event()
    )
    return gang.adopt_or_submit(codec.decode(RunKey, order["key"]), None, order["number"]).ref.job_id


def obey(order: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if not child:
        try:
            told = {"job_id": submit(order)}
        except BaseException as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps({**told, "seconds": time.monotonic() - began}).encode())
        os._exit(0)
    os.close(writer)
    if order["kill_after"] is not None:
        time.sleep(order["kill_after"])
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return json.loads(told) if told else {"killed": True}


for line in sys.stdin:
    print(json.dumps(obey(json.loads(line))), flush=True)
