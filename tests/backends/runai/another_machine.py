"""AnotherMachine: a process with a clock of its own that submits gangs to Run:ai, and looks at them, as Airflow's do.

The process reads an order on each line, and prints what has come of it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.gangs.actions import Cancel
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunKey, RunRecord

LOG = logging.getLogger(__name__)
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Found:
    """What a look has led to."""

    action: str
    """Name of the action's class."""
    said: str
    """The action in words."""
    record: RunRecord


class AnotherMachine:
    """`with AnotherMachine(ahead=130) as machine: ...`; its clock is so many seconds ahead of this one's."""

    def __init__(self, ahead: float) -> None:
        self.ahead = ahead
        command = [sys.executable, "-m", "tests.backends.runai.another_machine", str(ahead)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def submit(
        self, fields: Mapping[str, Any], job: Mapping[str, Any], key: RunKey, task_s: float | None = None
    ) -> RunRecord:
        """Submit a gang for a task that has `task_s` seconds in all."""
        told = self._do(do="submit", fields=fields, job=job, key=asdict(key), task_s=task_s)
        return RunRecord.from_json(told["record"])

    def look(self, fields: Mapping[str, Any], record: RunRecord, *, ends: bool = False) -> Found:
        """Look for the first time; `ends`: cancel the gang where that is to be done."""
        told = self._do(do="look", fields=fields, record=record.to_json(), ends=ends)
        return Found(told["action"], told["said"], RunRecord.from_json(told["record"]))

    def _do(self, **order: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the other machine has failed: see its words on stderr"
        return json.loads(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def main() -> None:
    ahead, real = float(sys.argv[1]), time.time
    time.time = lambda: real() + ahead
    for line in sys.stdin:
        order = json.loads(line)
        backend = Runai.connect(order["fields"])
        found = _submitted(backend, order) if order["do"] == "submit" else _looked(backend, order)
        print(json.dumps(found), flush=True)


def _submitted(backend: Runai, order: Mapping[str, Any]) -> Mapping[str, Any]:
    job, task_s = parsing.build(order["job"]), order["task_s"]
    deadline = None if task_s is None else time.time() + task_s
    gang = GangSubmitter(backend, job, LOG, None, threading.Event())
    return {"record": gang.adopt_or_submit(RunKey(**order["key"]), deadline).to_json()}


def _looked(backend: Runai, order: Mapping[str, Any]) -> Mapping[str, Any]:
    watch = Watch(backend, RunRecord.from_json(order["record"]), LOG)
    action = watch.look(time.time())
    if order["ends"] and isinstance(action, Cancel):
        watch.end(action.ending)
    return {"action": type(action).__name__, "said": str(action), "record": watch.record.to_json()}


if __name__ == "__main__":
    main()
