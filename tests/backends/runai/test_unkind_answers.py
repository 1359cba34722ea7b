"""Answers of a control plane that are late, or say less than this emulator's usual ones; none of them costs a gang."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.runai.server import RunaiAccess, RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause
from airflow_provider_ocidist.gangs.durations import awaits_machine
from airflow_provider_ocidist.model.report import Phase, StopRequest
from airflow_provider_ocidist.model.run import Expectations, NodeState, RunRecord, RunRef
from tests.backends.runai.test_backend import (
    a_job,
    becomes,
    creations,
    names,
    report,
    runs,
    seen,
    workload_of,
)
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane
from tests.training_jobs import a_key


@pytest.fixture(scope="module")
def older() -> Iterator[tuple[PaperCluster, Plane]]:
    """A control plane that shows the variables of a workload only with what was submitted."""
    beneath = PaperCluster()
    with RunaiServer(beneath, RunaiSettings(lag_s=0.0, shows_variables=False)) as access:
        found = Plane(access)
        yield beneath, found
        found.http.close()


@pytest.fixture
def older_plane(older: tuple[PaperCluster, Plane]) -> Plane:
    beneath, plane = older
    plane.http.post("/_emulator/reset")
    beneath.clear()
    return plane


@pytest.fixture
def older_backend(older_plane: Plane, tmp_path: Path) -> Runai:
    access = older_plane.access
    extra = {"project": access.project, "work_dir": str(tmp_path / "work")}
    return Runai.connect(runai_fields(access.url, access.client_id, access.client_secret, extra))


# create


def test_a_refusal_of_what_does_not_exist_is_no_name_that_is_taken(backend: Runai, plane: Plane) -> None:
    plan = backend.plan(a_job(backend={"cluster_id": "other"}), a_key())
    with pytest.raises(BackendError, match="cluster other does not exist") as caught:
        backend.submit(plan)
    assert not caught.value.retryable
    assert caught.value.cause is Cause.CONFIG
    assert "just being deleted" not in str(caught.value)
    assert creations(plane) == 1


def test_an_own_workload_is_adopted_though_its_variables_cannot_be_read_at_once(
    older_backend: Runai, older_plane: Plane
) -> None:
    plan = older_backend.plan(a_job(), a_key())
    older_plane.fault(method="POST", path="/api/v1/workloads/distributed", drop="after", times=1)
    # The endpoint of the kind is marked as experimental, and late.
    older_plane.fault(
        method="GET", path="/api/v1/workloads/distributed/.*", status=404, message="not found", times=2
    )
    ref = older_backend.submit(plan)
    assert names(older_plane) == [workload_of(plan)]
    assert older_plane.get(f"/api/v1/workloads/{ref.job_id}")["name"] == workload_of(plan)


def test_reports_count_though_a_workloads_variables_cannot_be_read_at_once(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane]
) -> None:
    cluster, _ = older
    plan = older_backend.plan(a_job(), a_key())
    ref = older_backend.submit(plan)
    runs(older_plane, cluster, ref, plan)
    report(ref, 0)
    report(ref, 1)
    older_plane.fault(
        method="GET", path="/api/v1/workloads/distributed/.*", status=404, message="not found", times=1
    )
    older_plane.fault(
        method="GET", path="/api/v1/workloads/trainings/.*", status=404, message="not found", times=1
    )
    seen(older_backend, ref)
    report(ref, 1, Phase.DONE, exit_code=3, cause=Cause.USER, message="boom")
    ended = becomes(older_backend, ref, NodeState.RUNNING, NodeState.FAILED)
    assert ended.nodes[1].report is not None
    assert ended.nodes[1].report.message == "boom"


@contextmanager
def answering(access: RunaiAccess, body: bytes) -> Iterator[str]:
    """Stand before a control plane, and answer each creation of a workload with this body; return the address."""

    class Handler(BaseHTTPRequestHandler):
        def relay(self) -> None:
            content = self.rfile.read(int(self.headers.get("content-length") or 0))
            kept = {
                name: self.headers[name] for name in ("authorization", "content-type") if name in self.headers
            }
            with httpx.Client(base_url=access.url, trust_env=False) as http:
                found = http.request(self.command, self.path, content=content, headers=kept)
            is_creation = self.command == "POST" and self.path.startswith("/api/v1/workloads/")
            said = body if is_creation and found.is_success else found.content
            self.send_response(found.status_code)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_DELETE = relay  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    "body", [b"{}", b"null", b"[]", b'"done"', b"<html>done</html>", b'{"workloadId": null}']
)
def test_a_workload_whose_creation_is_answered_without_its_id_is_found_by_its_name(
    plane: Plane, fields: dict[str, Any], body: bytes
) -> None:
    with answering(plane.access, body) as address:
        access = replace(plane.access, url=address)
        extra = {"project": access.project, "work_dir": fields["work_dir"]}
        backend = Runai.connect(runai_fields(access.url, access.client_id, access.client_secret, extra))
        plan = backend.plan(a_job(), a_key())
        ref = backend.submit(plan)
    assert names(plane) == [workload_of(plan)]
    assert plane.get(f"/api/v1/workloads/{ref.job_id}")["name"] == workload_of(plan)


# end


def unwritable(ref: RunRef) -> RunRef:
    """Return the gang with a run directory in which no stop request can be written."""
    Path(ref.run_dir).parent.joinpath("file").write_text("no folder")
    return replace(ref, run_dir=f"{Path(ref.run_dir).parent}/file/{ref.key.name}")


def test_a_workload_that_is_hidden_from_its_cancel_does_not_count_as_ended_where_no_node_can_know(
    backend: Runai, plane: Plane
) -> None:
    ref = unwritable(backend.submit(backend.plan(a_job(), a_key())))
    plane.fault(method="DELETE", path=".*", status=404, message="not found", times=1)
    with pytest.raises(CancelFailed, match="404") as caught:
        backend.cancel(ref)
    assert caught.value.retryable
    backend.cancel(ref)
    plane.until(lambda: names(plane), lambda found: not found)
    backend.cancel(ref)


def test_a_workload_that_is_hidden_from_its_cancel_and_shown_all_the_same_is_not_ended(
    backend: Runai, plane: Plane
) -> None:
    """Its container has a start of its own, which reads no stop request."""
    job = a_job(1, container={"entrypoint": ["train"]}, program={}, launcher={})
    ref = backend.submit(backend.plan(job, a_key()))
    plane.fault(method="DELETE", path=".*", status=404, message="not found", times=1)
    with pytest.raises(CancelFailed, match="404") as caught:
        backend.cancel(ref)
    assert caught.value.stop_requested
    backend.cancel(ref)
    plane.until(lambda: names(plane), lambda found: not found)


def test_a_workload_that_is_only_stopped_has_not_ended_where_no_node_can_know(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    plan = backend.plan(a_job(), a_key())
    ref = unwritable(backend.submit(plan))
    runs(plane, cluster, ref, plan)
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/suspend")
    plane.becomes(ref.job_id, "Stopped")
    plane.fault(method="DELETE", path=".*", status=404, message="not found", times=1)
    with pytest.raises(CancelFailed, match="Stopped"):
        backend.cancel(ref)
    backend.cancel(ref)
    plane.until(lambda: names(plane), lambda found: not found)


# suspended


@pytest.mark.parametrize("others", [1, 6])
def test_one_suspended_gang_of_which_nothing_is_shown_holds_up_no_look_at_the_others(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane], others: int
) -> None:
    cluster, _ = older
    ref, _ = suspended(older_backend, older_plane, cluster)
    plans = [older_backend.plan(a_job(), a_key()) for _ in range(others)]
    running = [older_backend.submit(plan) for plan in plans]
    for each, plan in zip(running, plans, strict=True):
        runs(older_plane, cluster, each, plan)
    for each in running:
        report(each, 0, Phase.DONE, exit_code=3, cause=Cause.USER, message="boom")
    older_plane.fault(
        method="GET", path=f"/api/v1/workloads/(distributed|trainings)/{ref.job_id}", status=403, message="no"
    )
    statuses = older_backend.status([ref, *running])
    assert {status.nodes[0].state for status in statuses[1:]} == {NodeState.FAILED}
    assert {node.state for node in statuses[0].nodes} == {NodeState.PENDING}


AS_SUBMITTED = "/api/v1/workloads/(distributed|trainings)/.*"


@pytest.mark.parametrize("status", [403, 404, 503])
def test_the_reports_of_a_gang_that_a_suspension_has_ended_outlive_an_answer_that_does_not_come(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane], status: int
) -> None:
    cluster, _ = older
    ref, _ = suspended(older_backend, older_plane, cluster, when_suspended="fail")
    older_plane.fault(method="GET", path=AS_SUBMITTED, status=status, message="no")
    # As another process, which has never read what the gang was submitted with.
    found = seen(older_backend, ref)
    # Neither a clock of silence nor one of the start runs in this state.
    assert {(node.state, node.cause) for node in found.nodes} == {(NodeState.PENDING, Cause.CANCELED)}
    assert reported(ref) == ["0.json", "1.json"]
    older_plane.http.delete("/_emulator/faults")
    becomes(older_backend, ref, NodeState.CANCELED)
    assert reported(ref) == ["0.json", "1.json"]


def test_a_suspension_of_which_nothing_is_shown_for_an_hour_is_the_end(
    older_backend: Runai,
    older_plane: Plane,
    older: tuple[PaperCluster, Plane],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref, _ = suspended(older_backend, older_plane, older[0], when_suspended="fail")
    older_plane.fault(method="GET", path=AS_SUBMITTED, status=403, message="no")
    assert {node.state for node in seen(older_backend, ref).nodes} == {NodeState.PENDING}
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.workloads.UNSHOWN_LIMIT", 0.0)
    assert {node.state for node in seen(older_backend, ref).nodes} == {NodeState.CANCELED}
    assert reported(ref) == ["0.json", "1.json"]


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_container_with_its_own_start_does_not_wait_for_a_machine_where_nothing_is_shown(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane], status: int
) -> None:
    cluster, _ = older
    plan = older_backend.plan(a_job(container={"entrypoint": ["run"]}, program={}), a_key())
    ref = older_backend.submit(plan)
    runs(older_plane, cluster, ref, plan)
    older_plane.fault(method="GET", path=AS_SUBMITTED, status=status, message="no")
    found = seen(older_backend, ref)
    record = RunRecord(ref=ref, expects=Expectations(checkpoint=False, reports=False))
    assert not any(awaits_machine(node, record, found) for node in found.nodes)
    older_plane.http.delete("/_emulator/faults")
    becomes(older_backend, ref, NodeState.RUNNING)


def suspended(
    backend: Runai, plane: Plane, cluster: PaperCluster, when_suspended: str = "wait"
) -> tuple[RunRef, Any]:
    """Return a gang that somebody has suspended, with the last reports of its nodes, and its plan."""
    plan = backend.plan(a_job(2, {"when_suspended": when_suspended}), a_key())
    ref = backend.submit(plan)
    runs(plane, cluster, ref, plan)
    for rank in (0, 1):
        report(ref, rank, Phase.DONE, exit_code=-15)
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/suspend")
    plane.becomes(ref.job_id, "Stopped")
    return ref, plan


def reported(ref: RunRef) -> list[str]:
    return sorted(file.name for file in Path(ref.run_dir).glob("nodes/*"))


@pytest.mark.parametrize("gangs", [1, 6])
def test_what_resumed_nodes_report_outlives_an_answer_from_before(
    backend: Runai, plane: Plane, cluster: PaperCluster, gangs: int
) -> None:
    """Few gangs are asked for one by one, many by a list. The reader is another process: it has seen no pause."""
    ref, plan = suspended(backend, plane, cluster)
    others = [backend.submit(backend.plan(a_job(), a_key())) for _ in range(gangs - 1)]
    plane.fault(method="GET", path="/api/v1/workloads(/[0-9a-f-]{36})?", stale_s=3600)
    plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/resume")
    runs_beneath(cluster, ref, plan)
    for rank in (0, 1):
        report(ref, rank, Phase.DONE, exit_code=0)
    status = backend.status([ref, *others])[0]
    assert status.nodes[0].state is NodeState.PENDING, "the answer is not stale: the case is not met"
    assert reported(ref) == ["0.json", "1.json"]
    plane.http.delete("/_emulator/faults")
    cluster.set_job(workload_of(plan), "Succeeded")
    becomes(backend, ref, NodeState.SUCCEEDED)


def runs_beneath(cluster: PaperCluster, ref: RunRef, plan: Any) -> None:
    """Let a gang's pods run, whatever the control plane shows."""
    Plane.until(lambda: cluster.names("Pod"), lambda pods: set(ref.run_ids) <= set(pods))
    cluster.set_pods(workload_of(plan), "Running")


def test_old_reports_are_forgotten_also_where_the_clocks_of_store_and_platform_differ(
    backend: Runai, plane: Plane, cluster: PaperCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_ocidist.backends.runai.suspensions.QUIET", 0.2)
    ref, _ = suspended(backend, plane, cluster)
    for file in Path(ref.run_dir).glob("nodes/*"):
        ahead = file.stat().st_mtime + 600
        os.utime(file, (ahead, ahead))
    plane.until(lambda: (seen(backend, ref), reported(ref))[1], lambda found: not found)
    assert reported(ref) == []


def test_a_request_to_end_a_suspended_run_stays_until_its_nodes_could_read_it(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    """The cancel was refused, and the stop request is all that ends the nodes once somebody resumes them."""
    ref, _ = suspended(backend, plane, cluster)
    plane.fault(method="DELETE", path=".*", status=403, message="no", times=2)
    with pytest.raises(CancelFailed):
        backend.cancel(ref)
    becomes(backend, ref, NodeState.PENDING)
    assert reported(ref) == []
    assert StopRequest.from_json(Path(ref.run_dir, "stop.json").read_bytes()).cause is Cause.CANCELED


def test_what_nodes_asked_of_one_another_before_a_pause_is_forgotten(
    backend: Runai, plane: Plane, cluster: PaperCluster
) -> None:
    ref, _ = suspended(backend, plane, cluster)
    asked = StopRequest(cause=Cause.CANCELED, message="ended by the platform", rank=1)
    Path(ref.run_dir, "stop.json").write_bytes(asked.to_json())
    past = Path(ref.run_dir).stat().st_mtime - 60
    os.utime(Path(ref.run_dir, "stop.json"), (past, past))
    becomes(backend, ref, NodeState.PENDING)
    assert not Path(ref.run_dir, "stop.json").exists()


def test_a_suspension_is_a_pause_also_where_only_what_was_submitted_says_so(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane]
) -> None:
    cluster, _ = older
    ref, _ = suspended(older_backend, older_plane, cluster)
    for kind in ("distributed", "trainings"):
        older_plane.fault(
            method="GET", path=f"/api/v1/workloads/{kind}/.*", status=404, message="not found", times=1
        )
    assert {node.state for node in seen(older_backend, ref).nodes} == {NodeState.PENDING}
    assert {node.state for node in seen(older_backend, ref).nodes} == {NodeState.PENDING}
    assert reported(ref) == []


def test_a_suspension_is_the_end_also_where_only_what_was_submitted_says_so(
    older_backend: Runai, older_plane: Plane, older: tuple[PaperCluster, Plane]
) -> None:
    cluster, _ = older
    plan = older_backend.plan(a_job(), a_key())
    ref = older_backend.submit(plan)
    runs(older_plane, cluster, ref, plan)
    older_plane.call("POST", f"/api/v1/workloads/distributed/{ref.job_id}/suspend")
    assert becomes(older_backend, ref, NodeState.CANCELED).ended
