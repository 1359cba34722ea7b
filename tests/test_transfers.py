"""The copying operators: what they take, what they hand on, where they copy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.gangs.stop_flag import StopFlag
from airflow_provider_ocidist.operators.copy_task import CopyTask
from airflow_provider_ocidist.storage import copy_program
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.transfers import CopyOperator, CopyOutputsOperator, StageDataOperator
from scripts.emulator_process import Access
from tests.storage.trees import make_tree, read_tree


class TaskInstance:
    """What an operator asks of its task instance."""

    dag_id, run_id, task_id, map_index = "dag", "manual__2026-01-01", "copy", -1
    max_tries = 0

    def __init__(self, try_number: int = 1) -> None:
        self.try_number = try_number
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


def run(ti: TaskInstance | None = None, **arguments: Any) -> dict[str, Any]:
    operator = StageDataOperator(task_id="copy", poll_interval=0.5, deferrable=False, **arguments)
    return operator.execute({"ti": ti or TaskInstance()})


def test_local_files_are_copied_without_any_connection(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 5, "y.tmp": 5})
    report = run(
        data={f"{tmp_path}/s/": f"{tmp_path}/t"}, conn_id="none_such", exclude="*.tmp", verify="true"
    )
    assert set(read_tree(tmp_path / "t")) == {"x"}
    assert (report["files"], report["bytes"], report["failed"]) == (1, 5, 0)
    assert json.dumps(report)


def test_what_failed_and_what_arrived_is_handed_on(tmp_path: Path) -> None:
    make_tree(tmp_path / "s", {"x": 5})
    (tmp_path / "file").write_bytes(b"")
    ti = TaskInstance()
    data = {f"{tmp_path}/s/": f"{tmp_path}/t", f"{tmp_path}/s/x": f"{tmp_path}/file/x"}
    with pytest.raises(StorageError, match=r"1 of 2 items failed, the others have arrived:\n  item 2"):
        run(ti, data=data)
    first, second = ti.xcoms["report"]["items"]
    assert (first["files"], "error" in second) == (1, True)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ({"data": [{"source": "/a"}]}, "item 1: has no 'target'"),
        ({"data": {"/a": "/b"}, "mode": "some"}, "all items, mode: must be one of all, changed"),
        ({"data": {"/a": "/b"}, "run_on": "moon"}, "run_on: must be one of worker, platform, not 'moon'"),
        (
            {"data": {"/a": "oci://b@n/x"}, "run_on": "platform"},
            "item 1: /a is on the worker, which the platform cannot see: name a bucket, or take run_on='worker'",
        ),
        (
            {"data": {"oci://b@n/a": "oci://b@n/b"}, "run_on": "platform", "target_conn_id": "other"},
            "target_conn_id: keys do not travel",
        ),
    ],
)
def test_what_cannot_be_is_refused_for_good(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(AirflowFailException, match=expected.replace("'", ".")):
        run(**arguments)


def test_data_may_come_from_a_task_before_and_be_mapped() -> None:
    with DAG("dag", schedule=None) as dag:

        @task
        def items() -> list[dict[str, str]]:
            return []

        CopyOutputsOperator(task_id="all", data=items())
        CopyOutputsOperator.partial(task_id="each").expand(data=items())
    assert dag.get_task("all").upstream_task_ids == {"items"}
    assert dag.get_task("each").upstream_task_ids == {"items__1"}


def test_all_that_users_write_is_templated() -> None:
    given = {"data", "conn_id", "source_conn_id", "target_conn_id", "run_on", "shape", "ocpus", "overrides"}
    assert given <= set(CopyOperator.template_fields)


def test_each_side_takes_its_own_connection(
    emulator: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in emulator.airflow_env("there").items():
        monkeypatch.setenv(name, value)
    (tmp_path / "x").write_bytes(b"123")
    target = f"oci://{emulator.bucket}@{emulator.namespace}/sides/x"
    assert run(data={f"{tmp_path}/x": target}, target_conn_id="there")["files"] == 1
    report = run(TaskInstance(try_number=2), data={f"{tmp_path}/x": target}, target_conn_id="there")
    assert report["items"][0]["resumed_bytes"] == 3


@pytest.mark.slow
def test_a_node_of_the_platform_copies_near_the_data_and_its_report_comes_back(
    emulator: Access, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in emulator.airflow_env().items():
        monkeypatch.setenv(name, value)
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/platform"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    make_tree(tmp_path / "s", {"x": 5, "y": 5})
    run(data={f"{tmp_path}/s/": f"{bucket}/s"})
    ti = TaskInstance()
    report = run(ti, data={f"{bucket}/s/": f"{bucket}/t/"}, run_on="platform")
    assert (report["files"], report["bytes"], len(report["run_ids"])) == (2, 10, 1)
    assert report["job_id"] == ti.xcoms["run"]["job_id"]
    assert "checkpoint_uri" not in ti.xcoms


@pytest.mark.parametrize("named_by", ["connection", "profile", "nobody"])
def test_a_node_opens_the_buckets_in_the_region_of_the_tasks_connection_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    """A candidate at another connection may be in another region than all buckets of the task."""
    own, nodes = tmp_path / "own", tmp_path / "nodes"
    own.write_text("[DEFAULT]\nuser=u\n" + ("region=us-ashburn-1\n" if named_by == "profile" else ""))
    nodes.write_text("[DEFAULT]\nuser=u\nregion=eu-frankfurt-1\n")
    region = {"region": "us-ashburn-1"} if named_by == "connection" else {}
    extra = {"config_file": str(own), "work_dir": "oci://b@n/w", **region}
    monkeypatch.setenv("AIRFLOW_CONN_OCI_DEFAULT", json.dumps({"conn_type": "oci", "extra": extra}))
    operator = StageDataOperator(
        task_id="copy", data={"oci://b@n/s": "oci://b@n/t"}, run_on="platform", deferrable=False
    )
    text = CopyTask(operator, StopFlag()).job_arguments({"ti": TaskInstance()}).code.files["order.json"]
    seen: list[Any] = []

    def copy_all(*_: Any, sides: Any, **__: Any) -> None:
        seen.extend((sides.sources, sides.targets))
        raise StorageError("seen")

    monkeypatch.setattr(copy_program, "copy_all", copy_all)
    order = copy_program.codec.decode(copy_program.Order, json.loads(text))
    with pytest.raises(StorageError, match="seen"):
        copy_program.copy_order(order, {"OCI_CONFIG_FILE": str(nodes)}, copy_program.threading.Event())
    # Where nobody names one it is the node's own.
    expected = None if named_by == "nobody" else "us-ashburn-1"
    assert [stores._access.region for stores in seen] == [expected] * 2


def test_the_nodes_program_says_in_one_line_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    item = {"number": 1, "source": f"{tmp_path}/no", "target": f"{tmp_path}/t"}
    order = copy_program.codec.decode(copy_program.Order, {"items": [item], "label": "copy"})
    with pytest.raises(StorageError, match=r"^1 of 1 items cannot be copied, .* there is nothing at [^\n]*$"):
        copy_program.copy_order(order, os.environ, copy_program.threading.Event())
    make_tree(tmp_path / "no", {"x": 5})
    copy_program.copy_order(order, os.environ, copy_program.threading.Event())
    assert json.loads(open_store(str(tmp_path)).read(copy_program.REPORT))["files"] == 1
