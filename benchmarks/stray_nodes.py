"""P17: node-seconds still spent after a task was killed, failed or cleared, beside a plain deferrable operator."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from benchmarks.comparison import Comparison, Interval, Samples
from scripts.emulator_process import Access, EmulatorProcess
from scripts.local_airflow import LocalAirflow

DAGS = Path(__file__).with_name("dags")
NODES = 2
TRAINING_S = 60.0
TARGET_S = 15.0
"""For each node."""
ACTIONS = ("run failed", "task failed", "task cleared")
PATIENCE_S = 240.0
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELED")


class StrayNodes(Comparison):
    """One sample is the mean of three runs at once, each acted upon in another way."""

    name = "P17"
    title = f"node-seconds spent after a kill, of {NODES} nodes that would train for {TRAINING_S:.0f} s"
    peer_name = "a deferrable operator without on_kill"
    unit = "node-s"
    target = f"at most {TARGET_S:.0f} s a node"
    pairs = 6

    @contextmanager
    def setting(self) -> Iterator[None]:
        self._by_action: dict[str, dict[str, list[float]]] = {
            side: {action: [] for action in ACTIONS} for side in ("ours", "plain")
        }
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ocidist-bench-")))
            access = stack.enter_context(EmulatorProcess(folder / "emulator"))
            self._client = _client(access)
            env = {**access.airflow_env(), "AIRFLOW__CORE__PARALLELISM": "6"}
            self._airflow = stack.enter_context(
                LocalAirflow(folder / "airflow", dags=DAGS, env=env, start_timeout=600)
            )
            for dag_id in self._by_action:
                self._airflow.api.wait_for_dag(dag_id, timeout=300)
            yield

    def ours(self) -> float:
        return self._spent("ours")

    def peer(self) -> float:
        return self._spent("plain")

    def met(self, samples: Samples) -> bool:
        worst = max(seconds for values in self._by_action["ours"].values() for seconds in values)
        return bool(samples.ours) and worst <= TARGET_S * NODES

    def result(self, samples: Samples) -> dict[str, Any]:
        by_action = {
            side: {action: _spread(values) for action, values in actions.items()}
            for side, actions in self._by_action.items()
        }
        return {**super().result(samples), "by_action": by_action}

    def _spent(self, dag_id: str) -> float:
        started = {action: self._airflow.api.trigger(dag_id, {"seconds": TRAINING_S}) for action in ACTIONS}
        acted = {}
        for action, run_id in started.items():
            nodes = self._training_nodes(dag_id, run_id)
            acted[action] = nodes, time.time()
            self._act(action, dag_id, run_id)
        for action, (nodes, at) in acted.items():
            self._by_action[dag_id][action].append(sum(self._end_of(node) - at for node in nodes))
        # Nodes that a clear has started anew do not count.
        self._airflow.api.patch_dag_run(dag_id, started["task cleared"], "failed")
        self._end_the_rest()
        return statistics.mean(self._by_action[dag_id][action][-1] for action in ACTIONS)

    def _training_nodes(self, dag_id: str, run_id: str) -> list[str]:
        """Wait until the nodes train and a triggerer watches; return their ids."""
        api = self._airflow.api
        api.wait_for_task(dag_id, run_id, "train", "deferred", timeout=PATIENCE_S)
        logs = f"dag_id={dag_id}/run_id={run_id}/*/*.trigger.*.log"
        run = api.xcom(dag_id, run_id, "train", "run")
        nodes = list((json.loads(run) if isinstance(run, str) else run)["run_ids"])
        _wait(lambda: bool(list((self._airflow.home / "logs").glob(logs))))
        _wait(lambda: all(self._state(node) == "IN_PROGRESS" for node in nodes))
        return nodes

    def _act(self, action: str, dag_id: str, run_id: str) -> None:
        api = self._airflow.api
        match action:
            case "run failed":
                api.patch_dag_run(dag_id, run_id, "failed")
            case "task failed":
                api.patch_task_state(dag_id, run_id, "train", "failed")
            case "task cleared":
                api.clear(dag_id, run_id, ["train"])

    def _state(self, node: str) -> str:
        return str(self._client.get_job_run(node).data.lifecycle_state)

    def _end_of(self, node: str) -> float:
        """Return when a node ended, by the service's clock."""
        _wait(lambda: self._state(node) in TERMINAL)
        return float(self._client.get_job_run(node).data.time_finished.timestamp())

    def _end_the_rest(self) -> None:
        place = self._place
        for run in self._client.list_job_runs(
            place, sort_by="timeCreated", sort_order="DESC", limit=100
        ).data:
            if run.lifecycle_state in ("ACCEPTED", "IN_PROGRESS"):
                self._client.cancel_job_run(run.id)

    @property
    def _place(self) -> str:
        connection = json.loads(self._airflow.env["AIRFLOW_CONN_OCI_DEFAULT"])
        return str(connection["extra"]["compartment_id"])


def _client(access: Access) -> Any:
    credentials = OciAccess(
        auth="config_file", config_file=access.config_file, profile=access.profile, endpoint=access.url
    )
    return clients.client(credentials, "data_science")


def _spread(values: list[float]) -> dict[str, float]:
    interval = Interval.of(values)
    return {name: round(getattr(interval, name), 1) for name in ("median", "low", "high")}


def _wait(there: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not there():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not after {PATIENCE_S:.0f} s")
        time.sleep(0.3)


ROW = StrayNodes()
