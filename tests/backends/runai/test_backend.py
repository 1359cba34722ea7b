"""Gangs at Run:ai over the stand-in: exactly one workload for each key, and what becomes of it as people see it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from airflow_provider_ocidist.backends.capabilities import Finding, Mark
from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import Ending, NodeState, Plan, RunRef, RunStatus
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane
from tests.training_jobs import PROGRAMS, a_key


def a_job(nodes: int = 2, backend: dict[str, Any] | None = None, **changes: Any) -> TrainingJob:
    return parsing.build(
        {
            "name": "steps",
            "nodes": nodes,
            "image": "python:3.11",
            "program": {"source": str(PROGRAMS), "script": "steps.py"},
            "launcher": {"kind": "python"},
            "backend": {"kind": "runai", **(backend or {})},
            **changes,
        }
    )


def workload_of(plan: Plan) -> str:
    return str(plan.requests[0].body["name"])


def names(plane: Plane) -> list[str]:
    return [item["name"] for item in plane.get("/api/v1/workloads")["workloads"]]


def seen(backend: Runai, ref: RunRef) -> RunStatus:
    (status,) = backend.status([ref])
    return status


def becomes(backend: Runai, ref: RunRef, *states: NodeState) -> RunStatus:
    """Wait until the nodes are in these states; one stands for all."""
    wanted = states if len(states) > 1 else states * ref.nodes
    found = Plane.until(
        lambda: seen(backend, ref), lambda it: tuple(node.state for node in it.nodes) == wanted
    )
    assert isinstance(found, RunStatus)
    return found


def runs(plane: Plane, cluster: PaperCluster, ref: RunRef, plan: Plan) -> None:
    """Let a gang's pods run."""
    plane.until(lambda: cluster.names("Pod"), lambda pods: set(ref.run_ids) <= set(pods))
    cluster.set_pods(workload_of(plan), "Running")
    plane.becomes(ref.job_id, "Running")


def report(ref: RunRef, rank: int, phase: Phase = Phase.TRAINING, **changes: Any) -> None:
    """Write what a node reports."""
    content = NodeReport(
        rank=rank, phase=phase, address="", started_at=1.0, heartbeat_at=2.0, **changes
    ).to_json()
    file = Path(ref.run_dir, "nodes", f"{rank}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


# once


def test_any_submitters_any_number_of_times_make_one_workload(plane: Plane, fields: dict[str, Any]) -> None:
    plan = Runai.connect(fields).plan(a_job(), a_key())
    with ThreadPoolExecutor(4) as pool:
        refs = list(pool.map(lambda _: Runai.connect(fields).submit(plan), range(4)))
    assert names(plane) == [workload_of(plan)]
    assert len({(ref.job_id, ref.run_ids, ref.run_dir) for ref in refs}) == 1


@pytest.mark.parametrize("drop", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_submission_that_is_not_answered_makes_one_workload(
    backend: Runai, plane: Plane, drop: str, times: int
) -> None:
    plane.fault(method="POST", path="/api/v1/workloads/distributed", drop=drop, times=times)
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    assert names(plane) == [workload_of(plan)]
    assert plane.get(f"/api/v1/workloads/{ref.job_id}")["name"] == workload_of(plan)


@pytest.mark.parametrize("status", [400, 409])
def test_a_name_that_is_taken_is_adopted_whichever_way_the_platform_says_so(
    backend: Runai, plane: Plane, status: int
) -> None:
    plan = backend.plan(a_job(), a_key())
    first = backend.submit(plan)
    found = backend._created(plan, None) if status == 409 else backend.submit(plan)
    assert found.job_id == first.job_id


def test_another_attempt_is_another_workload(backend: Runai, plane: Plane) -> None:
    key = a_key()
    refs = [backend.submit(backend.plan(a_job(), replace(key, attempt=number))) for number in (1, 2)]
    assert len({ref.job_id for ref in refs}) == len(names(plane)) == 2


def test_a_workload_of_somebody_else_is_left_alone(backend: Runai, plane: Plane) -> None:
    plan = backend.plan(a_job(), a_key())
    other = plane.submit(workload_of(plan))
    with pytest.raises(BackendError, match="ocidist has not made it"):
        backend.submit(plan)
    assert plane.phase(other) != "Deleting"


def test_a_name_whose_owner_is_just_being_deleted_is_waited_for(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    other = plane.submit(workload_of(plan))
    plane.until(lambda: cluster.names("Pod"), bool)
    cluster.holds_deletions = True
    plane.call("DELETE", f"/api/v1/workloads/distributed/{other}")
    plane.becomes(other, "Deleting")
    with ThreadPoolExecutor(1) as pool:
        submitting = pool.submit(backend.submit, plan)
        plane.until(lambda: creations(plane), lambda number: number > 1)
        cluster.finish_deletions()
        ref = submitting.result()
    assert ref.job_id != other
    assert plane.get(f"/api/v1/workloads/{ref.job_id}")["name"] == workload_of(plan)


def creations(plane: Plane) -> int:
    calls = plane.http.get("/_emulator/calls").json()
    return sum((call["method"], call["path"]) == ("POST", "/api/v1/workloads/distributed") for call in calls)


def test_a_name_that_stays_taken_by_what_is_being_deleted_is_for_a_later_try(
    backend: Runai, plane: Plane, cluster: PaperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.backend.BETWEEN_LOOKS", 0.0)
    plan = backend.plan(a_job(), a_key())
    other = plane.submit(workload_of(plan))
    plane.until(lambda: cluster.names("Pod"), bool)
    cluster.holds_deletions = True
    plane.call("DELETE", f"/api/v1/workloads/distributed/{other}")
    plane.becomes(other, "Deleting")
    with pytest.raises(BackendError, match="is just being deleted") as caught:
        backend.submit(plan)
    assert caught.value.retryable
    cluster.finish_deletions()


def test_the_same_key_of_another_installation_is_another_gang(
    backend: Runai, fields: dict[str, Any], tmp_path: Path
) -> None:
    key = a_key()
    backend.submit(backend.plan(a_job(), key))
    other = Runai.connect({**fields, "work_dir": str(tmp_path / "elsewhere")})
    with pytest.raises(BackendError, match="the nodes meet in"):
        other.submit(other.plan(a_job(), key))


def test_what_was_submitted_is_found_again_by_any_process(backend: Runai, fields: dict[str, Any]) -> None:
    plan = backend.plan(a_job(3), a_key())
    ref = backend.submit(plan)
    other = Runai.connect(fields)
    assert [found.job_id for found in other.gangs.find(plan)] == [ref.job_id]
    record = other.open(ref.job_id)
    assert replace(record.ref, submitted_at=ref.submitted_at) == ref
    assert [found.job_id for found in other.recent(5)] == [ref.job_id]
    assert other.recent(5, "no such name") == []


def test_code_and_agent_lie_in_the_run_directory_before_a_node_starts(backend: Runai) -> None:
    ref = backend.submit(backend.plan(a_job(limits={"lease": "1h"}), a_key()))
    assert {"code.zip", "agent.zip", "lease.json"} <= {file.name for file in Path(ref.run_dir).iterdir()}


def test_a_stop_amid_the_submission_leaves_nothing(backend: Runai, plane: Plane) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(BackendError) as caught:
        backend.submit(backend.plan(a_job(), a_key()), stop)
    assert caught.value.cause is Cause.CANCELED
    assert names(plane) == []


def test_a_project_that_is_not_there_is_named_with_those_that_are(
    plane: Plane, fields: dict[str, Any]
) -> None:
    del plane
    backend = Runai.connect({**fields, "project": "reserch"})
    with pytest.raises(BackendError, match=r"no project reserch.*it may use others, research") as caught:
        backend.submit(backend.plan(a_job(), a_key()))
    assert caught.value.cause is Cause.CONFIG


def test_what_the_platform_refuses_is_refused_with_its_words(backend: Runai, plane: Plane) -> None:
    plane.fault(method="POST", path="/api/v1/workloads/distributed", status=403, message="You may not.")
    with pytest.raises(BackendError, match=r"403: You may not\.; give the service account"):
        backend.submit(backend.plan(a_job(), a_key()))


# look


def test_nodes_are_what_the_platform_and_their_reports_say(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    becomes(backend, ref, NodeState.PENDING)
    runs(plane, cluster, ref, plan)
    report(ref, 0)
    becomes(backend, ref, NodeState.RUNNING, NodeState.PENDING)
    report(ref, 1)
    becomes(backend, ref, NodeState.RUNNING)
    for rank in (0, 1):
        report(ref, rank, Phase.DONE, exit_code=0, finished_at=3.0)
    becomes(backend, ref, NodeState.ENDING)
    cluster.set_job(workload_of(plan), "Succeeded")
    assert becomes(backend, ref, NodeState.SUCCEEDED).ended


def test_a_node_that_failed_names_its_cause_and_the_platforms_words_are_there_for_the_others(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    report(ref, 0)
    report(ref, 1, Phase.DONE, exit_code=3, cause=Cause.USER, message="boom", tail="one\nboom")
    cluster.set_job(workload_of(plan), "Failed", "1 Worker replica(s) failed.")
    status = becomes(backend, ref, NodeState.FAILED)
    assert status.nodes[1].report is not None
    assert status.nodes[1].report.cause is Cause.USER
    assert status.nodes[0].details == "1 Worker replica(s) failed."
    lines = backend.logs(ref, [0.0, 0.0])
    assert [(line.rank, line.text) for line in lines] == [(1, "one"), (1, "boom")]
    assert len({line.id for line in lines}) == 2


def test_over_quota_is_waiting_with_the_sentence_until_there_is_room(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plane.http.put(f"/_emulator/projects/{plane.access.project_id}", json={"gpus": 4})
    plan = backend.plan(a_job(2, {"gpus": 8, "preemptible": False}), a_key())
    ref = backend.submit(plan)
    plane.becomes(ref.job_id, "Pending")
    status = becomes(backend, ref, NodeState.PENDING)
    assert all(
        "requested 16 GPUs, but research quota is 4 GPUs" in str(node.details) for node in status.nodes
    )
    plane.http.put(f"/_emulator/projects/{plane.access.project_id}", json={"gpus": 16})
    runs(plane, cluster, ref, plan)


def test_a_suspension_by_somebody_is_the_end_of_the_try_and_no_success(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/suspend")
    status = becomes(backend, ref, NodeState.CANCELED)
    assert all("suspended by somebody" in str(node.details) for node in status.nodes)


def test_a_suspension_is_a_pause_where_the_job_says_so_and_old_reports_are_forgotten(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(2, {"when_suspended": "wait"}), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    report(ref, 0, Phase.DONE, exit_code=-15)
    report(ref, 1, Phase.DONE, exit_code=-15)
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/suspend")
    plane.becomes(ref.job_id, "Stopped")
    becomes(backend, ref, NodeState.PENDING)
    assert not list(Path(ref.run_dir).glob("nodes/*"))
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/resume")
    runs(plane, cluster, ref, plan)
    report(ref, 0)
    report(ref, 1)
    becomes(backend, ref, NodeState.RUNNING)


def test_a_workload_that_somebody_deletes_is_missing_as_soon_as_that_is_certain(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    plane.call("DELETE", f"/api/v1/workloads/distributed/{ref.job_id}")
    assert becomes(backend, ref, NodeState.MISSING).ended


def test_a_workload_that_is_not_found_for_a_moment_is_not_missing(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    plane.fault(
        method="GET", path=f"/api/v1/workloads/{ref.job_id}", status=404, message="not found", times=1
    )
    assert {node.state for node in seen(backend, ref).nodes} == {NodeState.UNKNOWN}
    report(ref, 0)
    report(ref, 1)
    becomes(backend, ref, NodeState.RUNNING)


def test_many_gangs_are_looked_at_in_one_list(backend: Runai, plane: Plane) -> None:
    refs = [backend.submit(backend.plan(a_job(), a_key())) for _ in range(7)]
    before = len(plane.http.get("/_emulator/calls").json())
    statuses = backend.status(refs)
    assert [status.nodes[0].run_id for status in statuses] == [ref.run_ids[0] for ref in refs]
    assert len(plane.http.get("/_emulator/calls").json()) - before == 1


def test_a_list_is_of_the_gangs_own_projects_once_they_are_known(backend: Runai, plane: Plane) -> None:
    refs = [backend.submit(backend.plan(a_job(), a_key())) for _ in range(7)]
    backend.status(refs[:6])
    before = len(plane.http.get("/_emulator/calls").json())
    assert [len(status.nodes) for status in backend.status(refs)] == [2] * 7
    (listed,) = plane.http.get("/_emulator/calls").json()[before:]
    assert "projectId==1" in unquote(listed["path"])


def test_what_would_stop_a_job_is_found_beforehand_with_the_remedy(
    backend: Runai, plane: Plane, fields: dict[str, Any]
) -> None:
    def findings(found: Runai, **changes: Any) -> dict[str, Finding]:
        return {each.subject: each for each in found.preflight(a_job(**changes))}

    found = findings(backend)
    assert list(found) == ["sign-in", "project", "cluster", "quota", "work_dir"]
    assert {each.mark for each in found.values()} == {Mark.PASS}, found
    plane.http.put("/_emulator/projects/1", json={"gpus": 4, "limit": 8}).raise_for_status()
    for gpus, preemptible, mark, words in (
        (2, None, Mark.PASS, "4 GPUs are asked for, within its quota"),
        (3, None, Mark.WARN, "6 GPUs are asked for, and its quota is 4"),
        (3, False, Mark.FAIL, "cannot be preempted"),
        (5, None, Mark.FAIL, "10 GPUs are asked for, and it may have 8 at most"),
    ):
        quota = findings(backend, backend={"gpus": gpus, "preemptible": preemptible})["quota"]
        assert quota.mark is mark
        assert words in quota.message
    pools = findings(backend, backend={"node_pools": ["default", "h200"]})["node pools"]
    assert pools.mark is Mark.FAIL
    assert "has no pool h200; it may use default" in pools.message
    assert findings(backend, backend={"node_pools": ["default"]})["node pools"].mark is Mark.PASS
    lost = findings(backend, backend={"project": "nowhere"})
    assert lost["project"].mark is Mark.FAIL
    assert "there is no project nowhere" in lost["project"].message
    elsewhere = findings(backend, backend={"cluster_id": "other"})["cluster"]
    assert elsewhere.mark is Mark.FAIL
    stranger = findings(Runai.connect({**fields, "client_secret": "wrong"}))
    assert stranger["sign-in"].mark is Mark.FAIL
    assert "quota" not in stranger
    Path(fields["work_dir"]).parent.joinpath("file").write_text("no folder")
    closed = findings(Runai.connect({**fields, "work_dir": f"{Path(fields['work_dir']).parent}/file/work"}))
    assert closed["work_dir"].mark is Mark.FAIL
    assert closed["work_dir"].fix


def test_a_token_that_is_revoked_amid_a_run_is_no_failure(backend: Runai, plane: Plane) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    plane.http.delete("/_emulator/tokens")
    assert seen(backend, ref).nodes


def test_new_credentials_are_taken_where_old_ones_are_refused(
    backend: Runai, plane: Plane, fields: dict[str, Any]
) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    backend.reconnect({**fields, "client_secret": "old"})
    with pytest.raises(BackendError):
        backend.status([ref])
    backend.reconnect(fields)
    assert seen(backend, ref).nodes


# end


def test_a_cancel_leaves_a_stop_request_and_ends_the_pods(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    for _ in range(2):
        backend.cancel(ref, Ending(cause=Cause.DEADLINE, message="too late", since=0.0))
    assert "too late" in Path(ref.run_dir, "stop.json").read_text()
    becomes(backend, ref, NodeState.MISSING)
    assert cluster.names("Pod") == []


def test_a_cancel_that_is_not_taken_says_so_and_the_stop_request_is_there(
    backend: Runai, plane: Plane
) -> None:
    ref = backend.submit(backend.plan(a_job(), a_key()))
    plane.fault(method="DELETE", path=".*", status=403, message="no")
    with pytest.raises(CancelFailed) as caught:
        backend.cancel(ref)
    assert caught.value.stop_requested
    assert Path(ref.run_dir, "stop.json").exists()


def test_an_ended_gang_is_deleted_once_and_again(backend: Runai, plane: Plane, cluster: PaperCluster) -> None:
    plan = backend.plan(a_job(1), a_key())
    ref = backend.submit(plan)
    plane.until(lambda: cluster.names("Pod"), bool)
    cluster.set_pods(workload_of(plan), "Succeeded")
    plane.becomes(ref.job_id, "Completed")
    backend.delete(ref)
    assert plane.until(lambda: names(plane), lambda found: not found) == []
    backend.delete(ref)
