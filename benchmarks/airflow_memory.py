"""Memory of Airflow's components while gangs wait in its triggerer, beside the same Airflow without any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.waiting import GANGS, INTERVAL_S, NODES, ROOT, wait_for, waiting_gangs
from scripts.idle_gangs import IdleGangs
from scripts.local_airflow import LocalAirflow

DAGS = Path(__file__).with_name("waiting_dags")
DAG_ID = "waiting"
STATE = Path(__file__).with_name("waiting_state.py")
TARGET_KB = 64.0
"""As P4's."""
PATIENCE_S = 600.0
SETTLED_S = 15.0

IN_ALL = "in all"
Components = dict[str, float]
"""Memory in MB by component."""


class AirflowMemory(Comparison):
    """One Airflow, before its tasks wait and while they do: two would differ by what their processes happen to share.

    What is read is PSS, so that pages which processes share count once.
    """

    name = "airflow"
    title = f"memory of Airflow's four components and its idle workers while {GANGS:,} gangs wait"
    peer_name = "the same Airflow before"
    unit = "MB"
    target = f"the triggerer takes at most {TARGET_KB:.0f} KB more for each"
    pairs = 5  # a pair takes more than three minutes
    afresh = True  # a used Airflow differs from a fresh one

    _gangs: IdleGangs
    _airflow: LocalAirflow
    _before: Components
    _pairs: list[tuple[Components, Components]]
    """Before and while they wait."""

    @contextmanager
    def setting(self) -> Iterator[None]:
        with ExitStack() as stack:
            self._gangs = stack.enter_context(waiting_gangs())
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocidist-bench-")))
            env = {**self._gangs.emulator.airflow_env(), "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
            env["WAITING_GANGS"] = str(GANGS)
            self._airflow = stack.enter_context(LocalAirflow(folder, dags=DAGS, env=env, start_timeout=600))
            self._airflow.api.wait_for_dag(DAG_ID, timeout=300)
            time.sleep(SETTLED_S)
            self._before = memory_of(self._airflow)
            self._gangs.forget_calls()
            self._let_all_wait()
            wait_for(lambda: self._reports_read() == GANGS * NODES, PATIENCE_S)
            wait_for(lambda: running_triggers(self._airflow) == GANGS, PATIENCE_S)
            time.sleep(SETTLED_S)
            yield

    def __init__(self) -> None:
        self._pairs = []

    def ours(self) -> float:
        waiting = memory_of(self._airflow)
        self._pairs.append((self._before, waiting))
        return sum(waiting.values())

    def peer(self) -> float:
        return sum(self._before.values())

    def met(self, samples: Samples) -> bool:  # noqa: ARG002 - of the triggerer alone, not of all components
        return self._each_kb().high <= TARGET_KB

    def result(self, samples: Samples) -> dict[str, Any]:
        names = (*self._pairs[0][0], IN_ALL)
        components = {name: self._component(name) for name in names}
        more = {"gangs": GANGS, "components": components, "triggerer_kb_each": self._each_kb().to_json()}
        return {**super().result(samples), **more}

    def _component(self, name: str) -> dict[str, Any]:
        """Return what a component took before and while they wait, in MB, and the difference for each gang, in KB."""
        pairs = [
            tuple(sum(side.values()) if name == IN_ALL else side[name] for side in pair)
            for pair in self._pairs
        ]
        values = {
            "before": [before for before, _ in pairs],
            "waiting": [waiting for _, waiting in pairs],
            "kb": [(waiting - before) * 1024 / GANGS for before, waiting in pairs],
        }
        return {column: Interval.of(each).to_json() for column, each in values.items()}

    def _each_kb(self) -> Interval:
        return Interval.of(
            [
                sum(waiting[name] - before[name] for name in before if name.startswith("triggerer"))
                * 1024
                / GANGS
                for before, waiting in self._pairs
            ]
        )

    def _let_all_wait(self) -> None:
        """Have a run of the DAG, all of whose tasks have deferred, though no worker ever ran them."""
        self._airflow.api.trigger(DAG_ID)  # stays queued, since the DAG is paused
        settings = {
            "dag_id": DAG_ID,
            "interval": INTERVAL_S,
            "records": [record.to_json() for record in self._gangs.records],
        }
        order = self._airflow.home / "settings.json"
        order.write_text(json.dumps(settings))
        command = [sys.executable, str(STATE), str(order)]
        written = subprocess.run(
            command, env=self._airflow.env, cwd=ROOT, capture_output=True, text=True, check=False
        )
        if written.returncode:
            raise RuntimeError(f"the state was not written:\n{written.stderr[-2000:]}")
        self._airflow.api.unpause(DAG_ID)

    def _reports_read(self) -> int:
        return len({call["path"] for call in self._gangs.calls(".*/o/.*%2Fnodes%2F.*", method="GET")})


def running_triggers(airflow: LocalAirflow) -> int:
    """Return how many triggers run, by the triggerer's own word, which it gives every minute."""
    found = re.findall(
        r"(\d+) triggers currently running", (airflow.home / "logs" / "triggerer.log").read_text()
    )
    return int(found[-1]) if found else 0


def memory_of(airflow: LocalAirflow) -> Components:
    """Return the memory of each component, in MB."""
    trees = {
        name: tree_of(airflow.pid(name)) for name in ("api-server", "scheduler", "dag-processor", "triggerer")
    }
    (scheduler, *workers), (supervisor, *runner) = trees["scheduler"], trees["triggerer"]
    return {
        "api-server": pss_mb(*trees["api-server"]),
        "scheduler": pss_mb(scheduler),
        f"{len(workers)} idle workers": pss_mb(*workers),
        "dag-processor": pss_mb(*trees["dag-processor"]),
        "triggerer, supervisor": pss_mb(supervisor),
        "triggerer, runner": pss_mb(*runner),
    }


def tree_of(pid: int) -> list[int]:
    """Return a process and its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def pss_mb(*pids: int) -> float:
    """Return the memory of processes, of what they share with others their share; nothing of those that are gone."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a parser of the dag-processor
        total += int(re.findall(r"^Pss:\s+(\d+)", text, re.MULTILINE)[0])
    return total / 1024


ROW = AirflowMemory()
