"""What the page shows: out of what Airflow knows, and what was seen of the gang."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from airflow.models.connection import sanitize_conn_id

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import Recovery, Restart, Slow
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRecord, RunStatus, TrainingResult
from airflow_provider_ocidist.plugin.records import TaskId, ref_in
from airflow_provider_ocidist.plugin.status_cache import Snapshot
from airflow_provider_ocidist.plugin.view import run_row, starts_gangs, task_view
from tests.plugin.gangs import HOSTILE, NOW, START, TASK, failed, fewer, node, record, ref, running


def test_a_running_gang_shows_progress_nodes_and_checkpoints():
    view = task_view(record(), running(), NOW)
    assert (view["state"], view["going_on"], view["failure"]) == ("RUNNING", True, None)
    assert (view["progress"]["step"], view["progress"]["steps"], view["progress"]["remaining"]) == (
        40,
        100,
        120,
    )
    assert [each["rank"] for each in view["nodes"]] == [0, 1]
    assert view["nodes"][0]["host"] == "10.0.0.2"
    assert view["checkpoints"]["items"][0]["size"] == 900_000
    json.dumps(view, allow_nan=False)


@pytest.mark.parametrize(
    "kind, nouns", [("oci_data_science", ("job run", "OCID")), ("runai", ("pod", "id"))], ids=["oci", "runai"]
)
def test_the_page_gets_the_nouns_of_the_gangs_home(kind: str, nouns: tuple[str, str]) -> None:
    gang = task_view(record(ref(backend=kind)), Snapshot(), NOW)["gang"]
    assert (gang["node_noun"], gang["identifier"]) == nouns


def test_restarts_are_shown_with_their_number_cause_node_and_how_long_they_took():
    why = Restart(cause=Cause.NODE, message="its machine is gone", rank=1, step=40)
    again = Restart(cause=Cause.USER, message=HOSTILE, rank=0)
    nodes = (
        node(0, restarts=(why, again), recoveries=(Recovery(launch=1, seconds=8.5),)),
        node(1, restarts=(why,), recoveries=(Recovery(launch=1, seconds=9.5),)),
    )
    look = replace(running(), status=RunStatus(nodes=nodes))
    shown = [
        {"cause": "NODE", "message": "its machine is gone", "rank": 1, "step": 40, "seconds": 9.5},
        {"cause": "USER", "message": HOSTILE, "rank": 0, "step": None, "seconds": None},
    ]
    assert task_view(record(), look, NOW)["restarts"] == shown
    published = TrainingResult.of(RunRecord(ref=ref()), look.status).to_json()
    unseen = task_view(record(state="success", result=published), Snapshot(problem="no route"), NOW)
    assert unseen["restarts"] == shown
    assert task_view(record(), running(), NOW)["restarts"] == []


@pytest.mark.parametrize(
    "look, state",
    [
        (fewer(), "RUNNING"),
        (fewer(NodeState.SUCCEEDED), "SUCCEEDED"),
        (fewer(NodeState.FAILED, NodeState.CANCELED), "FAILED"),
        (fewer(NodeState.SUCCEEDED, NodeState.RUNNING), "ENDING"),
    ],
)
def test_the_state_of_a_gang_is_that_of_the_nodes_that_take_part(look: Snapshot, state: str) -> None:
    assert task_view(record(ref(3)), look, NOW)["state"] == state


def test_who_takes_part_is_shown_also_when_the_gang_is_seen_no_more():
    view = task_view(record(ref(3)), fewer(), NOW)
    assert view["gang"]["members"] == [1, 2]
    assert [each["takes_part"] for each in view["nodes"]] == [False, True, True]
    done = fewer(NodeState.SUCCEEDED).status
    assert done is not None
    published = TrainingResult.of(RunRecord(ref=ref(3)), done).to_json()
    unseen = task_view(record(ref(3), state="success", result=published), Snapshot(problem="no route"), NOW)
    assert unseen["gang"]["members"] == [1, 2]
    assert [each["takes_part"] for each in unseen["nodes"]] == [False, True, True]
    whole = task_view(record(), running(), NOW)
    assert whole["gang"]["members"] == []
    assert all(each["takes_part"] for each in whole["nodes"])


def test_the_candidate_that_a_gang_has_become_is_shown():
    assert task_view(record(ref(candidate="shape VM.GPU.A10.2")), running(), NOW)["gang"]["candidate"] == (
        "shape VM.GPU.A10.2"
    )
    assert task_view(record(), running(), NOW)["gang"]["candidate"] == ""


def test_a_slow_node_and_a_machine_that_is_not_well_are_shown_at_their_nodes():
    slow = Slow(rank=3, node=1, seconds=0.42, median=0.11)
    nodes = (node(0, slow=(slow,)), node(1, health=("GPU 0 is slowed down: it is too hot",)))
    first, second = task_view(record(), replace(running(), status=RunStatus(nodes=nodes)), NOW)["nodes"]
    assert (first["slow"], first["health"]) == (None, None)
    assert second["slow"] == "rank 3 (on node 1) is slow: 0.42 s for a step, the median is 0.11 s"
    assert second["health"] == "GPU 0 is slowed down: it is too hot"


def test_the_losses_are_those_of_the_checkpoints_and_of_the_node_that_reports_most():
    assert task_view(record(), running(), NOW)["losses"] == [[1, 9.0], [20, 4.0], [30, 3.0], [40, 2.5]]


def test_node_seconds_count_each_node_until_its_end_or_now():
    look = running()
    ended = replace(look.status.nodes[1], finished_at=START + 70)
    view = task_view(record(), replace(look, status=RunStatus(nodes=(look.status.nodes[0], ended))), NOW)
    assert view["node_seconds"] == (NOW - START - 60) + 10


def test_a_failure_names_the_node_its_cause_the_remedy_and_its_last_lines():
    view = task_view(record(state="failed"), failed(), NOW)
    failure = view["failure"]
    assert (view["state"], failure["cause"], failure["rank"]) == ("FAILED", "USER", 1)
    assert HOSTILE in failure["message"]
    assert failure["remedy"] == "see the last lines of the node, below"
    assert failure["tail"].startswith("Traceback")
    assert not view["going_on"]


def test_what_the_task_published_of_its_failure_comes_first():
    told = {
        "cause": "DEADLINE",
        "message": "not finished within 45 s",
        "remedy": "raise it",
        "last_lines": ["a", "b"],
    }
    failure = task_view(record(state="failed", failure=told), failed(), NOW)["failure"]
    assert (failure["cause"], failure["message"], failure["remedy"]) == (
        "DEADLINE",
        told["message"],
        "raise it",
    )
    assert failure["tail"] == "a\nb"


def test_a_failure_before_any_node_was_created_is_shown_too():
    told = {"cause": "CONFIG", "message": "no such shape", "remedy": "correct the job"}
    view = task_view(replace(record(), ref=None, state="failed", failure=told), Snapshot(), NOW)
    assert (view["gang"], view["failure"]["message"]) == (None, "no such shape")


def test_a_failed_task_whose_nodes_did_their_part_points_to_its_log():
    done = RunStatus(
        nodes=(node(0, NodeState.SUCCEEDED, exit_code=0), node(1, NodeState.SUCCEEDED, exit_code=0))
    )
    failure = task_view(record(state="failed"), Snapshot(at=NOW, status=done), NOW)["failure"]
    assert failure["cause"] is None
    assert "see the log of the task" in failure["message"]


def test_without_a_look_the_result_of_the_task_is_shown():
    result = {
        "checkpoint_uri": "oci://b@n/step-9",
        "checkpoint": {"uri": "oci://b@n/step-9", "step": 9, "loss": 0.5},
        "nodes": [{"rank": 0, "run_id": "r", "state": "SUCCEEDED", "started_at": 10, "finished_at": 70}],
        "progress": {"step": 9, "steps": 9, "loss": 0.5, "losses": [[1, 2.0], [9, 0.5]]},
    }
    view = task_view(record(state="success", result=result), Snapshot(problem="no route"), NOW)
    assert (view["state"], view["seen"]["problem"], view["node_seconds"]) == ("SUCCEEDED", "no route", 60)
    assert view["checkpoints"]["items"][0]["step"] == 9
    assert view["losses"] == [[1, 2.0], [9, 0.5]]
    assert not view["going_on"]


ODD = [None, 5, "x", {"a": 1}, [1], [None, "x"], [[1]], [["x", 1]], [{"members": 3, "started_at": "x"}]]
"""Values that no task of ours publishes."""


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_whatever_others_have_written_into_the_xcoms_of_a_task_the_page_is_shown(odd: object) -> None:
    names = (
        "checkpoint",
        "checkpoint_uri",
        "progress",
        "restarts",
        "nodes",
        "outputs",
        "warning",
        "node_hours",
    )
    results = [{name: odd} for name in names] + [{"progress": {"losses": odd, "step": odd}}]
    for result in results:
        written = record(state="success", result=result)
        json.dumps([task_view(written, Snapshot(), NOW), run_row(written)])
    for name in ("cause", "rank", "remedy", "last_lines", "node_hours"):
        written = record(state="failed", failure={"message": "it failed", name: odd})
        assert task_view(written, failed(), NOW)["failure"]["message"] == "it failed"


def is_shown(value: object) -> bool:
    """Whether the page's script can write it as a number, or leave it out."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


@pytest.mark.parametrize("odd", [*ODD, True, {"uri": 5}, {"step": "x", "loss": {}}], ids=str)
def test_whatever_stands_in_the_place_of_a_number_the_page_gets_numbers(odd: object) -> None:
    numbers = dict.fromkeys(("step", "steps", "loss", "throughput", "learning_rate"), odd)
    node = {"rank": 0, "state": odd, "phase": odd, "cores": odd, "gpu": odd, "memory": odd}
    result = {
        "progress": numbers,
        "checkpoint": odd if isinstance(odd, dict) else {"uri": "oci://b@n/step-1", **numbers},
        "nodes": [node],
        "restarts": [{"rank": odd, "step": odd, "seconds": odd, "cause": odd, "message": odd}],
        "node_hours": odd,
        "cost": odd,
    }
    written = record(state="success", result=result)
    row, view = run_row(written), task_view(written, Snapshot(), NOW)
    assert is_shown(row["step"])
    assert is_shown(row["loss"])
    assert all(is_shown(view["progress"][name]) for name in numbers)
    assert all(is_shown(value) for value in (view["spent"] or {}).values())
    for each in view["checkpoints"]["items"]:
        assert isinstance(each["uri"], str)
        assert is_shown(each["step"])
        assert is_shown(each["loss"])
    for each in view["nodes"]:
        assert all(each[name] is None or isinstance(each[name], str) for name in ("state", "phase"))
        assert all(is_shown(each[name]) for name in ("cores", "gpu", "memory"))
    assert all(is_shown(each[name]) for each in view["restarts"] for name in ("rank", "step", "seconds"))


def test_a_loss_of_zero_is_a_loss() -> None:
    result = {"progress": {"step": 0, "loss": 0.0}, "checkpoint": {"step": 9, "loss": 0.5}}
    row = run_row(record(state="success", result=result))
    assert (row["step"], row["loss"]) == (0, 0.0)


def test_a_success_is_no_failure_though_an_earlier_node_was_lost():
    assert task_view(record(state="success"), failed(), NOW)["failure"] is None


def test_the_last_lines_of_a_thousand_failed_nodes_are_not_sent_along():
    nodes = tuple(replace(failed().status.nodes[1], rank=rank) for rank in range(1000))
    view = task_view(record(ref(1000), state="failed"), Snapshot(at=NOW, status=RunStatus(nodes=nodes)), NOW)
    assert sum(each["tail"] is not None for each in view["nodes"]) == 20
    assert len(json.dumps(view)) < 600_000


@pytest.mark.parametrize(
    "operator, expected",
    [
        ("DistributedTrainingOperator", True),
        ("@task.distributed_training", True),
        ("DistributedTrainingSensor", False),
        ("BashOperator", False),
        (None, False),
    ],
)
def test_operators_that_start_gangs_are_known_by_name(operator, expected):
    assert starts_gangs(operator) is expected


def test_a_task_of_others_has_no_gang_and_no_news():
    view = task_view(replace(record(), ref=None, operator="BashOperator", state="running"), Snapshot(), NOW)
    assert view["gang"] is None
    assert not view["going_on"]


def test_a_task_that_has_created_nothing_yet_will_have_news():
    assert task_view(replace(record(), ref=None, state="queued"), Snapshot(), NOW)["going_on"]


def test_a_node_without_a_report_is_shown_as_the_service_has_it():
    silent = NodeStatus(rank=0, run_id="r", state=NodeState.PENDING, details="waiting for capacity")
    (shown,) = task_view(record(ref(1)), Snapshot(at=NOW, status=RunStatus(nodes=(silent,))), NOW)["nodes"]
    assert (shown["state"], shown["details"]) == ("PENDING", "waiting for capacity")


def test_a_row_of_the_list_shows_the_end_of_a_run():
    row = run_row(record(state="success", result={"checkpoint": {"step": 9, "loss": 0.5}}))
    assert (row["task"]["dag_id"], row["nodes"], row["step"], row["loss"]) == ("nightly", 2, 9, 0.5)


def test_the_reference_in_an_xcom_is_taken_for_its_own_task_only():
    value = ref().to_json()
    assert ref_in(value, TASK) == ref()
    assert ref_in(value, replace(TASK, run_id="another")) is None
    assert ref_in(value, TaskId(dag_id="others", run_id=TASK.run_id, task_id=TASK.task_id)) is None


@pytest.mark.parametrize(
    "work_dir", ["s3://bucket/work", "gs://bucket/work", "oci://bucket@ns/work", "/mnt/shared/work"]
)
@pytest.mark.parametrize(
    "backend, job_id",
    [("pytorchjob", "team-a/train-0a1b2c"), ("runai", "6f1c9a52-3c0e-4a55-9d43-6a3c1ad0e0f7")],
)
def test_a_gang_at_another_home_is_shown_wherever_its_nodes_meet(backend, job_id, work_dir):
    gang = ref(
        backend=backend,
        job_id=job_id,
        run_ids=("train-0a1b2c-master-0", "train-0a1b2c-worker-0"),
        run_dir=f"{work_dir}/x",
        checkpoints_uri=f"{work_dir}/checkpoints/x",
        log_group_id=None,
    )
    assert ref_in(gang.to_json(), TASK) == gang


def local_ref(**changes):
    place = "/home/airflow/.ocidist/nightly-train-g1-a1"
    gang = {"job_id": place, "run_dir": place, "checkpoints_uri": None, "log_group_id": None}
    run_ids = ("nightly-train-g1-a1-0", "nightly-train-g1-a1-1.1")
    return ref(**{"backend": "local", "run_ids": run_ids, **gang, **changes})


def test_a_gang_of_this_machines_processes_is_known_by_its_run_directory():
    assert ref_in(local_ref().to_json(), TASK) == local_ref()
    for forged in ({"job_id": "/etc"}, {"run_dir": "/etc"}, {"job_id": "etc", "run_dir": "etc"}):
        assert ref_in(local_ref(**forged).to_json(), TASK) is None, forged


@pytest.mark.parametrize(
    "forged",
    [
        {"run_dir": "/etc"},
        {"run_dir": "file:///etc"},
        {"checkpoints_uri": "http://169.254.169.254/opc"},
        {"nodes": 3},
        {"run_ids": ["x' OR '1' = '1", "y"]},
        {"job_id": "a b"},
        {"job_id": ""},
        {"job_id": "../secrets"},
        {"job_id": "team/../secrets"},
        {"job_id": "team/.."},
        {"run_dir": "local:///etc"},
        {"run_dir": "zip::s3://bucket/x"},
        {"log_group_id": 'x" | where 1 = 1'},
    ],
)
def test_a_reference_to_places_of_the_api_server_is_not_followed(forged):
    assert ref_in({**ref().to_json(), **forged}, TASK) is None


CONN_ID_SIGNS = "abzABZ019_#!()-.:/\\äß"
"""Signs of which Airflow lets a connection's id consist."""


@pytest.mark.parametrize("seed", range(50))
def test_a_gang_at_another_connection_is_shown_whatever_airflow_lets_that_be_called(seed):
    print("seed", seed)
    dice = random.Random(seed)
    named = ["prod/oci_fra", "_fra", "fra:1", "#1", "(fra)", "-fra", "v1..2", "..."]
    drawn = "".join(dice.choices(CONN_ID_SIGNS, k=dice.randint(1, 30)))
    conn_id = named[seed] if seed < len(named) else drawn
    if {".", ".."} & set(conn_id.replace("\\", "/").split("/")):
        # A way out of a folder of secrets: below.
        conn_id = conn_id.replace(".", "x")
    assert sanitize_conn_id(conn_id) == conn_id
    gang = ref(conn_id=conn_id)
    assert ref_in(gang.to_json(), TASK) == gang


@pytest.mark.parametrize(
    "forged",
    ["", "a b", "a\n", "x' OR '1' = '1", "../x", "prod/../x", "prod/..", "a\\..\\b", ".", "a/./b", "x" * 251],
)
def test_a_connection_that_airflow_cannot_have_or_that_leads_out_of_a_folder_of_secrets_is_not_asked_for(
    forged,
):
    assert ref_in({**ref().to_json(), "conn_id": forged}, TASK) is None


@pytest.mark.parametrize("value", [None, 7, "text", [], {"backend": "x"}, {"key": "x", "run_ids": 3}])
def test_an_xcom_of_that_name_by_others_is_not_taken_for_a_reference(value):
    assert ref_in(value, TASK) is None


def test_a_success_that_shows_no_training_is_shown_with_its_warning():
    result = {"checkpoint_uri": None, "nodes": [], "warning": "it probably trained nothing"}
    view = task_view(record(state="success", result=result), Snapshot(problem="no route"), NOW)
    assert view["warning"] == "it probably trained nothing"
    assert task_view(record(state="success"), failed(), NOW)["warning"] is None
