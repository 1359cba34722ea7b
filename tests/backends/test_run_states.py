"""What counts as deleted: only what the service itself, asked for it, does not know."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.oci_data_science import run_states
from airflow_provider_ocidist.backends.oci_data_science.run_states import RunStates
from airflow_provider_ocidist.errors import RunNotFound


class Service:
    """As the SDK's client: a service whose lists may be behind, and which may hide a compartment."""

    def __init__(self, *runs: str) -> None:
        self.runs = set(runs)
        self.listed: set[str] = set()
        self.hidden = False
        self.hidden_gets = 0
        """So many more gets are answered as if nobody might see the runs."""
        self.calls: Counter[str] = Counter()

    def list_job_runs(self, compartment_id: str, **_: Any) -> Any:
        self.calls["list"] += 1
        if self.hidden:
            raise _not_found()
        return SimpleNamespace(data=[_run(run_id) for run_id in sorted(self.listed)], headers={})

    def get_job_run(self, run_id: str) -> Any:
        self.calls["get"] += 1
        self.hidden_gets -= 1
        if self.hidden or self.hidden_gets >= 0 or run_id not in self.runs:
            raise _not_found()
        return SimpleNamespace(data=_run(run_id))


def _run(run_id: str) -> Any:
    return SimpleNamespace(
        id=run_id,
        lifecycle_state="IN_PROGRESS",
        lifecycle_details=None,
        time_started=None,
        time_finished=None,
    )


def _not_found() -> Exception:
    return oci.exceptions.ServiceError(404, "NotAuthorizedOrNotFound", {}, "not authorized or not found")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(run_states, "time", SimpleNamespace(sleep=slept.append))
    return slept


def found(service: Service, alone: bool, *run_ids: str) -> set[str]:
    states = RunStates(lambda: service)
    return set(states.of_job("c", "job", run_ids) if alone else states.of_many("c", run_ids))


each_way = pytest.mark.parametrize("alone", [True, False], ids=["one gang", "many"])


@each_way
def test_a_run_that_the_list_does_not_have_yet_is_not_gone(alone: bool, pauses: list[float]) -> None:
    service = Service("a", "b")
    service.listed = {"a"}
    assert found(service, alone, "a", "b") == {"a", "b"}
    service.listed = set()
    assert found(service, alone, "a", "b") == {"a", "b"}
    assert pauses == []


@each_way
def test_one_run_of_several_that_the_service_does_not_know_is_gone(alone: bool, pauses: list[float]) -> None:
    service = Service("a")
    assert found(service, alone, "a", "b") == {"a"}
    assert pauses == []


@each_way
def test_runs_that_are_all_unknown_for_a_moment_are_not_gone(alone: bool, pauses: list[float]) -> None:
    service = Service("a", "b")
    service.hidden_gets = 2
    assert found(service, alone, "a", "b") == {"a", "b"}
    assert pauses == [run_states.CONFIRMED_AFTER]


@each_way
def test_runs_in_a_compartment_that_may_not_be_seen_are_not_gone(alone: bool) -> None:
    service = Service("a", "b")
    service.hidden = True
    with pytest.raises(RunNotFound, match="these credentials may not see it"):
        found(service, alone, "a", "b")


@each_way
def test_runs_that_are_unknown_twice_where_others_may_be_seen_are_gone(alone: bool) -> None:
    service = Service()
    service.listed = {"other"}
    assert found(service, alone, "a", "b") == set()
    assert service.calls["get"] == 4


def test_rights_that_are_lost_between_two_looks_make_no_run_gone() -> None:
    service = Service("a", "b")
    states = RunStates(lambda: service)
    assert set(states.of_many("c", ["a", "b"])) == {"a", "b"}
    service.hidden = True
    for _ in range(3):
        with pytest.raises(RunNotFound):
            states.of_many("c", ["a", "b"])
