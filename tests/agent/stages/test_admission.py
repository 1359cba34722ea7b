"""When the main node has the training launched again with a node that came late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.stages.admission import Admission
from airflow_provider_ocidist.errors import Cause
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
