"""Submits a gang, or replaces a node of one, and dies of SIGKILL at one of its requests; run by
gangs/test_killed_submissions.py and gangs/test_replacements.py.

Reads a case on each line: fields of a connection, a key or the record of a gang, the number of the request, and whether
it is killed before it is sent or when its answer is there. Every case is a process of its own, forked from one that has
imported everything.
Prints how it ended: -9, or 0 where the submission took fewer requests.
"""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NEEDED = (
    "oci.data_science",
    "airflow_provider_ocidist.backends.oci_data_science",
    "airflow_provider_ocidist.gangs.replacements",
    "airflow_provider_ocidist.gangs.submission",
    "tests.training_jobs",
)


@contextmanager
def killed_submitter() -> Iterator[Callable[[dict[str, Any]], int]]:
    """Yield a function that sends one case to such a process, and returns how that ended."""
    command = [sys.executable, "-m", "tests.killed_submitters"]
    root = Path(__file__).parents[1]
    with subprocess.Popen(
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        requests, answers = process.stdin, process.stdout

        def send(case: dict[str, Any]) -> int:
            requests.write(json.dumps(case) + "\n")
            requests.flush()
            return int(answers.readline())

        yield send
        requests.close()


def main() -> None:
    _import_everything()
    for line in sys.stdin:
        case = json.loads(line)
        pid = os.fork()
        if pid == 0:
            (_replace_and_be_killed if "record" in case else _submit_and_be_killed)(case)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _import_everything() -> None:
    for name in NEEDED:
        importlib.import_module(name)


def _submit_and_be_killed(case: dict[str, Any]) -> None:
    from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
    from airflow_provider_ocidist.gangs.submission import GangSubmitter
    from airflow_provider_ocidist.model.run import RunKey
    from tests.training_jobs import a_job

    _kill_at(case["request"], after=case["after"])
    backend = OciDataScience.connect(case["fields"])
    job = a_job(nodes=case["nodes"], seconds=60)
    gang = GangSubmitter(backend, job, logging.getLogger("killed"), None, threading.Event())
    gang.adopt_or_submit(RunKey(**case["key"]), None, 1)
    os._exit(0)


def _replace_and_be_killed(case: dict[str, Any]) -> None:
    from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
    from airflow_provider_ocidist.gangs import last_lines, watch
    from airflow_provider_ocidist.gangs.replacements import replace_lost
    from airflow_provider_ocidist.model import codec
    from airflow_provider_ocidist.model.report import Restart
    from airflow_provider_ocidist.model.run import RunRecord

    last_lines.LAST_LINES_AFTER = 0.0
    _kill_at(case["request"], after=case["after"])
    log, record = logging.getLogger("killed"), RunRecord.from_json(case["record"])
    failure = codec.decode(Restart, case["failure"])
    replace_lost(watch.Watch(OciDataScience.connect(case["fields"]), record, log), [failure], log)
    os._exit(0)


def _kill_at(number: int, *, after: bool) -> None:
    """Let the request of this number be the last one, whichever thread sends it."""
    left, lock = [number], threading.Lock()
    name = "getresponse" if after else "putrequest"
    real = getattr(http.client.HTTPConnection, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs) if after else None
        with lock:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return found if after else real(*args, **kwargs)

    setattr(http.client.HTTPConnection, name, counted)


if __name__ == "__main__":
    main()
