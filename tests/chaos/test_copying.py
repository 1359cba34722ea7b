"""The copying operators in Airflow's own processes: killed in the middle, on the worker and on the platform."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess, access_of
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.storage.transfer import copy
from scripts.airflow_api import AirflowClient
from scripts.emulator_process import Access
from scripts.local_airflow import LocalAirflow
from tests.storage.trees import make_tree, read_store
from tests.storage.unruly_proxy import Fault, UnrulyProxy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PART = 8 << 20
PARTS = 30
STREAMS = 8
"""Parts of an upload that are in memory at a time, and so on their way."""
FILES = 300


@dataclass(frozen=True)
class Stage:
    """Airflow, and the emulator behind a proxy that makes what is written slow."""

    api: AirflowClient
    proxy: UnrulyProxy
    access: OciAccess
    backend: OciDataScience
    bucket: str

    def xcom(self, dag_id: str, run_id: str, key: str = "return_value", task_id: str = "copy") -> Any:
        value = self.api.xcom(dag_id, run_id, task_id, key)
        return json.loads(value) if isinstance(value, str) else value

    def slow(self, path: str, seconds: float) -> None:
        self.proxy.faults = [Fault(method="PUT", path=path, delay_s=seconds, times=100_000)]

    def until(self, happened: Callable[[], object], what: str, timeout: float = 120) -> None:
        deadline = time.monotonic() + timeout
        while not happened():
            assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
            time.sleep(0.1)

    def nodes(self, ref: RunRef) -> set[NodeState]:
        (status,) = self.backend.status([ref])
        return {node.state for node in status.nodes}

    def files_at(self, name: str) -> int:
        return len(open_store(f"{self.bucket}/{name}", self.access).list())


@pytest.fixture(scope="module")
def stage(emulator: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    home = tmp_path_factory.mktemp("airflow")
    fields = emulator.connection_fields()
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/copying"
    with UnrulyProxy(emulator.url) as proxy:
        slow = emulator.airflow_env("oci_slow", endpoint=proxy.url)
        env = {**emulator.airflow_env(), **slow, "XDG_CACHE_HOME": str(home / "cache")}
        with LocalAirflow(home, dags=Path(__file__).parent / "copy_dags", env=env) as airflow:
            for dag_id in ("copy_worker", "copy_blocking", "copy_deferred", "copy_what_is_named"):
                airflow.api.wait_for_dag(dag_id)
            access = access_of(fields)
            make_tree(home / "tree", {f"{number:03}": 2000 for number in range(FILES)})
            copy(f"{home}/tree/", f"{bucket}/tree", access=access)
            yield Stage(airflow.api, proxy, access, OciDataScience.connect(fields), bucket)


def kill_worker_of(task: dict[str, Any]) -> None:
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.NoSuchProcess):
            if f"airflow worker -- {task['id']}" in " ".join(process.info["cmdline"] or ()):
                process.send_signal(signal.SIGKILL)


def test_a_copy_whose_worker_was_killed_goes_on_and_sends_at_most_a_part_of_each_stream_again(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(PARTS * PART))
    stage.proxy.seen.clear()
    stage.slow("/u/", 1.0)
    run = stage.api.trigger("copy_worker", {"source": f"{tmp_path}/large", "target": f"{stage.bucket}/large"})
    stage.until(lambda: stage.proxy.count("PUT", "/u/") >= 2 * STREAMS + 1, "two rounds of parts")
    kill_worker_of(stage.api.wait_for_task("copy_worker", run, "copy", "running"))
    stage.api.wait_for_task("copy_worker", run, "copy", "success", timeout=240)
    sent = stage.proxy.count("PUT", "/u/")
    report = stage.xcom("copy_worker", run)
    print(f"{sent} parts sent of {PARTS}; {report['items'][0]['resumed_bytes']} bytes were there")
    assert sent <= PARTS + STREAMS
    assert report["items"][0]["resumed_bytes"] >= STREAMS * PART
    assert report["bytes"] == PARTS * PART
    assert open_store(stage.bucket, stage.access).read("large") == (tmp_path / "large").read_bytes()


def test_a_copy_on_the_platform_outlives_its_worker_and_is_adopted(stage: Stage) -> None:
    stage.proxy.seen.clear()
    stage.slow("outlives", 2.0)
    run = stage.api.trigger(
        "copy_blocking", {"source": f"{stage.bucket}/tree/", "target": f"{stage.bucket}/outlives"}
    )
    stage.until(lambda: stage.proxy.count("PUT", "outlives") >= 20, "20 files on their way")
    ref = RunRef.from_json(stage.xcom("copy_blocking", run, "run"))
    kill_worker_of(stage.api.wait_for_task("copy_blocking", run, "copy", "running"))
    stage.api.wait_for_task("copy_blocking", run, "copy", "success", timeout=240)
    report = stage.xcom("copy_blocking", run)
    assert stage.api.task_instance("copy_blocking", run, "copy")["try_number"] == 2
    assert (report["files"], report["bytes"]) == (FILES, FILES * 2000)
    assert report["job_id"] == ref.job_id
    assert stage.proxy.count("PUT", "outlives") == FILES
    tree = read_store(open_store(f"{stage.bucket}/tree", stage.access))
    assert read_store(open_store(f"{stage.bucket}/outlives", stage.access)) == tree


def test_killing_a_deferred_copy_ends_its_node(stage: Stage) -> None:
    stage.proxy.seen.clear()
    # A minute for all of them: what Airflow does meanwhile takes long on a busy machine.
    stage.slow("ended", 12.0)
    run = stage.api.trigger(
        "copy_deferred", {"source": f"{stage.bucket}/tree/", "target": f"{stage.bucket}/ended"}
    )
    stage.until(lambda: stage.proxy.count("PUT", "ended") >= 5, "five files on their way")
    stage.api.wait_for_task("copy_deferred", run, "copy", "deferred")
    ref = RunRef.from_json(stage.xcom("copy_deferred", run, "run"))
    stage.api.patch_task_state("copy_deferred", run, "copy", "failed")
    stage.until(lambda: stage.nodes(ref) <= {NodeState.CANCELED, NodeState.FAILED}, "its node has ended", 90)
    # What was on its way arrives late; from then on nothing is slowed down, and nothing comes.
    stage.proxy.calm_down()
    arrived = stage.files_at("ended")
    assert 0 < arrived < FILES
    time.sleep(5)
    assert stage.files_at("ended") == arrived


def test_a_deferred_copy_hands_on_what_its_node_has_copied(stage: Stage) -> None:
    stage.proxy.faults = []
    run = stage.api.trigger(
        "copy_deferred", {"source": f"{stage.bucket}/tree/", "target": f"{stage.bucket}/deferred"}
    )
    stage.api.wait_for_task("copy_deferred", run, "copy", "success", timeout=240)
    assert stage.xcom("copy_deferred", run)["files"] == FILES
    assert "300 files, 600000 bytes in" in "\n".join(stage.api.task_log("copy_deferred", run, "copy"))


def test_items_may_come_from_a_task_before_as_a_list_one_by_one_and_as_json(
    stage: Stage, tmp_path: Path
) -> None:
    make_tree(tmp_path / "s", {"a": 5, "b": 5})
    conf = {"source": f"{tmp_path}/s", "target": f"{stage.bucket}/told"}
    run = stage.api.trigger("copy_what_is_named", conf)
    stage.api.wait_for_run("copy_what_is_named", run, timeout=120)
    assert stage.api.dag_run("copy_what_is_named", run)["state"] == "success"
    for task_id in ("copy", "copy_json"):
        assert stage.xcom("copy_what_is_named", run, task_id=task_id)["files"] == 2
    assert read_store(open_store(f"{stage.bucket}/told", stage.access)).keys() == {"a", "b"}
