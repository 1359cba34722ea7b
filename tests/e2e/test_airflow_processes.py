"""The operators in Airflow's own processes: scheduler, triggerer, API server, workers; nodes run in the emulator.

Most of a run's time is waiting. So the runs whose outcome matters are started at once, and before them those that the
chosen tests end by hand; others that are acted upon are started by their own tests.
"""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import kubernetes
import psutil
import pytest

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.backends.trainjob import TrainJob
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.triggers.training import CAN_KILL
from scripts.airflow_api import AirflowApiError, AirflowClient
from scripts.emulator_process import Access, EmulatorProcess
from scripts.local_airflow import LocalAirflow
from tests.homes.places import HOMES
from tests.views import need_views

PATIENCE = 360.0
"""Seconds for what takes a few on a quiet machine: what is asserted here is that it happens, not how soon."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE)]
defers = pytest.mark.since_airflow("3.3", "the operator defers")

LONG = 3600.0
"""Seconds of a program that its test ends, by hand or by `Stage.finish`."""
FASTER = {
    # Where tasks that wait stay on their workers, those of the runs that are started at once have one each.
    "AIRFLOW__CORE__PARALLELISM": "10" if CAN_KILL else "20",
    # No file changes.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,nobody:",
}
"""More workers than the demo, and ten seconds instead of thirty until a triggerer is given up."""
ENDED = (NodeState.CANCELED, NodeState.FAILED)
"""A node that reads the stop request before the service's signal reaches it ends by itself."""
OUTCOMES = {
    "deferred": ("train_deferred", 4.0),
    "blocking": ("train_blocking", 4.0),
    "one run": ("train_one_run", 4.0),
    "failing": ("train_failing", 60.0),
    "lying": ("train_lying", 1.0),
    "limited": ("train_limited", LONG),
    "watched": ("train_watched", 3.0),
    "function": ("train_function", 0.0),
    "on pytorchjob": ("train_on_pytorchjob", 4.0),
    "on trainjob": ("train_on_trainjob", 4.0),
    "on runai": ("train_on_runai", 4.0),
}
ACTED_UPON = {
    "marked failed": ("train_deferred", LONG),
    "marked success": ("train_deferred", LONG),
    "run failed": ("train_deferred", LONG),
    "cleared": ("train_deferred", LONG),
    "blocking marked failed": ("train_blocking", LONG),
    "cleaned up": ("train_cleaned_up", LONG),
    "marked failed on pytorchjob": ("train_on_pytorchjob", LONG),
    "marked failed on trainjob": ("train_on_trainjob", LONG),
    "marked failed on runai": ("train_on_runai", LONG),
    "worker killed": ("train_blocking", LONG),
    "worker killed on pytorchjob": ("train_blocking_on_pytorchjob", LONG),
    "triggerer restarts": ("train_deferred", LONG),
    "triggerer freezes": ("train_deferred", LONG),
    "triggerer killed on pytorchjob": ("train_on_pytorchjob", LONG),
    "triggerer killed on trainjob": ("train_on_trainjob", LONG),
    "triggerer killed on runai": ("train_on_runai", LONG),
    "sensed": ("train_blocking", LONG),
    "mapped": ("train_mapped", 1.0),
}
ELSEWHERE = ("pytorchjob", "trainjob", "runai")
"""Homes besides OCI Data Science; `tests/homes` has all of them, without Airflow's processes."""
RUNS = OUTCOMES | ACTED_UPON


@dataclass(frozen=True)
class Stage:
    """Airflow, the emulator's backend, and the runs that were started."""

    airflow: LocalAirflow
    backend: OciDataScience
    elsewhere: Mapping[str, Backend]
    """By kind."""
    clusters: Access
    runs: dict[str, str]
    marks: Path
    incoming: Path
    """The folder whose new files start a DAG."""

    @property
    def api(self) -> AirflowClient:
        return self.airflow.api

    def run(self, name: str) -> tuple[str, str]:
        return RUNS[name][0], self.runs[name]

    def start(self, name: str) -> None:
        dag_id, seconds = RUNS[name]
        conf = {"seconds": seconds, "mark": str(self._mark(name))}
        self.runs[name] = self.api.trigger(dag_id, conf)

    def wait_for_task(
        self, name: str, *states: str, timeout: float = PATIENCE, task_id: str = "train"
    ) -> dict[str, Any]:
        return self.api.wait_for_task(*self.run(name), task_id, *states, timeout=timeout)

    def ref(self, name: str) -> RunRef:
        """Return what the task has created, as soon as it says so."""
        deadline = time.monotonic() + PATIENCE
        while (value := self.api.xcom(*self.run(name), "train", "run")) is None:
            assert time.monotonic() < deadline, f"no XCom `run` within {PATIENCE:.0f} s"
            time.sleep(0.3)
        return RunRef.from_json(json.loads(value) if isinstance(value, str) else value)

    def states(self, ref: RunRef) -> set[NodeState]:
        (status,) = self.elsewhere.get(ref.backend, self.backend).status([ref])
        return {node.state for node in status.nodes}

    def pods(self, ref: RunRef) -> set[str]:
        """Return the nodes of a gang of which there is a pod; Trainer adds some letters to its name."""
        with kubernetes.config.new_client_from_config(self.clusters.kubeconfig) as client:
            found = kubernetes.client.CoreV1Api(client).list_pod_for_all_namespaces().items
        names = [f"{pod.metadata.name}-" for pod in found]
        return {run_id for run_id in ref.run_ids if any(name.startswith(f"{run_id}-") for name in names)}

    def wait_for_nodes(self, ref: RunRef, *states: NodeState, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self.states(ref) <= set(states):
            assert time.monotonic() < deadline, (
                f"nodes are {self.states(ref)} after {timeout} s; the triggerer's last words:\n{self._triggerer_log()}"
            )
            time.sleep(0.3)

    def _triggerer_log(self) -> str:
        return (self.airflow.home / "logs" / "triggerer.log").read_text(errors="replace")[-4000:]

    def starts(self, name: str) -> list[str]:
        """Return one name for each time that a rank has started."""
        return sorted(path.name for path in self._mark(name).glob("*"))

    def finish(self, name: str) -> None:
        """Let the programs of a run take their last step."""
        mark = self._mark(name)
        mark.with_name(f"{mark.name}.end").touch()

    def steps(self, name: str) -> set[tuple[int, int]]:
        """Return rank and number of each step that the programs of a finished run have taken."""
        last = {
            int(path.name.partition("-")[0]): int(path.read_text()) for path in self._mark(name).glob("*")
        }
        return {(rank, step) for rank in last for step in range(1, last[rank] + 1)}

    def store(self, place: str) -> Store:
        """Return the store at a URI, or in a folder of the work_dir."""
        uri = place if "://" in place else f"{self.backend.defaults.work_dir}/{place}"
        return open_store(uri, self.backend.access)

    def _mark(self, name: str) -> Path:
        return self.marks / name.replace(" ", "-")

    def log(self, name: str, attempt: int | None = None) -> str:
        return "\n".join(self.api.task_log(*self.run(name), "train", attempt))


def ends(*names: str) -> Callable[[Any], Any]:
    """Name the runs that a test ends by hand: they go on for long, and so are started before it."""

    def note(test: Any) -> Any:
        test.ends = names
        return test

    return note


def ended_by(items: list[pytest.Item]) -> list[str]:
    """Return the runs that these tests end by hand, in the order of the tests."""
    tests = [item for item in items if item.path == Path(__file__) and not any(item.iter_markers("skip"))]
    return list(dict.fromkeys(name for item in tests for name in getattr(item.obj, "ends", ())))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """A cluster, and a control plane of Run:ai above it."""
    options = ("--kubernetes", "--runai")
    need_views()
    with EmulatorProcess(tmp_path_factory.mktemp("clusters"), options=options) as access:
        yield access


def connections_of(clusters: Access, folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return Airflow's connection to each home besides OCI, by kind, as JSON has it."""
    found = {kind: HOMES[kind].connection(clusters, folder) for kind in ELSEWHERE}
    storage = {"storage_conn_id": "oci_clusters"}
    return {
        kind: {**each, "extra": {**each["extra"], **(storage if each["conn_type"] == "kubernetes" else {})}}
        for kind, each in found.items()
    }


def backends_of(clusters: Access, connections: Mapping[str, Mapping[str, Any]]) -> dict[str, Backend]:
    plane, cluster = connections["runai"], connections["pytorchjob"]
    fields = {**clusters.connection_fields(), **cluster["extra"]}
    return {
        "pytorchjob": PyTorchJob.connect(fields),
        "trainjob": TrainJob.connect(fields),
        "runai": Runai.connect(
            runai_fields(plane["host"], plane["login"], plane["password"], plane["extra"])
        ),
    }


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest,
    emulator: Access,
    clusters: Access,
    tmp_path_factory: pytest.TempPathFactory,
    database: Path,
) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("airflow")
    incoming = tmp_path_factory.mktemp("incoming")
    connections = connections_of(clusters, tmp_path_factory.mktemp("elsewhere"))
    sections = {kind: {**HOMES[kind].backend, **HOMES[kind].needs(clusters)} for kind in ELSEWHERE}
    env = {
        **emulator.airflow_env(),
        **clusters.airflow_env("oci_clusters"),
        **{f"AIRFLOW_CONN_ON_{kind.upper()}": json.dumps(each) for kind, each in connections.items()},
        "OCIDIST_TEST_HOMES": json.dumps(sections),
        **FASTER,
        "OCIDIST_TEST_INCOMING": str(incoming),
        "OCIDIST_TEST_WORK_DIR": emulator.work_dir,
    }
    dags = Path(__file__).parent / "dags"
    with LocalAirflow(home, dags=dags, env=env, database=database) as airflow:
        marks = tmp_path_factory.mktemp("marks")
        own, elsewhere = (
            OciDataScience.connect(emulator.connection_fields()),
            backends_of(clusters, connections),
        )
        stage = Stage(airflow, own, elsewhere, clusters, {}, marks, incoming)
        stage.store("texts").write("text", b"To be, or not to be")
        for dag_id in sorted({dag_id for dag_id, _ in RUNS.values()}):
            airflow.api.wait_for_dag(dag_id)
        for name in (*ended_by(request.session.items), *OUTCOMES):
            stage.start(name)
        yield stage


@pytest.fixture(autouse=True)
def _all_of_airflow_lives(stage: Stage) -> None:
    """Where one of its processes has ended by itself, each later test would wait in vain, without the cause."""
    stage.airflow.check()


# killing, failing, clearing: the remote runs end


@ends("marked failed")
def test_marking_a_deferred_task_failed_ends_its_nodes(stage: Stage) -> None:
    ref = stage.ref("marked failed")
    _wait_until_watched(stage, ref, 1)
    stage.wait_for_nodes(ref, NodeState.RUNNING, timeout=PATIENCE)
    stage.api.patch_task_state(*stage.run("marked failed"), "train", "failed")
    stage.wait_for_nodes(ref, *ENDED, timeout=PATIENCE)


@ends("marked success")
def test_marking_a_deferred_task_successful_ends_its_nodes(stage: Stage) -> None:
    ref = stage.ref("marked success")
    _wait_until_watched(stage, ref, 1)
    stage.api.patch_task_state(*stage.run("marked success"), "train", "success")
    stage.wait_for_nodes(ref, *ENDED, timeout=PATIENCE)


@ends("run failed")
def test_failing_the_dag_run_ends_its_nodes(stage: Stage) -> None:
    ref = stage.ref("run failed")
    _wait_until_watched(stage, ref, 1)
    stage.api.patch_dag_run(*stage.run("run failed"), "failed")
    stage.wait_for_nodes(ref, *ENDED, timeout=PATIENCE)


@ends("cleared")
def test_clearing_a_deferred_task_ends_its_nodes_and_trains_anew(stage: Stage) -> None:
    old = stage.ref("cleared")
    _wait_until_watched(stage, old, 1)
    stage.api.clear(*stage.run("cleared"), ["train"])
    stage.wait_for_nodes(old, *ENDED, timeout=PATIENCE)
    _wait_until(
        lambda: stage.ref("cleared").job_id != old.job_id, "the cleared task has not started a new gang"
    )
    new = stage.ref("cleared")
    assert new.key.generation > old.key.generation
    _wait_until_watched(stage, new, 2)
    stage.wait_for_nodes(new, NodeState.RUNNING, timeout=PATIENCE)
    stage.api.patch_task_state(*stage.run("cleared"), "train", "failed")
    stage.wait_for_nodes(new, *ENDED, timeout=PATIENCE)


@ends("blocking marked failed")
def test_marking_a_waiting_task_failed_ends_its_nodes(stage: Stage) -> None:
    ref = stage.ref("blocking marked failed")
    stage.wait_for_nodes(ref, NodeState.RUNNING, timeout=PATIENCE)
    stage.api.patch_task_state(*stage.run("blocking marked failed"), "train", "failed")
    stage.wait_for_nodes(ref, *ENDED, timeout=PATIENCE)


@ends("cleaned up")
def test_a_cleanup_begins_only_when_every_node_has_ended(stage: Stage) -> None:
    ref = stage.ref("cleaned up")
    _wait_until_watched(stage, ref, 1)
    _wait_until(
        lambda: len(stage.starts("cleaned up")) == 2, "the programs, which are slow to end, have not begun"
    )
    stage.api.patch_dag_run(*stage.run("cleaned up"), "failed")
    stage.wait_for_task("cleaned up", "success", task_id="clean")
    found = stage.api.xcom(*stage.run("cleaned up"), "clean")
    assert all(NodeState(state).terminal for state in found), found
    assert len(found) == 2
    assert stage.api.wait_for_run(*stage.run("cleaned up"), 60)["state"] == "failed"


@defers
@ends(*(f"marked failed on {kind}" for kind in ELSEWHERE))
@pytest.mark.parametrize("kind", ELSEWHERE)
def test_marking_a_deferred_task_failed_leaves_no_pod(stage: Stage, kind: str) -> None:
    name = f"marked failed on {kind}"
    ref = stage.ref(name)
    _wait_until_watched(stage, ref, 1)
    _wait_until(lambda: stage.pods(ref) == set(ref.run_ids), "not each node has a pod")
    stage.api.patch_task_state(*stage.run(name), "train", "failed")
    deadline = time.monotonic() + PATIENCE
    while left := stage.pods(ref):
        if time.monotonic() > deadline:
            task = stage.api.task_instance(*stage.run(name), "train")
            pytest.fail(f"{left} are there after {PATIENCE:.0f} s, and the task is {task['state']}")
        time.sleep(0.3)


# crashes: the run goes on, and is found again


@ends("worker killed", "worker killed on pytorchjob")
@pytest.mark.parametrize("name", ["worker killed", "worker killed on pytorchjob"])
def test_a_killed_worker_leaves_the_run_alone_and_the_retry_adopts_it(stage: Stage, name: str) -> None:
    ref = stage.ref(name)
    stage.wait_for_nodes(ref, NodeState.RUNNING, timeout=PATIENCE)
    _kill_worker_of(stage.wait_for_task(name, "running"))
    _wait_until(lambda: _is_retried(stage, name), "the retry has not begun")
    _wait_until(lambda: "of an earlier attempt" in stage.log(name, attempt=2), "the retry has found nothing")
    stage.finish(name)
    stage.wait_for_task(name, "success")
    assert stage.ref(name).job_id == ref.job_id
    assert len(stage.starts(name)) == 2


def _is_retried(stage: Stage, name: str) -> bool:
    task = stage.api.task_instance(*stage.run(name), "train")
    return task["try_number"] == 2 and task["state"] == "running"


def _kill_worker_of(task: dict[str, Any]) -> None:
    """SIGKILL the process that executes a task; its title names the task instance."""
    (worker,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"airflow worker -- {task['id']}" in " ".join(process.info["cmdline"] or ())
    ]
    worker.send_signal(signal.SIGKILL)


@defers
def test_a_restarted_triggerer_cancels_nothing_and_logs_no_line_twice(stage: Stage) -> None:
    stage.start("triggerer restarts")
    ref = stage.ref("triggerer restarts")
    first = _log_of_another(stage, ref)
    stage.airflow.stop_component("triggerer")
    stage.airflow.start("triggerer")
    _log_of_another(stage, ref, first)
    stage.finish("triggerer restarts")
    stage.wait_for_task("triggerer restarts", "success")
    assert stage.states(ref) == {NodeState.SUCCEEDED}
    assert len(stage.starts("triggerer restarts")) == 2
    assert _not_once(stage, "triggerer restarts") == {}


@defers
def test_a_killed_triggerer_cancels_nothing_elsewhere_and_misses_no_line(stage: Stage) -> None:
    names = [f"triggerer killed on {kind}" for kind in ELSEWHERE]
    for name in names:
        stage.start(name)
    refs = {name: stage.ref(name) for name in names}
    first = {name: _log_of_another(stage, ref) for name, ref in refs.items()}
    stage.airflow.kill("triggerer")
    stage.airflow.start("triggerer")
    for name, ref in refs.items():
        _log_of_another(stage, ref, first[name])
        stage.finish(name)
    for name, ref in refs.items():
        stage.wait_for_task(name, "success")
        assert len(stage.starts(name)) == 2
        assert stage.ref(name).job_id == ref.job_id
        assert set(_steps(stage.log(name))) == stage.steps(name)


def _steps(log: str) -> list[tuple[int, int]]:
    """Return rank and number of each step in a log."""
    return [(int(rank), int(step)) for rank, step in re.findall(r"\[node (\d)\] step (\d+)/", log)]


def _not_once(stage: Stage, name: str) -> dict[tuple[int, int], int]:
    """Return how often each step of a finished run is in the task's log, but for those that are there once."""
    logged, taken = Counter(_steps(stage.log(name))), stage.steps(name)
    return {
        each: logged[each] for each in sorted(taken | set(logged)) if logged[each] != 1 or each not in taken
    }


@defers
def test_a_triggerer_that_was_frozen_and_replaced_cancels_nothing(stage: Stage) -> None:
    stage.start("triggerer freezes")
    ref = stage.ref("triggerer freezes")
    first = _log_of_another(stage, ref)
    frozen = psutil.Process(stage.airflow.pid("triggerer"))
    frozen = [frozen, *frozen.children(recursive=True)]
    for process in frozen:
        process.suspend()
    second = stage.airflow.start_second("triggerer")
    try:
        last = _log_of_another(stage, ref, first)
    finally:
        for process in frozen:
            process.resume()
    # The first one now learns that its trigger is no longer its own, and Airflow calls on_kill.
    _wait_for_text(first, f"{ref.key.name} is left running")
    stage.finish("triggerer freezes")
    stage.wait_for_task("triggerer freezes", "success")
    assert stage.states(ref) == {NodeState.SUCCEEDED}
    assert len(stage.starts("triggerer freezes")) == 2
    # Both have logged the same lines, under the same times: Airflow shows each once. What only the first one has
    # logged, while it ended, the worker logs too.
    first_alone = set(_steps(_text_of(first))) - set(_steps(_text_of(last)))
    not_once = _not_once(stage, "triggerer freezes")
    assert {step: times for step, times in not_once.items() if times != 2 or step not in first_alone} == {}
    second.stop()


def _wait_until_watched(stage: Stage, ref: RunRef, times: int) -> None:
    """Wait until a gang's task is deferred; before Airflow 3.3 it is not, and its worker watches from the start."""
    if CAN_KILL:
        _wait_until(lambda: len(_trigger_logs(stage, ref)) >= times, f"not {times} triggerers")


def _log_of_another(stage: Stage, ref: RunRef, *known: Path) -> Path:
    """Wait until one more triggerer logs the lines of a gang; return its log."""
    _wait_until(lambda: len(_trigger_logs(stage, ref)) > len(known), "no further triggerer watches")
    (log,) = _trigger_logs(stage, ref) - {*known}
    _wait_for_text(log, "] step ")
    return log


def _trigger_logs(stage: Stage, ref: RunRef) -> set[Path]:
    """Return one log for each triggerer that has begun to watch a gang."""
    pattern = f"dag_id={ref.key.dag_id}/run_id={ref.key.run_id}/*/*.trigger.*.log"
    return set((stage.airflow.home / "logs").glob(pattern))


def _text_of(log: Path) -> str:
    """Return the text of a triggerer's log, which Airflow renames at the end of the trigger."""
    (now,) = log.parent.glob(f"{log.stem}*.log")
    return now.read_text(errors="replace")


def _wait_for_text(log: Path, text: str) -> None:
    _wait_until(lambda: text in _text_of(log), f"no {text!r} in {log}")


def _wait_until(true: Callable[[], bool], words: str) -> None:
    """Wait until something is so; `words` say what it is when it is not so in time."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{words} after {PATIENCE:.0f} s"
        time.sleep(0.3)


# the connection


def test_a_connections_secrets_are_masked_in_the_api(stage: Stage) -> None:
    secret = "canary-5551"
    extra = {"auth": "api_key", "private_key_content": secret, "passphrase": secret}
    connection = {"connection_id": "oci_masked", "conn_type": "oci", "extra": json.dumps(extra)}
    stage.api.call("POST", "/connections", json=connection)
    assert secret not in json.dumps(stage.api.call("GET", "/connections/oci_masked"))


def test_the_test_button_reaches_the_service_and_says_why_it_cannot(stage: Stage, emulator: Access) -> None:
    for more, expected in (({}, (True, "connected")), ({"profile": "NONE"}, (False, "profile NONE"))):
        extra = json.dumps(emulator.connection_fields(**more))
        connection = {"connection_id": "oci_tested", "conn_type": "oci", "extra": extra}
        answer = stage.api.call("POST", "/connections/test", json=connection)
        assert answer["status"] is expected[0]
        assert expected[1] in answer["message"]


@pytest.mark.since_airflow("3.2", "forms are declared by providers")
def test_the_connection_form_has_our_fields(stage: Stage) -> None:
    response = stage.api.call("GET", "/../../ui/connections/hook_meta")
    (form,) = [item for item in response if item["connection_type"] == "oci"]
    assert {"auth", "config_file", "region", "endpoint", "compartment_id", "work_dir"} <= set(
        form["extra_fields"]
    )


# outcomes


def test_the_waiting_and_the_deferred_path_give_the_same_result(stage: Stage) -> None:
    results = {}
    for name in ("deferred", "blocking", "one run"):
        stage.wait_for_task(name, "success")
        results[name] = stage.api.xcom(*stage.run(name), "train")
        if isinstance(results[name], str):
            results[name] = json.loads(results[name])
        uri = stage.api.xcom(*stage.run(name), "train", "checkpoint_uri")
        assert uri == results[name]["checkpoint_uri"]
        assert uri.startswith("oci://")
        assert "step-000008" in uri
    assert set(results["deferred"]) == set(results["blocking"]) == set(results["one run"])
    assert len(set(results["one run"]["run_ids"])) == 1
    for result in results.values():
        assert [node["state"] for node in result["nodes"]] == ["SUCCEEDED", "SUCCEEDED"]
        assert [node["exit_code"] for node in result["nodes"]] == [0, 0]


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_a_training_elsewhere_publishes_what_one_on_oci_does(stage: Stage, kind: str) -> None:
    found = {}
    for name in ("deferred", f"on {kind}"):
        stage.wait_for_task(name, "success")
        value = stage.api.xcom(*stage.run(name), "train")
        found[name] = json.loads(value) if isinstance(value, str) else value
    own, result = found.values()
    assert set(result) == set(own)
    assert result["job_id"] == stage.ref(f"on {kind}").job_id
    assert [(node["state"], node["exit_code"]) for node in result["nodes"]] == [("SUCCEEDED", 0)] * 2
    uri = stage.api.xcom(*stage.run(f"on {kind}"), "train", "checkpoint_uri")
    assert uri == result["checkpoint_uri"]
    assert "step-000008" in uri


def test_the_nodes_lines_are_in_the_task_log(stage: Stage) -> None:
    for name in ("deferred", "blocking", "one run", *(f"on {kind}" for kind in ELSEWHERE)):
        stage.wait_for_task(name, "success")
        log = stage.log(name)
        for rank in range(2):
            assert log.count(f"[node {rank}] step 8/8") == 1, log


def test_a_program_that_raises_fails_the_task_at_once_with_its_exception(stage: Stage) -> None:
    task = stage.wait_for_task("failing", "failed")
    assert task["try_number"] == 1
    log = stage.log("failing")
    assert "USER: node 1" in log
    assert "ValueError: boom" in log
    failure = stage.api.xcom(*stage.run("failing"), "train", "failure")
    assert (failure["cause"], failure["rank"], failure["exit_code"]) == ("USER", 1, 1)
    assert failure["last_lines"][-1] == "ValueError: boom"
    assert log.rindex(f"Remedy: {failure['remedy']}") > log.rindex("last lines of node 1")
    stage.wait_for_nodes(stage.ref("failing"), *ENDED, timeout=5)
    # What a test did not expect says why.
    with pytest.raises(AirflowApiError, match="ValueError: boom"):
        stage.wait_for_task("failing", "success")


def test_the_rendered_fields_show_the_plan_and_no_secret(stage: Stage) -> None:
    stage.wait_for_task("deferred", "success")
    task = stage.api.task_instance(*stage.run("deferred"), "train")
    plan = task["rendered_fields"]["plan"]
    assert "topology: job_runs" in plan
    assert "DB_PASSWORD: '***'" in plan
    assert "canary-5552" not in json.dumps(task) + stage.log("deferred")


def test_the_links_lead_to_the_run_its_logs_and_its_checkpoint(stage: Stage, emulator: Access) -> None:
    stage.wait_for_task("deferred", "success")
    dag_id, run_id = stage.run("deferred")
    links = stage.api.call(
        "GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances/train/links"
    )
    found = links["extra_links"]
    assert found["OCI job run"] == f"{emulator.url}/#/jobs/{stage.ref('deferred').job_id}"
    assert found["OCI logs"] == found["OCI job run"]
    assert found["Checkpoint"].startswith(f"{emulator.url}/#/objects/{emulator.bucket}/")


def test_a_program_that_trains_nothing_and_exits_0_fails_with_that_reason(stage: Stage) -> None:
    stage.wait_for_task("lying", "failed")
    assert "wrote no checkpoint" in stage.log("lying")


@defers
@pytest.mark.timeout(480)
def test_execution_timeout_holds_while_deferred(stage: Stage) -> None:
    stage.wait_for_task("limited", "failed", timeout=PATIENCE)
    assert "DEADLINE: not finished within" in stage.log("limited")
    stage.wait_for_nodes(stage.ref("limited"), *ENDED, timeout=5)


@pytest.mark.skipif(CAN_KILL, reason="from Airflow 3.3 on it defers")
def test_a_deferrable_task_says_that_it_waits_on_its_worker(stage: Stage) -> None:
    stage.wait_for_task("deferred", "success")
    assert stage.log("deferred").count("waiting on this worker in spite of deferrable=True") == 1


def test_the_sensor_returns_the_result_of_the_run_it_waited_for(stage: Stage) -> None:
    stage.wait_for_task("watched", "success", task_id="wait")
    train, wait = (stage.api.xcom(*stage.run("watched"), task_id) for task_id in ("train", "wait"))
    assert train == wait


def test_sensors_wait_for_a_run_that_goes_on_in_every_mode(stage: Stage) -> None:
    stage.start("sensed")
    ref = stage.ref("sensed")
    stage.api.wait_for_dag("wait_for_run")
    waiting = "wait_for_run", stage.api.trigger("wait_for_run", {"run": ref.to_json()})
    waits = {"reschedule": "up_for_reschedule", "deferrable": "deferred"}
    sensors = {f"{mode}_{what}": state for mode, state in waits.items() for what in ("run", "checkpoint")}
    for task_id, state in sensors.items():
        stage.api.wait_for_task(*waiting, task_id, state, timeout=PATIENCE)
    stage.finish("sensed")
    for task_id in sensors:
        stage.api.wait_for_task(*waiting, task_id, "success", timeout=PATIENCE)
    stage.wait_for_task("sensed", "success")
    train = stage.api.xcom(*stage.run("sensed"), "train")
    for mode in waits:
        assert stage.api.xcom(*waiting, f"{mode}_run") == train
        assert stage.api.xcom(*waiting, f"{mode}_checkpoint")["uri"] == train["checkpoint_uri"]


def test_a_decorated_function_runs_on_every_node(stage: Stage) -> None:
    stage.api.wait_for_task(*stage.run("function"), "steps", "success", timeout=PATIENCE)
    log = "\n".join(stage.api.task_log(*stage.run("function"), "steps"))
    for rank in range(2):
        assert f"[node {rank}] hello train_function from rank {rank}" in log, log
    assert "step-000005" in stage.api.xcom(*stage.run("function"), "steps", "checkpoint_uri")


def test_each_of_a_mapped_training_has_arguments_and_a_result_of_its_own(stage: Stage) -> None:
    stage.start("mapped")
    dag_id, run_id = stage.run("mapped")
    for index, word in enumerate(("one", "two")):
        stage.wait_for_task("mapped", "success", task_id=f"train[{index}]", timeout=PATIENCE)
        result = stage.api.xcom(dag_id, run_id, f"train[{index}]")
        assert len(result["nodes"]) == index + 1
        (uri,) = result["outputs"]
        assert uri.endswith(f"/{index}")
        assert stage.store(uri).read(word) == b"To be, or not to be"
    for index, (word, count) in enumerate((("three", 3), ("four", 4))):
        stage.wait_for_task("mapped", "success", task_id=f"say[{index}]")
        uri = stage.api.xcom(dag_id, run_id, f"say[{index}]", "checkpoint_uri")
        assert stage.store(uri).read(f"step-{count}.txt") == word.encode()


def test_the_sensor_finds_the_checkpoint_of_a_run(stage: Stage) -> None:
    stage.wait_for_task("watched", "success", task_id="wait_for_checkpoint")
    assert stage.api.xcom(*stage.run("watched"), "wait_for_checkpoint")["step"] == 6


# the page of a run


def _page(stage: Stage, name: str, more: str = "", task: str = "train", map_index: int = -1) -> str:
    dag_id, run_id = stage.run(name)
    return f"/ocidist/api/dags/{dag_id}/runs/{quote(run_id, safe='')}/tasks/{task}/{map_index}{more}"


def test_the_page_shows_what_the_nodes_of_a_run_did(stage: Stage) -> None:
    for name, is_one_run in (("blocking", False), ("one run", True)):
        stage.wait_for_task(name, "success")
        view = stage.api.call("GET", f"/../..{_page(stage, name)}")
        assert (view["state"], view["going_on"], view["failure"]) == ("SUCCEEDED", False, None)
        assert view["gang"]["topology"] == ("multi_node" if is_one_run else "job_runs")
        assert (view["progress"]["step"], view["progress"]["steps"]) == (8, 8)
        assert [(node["exit_code"], node["phase"]) for node in view["nodes"]] == [(0, "DONE"), (0, "DONE")]
        assert [[step, round(loss, 3)] for step, loss in view["losses"]] == [
            [step, round(1 / step, 3)] for step in range(1, 9)
        ]
        (checkpoint,) = view["checkpoints"]["items"]
        assert (checkpoint["step"], checkpoint["size"], checkpoint["loss"]) == (8, 8000, 0.125)
        for rank in range(2):
            lines = stage.api.call("GET", f"/../..{_page(stage, name, '/log')}", params={"rank": rank})[
                "lines"
            ]
            assert sum(line["text"].startswith("step 8/8") for line in lines) == 1


def test_the_page_says_why_a_run_failed(stage: Stage) -> None:
    stage.wait_for_task("failing", "failed")
    view = stage.api.call("GET", f"/../..{_page(stage, 'failing')}")
    assert (view["state"], view["failure"]["cause"], view["failure"]["rank"]) == ("FAILED", "USER", 1)
    assert "ValueError: boom" in view["failure"]["message"]
    assert "ValueError: boom" in view["failure"]["tail"]


def test_the_page_says_so_where_a_task_starts_no_training(stage: Stage) -> None:
    stage.wait_for_task("watched", "success", task_id="wait")
    view = stage.api.call("GET", f"/../..{_page(stage, 'watched', task='wait')}")
    assert (view["gang"], view["task"]["starts_gangs"], view["going_on"]) == (None, False, False)


def test_all_runs_that_one_may_see_are_listed(stage: Stage) -> None:
    stage.wait_for_task("blocking", "success")
    rows = stage.api.call("GET", "/../../ocidist/api/runs")["runs"]
    (row,) = [row for row in rows if row["task"]["run_id"] == stage.run("blocking")[1]]
    assert (row["nodes"], row["step"], row["task"]["state"]) == (2, 8, "success")


def test_the_page_takes_a_login_and_the_right_to_see_the_task(stage: Stage) -> None:
    stage.ref("blocking")
    paths = ["/ocidist/", "/ocidist/static/page.js", "/ocidist/api/runs"]
    guarded = [_page(stage, "blocking", more) for more in ("", "/mapped", "/log?rank=0")]
    with httpx.Client(base_url=stage.airflow.url, timeout=60, trust_env=False) as http:
        assert {http.get(path).status_code for path in [*paths, *guarded]} == {401}
        # A user without a role; Airflow has made up a password.
        password = json.loads((stage.airflow.home / "passwords.json").read_text())["nobody"]
        token = http.post("/auth/token", json={"username": "nobody", "password": password}).json()
        http.headers["Authorization"] = f"Bearer {token['access_token']}"
        assert {http.get(path).status_code for path in guarded} == {403}
        assert http.get("/ocidist/api/runs").json()["runs"] == []


def test_no_secret_of_the_connection_is_on_the_page(stage: Stage) -> None:
    stage.wait_for_task("blocking", "success")
    fields = stage.backend.access
    shown = json.dumps(
        [
            stage.api.call("GET", f"/../..{_page(stage, 'blocking')}"),
            stage.api.call("GET", "/../../ocidist/api/runs"),
        ]
    )
    assert str(fields.config_file) not in shown
    assert "key_file" not in shown


def test_the_event_of_an_outlet_names_the_checkpoint(stage: Stage) -> None:
    stage.wait_for_task("watched", "success")
    uri = stage.api.xcom(*stage.run("watched"), "train", "checkpoint_uri")
    events = stage.api.call("GET", "/assets/events", params={"source_dag_id": "train_watched"})[
        "asset_events"
    ]
    assert [(event["extra"]["checkpoint_uri"], event["extra"]["step"]) for event in events] == [(uri, 6)]
    assert events[0]["extra"]["job"] == "steps"


def test_new_data_starts_a_dag(stage: Stage) -> None:
    # The watcher must have looked before: what lies there at first is no news.
    stage.wait_for_task("deferred", "success")
    (stage.incoming / "day1.csv").write_text("1,2,3\n")
    deadline = time.monotonic() + PATIENCE
    while not (runs := stage.api.call("GET", "/dags/retrain_on_data/dagRuns")["dag_runs"]):
        assert time.monotonic() < deadline, "no run"
        time.sleep(0.5)
    run_id = runs[0]["dag_run_id"]
    stage.api.wait_for_run("retrain_on_data", run_id, PATIENCE)
    event = stage.api.xcom("retrain_on_data", run_id, "arrived")
    assert event.get("payload", event)["files"] == 1


def test_clearing_a_success_trains_again(stage: Stage) -> None:
    stage.wait_for_task("deferred", "success")
    old = stage.ref("deferred")
    stage.api.clear(*stage.run("deferred"), ["train"])
    _wait_until(
        lambda: stage.api.task_instance(*stage.run("deferred"), "train")["try_number"] == 2,
        "the cleared task has not begun",
    )
    stage.wait_for_task("deferred", "success")
    assert stage.ref("deferred").job_id != old.job_id
    assert len(stage.starts("deferred")) == 4
