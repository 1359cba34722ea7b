"""TryOutcome: what a task records and publishes of the end of its gang."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest

from airflow_provider_ocidist.backends.capabilities import PlacesLogs
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.hooks.links import LogsLink
from airflow_provider_ocidist.model.attempts import End
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.operators.outcomes import TryOutcome, failure_with_remedy
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


def test_the_link_to_the_lines_of_a_gang_names_where_its_log_group_lies() -> None:
    class Placed(Model, PlacesLogs):
        def log_place(self, ref: RunRef) -> str:
            return f"of-a-team/{ref.log_group_id}"

    model, pushed = Placed(), dict[str, Any]()
    ref = replace(
        model.has(a_key(), [LIVE]), backend="oci_data_science", compartment_id="own", log_group_id="group"
    )
    context: Any = {"ti": SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))}
    unused: Any = SimpleNamespace()
    connection: Any = SimpleNamespace(
        backend=lambda _: model, access_to=lambda _: OciAccess(region="us-ashburn-1")
    )
    TryOutcome(context, unused, connection, unused, LOG).publish_run(ref)
    assert 'search "of-a-team/group" |' in unquote(pushed[LogsLink.xcom_key])


def test_a_failure_that_airflow_does_not_take_ends_the_task_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("API_SERVER_ERROR: 500")

    context: Any = {"ti": SimpleNamespace(try_number=1, xcom_push=refuse)}
    unused: Any = SimpleNamespace()
    outcome = TryOutcome(context, unused, unused, unused, LOG)
    failure = failure_with_remedy(Cause.USER, "it failed")
    outcome.publish_failure(failure)
    assert outcome.failure == failure
    assert "could not be published as XCom: API_SERVER_ERROR: 500" in caplog.text
