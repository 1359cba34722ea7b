"""Waits for gangs as a task on a worker does, and is killed at a random line; run by gangs/test_kills.py.

`python -m tests.killed_tasks CASES` where CASES is a JSON file: for each a seed, the record of a gang, the fields of a
connection. Every case is a process of its own, forked from one that has imported everything. Prints a line for each.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LIMIT = 100
"""Seconds after which a case that does not end shows where its threads are."""
FURTHEST = 30_000
"""Lines: those of about three looks."""
WAITING = {"dag_id": "dag", "run_id": "run", "task_id": "train", "map_index": -1, "max_tries": 0}
"""What Airflow knows of the task that waits."""
NEEDED = (
    "airflow.providers.common.compat.sdk",
    "airflow_provider_ocidist.backends.oci_data_science",
    "airflow_provider_ocidist.operators.training_task",
)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    _import_everything()
    for case in cases:
        pid = os.fork()
        if pid == 0:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            _wait_and_be_killed(case)
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"seed": case["seed"], "exit": os.waitstatus_to_exitcode(status)}), flush=True)


def _import_everything() -> None:
    for name in NEEDED:
        importlib.import_module(name)


def _wait_and_be_killed(case: dict[str, Any]) -> None:
    """End with 0 when the task ended as one that was killed, and with something else otherwise."""
    from airflow.providers.common.compat.sdk import AirflowFailException

    from airflow_provider_ocidist.model.run import RunRecord
    from airflow_provider_ocidist.operators import DistributedTrainingOperator

    os.environ["AIRFLOW_CONN_KILLED"] = json.dumps({"conn_type": "oci", "extra": case["fields"]})
    task = DistributedTrainingOperator(
        task_id="train", job="unused.yaml", conn_id="killed", deferrable=False, poll_interval=0.05
    )
    ti = SimpleNamespace(**WAITING, xcom_push=lambda **_: None, try_number=1)
    signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    record = RunRecord.from_json(case["record"])
    _signal_at_line(random.Random(case["seed"]))
    try:
        task.resume({"ti": ti}, record.to_json())
    except AirflowFailException as error:
        os._exit(0 if "killed" in str(error) else 3)
    except BaseException as error:
        print(f"seed {case['seed']}: {type(error).__name__}: {error}", flush=True)
        os._exit(4)
    os._exit(5)


def _signal_at_line(dice: random.Random) -> None:
    """Send this process SIGTERM at a line of whatever the main thread runs, or at a moment in which it waits."""
    left = [int(FURTHEST ** dice.uniform(0.2, 1.0))]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                frame.f_trace = None
                signal.raise_signal(signal.SIGTERM)
        return trace

    if dice.random() < 0.15:
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGTERM))
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.05, 1.5))
    else:
        sys.settrace(trace)


if __name__ == "__main__":
    began = time.monotonic()
    main()
