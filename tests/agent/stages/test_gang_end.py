"""What a node that ends its launch does next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.stages.gang_end import GangEnd
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.local import LocalStore

AGREED = (Restart(cause=Cause.NODE, message="node 2: lost", rank=2),)


@pytest.mark.parametrize("rank, restarts", [(0, AGREED), (2, ())])
def test_a_node_that_fails_while_another_takes_its_place_is_not_launched_again(
    tmp_path: Path, rank: int, restarts: tuple[Restart, ...]
) -> None:
    store = LocalStore(tmp_path)
    request = StopRequest(cause=Cause.NODE, message="node 2: lost", restarts=AGREED, lost=(2,))
    store.write(STOP_FILE, request.to_json())
    report = NodeReport(rank=rank, phase=Phase.TRAINING, address="", started_at=0.0, heartbeat_at=0.0)
    heartbeat, config = Heartbeat(store, report, StopSwitch()), SimpleNamespace(nodes=3)
    context: Any = SimpleNamespace(config=config, heartbeat=heartbeat, rank=rank, is_member=True, masked=str)
    own = Restart(cause=Cause.USER, message="its own failure", rank=rank)
    assert GangEnd(context).ask_others(Cause.USER, "its own failure", (own,)) == restarts
