"""What is done with the pods of lost nodes, in which order, and what is recorded of it: on pods in memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.pytorchjob import PyTorchJob
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.replaced import Replaced
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import REPLACED_FILE, report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from tests.backends.kubernetes.test_lost_pods import BEGAN, NOW, a_report, agents, write
from tests.gangs.test_replacement_rules import a_ref

GANG = "gang"
BEFORE = Restart(cause=Cause.NODE, message="gone before", rank=0)


def lost(rank: int | None) -> Restart:
    return Restart(cause=Cause.NODE, message=f"node {rank} is gone", rank=rank)


class Cluster:
    """The pods of one gang, by rank; it notes which are removed, and what was recorded then."""

    def __init__(self, folder: Path, **by_rank: Any) -> None:
        self.folder = folder
        self.by_rank = {int(rank.removeprefix("r")): found for rank, found in by_rank.items()}
        self.removed: list[tuple[str, str, int]] = []
        self.recorded_before_all = False

    def pods(self, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("ns", GANG)
        return {rank: [pod] for rank, pod in self.by_rank.items()}

    def remove_pod(self, namespace: str, name: str, uid: str, grace: int = 0) -> None:
        assert namespace == "ns"
        self.recorded_before_all |= (self.folder / REPLACED_FILE).exists()
        self.removed.append((name, uid, grace))


def named(uid: str, found: Any) -> Any:
    return {**found, "metadata": {**found["metadata"], "uid": uid, "name": f"pod-{uid}"}}


def a_gang(folder: Path, **changes: Any) -> RunRef:
    return a_ref(run_dir=str(folder), compartment_id="ns", job_id=f"ns/{GANG}", **changes)


def a_backend(cluster: Any) -> PyTorchJob:
    backend: Any = object.__new__(PyTorchJob)
    backend._objects, backend._run_dirs, backend.now = cluster, RunDirStores(LocalStore), lambda: NOW
    made: PyTorchJob = backend
    return made


def recorded(folder: Path) -> Replaced:
    return Replaced.from_json((folder / REPLACED_FILE).read_bytes())


def reports(folder: Path, rank: int, instance: str, incarnation: int = 0, **changes: Any) -> None:
    report = replace(a_report(instance, incarnation, **changes), rank=rank)
    write(folder, report_of(rank), report.to_json())


@pytest.mark.parametrize("number", range(10))
def test_each_lost_node_is_recorded_with_its_pod_after_those_before_it(tmp_path: Path, number: int) -> None:
    draw = random.Random(f"20261127.{number}")
    print(f"seed 20261127.{number}")
    ranks = draw.sample(range(4), draw.randint(1, 3))
    before = Replaced(replaced=(BEFORE,), lost_runs=("old",), lost_seconds=7.0)
    write(tmp_path, REPLACED_FILE, before.to_json())
    ref = a_gang(tmp_path, nodes=4, replaced=(BEFORE,), lost_runs=("old",), lost_seconds=7.0)
    there, removed, seconds = {}, [], 7.0
    for rank in range(4):
        reports(tmp_path, rank, f"u{rank}", 1 if rank == 0 else 0)
        if draw.random() < 0.7:
            there[f"r{rank}"] = named(f"u{rank}", agents())
    for rank in ranks:
        is_there = f"r{rank}" in there
        # A pod has run since its start, 100 s before its agent says that it began; both until the last heartbeat.
        seconds += 400.0 if is_there else 300.0
        removed += [(f"pod-u{rank}", f"u{rank}", 0)] if is_there else []
    cluster = Cluster(tmp_path, **there)
    # What belongs to no node is recorded, and ends none.
    failures = [*map(lost, ranks), lost(None)]
    made = a_backend(cluster).replace_nodes(ref, failures)
    expected = Replaced(
        replaced=(BEFORE, *failures),
        lost_runs=("old", *(f"u{rank}" for rank in ranks)),
        lost_seconds=seconds,
    )
    assert recorded(tmp_path) == expected
    assert (made.replaced, made.lost_runs, made.lost_seconds) == (
        expected.replaced,
        expected.lost_runs,
        expected.lost_seconds,
    )
    assert cluster.removed == removed


def test_a_pod_is_removed_before_its_loss_is_recorded_so_that_who_is_killed_in_between_does_it_again(
    tmp_path: Path,
) -> None:
    reports(tmp_path, 1, "a")

    class Refusing(Cluster):
        def remove_pod(self, *given: Any, **more: Any) -> None:
            raise BackendError("busy", retryable=True)

    with pytest.raises(BackendError, match="busy"):
        a_backend(Refusing(tmp_path, r1=named("a", agents()))).replace_nodes(a_gang(tmp_path), [lost(1)])
    assert not (tmp_path / REPLACED_FILE).exists()
    cluster = Cluster(tmp_path, r1=named("a", agents()))
    a_backend(cluster).replace_nodes(a_gang(tmp_path), [lost(1)])
    assert (cluster.removed, cluster.recorded_before_all) == ([("pod-a", "a", 0)], False)


@pytest.mark.parametrize(
    "found, seconds",
    [
        (agents(restarts=1), NOW - BEGAN),
        ({**agents(restarts=1), "status": {**agents(restarts=1)["status"], "startTime": None}}, 0.0),
    ],
    ids=["began", "never began"],
)
def test_a_pod_without_a_report_has_run_until_now(
    tmp_path: Path, found: dict[str, Any], seconds: float
) -> None:
    cluster = Cluster(tmp_path, r1=named("a", found))
    assert a_backend(cluster).replace_nodes(a_gang(tmp_path), [lost(1)]).lost_seconds == seconds
    assert cluster.removed == [("pod-a", "a", 1)]


@pytest.mark.parametrize("there", [True, False])
def test_clocks_that_differ_never_take_seconds_from_what_was_lost(tmp_path: Path, there: bool) -> None:
    late = 10_000.0
    reports(tmp_path, 1, "a", started_at=BEGAN + late, heartbeat_at=BEGAN - late)
    cluster = Cluster(tmp_path, **({"r1": named("a", agents())} if there else {}))
    assert a_backend(cluster).replace_nodes(a_gang(tmp_path), [lost(1)]).lost_seconds == 0.0
    (tmp_path / REPLACED_FILE).unlink()
    (tmp_path / report_of(1)).unlink()
    early = a_backend(Cluster(tmp_path, r1=named("a", agents(restarts=1))))
    early.now = lambda: BEGAN - late  # type: ignore[method-assign]  # a clock of this test
    assert early.replace_nodes(a_gang(tmp_path), [lost(1)]).lost_seconds == 0.0


def test_a_report_from_before_instances_were_reported_names_no_pod(tmp_path: Path) -> None:
    reports(tmp_path, 1, "")
    with pytest.raises(BackendError, match="the cluster does not show now which pod was node 1") as caught:
        a_backend(Cluster(tmp_path, r1=named("a", agents()))).replace_nodes(a_gang(tmp_path), [lost(1)])
    assert caught.value.retryable
    cluster = Cluster(tmp_path, r1=named("a", agents(restarts=1)))
    assert a_backend(cluster).replace_nodes(a_gang(tmp_path), [lost(1)]).lost_runs == ("a",)


def test_it_is_logged_who_has_replaced_a_node_meanwhile_and_which_node(tmp_path: Path) -> None:
    reports(tmp_path, 2, "b", 1)
    ref = a_gang(tmp_path)
    with pytest.raises(BackendError) as caught:
        a_backend(Cluster(tmp_path)).replace_nodes(ref, [lost(2)])
    assert str(caught.value) == f"{ref.key.name}: another process has replaced node 2 just now"
    assert caught.value.retryable


def test_a_pod_that_counts_as_lost_already_is_not_ended_for_the_next_one(tmp_path: Path) -> None:
    """The cluster may show the pod of before for a while."""
    ref = a_gang(tmp_path, replaced=(lost(1),), lost_runs=("a",))
    with pytest.raises(BackendError, match="does not show now which pod was node 1"):
        a_backend(Cluster(tmp_path, r1=named("a", agents(restarts=1)))).replace_nodes(ref, [lost(1)])


def test_what_another_process_has_recorded_meanwhile_is_what_counts(tmp_path: Path) -> None:
    other = Replaced(replaced=(lost(0),), lost_runs=("z",), lost_seconds=5.0)
    write(tmp_path, REPLACED_FILE, other.to_json())
    reports(tmp_path, 1, "a")
    made = a_backend(Cluster(tmp_path)).replace_nodes(a_gang(tmp_path), [lost(1)])
    assert (made.replaced, made.lost_runs, made.lost_seconds) == (other.replaced, ("z",), 5.0)
    assert recorded(tmp_path) == other


def test_silent_nodes_are_ended_and_nothing_is_recorded_of_them(tmp_path: Path) -> None:
    for rank in range(3):
        reports(tmp_path, rank, f"u{rank}")
    pods = {f"r{rank}": named(f"u{rank}", agents()) for rank in range(3)}
    cluster = Cluster(tmp_path, **pods)
    a_backend(cluster).end_nodes(a_gang(tmp_path), [0, 2])
    assert cluster.removed == [("pod-u0", "u0", 0), ("pod-u2", "u2", 0)]
    assert not (tmp_path / REPLACED_FILE).exists()
    # Of two that are silent one has another in its place by now.
    write(tmp_path, REPLACED_FILE, Replaced(replaced=(lost(0),), lost_runs=("u0",)).to_json())
    cluster = Cluster(tmp_path, **pods)
    a_backend(cluster).end_nodes(a_gang(tmp_path), [0, 2])
    assert cluster.removed == [("pod-u2", "u2", 0)]


def test_a_store_that_lags_takes_back_no_loss_that_is_known(tmp_path: Path) -> None:
    ref = a_gang(tmp_path, replaced=(lost(1), lost(2)), lost_runs=("a", "b"), lost_seconds=9.0)
    one = Replaced(replaced=(lost(1),), lost_runs=("a",), lost_seconds=4.0)
    write(tmp_path, REPLACED_FILE, one.to_json())
    backend = a_backend(Cluster(tmp_path))
    assert backend.current(ref) == ref
    before = a_gang(tmp_path)
    assert backend.current(before) == replace(
        before, replaced=one.replaced, lost_runs=one.lost_runs, lost_seconds=4.0
    )
    # The same losses: their seconds and pods are as recorded.
    same = replace(before, replaced=one.replaced)
    assert backend.current(same).lost_seconds == 4.0


@pytest.mark.parametrize("replaces", [True, False])
def test_who_adopts_a_gang_or_opens_it_takes_its_present_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, replaces: bool
) -> None:
    known = Replaced(replaced=(lost(1),), lost_runs=("a",), lost_seconds=4.0)
    write(tmp_path, REPLACED_FILE, known.to_json())
    ref = a_gang(tmp_path, replaces=replaces)
    present = replace(ref, replaced=known.replaced, lost_runs=("a",), lost_seconds=4.0) if replaces else ref
    asked: list[Any] = []
    found: list[RunRef | None] = [ref, None]

    def adopted(*given: Any) -> RunRef | None:
        asked.append(given[1:])
        return found.pop(0)

    def opened(*given: Any) -> RunRecord:
        asked.append(given[1:])
        return RunRecord(ref=ref, start_deadline=7.0)

    monkeypatch.setattr(KubernetesBackend, "_adopted", adopted)
    monkeypatch.setattr(KubernetesBackend, "open", opened)
    backend: Any = a_backend(Cluster(tmp_path))
    assert backend._adopted("plan", ["found"]) == present
    assert backend._adopted("plan", ["found"]) is None
    assert backend.open("ns/gang") == RunRecord(ref=present, start_deadline=7.0)
    assert asked == [("plan", ["found"]), ("plan", ["found"]), ("ns/gang",)]
    write(tmp_path, REPLACED_FILE, b"{")
    assert backend.open("ns/gang") == RunRecord(ref=ref, start_deadline=7.0)
    words = f"which nodes were replaced cannot be read now: {ref.key.name}: "
    assert [each.startswith(words) for each in caplog.messages] == ([True] if replaces else [])


def test_what_remains_of_a_gang_never_goes_on_with_fewer() -> None:
    """Its platform makes each lost pod anew, asked or not."""
    assert PyTorchJob.goes_on_with_fewer is False


ENDS: list[Callable[[], dict[str, Any]]] = [
    lambda: agents(restarts=1, deleted=True),
    lambda: agents(deleted=True),
    lambda: agents({"terminated": {"exitCode": 143}}, phase="Failed"),
]


@pytest.mark.parametrize("made", ENDS, ids=["deleted after a restart", "deleted", "failed"])
def test_for_the_end_of_a_pod_whose_kubelet_may_be_silent_nobody_waits(
    tmp_path: Path, made: Callable[[], dict[str, Any]]
) -> None:
    cluster = Cluster(tmp_path, r1=named("a", made()))
    a_backend(cluster).replace_nodes(a_gang(tmp_path), [lost(1)])
    assert cluster.removed == [("pod-a", "a", 0)]
