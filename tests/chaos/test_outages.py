"""Airflow's database, or its API server, is away for a while: gangs train on, and their tasks end with them.

`CHAOS_SEED` chooses for how long. Whatever ends meanwhile is started again, as systemd or Kubernetes would.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from scripts.airflow_api import AirflowApiError
from scripts.emulator_process import EmulatorProcess
from scripts.local_airflow import COMPONENTS, LocalAirflow
from scripts.postgres import Postgres, why_not
from scripts.service import ServiceError
from tests.chaos.books import Books, lives
from tests.chaos.campaign import SETTINGS, Run
from tests.chaos.test_endings import Stage

pytestmark = pytest.mark.timeout(1200)

SEED = int(os.environ.get("CHAOS_SEED") or random.randrange(10_000))
STEPS = 160
"""Of half a second: the training outlasts the outage."""
ENDS_WITHIN_S = 400.0
PATIENT = {
    # Airflow's default: a task that waits on a worker is not given up while the API server starts again.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300"
}


@dataclass
class Outages(Stage):
    """A stage whose database can go away."""

    database: Postgres | None = None

    def start_training(self, name: str, dag_id: str) -> Run:
        marks = self.marks / name
        run_id = self.airflow.api.trigger(dag_id, {"steps": STEPS, "mark": str(marks)})
        self.runs[name] = Run(dag_id, run_id, marks)
        self.wait_for_training(self.runs[name])
        return self.runs[name]

    def wait_for_success(self, run: Run) -> None:
        """Wait until a task has succeeded, and start what has ended of Airflow meanwhile."""
        deadline, state = time.monotonic() + ENDS_WITHIN_S, None
        while state != "success":
            assert state != "failed"
            assert time.monotonic() < deadline, f"{run} is {state} after {ENDS_WITHIN_S:.0f} s"
            for component in COMPONENTS:
                self._revive(component)
            time.sleep(1.0)
            with suppress(AirflowApiError, httpx.HTTPError):
                state = self.airflow.api.task_instance(*run.id, "train")["state"]

    def _revive(self, component: str) -> None:
        try:
            self.airflow.pid(component)
        except (ServiceError, OSError):
            self.airflow.start(component)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outages]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("outages")
    dags = Path(__file__).parent / "dags"
    with Postgres() as database, EmulatorProcess(folder / "emulator") as access:
        env = {**access.airflow_env(), **SETTINGS, **PATIENT}
        home = folder / "airflow"
        with LocalAirflow(home, dags=dags, env=env, database_url=database.url, start_timeout=600) as airflow:
            airflow.api.wait_for_dag("chaos_blocking", timeout=300)
            yield Outages(airflow, Books(access), folder / "marks", database=database)


def seconds_of(outage: str, longest: float) -> float:
    seconds = random.Random(f"{SEED} {outage}").uniform(10.0, longest)
    print(f"CHAOS_SEED={SEED}: {outage} is away for {seconds:.0f} s")
    return seconds


def trains_for(run: Run, seconds: float) -> None:
    """Let time pass, and see that all processes of a training work at its end."""
    time.sleep(seconds)
    before = {(life.run, life.rank): life.end for life in lives(run.marks)}
    time.sleep(2.0)
    after = lives(run.marks)
    assert len(after) == len(before) == 2
    assert all(life.finished or life.end > before[life.run, life.rank] for life in after), after


def trained_once(stage: Outages, run: Run) -> None:
    """See that the training was neither interrupted nor begun twice."""
    assert [(life.resumed, life.finished) for life in lives(run.marks)] == [(0, True)] * 2
    (gang,) = stage.books.gangs(run.task)
    assert set(gang.runs.values()) == {"SUCCEEDED"}


def test_a_deferred_task_and_its_gang_outlast_an_outage_of_the_database(stage: Outages) -> None:
    run = stage.start_training("database", "chaos_deferred")
    assert stage.database is not None
    stage.database.stop_server()
    # Longer than the 30 s after which Airflow gives up a triggerer that sends no heartbeat, or shorter.
    trains_for(run, seconds_of("database", 50.0))
    stage.database.start_server()
    stage.wait_for_success(run)
    trained_once(stage, run)


@pytest.mark.parametrize("dag_id, longest", [("chaos_deferred", 50.0), ("chaos_blocking", 20.0)])
def test_a_task_and_its_gang_outlast_an_outage_of_the_api_server(
    stage: Outages, dag_id: str, longest: float
) -> None:
    # By default a worker ends its task after three heartbeats that nobody answers; LocalAirflow lets sixty pass.
    run = stage.start_training(f"api-{dag_id}", dag_id)
    stage.airflow.kill("api-server")
    trains_for(run, seconds_of(f"api-server {dag_id}", longest))
    stage.airflow.start("api-server")
    stage.wait_for_success(run)
    trained_once(stage, run)
