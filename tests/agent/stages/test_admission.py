"""When the main node has the training launched again with a node that came late."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join import peer_reports
from airflow_provider_ocidist.agent.stages.admission import Admission
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Restart
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.stores.local import LocalStore

FEWER = Restart(cause=Cause.CAPACITY, message="no machine", members=(0, 1))


def a_report(rank: int, phase: Phase, **changes: Any) -> NodeReport:
    return NodeReport(
        rank=rank, phase=phase, address="", started_at=0.0, heartbeat_at=0.0, restarts=(FEWER,), **changes
    )


@pytest.mark.parametrize(
    "progress, is_admitted",
    [
        (None, True),
        (Progress(step=9, steps=10), True),
        (Progress(step=10), True),
        (Progress(steps=1), True),
        (Progress(step=10, steps=10), False),
        (Progress(complete=True), False),
    ],
)
def test_a_late_node_is_admitted_unless_the_training_is_at_its_end(
    tmp_path: Path, progress: Progress | None, *, is_admitted: bool
) -> None:
    store, admitted = LocalStore(tmp_path), []
    heartbeat = SimpleNamespace(
        report=a_report(0, Phase.TRAINING, progress=progress), launch=1, quick_store=store
    )
    config = SimpleNamespace(nodes=3, checkpoints=None)
    context: Any = SimpleNamespace(rank=0, others=(1,), is_main=True, heartbeat=heartbeat, config=config)
    admission = Admission(context, lambda ranks: admitted.append(list(ranks)))
    late = a_report(2, Phase.JOINING)
    for beat in (1.0, 2.0):
        store.write(report_of(2), replace(late, heartbeat_at=beat).to_json())
        admission.look()
    if admission._asking:
        admission._asking.join()
    assert admitted == ([[2]] if is_admitted else [])


class MainNode:
    """The main node of a gang that has gone on without nodes 2 and 3, and what the others have written."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, uri: str | None = "oci://b@n/safe"
    ) -> None:
        self.store = LocalStore(folder)
        self.now = 1000.0
        monkeypatch.setattr(peer_reports, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.admitted: list[list[int]] = []
        self.answer = threading.Event()
        self.answer.set()
        self.beat = 0.0
        self.heartbeat: Any = SimpleNamespace(
            report=a_report(0, Phase.TRAINING), launch=1, quick_store=self.store
        )
        config = SimpleNamespace(nodes=4, checkpoints=None if uri is None else Checkpoints(uri=uri or None))
        self.context: Any = SimpleNamespace(
            rank=0, others=(1,), is_main=True, heartbeat=self.heartbeat, config=config
        )
        self.admission = Admission(self.context, self._admit)

    def _admit(self, ranks: Any) -> None:
        self.admitted.append(list(ranks))
        assert self.answer.wait(60)

    def looks(self, *late: NodeReport, beats: bool = True, after: float = 2.0) -> list[list[int]]:
        """Look after the late nodes have written, if they do; return who was admitted so far."""
        self.now += after
        self.beat += beats
        for each in late:
            self.store.write(report_of(each.rank), replace(each, heartbeat_at=self.beat).to_json())
        self.admission.look()
        if self.admission._asking and self.answer.is_set():
            self.admission._asking.join(60)
        return self.admitted

    def publishes(self, step: int) -> None:
        checkpoint = CheckpointRef(uri=f"oci://b@n/safe/step-{step}", step=step)
        self.heartbeat.report = replace(self.heartbeat.report, checkpoint=checkpoint)


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MainNode:
    """A main node whose training publishes no checkpoints: nothing is waited for."""
    return MainNode(tmp_path, monkeypatch, None)


@pytest.fixture
def saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MainNode:
    """A main node whose training publishes checkpoints."""
    return MainNode(tmp_path, monkeypatch)


LATE = a_report(2, Phase.JOINING)


def test_a_late_node_is_admitted_once_its_report_has_gone_on(main: MainNode) -> None:
    assert main.looks(LATE) == []
    assert main.looks(LATE, beats=False) == [], "it may be the last word of a lost node"
    assert main.looks(LATE) == [[2]]


def test_late_nodes_that_wait_together_are_admitted_together(main: MainNode) -> None:
    other = replace(LATE, rank=3)
    main.looks(LATE, other)
    assert main.looks(LATE, other) == [[2, 3]]


def test_a_late_node_may_be_silent_for_15_s_and_no_longer(saving: MainNode) -> None:
    for _ in range(3):
        assert saving.looks(LATE) == []
    saving.publishes(10)
    assert saving.looks(beats=False, after=15.5) == []
    for _ in range(2):
        assert saving.looks(LATE) == [], "it waits again from now on"
    saving.publishes(20)
    assert saving.looks(beats=False, after=15.0) == [[2]]


@pytest.mark.parametrize(
    "report",
    [
        a_report(2, Phase.FETCHING),
        a_report(2, Phase.TRAINING),
        replace(LATE, restarts=()),
        replace(LATE, restarts=(FEWER, FEWER)),
        replace(LATE, rank=1),
        replace(LATE, leaves=True),
    ],
    ids=["prepares", "trains", "of an earlier launch", "of a later launch", "takes part already", "leaves"],
)
def test_only_a_node_that_waits_for_the_next_launch_is_admitted(main: MainNode, report: NodeReport) -> None:
    for _ in range(3):
        assert main.looks(report) == []


def test_only_the_main_node_admits_and_only_while_it_trains(main: MainNode) -> None:
    main.context.is_main = False
    for _ in range(2):
        assert main.looks(LATE) == []
    main.context.is_main = True
    for phase in set(Phase) - {Phase.TRAINING}:
        main.heartbeat.report = a_report(0, phase)
        assert main.looks(LATE) == []
    main.heartbeat.report = a_report(0, Phase.TRAINING)
    main.context.others = (1, 2, 3)
    assert main.looks(LATE) == [], "nobody is missing"
    main.context.others = (1,)
    main.looks(LATE)
    assert main.looks(LATE) == [[2]]


def test_a_node_that_waits_no_more_begins_anew(main: MainNode) -> None:
    main.looks(LATE)
    main.looks(replace(LATE, phase=Phase.DONE))
    assert main.looks(LATE) == []
    assert main.looks(LATE) == [[2]]


def test_where_checkpoints_are_published_the_next_one_is_waited_for(saving: MainNode) -> None:
    for _ in range(4):
        assert saving.looks(LATE) == []
    saving.publishes(10)
    assert saving.looks(LATE) == [[2]]
    # For the next late node another one.
    assert saving.looks(LATE) == [[2]]
    saving.publishes(20)
    assert saving.looks(LATE) == [[2], [2]]


def test_a_checkpoint_of_before_a_node_waits_is_no_reason(saving: MainNode) -> None:
    saving.publishes(10)
    saving.looks(LATE)
    for _ in range(3):
        assert saving.looks(LATE) == []
    saving.looks(replace(LATE, phase=Phase.DONE))
    saving.publishes(20)
    saving.looks(LATE)
    assert saving.looks(LATE) == [], "it was published while nobody waited"
    saving.publishes(30)
    assert saving.looks(LATE) == [[2]]


def test_checkpoints_that_stay_on_the_nodes_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = MainNode(tmp_path, monkeypatch, "")
    main.looks(LATE)
    assert main.looks(LATE) == [[2]]


def test_it_is_asked_once_at_a_time_beside_the_heartbeat(main: MainNode) -> None:
    main.answer.clear()
    main.looks(LATE)
    for _ in range(3):
        main.looks(LATE)
    asking = main.admission._asking
    assert asking is not None
    assert asking.daemon, "a node that ends does not wait for it"
    main.answer.set()
    asking.join(60)
    assert main.admitted == [[2]]
    assert main.looks(LATE) == [[2], [2]], "the request was not heeded"
