"""What a sensor concludes of a run that another task owns."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import GoOnWithout
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.model.run import NodeStatus, RunStatus
from airflow_provider_ocidist.sensors.run_wait import RunWait
from tests.gangs.test_elastic_rules import waiting
from tests.gangs.test_replacement_rules import LOST, NOW, a_ref, gone, looked


@pytest.mark.parametrize(
    "node, after",
    [
        (gone(2, cause=Cause.CAPACITY, details="Out of host capacity.", report=None), 0.0),
        (gone(2, cause=Cause.CAPACITY, details="Out of host capacity.", report=None), 7200.0),
    ],
)
def test_a_node_without_which_its_owner_may_go_on_does_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch, node: NodeStatus, after: float
) -> None:
    monkeypatch.setattr(RunWait, "_has_agents", lambda *_: True)
    run = a_ref(replaced=(replace(LOST, rank=2),)).to_json()
    wait = RunWait(
        run, "oci_default", require_checkpoint=False, poke_interval=1.0, log=logging.getLogger("test")
    )
    status = RunStatus(nodes=(waiting(0), waiting(1), node))
    assert isinstance(decide(looked(wait._record(), status, after), status, NOW), GoOnWithout)


@pytest.mark.parametrize(
    "written", [json.dumps, partial(json.dumps, indent=2), repr, lambda run: f" {run}\n"]
)
def test_a_run_may_be_text_in_any_form_that_a_template_gives_it(written: Callable[[object], str]) -> None:
    ref = a_ref(replaced=(LOST,))
    run = {**ref.to_json(), "log_id": None}
    wait = RunWait(
        written(run),
        "oci_default",
        require_checkpoint=False,
        poke_interval=1.0,
        log=logging.getLogger("test"),
    )
    assert ref.key.name in wait.awaited
