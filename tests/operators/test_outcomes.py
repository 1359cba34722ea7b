"""TryOutcome: what a task records and publishes of the end of its gang."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.run import NodeState, RunRecord
from airflow_provider_ocidist.operators.outcomes import TryOutcome
from tests.service_in_memory import DONE, LIVE, Model
from tests.training_jobs import a_key

LOG = logging.getLogger("test")


@pytest.mark.parametrize("late", [LIVE, NodeState.CANCELED])
def test_a_success_is_recorded_with_whether_a_late_node_lives(late: NodeState) -> None:
    model = Model()
    ref = model.has(a_key(), [DONE, late])
    watch = Watch(model, RunRecord(ref=ref, members=(0,)), LOG)
    watch.look(time.time())
    context: Any = {"ti": SimpleNamespace(try_number=2)}
    unused: Any = SimpleNamespace()
    connection: Any = SimpleNamespace(backend=lambda _: model)
    TryOutcome(context, unused, connection, unused, LOG).succeed(watch, None)
    end = End(succeeded=True, try_number=2, alive=late is LIVE)
    assert ("close", ref.job_id, end) in model.calls
