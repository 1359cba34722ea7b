"""One job file at every home, by dag.test(): the same job, XCom, checkpoints and causes, whatever befalls the gang.

Most of a training is waiting, so that all homes go through what is asked of them at the same time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.oci_client.credentials import OciAccess, access_of
from airflow_provider_ocidist.storage.checkpoints import MANIFEST, verify
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access, EmulatorProcess
from tests.dag_runs import DagRuns
from tests.homes.clusters import IMAGE, left_as_found
from tests.homes.places import FOREIGN, HOMES, Fault, Here, Home
from tests.views import need_views

pytestmark = [pytest.mark.slow, pytest.mark.timeout(540)]

FOLDER = Path(__file__).parent
NODES, STEPS, SAVED = 2, 4, 2
"""As dags/job.yaml and programs/count.py have them; the last: before what befalls the gang."""
WITHOUT_FAULT = ("trains", "trains_deferred", "fails")
CAUSES = {
    "loses_a_node": "NODE",
    "is_evicted": "PREEMPTED",
    "is_preempted": "PREEMPTED",
    "lacks_its_image": "CONFIG",
    "lacks_room": "QUOTA",
}


@dataclass(frozen=True)
class Ended:
    """A DAG run that has ended."""

    state: str
    tries: int
    xcoms: Mapping[str, Any]
    log: str
    files: Mapping[str, tuple[int, str]]
    """Of its checkpoint: size and digest."""

    def lines(self) -> list[tuple[int, int]]:
        """Return rank and number of each step in the task's log."""
        return sorted(
            (int(rank), int(step)) for rank, step in re.findall(r"\[node (\d)\] step (\d+)/", self.log)
        )


class Stage:
    """An Airflow for one home, whose DAGs run one after the other."""

    def __init__(self, home: Home, folder: Path, database: Path) -> None:
        self._home, self._folder, self._database = home, folder, database
        self._words = folder / "words"

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Start the home's stand-in and what runs DAGs; end both."""
        if self._home.options:
            need_views()
        for name in ("dags", "programs"):
            _copy(FOLDER / name, self._folder / name)
        with ExitStack() as stack:
            emulator = EmulatorProcess(self._folder / "emulator", options=self._home.options)
            self._access: Access = stack.enter_context(emulator)
            self._connection = self._home.connection(self._access, self._folder)
            self._write_jobs()
            env = {
                "AIRFLOW_CONN_HOME": json.dumps(self._connection),
                **self._access.airflow_env(),
                "OCIDIST_TEST_WORDS": str(self._words),
            }
            runs = DagRuns(self._folder, dags=self._folder / "dags", env=env, database=self._database)
            self._runs = stack.enter_context(runs)
            yield

    def run(self, dag_id: str) -> Ended:
        """Run a DAG to its end, with what befalls its gang."""
        fault, runs = self._home.faults.get(dag_id, Fault()), self._runs
        here = Here(self._access, self._words / dag_id)
        known = self._manifests()
        fault.before(here)
        try:
            runs.begin(dag_id)
            if fault.amid is not None:
                runs.wait_for(lambda: all((here.folder / str(rank)).exists() for rank in range(NODES)))
                runs.wait_for(lambda: self._manifests() > known)
                fault.amid(here)
            if fault.goes_on:
                here.folder.mkdir(parents=True, exist_ok=True)
                (here.folder / "go").touch()
            state = runs.state()
        finally:
            fault.after(here)
        keys = ("return_value", "run", "checkpoint_uri", "failure")
        xcoms = {key: runs.xcom("train", key) for key in keys}
        return Ended(state, runs.tries("train"), xcoms, runs.log, self._files(xcoms["checkpoint_uri"]))

    def _write_jobs(self) -> None:
        for name, more in {"job": {}, "greedy": self._home.greedy}.items():
            backend = {**self._home.backend, **self._home.needs(self._access), **more}
            text = (FOLDER / "dags" / "job.yaml").read_text() + yaml.safe_dump({"backend": backend})
            if FOREIGN is not None:
                text = text.replace(IMAGE, FOREIGN.image)
            (self._folder / "dags" / f"{name}.yaml").write_text(text)

    @property
    def _oci(self) -> OciAccess:
        return access_of({**self._access.connection_fields(), **self._connection["extra"]})

    def _manifests(self) -> set[str]:
        store = open_store(self._connection["extra"]["work_dir"], self._oci)
        return {entry.name for entry in store.list("checkpoints/") if entry.name.endswith(MANIFEST)}

    def _files(self, uri: str | None) -> dict[str, tuple[int, str]]:
        if uri is None:
            return {}
        return {file.path: (file.size, file.sha256) for file in verify(uri, self._oci).files}


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.glob("*.*"):
        (target / path.name).write_bytes(path.read_bytes())


Results = Mapping[tuple[str, str], "Future[Ended]"]


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, database: Path
) -> Iterator[Results]:
    """Begin all DAG runs that the chosen tests look at."""
    found: dict[tuple[str, str], Future[Ended]] = {}
    foreign = nullcontext() if FOREIGN is None else left_as_found(FOREIGN)
    with foreign, ThreadPoolExecutor(len(HOMES)) as pool:
        homes = []
        for home, dag_ids in _asked(request.session.items).items():
            found |= {(home, dag_id): Future() for dag_id in dag_ids}
            folder = tmp_path_factory.mktemp(home)
            homes.append(pool.submit(_go_through, HOMES[home], dag_ids, folder, database, found))
        yield found
    for each in homes:
        each.result()  # What is found at its end is an error too.


def _asked(items: list[pytest.Item]) -> dict[str, list[str]]:
    asked: dict[str, dict[str, None]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "home" in params and "test_homes" in item.nodeid:
            of_home = asked.setdefault(params["home"], {})
            of_home.update({params["dag_id"]: None} if has(HOMES[params["home"]], params["dag_id"]) else {})
    return {home: list(dag_ids) for home, dag_ids in asked.items()}


def _go_through(home: Home, dag_ids: list[str], folder: Path, database: Path, found: Results) -> None:
    stage = Stage(home, folder, database)
    try:
        with stage.standing():
            for dag_id in dag_ids:
                _settle(found[home.name, dag_id], partial(stage.run, dag_id))
    except BaseException as error:
        for dag_id in dag_ids:
            if not found[home.name, dag_id].done():
                found[home.name, dag_id].set_exception(error)
        if not isinstance(error, pytest.skip.Exception):  # as which each test then ends
            raise


def _settle(future: Future[Ended], work: Any) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


# the tests


NO_FAULTS = pytest.mark.skip(reason="only the stand-in for a cluster takes faults")


def at_each_home(*dag_ids: str) -> Any:
    """Run a test for each home at which there is what these DAGs are about."""
    pairs = [
        pytest.param(name, dag_id, marks=() if has(home, dag_id) else NO_FAULTS)
        for name, home in HOMES.items()
        for dag_id in dag_ids
        if has(home, dag_id) or FOREIGN is not None
    ]
    return pytest.mark.parametrize("home, dag_id", pairs)


def has(home: Home, dag_id: str) -> bool:
    return dag_id in WITHOUT_FAULT or dag_id in home.faults


EVERY_LINE = [(rank, step) for rank in range(NODES) for step in range(1, STEPS + 1)]
RESULT_KEYS = {
    "checkpoint",
    "checkpoint_uri",
    "job_id",
    "node_hours",
    "nodes",
    "progress",
    "run_dir",
    "run_ids",
}
"""No warning, no restarts, no outputs: there are none."""


def check_result(ended: Ended) -> None:
    """Assert that a result is what it is at every home."""
    assert ended.state == "success", ended.log[-6000:]
    result, run = ended.xcoms["return_value"], ended.xcoms["run"]
    assert set(result) == RESULT_KEYS
    assert [(node["rank"], node["state"], node["exit_code"]) for node in result["nodes"]] == [
        (rank, "SUCCEEDED", 0) for rank in range(NODES)
    ]
    assert (result["job_id"], result["run_ids"]) == (run["job_id"], run["run_ids"])
    assert result["checkpoint_uri"] == ended.xcoms["checkpoint_uri"]
    assert (result["checkpoint"]["step"], result["checkpoint"]["loss"]) == (STEPS, round(1 / STEPS, 4))
    assert (result["progress"]["step"], result["progress"]["steps"]) == (STEPS, STEPS)
    assert {name: size for name, (size, _) in ended.files.items()} == {f"step-{STEPS:06}.bin": 8000}


@at_each_home("trains", "trains_deferred")
def test_a_job_has_the_same_result_and_log_wherever_it_runs(results: Results, home: str, dag_id: str) -> None:
    ended = results[home, dag_id].result()
    check_result(ended)
    assert ended.lines() == EVERY_LINE, ended.log[-6000:]
    assert "not kept, and so not shown" not in ended.log


@at_each_home("fails")
def test_a_program_that_raises_has_the_same_failure_wherever_it_runs(
    results: Results, home: str, dag_id: str
) -> None:
    ended = results[home, dag_id].result()
    assert ended.state == "failed", ended.log[-6000:]
    failure = ended.xcoms["failure"]
    assert (failure["cause"], failure["rank"], failure["exit_code"]) == ("USER", NODES - 1, 1)
    assert failure["last_lines"][-1] == "ValueError: boom"
    assert "ValueError: boom" in failure["message"]
    assert ended.xcoms["return_value"] is None
    # A retry would only fail again.
    assert ended.tries == 1


@at_each_home("loses_a_node", "is_evicted", "is_preempted")
def test_what_befalls_a_node_costs_a_try_which_goes_on_from_the_checkpoint(
    results: Results, home: str, dag_id: str
) -> None:
    ended = results[home, dag_id].result()
    check_result(ended)
    cause = HOMES[home].causes.get(dag_id, CAUSES[dag_id])
    assert re.search(rf"TrainingFailed: {cause}: ", ended.log), ended.log[-6000:]
    assert ended.tries == 2
    if HOMES[home].faults[dag_id].amid is not None:
        for rank in range(NODES):
            assert f"[node {rank}] rank {rank} of {NODES}, from step {SAVED}" in ended.log


@at_each_home("outlives_an_outage", "outlives_its_token")
def test_a_control_plane_that_is_away_or_refuses_a_token_costs_nothing(
    results: Results, home: str, dag_id: str
) -> None:
    ended = results[home, dag_id].result()
    check_result(ended)
    assert ended.lines() == EVERY_LINE, ended.log[-6000:]
    assert ended.tries == 1


@at_each_home("lacks_its_image", "lacks_room")
def test_what_cannot_start_fails_with_the_same_cause_wherever_it_runs(
    results: Results, home: str, dag_id: str
) -> None:
    ended = results[home, dag_id].result()
    assert ended.state == "failed", ended.log[-6000:]
    assert ended.xcoms["failure"]["cause"] == CAUSES[dag_id], ended.xcoms["failure"]
    assert ended.xcoms["checkpoint_uri"] is None
    assert ended.tries == 1
