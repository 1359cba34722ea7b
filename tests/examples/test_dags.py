"""The example DAGs as they are shipped, in Airflow's own processes, on nodes of the emulator.

All runs whose outcome matters are started at once, since most of their time is waiting.
"""

from __future__ import annotations

import email
import email.policy
import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.oci_client.credentials import OciAccess, access_of
from airflow_provider_ocidist.storage.checkpoints import Manifest, verify
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.triggers.training import FIRST_EVENT_AFTER
from scripts.airflow_api import AirflowApiError, AirflowClient
from scripts.emulator_process import Access, EmulatorProcess
from scripts.local_airflow import LocalAirflow
from tests.launchers.nodes import PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1500)]

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
LAUNCHERS = Path(PYTHON).parents[1]
PATIENCE_S = 600.0
SETTINGS = {
    "AIRFLOW__CORE__PARALLELISM": "4",
    # As in most installations: none of them shall begin before its test wants it to.
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
    # No file changes.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}
AT_A_TIME = {"slots": 3, "include_deferred": True}
EMISSIONS = [
    {"scope": {}, "controls": {"emit": False}},
    {"scope": {"dag_id": "retrain_on_new_data"}, "controls": {"emit_task_events": True}},
]
"""What OpenLineage gets: each event takes one more process."""
YESTERDAY = (datetime.now(UTC) - timedelta(days=1)).replace(microsecond=0)


class Mailbox(socketserver.ThreadingTCPServer):
    """A mail server that keeps what it is sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _MailHandler)
        self.mails: list[bytes] = []

    @property
    def connection(self) -> str:
        host, port = self.server_address
        extra = {"disable_ssl": True, "disable_tls": True, "retry_limit": 1}
        return json.dumps({"conn_type": "smtp", "host": host, "port": port, "extra": extra})


class _MailHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            command = line.strip().upper()
            if command == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(mail))
            self.wfile.write(b"221 bye\r\n" if command == b"QUIT" else b"250 well\r\n")


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    with Mailbox() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        yield server
        server.shutdown()


@dataclass
class Stage:
    """Airflow with the examples, and what their runs leave behind."""

    airflow: LocalAirflow
    emulator: Access
    mails: list[bytes]
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """DAG and run by the name that the tests have for them."""

    @property
    def api(self) -> AirflowClient:
        return self.airflow.api

    @property
    def access(self) -> OciAccess:
        return access_of(self.emulator.connection_fields())

    def start(self, name: str, dag_id: str, **conf: Any) -> None:
        self.api.unpause(dag_id)
        self.runs[name] = dag_id, self.api.trigger(dag_id, conf)

    def start_for(self, name: str, dag_id: str, moment: datetime) -> None:
        """Start a run of a DAG with a schedule, for a logical date."""
        body = {"logical_date": moment.isoformat()}
        run = self.api.call("POST", f"/dags/{dag_id}/dagRuns", json=body)
        self.runs[name] = dag_id, run["dag_run_id"]

    def wait(self, name: str, state: str = "success") -> None:
        with self.with_troubles(name):
            run = self.api.wait_for_run(*self.runs[name], timeout=PATIENCE_S)
        assert run["state"] == state, self.troubles(name)

    def wait_for_task(self, name: str, task_id: str, *states: str) -> dict[str, Any]:
        with self.with_troubles(name):
            return self.api.wait_for_task(*self.runs[name], task_id, *states, timeout=PATIENCE_S)

    @contextmanager
    def with_troubles(self, name: str) -> Iterator[None]:
        try:
            yield
        except AirflowApiError as error:
            raise AssertionError(f"{error}\n{self.troubles(name)}") from None

    def troubles(self, name: str) -> str:
        """Return the states of a run's tasks and the last lines of those that failed, if Airflow's processes live."""
        self.airflow.check()
        tasks = self.api.task_instances(*self.runs[name])
        failed = [task_id for task_id, task in tasks.items() if task["state"] == "failed"]
        logs = ["\n".join(self.api.task_log(*self.runs[name], task_id)[-30:]) for task_id in failed]
        return "\n".join([str({task_id: task["state"] for task_id, task in tasks.items()}), *logs])

    def states(self, name: str) -> dict[str, str]:
        tasks = self.api.task_instances(*self.runs[name])
        return {task_id: task["state"] for task_id, task in tasks.items()}

    def xcom(self, name: str, task_id: str, key: str = "return_value") -> Any:
        value = self.api.xcom(*self.runs[name], task_id, key)
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return value

    def log(self, name: str, task_id: str) -> str:
        return "\n".join(self.api.task_log(*self.runs[name], task_id))

    def model(self, name: str, task_id: str = "train") -> Manifest:
        """Return the manifest of the checkpoint that a task has handed on, whose files are there."""
        return verify(self.xcom(name, task_id)["checkpoint_uri"], self.access)

    def files(self, folder: str) -> list[str]:
        store = open_store(f"{self.emulator.work_dir}/{folder}", self.access)
        return sorted(entry.name for entry in store.list())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, database: Path) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("examples")
    # What train_digits needs is in this environment: pip finds it there, and asks no index.
    options = ("--conda", f"your_pytorch_p311_env={LAUNCHERS}")
    with EmulatorProcess(folder / "emulator", options=options) as emulator, mailbox() as mails:
        home = folder / "airflow"
        transport = {"type": "file", "log_file_path": str(home / "lineage.jsonl"), "append": True}
        env = {
            **emulator.airflow_env(),
            **SETTINGS,
            "AIRFLOW_CONN_SMTP_DEFAULT": mails.connection,
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
            "AIRFLOW__OPENLINEAGE__EMISSION_POLICY": json.dumps(EMISSIONS),
        }
        with LocalAirflow(home, dags=EXAMPLES, env=env, start_timeout=400, database=database) as airflow:
            for path in sorted(EXAMPLES.glob("*.py")):
                airflow.api.wait_for_dag(path.stem)
            stage = Stage(airflow, emulator, mails.mails)
            start_all(stage, folder)
            yield stage


def start_all(stage: Stage, folder: Path) -> None:
    # Few gangs at a time: all at once, on two cores, would take longer than one after the other.
    stage.api.call("PATCH", "/pools/default_pool", json=AT_A_TIME, params={"update_mask": [*AT_A_TIME]})
    empty = folder / "empty.csv"
    empty.write_text("hour,temperature,demand\n")
    stage.start("promoted", "promote_if_better")
    stage.api.unpause("retrain_on_new_data")
    stage.api.unpause("train_by_deadline")
    stage.start_for("late", "train_by_deadline", YESTERDAY)
    stage.api.unpause("retrain_nightly")
    stage.start("swept", "sweep_learning_rates")
    stage.start("asked for", "train_from_form", epochs=40, learning_rate=0.05, shape="VM.Standard.E5.Flex")
    stage.start("without data", "train_in_scratch", data_uri=empty.as_uri())
    stage.start("in scratch", "train_in_scratch")
    stage.start("digits", "train_digits", epochs=1, images=128)


def wait_for_first_look(stage: Stage, asset: str) -> None:
    """Wait until the trigger of an asset has noted what lies there: that is no news."""
    (found,) = stage.api.call("GET", "/assets", params={"name_pattern": asset})["assets"]
    deadline = time.monotonic() + PATIENCE_S
    while not stage.api.call("GET", f"/assets/{found['id']}/state-store")["asset_state_store"]:
        assert time.monotonic() < deadline, f"nobody has looked at {asset}"
        time.sleep(0.5)


def first_run(stage: Stage, dag_id: str) -> str:
    """Wait until Airflow itself has started a run of a DAG."""
    deadline = time.monotonic() + PATIENCE_S
    while not (runs := stage.api.call("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]):
        assert time.monotonic() < deadline, f"no run of {dag_id}"
        time.sleep(0.5)
    return runs[0]["dag_run_id"]


def test_a_better_model_is_promoted_once_a_person_has_approved(stage: Stage) -> None:
    stage.wait_for_task("promoted", "approve", "awaiting_input")
    assert stage.files("production") == []
    # Airflow fails a task that is answered before its scheduler knows that the worker has ended.
    time.sleep(FIRST_EVENT_AFTER)
    dag_id, run_id = stage.runs["promoted"]
    path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    stage.api.call("PATCH", path, json={"chosen_options": ["Approve"]})
    stage.wait("promoted")
    promoted = verify(f"{stage.emulator.work_dir}/production/{run_id}", stage.access)
    assert promoted == stage.model("promoted")
    stage.start("no better", "promote_if_better")


def test_new_data_start_a_training_on_them(stage: Stage) -> None:
    rows = (EXAMPLES / "data" / "demand.csv").read_bytes()
    wait_for_first_look(stage, "demand_readings")
    store = open_store(f"{stage.emulator.work_dir}/incoming/demand", stage.access)
    store.write("week1.csv", rows)
    store.write("week2.csv", rows)
    stage.runs["fed"] = "retrain_on_new_data", first_run(stage, "retrain_on_new_data")
    stage.wait("fed")
    assert "2 files" in stage.log("fed", "delivery")
    hours = sum(all(line.split(b",")) for line in rows.splitlines()[1:])
    assert f"{hours} hours on each of 2 processes" in stage.log("fed", "train")
    assert stage.model("fed").step == 200


def test_openlineage_gets_what_a_training_reads_and_writes(stage: Stage) -> None:
    stage.wait("fed")
    run = stage.xcom("fed", "train", "run")
    begun, ended = (event_of(stage, "retrain_on_new_data.train", kind) for kind in ("START", "COMPLETE"))
    for event in (begun, ended):
        assert uris(event["inputs"]) == [f"{stage.emulator.work_dir}/incoming/demand"]
        job = event["job"]["facets"]["ocidist_training"]
        assert (job["name"], job["nodes"], job["topology"], job["launcher"]) == (
            "demand",
            2,
            "job_runs",
            "python",
        )
    assert uris(begun["outputs"]) == [run["checkpoints_uri"]]
    assert uris(ended["outputs"]) == [stage.xcom("fed", "train", "checkpoint_uri")]
    assert ended["outputs"][0]["facets"]["version"]["datasetVersion"] == "step-200"
    facets = ended["run"]["facets"]
    assert facets["ocidist_training"]["run_ids"] == run["run_ids"]
    assert facets["ocidist_training"]["progress"]["step"] == 200
    assert facets["externalQuery"]["externalQueryId"] == run["run_ids"][0]
    assert facets["externalQuery"]["source"].startswith(f"{stage.emulator.url}/#/jobs/")


def event_of(stage: Stage, name: str, kind: str) -> dict[str, Any]:
    """Return the first event of a kind about a job; it comes after the task has ended."""
    deadline = time.monotonic() + 60
    while True:
        # The last one may be half written.
        *lines, _ = (stage.airflow.home / "lineage.jsonl").read_text().split("\n")
        events = [json.loads(line) for line in lines]
        if found := [event for event in events if (event["job"]["name"], event["eventType"]) == (name, kind)]:
            return found[0]
        assert time.monotonic() < deadline, f"no {kind} of {name} among {len(events)} events"
        time.sleep(0.5)


def uris(datasets: list[dict[str, Any]]) -> list[str]:
    return [f"{dataset['namespace']}/{dataset['name']}" for dataset in datasets]


def test_a_model_that_is_not_there_in_time_is_reported_by_mail(stage: Stage) -> None:
    run_id = stage.runs["late"][1]
    deadline = time.monotonic() + PATIENCE_S
    while not (subjects := [subject for subject, body in map(read, stage.mails) if run_id in body]):
        assert time.monotonic() < deadline, stage.mails
        time.sleep(0.5)
    assert subjects == ["train_by_deadline is late"]
    stage.wait("late")


def read(mail: bytes) -> tuple[str, str]:
    """Return the subject of a mail and what it says."""
    message = email.message_from_bytes(mail, policy=email.policy.default)
    body = message.get_body(("html",))
    return message["subject"], body.get_content() if body else ""


def test_the_next_night_goes_on_from_the_model_of_the_last(stage: Stage) -> None:
    stage.runs["first night"] = "retrain_nightly", first_run(stage, "retrain_nightly")
    stage.wait("first night")
    assert "12 hours on each of 2 processes, from epoch 0" in stage.log("first night", "train")
    assert stage.model("first night").step == 100

    stage.start_for("next night", "retrain_nightly", datetime.now(UTC))
    stage.wait("next night")
    log = stage.log("next night", "train")
    assert f"starting from {stage.xcom('first night', 'train')['checkpoint_uri']}" in log
    assert "from epoch 100" in log
    assert stage.model("next night").step == 200


def test_a_sweep_names_the_trial_with_the_smallest_loss(stage: Stage) -> None:
    stage.wait("swept")
    trials = [stage.xcom("swept", f"train[{index}]") for index in range(3)]
    losses = [trial["checkpoint"]["loss"] for trial in trials]
    best = stage.xcom("swept", "best")
    assert len(set(losses)) == 3
    assert best["loss"] == min(losses)
    assert best["checkpoint_uri"] == trials[losses.index(min(losses))]["checkpoint_uri"]
    tasks = stage.api.task_instances(*stage.runs["swept"])
    assert at_the_same_time([task for name, task in tasks.items() if name.startswith("train")]) <= 2


def at_the_same_time(tasks: list[dict[str, Any]]) -> int:
    """Return how many of the tasks lived at once, at the most."""
    spans = [(task["start_date"], task["end_date"]) for task in tasks]
    return max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)


def test_the_form_sets_the_values_and_refuses_wrong_ones(stage: Stage) -> None:
    for wrong in ({"nodes": 17}, {"epochs": 0}, {"learning_rate": 2}, {"shape": "VM"}, {"data_uri": "a.csv"}):
        with pytest.raises(AirflowApiError, match="400"):
            stage.api.trigger("train_from_form", wrong)
    stage.wait("asked for")
    assert stage.model("asked for").step == 40
    assert "step 40/40" in stage.log("asked for", "train")


def test_scratch_is_removed_after_success_and_after_failure(stage: Stage) -> None:
    stage.wait("in scratch")
    stage.wait("without data", "failed")
    assert "no hour with a reading" in stage.log("without data", "train")
    for name in ("in scratch", "without data"):
        states = stage.states(name)
        assert (states["end"], states["remove_scratch"]) == ("success", "success")
        assert stage.xcom(name, "remove_scratch") == 1
    assert stage.files("scratch") == []


def test_the_classifier_trains_as_it_is_shipped(stage: Stage) -> None:
    stage.wait("digits")
    assert "accuracy on 297 images" in stage.log("digits", "train")
    assert stage.model("digits").step > 0


def test_a_model_that_is_no_better_is_not_promoted(stage: Stage) -> None:
    stage.wait("no better")
    states = stage.states("no better")
    assert (states["approve"], states["promote"]) == ("skipped", "skipped")
    assert set(states) >= {"examine[0]", "examine[1]"}
