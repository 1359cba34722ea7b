"""Whatever ends a task ends its nodes within 15 seconds, deferred or blocking, with and without the task state store.

All runs are started at once, since most of their time is waiting; each test acts upon its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from scripts.emulator_process import EmulatorProcess
from scripts.local_airflow import LocalAirflow
from scripts.postgres import Postgres, why_not
from tests.chaos.books import Books, lives, wait_until_ended
from tests.chaos.campaign import SETTINGS, Run

pytestmark = pytest.mark.timeout(1200)

WITHIN_S = 15.0
LONG = 1200
"""Steps of half a second."""
ACTIONS = ["task failed", "task success", "run failed", "run success", "cleared"]
PATHS = ["deferred", "deferred_without_store", "blocking", "blocking_without_store"]
TIMEOUTS = ["limited_run", "limited_run_blocking", "limited_task", "limited_task_blocking"]
AFTER_S = {"limited_run": 30, "limited_task": 20}


@dataclass
class Stage:
    """Airflow, the service's books, and the runs that wait to be acted upon."""

    airflow: LocalAirflow
    books: Books
    marks: Path
    runs: dict[str, Run] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """From an action to the end of all nodes."""

    def start(self, name: str, dag_id: str) -> None:
        marks = self.marks / name.replace(" ", "-")
        run_id = self.airflow.api.trigger(dag_id, {"steps": LONG, "mark": str(marks)})
        self.runs[name] = Run(dag_id, run_id, marks)

    def wait_for_training(self, run: Run, processes: int = 2, within_s: float = 400) -> None:
        deadline = time.monotonic() + within_s
        while len(lives(run.marks)) < processes:
            assert time.monotonic() < deadline, f"{run} does not train after {within_s} s"
            time.sleep(0.3)
        if "deferred" in run.dag_id:
            self.airflow.api.wait_for_task(*run.id, "train", "deferred", timeout=within_s)
            self._wait_for_trigger(run)

    def _wait_for_trigger(self, run: Run, within_s: float = 300) -> None:
        """Wait until a triggerer watches: before that no process receives a kill from Airflow."""
        number = self.airflow.api.task_instance(*run.id, "train")["try_number"]
        pattern = f"dag_id={run.dag_id}/run_id={run.run_id}/*/attempt={number}.log.trigger.*.log"
        deadline = time.monotonic() + within_s
        while not list((self.airflow.home / "logs").glob(pattern)):
            assert time.monotonic() < deadline, f"no triggerer watches {run} after {within_s} s"
            time.sleep(0.3)

    def nodes_end(self, name: str, since: float) -> None:
        run = self.runs[name]
        spent = time.time() - since
        assert wait_until_ended(self.books, run.task, WITHIN_S - spent) is not None, f"{name}: nodes live on"
        self.seconds[name] = time.time() - since


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("endings")
    dags = Path(__file__).parent / "dags"
    with Postgres() as database, EmulatorProcess(folder / "emulator") as access:
        env = {**access.airflow_env(), **SETTINGS}
        url = database.url
        with LocalAirflow(
            folder / "airflow", dags=dags, env=env, database_url=url, start_timeout=600
        ) as airflow:
            stage = Stage(airflow, Books(access), folder / "marks")
            airflow.api.wait_for_dag("limited_task_blocking", timeout=300)
            yield stage
            terminal = request.config.get_terminal_writer()
            for name, seconds in stage.seconds.items():
                terminal.line(f"\n{name}: nodes ended after {seconds:.1f} s")


@pytest.mark.parametrize("path", PATHS)
def test_every_action_upon_a_task_ends_its_nodes(stage: Stage, path: str) -> None:
    for action in ACTIONS:
        stage.start(f"{path}, {action}", f"chaos_{path}")
    for action in ACTIONS:
        name = f"{path}, {action}"
        run = stage.runs[name]
        stage.wait_for_training(run)
        began = time.time()
        _act(stage, run, action)
        if action == "cleared":
            _old_gang_ends_and_a_new_one_trains(stage, name, began)
            began = time.time()
            stage.airflow.api.patch_task_state(*run.id, "train", "failed")
            stage.nodes_end(name, began)
        else:
            stage.nodes_end(name, began)


def _act(stage: Stage, run: Run, action: str) -> None:
    what, _, state = action.partition(" ")
    if what == "task":
        stage.airflow.api.patch_task_state(*run.id, "train", state)
    elif what == "run":
        stage.airflow.api.patch_dag_run(*run.id, state)
    else:
        stage.airflow.api.clear(*run.id, ["train"])


def _old_gang_ends_and_a_new_one_trains(stage: Stage, name: str, since: float) -> None:
    run = stage.runs[name]
    old = {gang.job_id for gang in stage.books.gangs(run.task)}
    while any(gang.live and gang.job_id in old for gang in stage.books.gangs(run.task)):
        assert time.time() - since < WITHIN_S, f"{name}: the old nodes live on"
        time.sleep(0.2)
    stage.seconds[f"{name} (the old gang)"] = time.time() - since
    stage.wait_for_training(run, processes=4)
    first, second = lives(run.marks)[:2], lives(run.marks)[2:]
    assert max(life.end for life in first) < min(life.start for life in second), "two gangs at once"


def test_whatever_limit_a_task_or_its_run_has_ends_its_nodes(stage: Stage) -> None:
    for dag_id in TIMEOUTS:
        stage.start(dag_id, dag_id)
    for dag_id in TIMEOUTS:
        run = stage.runs[dag_id]
        stage.wait_for_training(run)
        limit = timedelta(seconds=AFTER_S[dag_id.removesuffix("_blocking")])
        if "run" in dag_id:
            began = stage.airflow.api.dag_run(*run.id)["start_date"]
        else:
            began = stage.airflow.api.task_instance(*run.id, "train")["start_date"]
        passed = (datetime.fromisoformat(began) + limit).timestamp()
        time.sleep(max(0.0, passed - time.time()))
        stage.nodes_end(dag_id, passed)
        state = stage.airflow.api.wait_for_task(*run.id, "train", "failed", "skipped")["state"]
        assert state == ("skipped" if "run" in dag_id else "failed")
