"""Which pod counts as lost, for how long it has run, and how it is ended: on pods in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.backports import unix_time
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import NodeReport, Restart
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.backends.kubernetes.test_states import START, ended, of_agent, pod
from tests.gangs.test_replacement_rules import a_ref
from tests.gangs.test_replacement_rules import a_report as report_at

BEGAN = unix_time(START) or 0.0
NOW = BEGAN + 500.0
FAILURE = Restart(cause=Cause.NODE, message="gone", rank=1)
RUNNING: dict[str, Any] = {"running": {}}


class Pods:
    """The pods of a gang, by rank; notes which are removed, each with its grace."""

    def __init__(self, **by_uid: dict[str, Any]) -> None:
        self.by_rank: dict[int, list[dict[str, Any]]] = {}
        for uid, found in by_uid.items():
            self.by_rank.setdefault(1, []).append({**found, "metadata": {**found["metadata"], "uid": uid}})
        self.removed: list[tuple[str, int]] = []

    def pods(self, namespace: str, name: str) -> Any:
        return self.by_rank

    def remove_pod(self, namespace: str, name: str, uid: str, grace: int = 0) -> None:
        self.removed.append((uid, grace))


def a_gang(folder: Path, **changes: Any) -> RunRef:
    return a_ref(run_dir=str(folder), compartment_id="ns", **changes)


def a_backend(pods: Pods) -> PyTorchJob:
    backend: Any = object.__new__(PyTorchJob)
    backend._objects, backend._run_dirs, backend.now = pods, RunDirStores(LocalStore), lambda: NOW
    made: PyTorchJob = backend
    return made


def a_report(instance: str, incarnation: int = 0, **changes: Any) -> NodeReport:
    given = {"started_at": BEGAN + 100, "heartbeat_at": BEGAN + 400, **changes}
    return report_at(1, instance=instance, incarnation=incarnation, **given)


def write(folder: Path, name: str, content: bytes) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)


def agents(
    state: Any = RUNNING, *, restarts: int = 0, deleted: bool = False, phase: str = "Running"
) -> dict[str, Any]:
    found = of_agent(pod(phase, state=state), ended(137) if restarts else None, restarts)
    if deleted:
        found["metadata"]["deletionTimestamp"] = START
    return found


def test_the_pod_that_has_reported_is_the_lost_one_and_no_other_of_its_name(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    pods = Pods(b=agents())
    made = a_backend(pods).replace_nodes(a_gang(tmp_path), [FAILURE])
    assert (made.lost_runs, pods.removed) == (("a",), [])


def test_what_another_process_has_replaced_already_is_not_lost(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("b", 1).to_json())
    pods = Pods(b=agents())
    with pytest.raises(BackendError) as caught:
        a_backend(pods).replace_nodes(a_gang(tmp_path), [FAILURE])
    assert caught.value.retryable
    assert pods.removed == []
    assert not (tmp_path / REPLACED_FILE).exists()


@pytest.mark.parametrize(
    "found, is_lost",
    [
        (agents(), False),
        (agents(restarts=1), True),
        (agents(deleted=True), True),
        (agents(ended(143), phase="Failed"), True),
    ],
    ids=["healthy", "restarted", "deleted", "failed"],
)
@pytest.mark.parametrize("report", [None, "of the one before"])
def test_without_a_report_of_its_own_a_pod_is_lost_only_if_it_shows_that(
    tmp_path: Path, found: dict[str, Any], is_lost: bool, report: str | None
) -> None:
    ref = a_gang(tmp_path)
    if report:
        ref = replace(ref, replaced=(FAILURE,), lost_runs=("a",))
        write(tmp_path, report_of(1), a_report("a").to_json())
        write(tmp_path, REPLACED_FILE, Replaced(replaced=(FAILURE,), lost_runs=("a",)).to_json())
    pods = Pods(b=found)
    if is_lost:
        made = a_backend(pods).replace_nodes(ref, [FAILURE])
        assert made.lost_runs[-1] == "b"
        assert [uid for uid, _ in pods.removed] == ["b"]
        return
    with pytest.raises(BackendError) as caught:
        a_backend(pods).replace_nodes(ref, [FAILURE])
    assert caught.value.retryable
    assert pods.removed == []


def test_a_pod_of_which_the_kubelet_answers_has_a_moment_and_no_other_any(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    for found, grace in ((agents(restarts=1), 1), (agents(restarts=1, deleted=True), 0), (agents(), 0)):
        pods = Pods(a=found)
        a_backend(pods).end_nodes(a_gang(tmp_path), [1])
        assert pods.removed == [("a", grace)]


def test_a_silent_node_that_another_process_has_replaced_is_not_ended(tmp_path: Path) -> None:
    write(tmp_path, REPLACED_FILE, Replaced(replaced=(FAILURE,), lost_runs=("a",)).to_json())
    write(tmp_path, report_of(1), a_report("b", 1).to_json())
    pods = Pods(b=agents())
    a_backend(pods).end_nodes(a_gang(tmp_path), [1])
    assert pods.removed == []


def test_a_rejected_pod_that_stays_in_the_way_is_deleted_and_not_recorded(tmp_path: Path) -> None:
    ref = replace(a_gang(tmp_path), replaced=(FAILURE,), lost_runs=("a",))
    recorded = Replaced(replaced=(FAILURE,), lost_runs=("a",)).to_json()
    write(tmp_path, report_of(1), a_report("a").to_json())
    write(tmp_path, REPLACED_FILE, recorded)
    pods = Pods(b=pod("Failed", reason="OutOfcpu"))
    a_backend(pods).end_nodes(ref, [1])
    assert pods.removed == [("b", 0)]
    assert (tmp_path / REPLACED_FILE).read_bytes() == recorded


def test_of_several_pods_of_a_rank_the_one_that_has_reported_is_lost(tmp_path: Path) -> None:
    write(tmp_path, report_of(1), a_report("a").to_json())
    pods = Pods(a=agents(ended(137), phase="Failed"), b=agents())
    made = a_backend(pods).replace_nodes(a_gang(tmp_path), [FAILURE])
    assert (made.lost_runs, pods.removed) == (("a",), [("a", 0)])


def test_a_lost_pod_has_run_since_its_start_and_not_since_its_agents(tmp_path: Path) -> None:
    for pods, seconds in ((Pods(a=agents()), 400.0), (Pods(b=agents()), 300.0), (Pods(), 300.0)):
        (tmp_path / REPLACED_FILE).unlink(missing_ok=True)
        write(tmp_path, report_of(1), a_report("a").to_json())
        assert a_backend(pods).replace_nodes(a_gang(tmp_path), [FAILURE]).lost_seconds == seconds
    # By the pod's time it began after the report did: clocks may differ.
    (tmp_path / REPLACED_FILE).unlink()
    write(tmp_path, report_of(1), a_report("a", started_at=BEGAN - 50).to_json())
    assert a_backend(Pods(a=agents())).replace_nodes(a_gang(tmp_path), [FAILURE]).lost_seconds == 450.0


def test_a_gang_opens_while_its_run_directory_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = RunRecord(ref=a_gang(tmp_path))
    monkeypatch.setattr(KubernetesBackend, "open", lambda _self, _id: record)
    write(tmp_path, REPLACED_FILE, b"{")
    assert a_backend(Pods()).open("ns/job") == record
    write(tmp_path, REPLACED_FILE, Replaced(replaced=(FAILURE,), lost_runs=("a",)).to_json())
    assert a_backend(Pods()).open("ns/job").ref.lost_runs == ("a",)
