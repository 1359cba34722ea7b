"""Functions of the example DAGs, on what a person may do in the UI."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "dags_examples"


def loaded(example: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_an_event_that_a_person_made_names_no_model_in_production() -> None:
    example = loaded("promote_if_better")
    contenders, asset = example.dag.get_task("contenders").python_callable, example.in_production
    announced, made = SimpleNamespace(extra={"uri": "oci://b@n/old"}), SimpleNamespace(extra={})
    for events, models in (
        ([], ["new/"]),
        ([made], ["new/"]),
        ([announced, made], ["new/", "oci://b@n/old/"]),
    ):
        found = contenders("new", "test/", inlet_events={asset: events})
        assert [each["inputs.1.source"] for each in found] == models


def test_no_other_home_is_asked_for_after_a_person_failed_the_task_or_its_data_did_not_arrive(
    capsys: pytest.CaptureFixture[str],
) -> None:
    helps = loaded("fall_over").dag.get_task("another_home_helps").python_callable
    ti: Any = SimpleNamespace(xcom_pull=lambda *_, **__: None)
    assert helps(ti) is False
    assert "on_cluster" in capsys.readouterr().out
    ti.xcom_pull = lambda *_, **__: {"message": "no machine", "cause": "CAPACITY"}
    assert helps(ti) is True
