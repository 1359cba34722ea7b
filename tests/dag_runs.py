"""DagRuns: DAGs of a folder by dag.test(), in an Airflow of their own; what they left is read from its database."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_ocidist.backports import Self
from scripts.local_airflow import ROOT, LocalAirflow

PATIENCE_S = 500.0 if os.environ.get("OCIDIST_TEST_K8S") else 240.0
"""Seconds for a run; longer on a cluster of somebody, which pulls images."""
PREPARING = threading.Lock()
"""The database that all begin with is made once."""


class DagRuns:
    """`with DagRuns(folder, dags=...) as runs: runs.begin("train"); runs.state()`; one after the other."""

    def __init__(self, folder: Path, *, dags: Path, env: Mapping[str, str], database: Path) -> None:
        self._output = folder / "output.txt"
        self._airflow = LocalAirflow(folder / "airflow", dags=dags, env=env, database=database)
        self._command = [sys.executable, "-m", "tests.dag_runs", str(dags)]
        self._dag_id = ""
        self._begun = 0

    def __enter__(self) -> Self:
        with PREPARING:
            self._airflow.prepare()
        with self._output.open("w") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                env=self._airflow.env,
                cwd=ROOT,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def begin(self, dag_id: str, **conf: Any) -> None:
        self._dag_id, self._begun = dag_id, len(self._text())
        print(json.dumps({"dag_id": dag_id, "conf": conf}), file=self._process.stdin, flush=True)

    def wait_for(self, look: Callable[[], Any]) -> Any:
        """Return what is found, as soon as it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := look()):
            assert time.monotonic() < deadline, self.log[-8000:]
            assert self._process.poll() is None, self.log[-8000:]
            time.sleep(0.1)
        return found

    def state(self) -> str:
        """Return the state of the run, at its end."""
        pattern = re.compile(rf"^RESULT {self._dag_id} (\w+)$", re.MULTILINE)
        return str(self.wait_for(lambda: pattern.search(self._text(), self._begun))[1])

    @property
    def log(self) -> str:
        """The output of the run, with the logs of its tasks."""
        return self._text()[self._begun :]

    def tries(self, task_id: str) -> int:
        ((number,),) = self._rows("select try_number from task_instance", task_id)
        return int(number)

    def states(self) -> dict[str, str]:
        """Return the states of all tasks; a mapped one has those of its last."""
        return dict(self._rows("select task_id, state from task_instance", "%"))

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        """Return what a task has published; None where it has not."""
        found = self._rows("select value from xcom", task_id, "and key = ?", key)
        return _decoded(found[-1][0]) if found else None

    def _rows(self, what: str, task_id: str, more: str = "", *values: str) -> list[tuple[Any, ...]]:
        where = f"{what} where dag_id = ? and task_id like ? {more}"
        with closing(sqlite3.connect(self._airflow.home / "airflow.db", timeout=30)) as connection:
            return connection.execute(where, (self._dag_id, task_id, *values)).fetchall()

    def _text(self) -> str:
        return self._output.read_text(errors="replace")


def _decoded(value: str) -> Any:
    """Return a value as the task had it: Airflow keeps JSON of JSON."""
    found = json.loads(value)
    try:
        return json.loads(found) if isinstance(found, str) else found
    except ValueError:
        return found


def main(folder: str) -> None:
    """Run the DAGs that the lines of the input name."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(folder)
    assert not bag.import_errors, bag.import_errors
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            state = str(bag.dags[asked["dag_id"]].test(run_conf=asked["conf"]).state)
        except Exception:
            traceback.print_exc()
            state = "error"
        sys.stderr.flush()
        print(f"\nRESULT {asked['dag_id']} {state}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
