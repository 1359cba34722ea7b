"""What counts as deleted: only what the service itself, asked for it, does not know."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.oci_data_science.answers import state_of
from airflow_provider_ocidist.backends.oci_data_science.run_states import RunStates
from airflow_provider_ocidist.errors import RunNotFound
from airflow_provider_ocidist.model.evidence import ABSENT_ANSWERS, ABSENT_FOR
from airflow_provider_ocidist.model.run import NodeState


class Service:
    """As the SDK's client: a service whose lists may be behind, and which may hide a compartment."""

    def __init__(self, *runs: str) -> None:
        self.runs = set(runs)
        self.listed: set[str] = set()
        self.states: dict[str, str] = {}
        self.hidden = False
        self.calls: Counter[str] = Counter()

    def list_job_runs(self, compartment_id: str, **_: Any) -> Any:
        self.calls["list"] += 1
        if self.hidden:
            raise _not_found()
        return SimpleNamespace(data=[self._run(run_id) for run_id in sorted(self.listed)], headers={})

    def get_job_run(self, run_id: str) -> Any:
        self.calls["get"] += 1
        if self.hidden or run_id not in self.runs:
            raise _not_found()
        return SimpleNamespace(data=self._run(run_id))

    def _run(self, run_id: str) -> Any:
        return SimpleNamespace(
            id=run_id,
            lifecycle_state=self.states.get(run_id, "IN_PROGRESS"),
            lifecycle_details=None,
            time_started=None,
            time_finished=None,
        )


def _not_found() -> Exception:
    return oci.exceptions.ServiceError(404, "NotAuthorizedOrNotFound", {}, "not authorized or not found")


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Asker:
    """Looks at runs again and again, as a wait for one gang or for many does."""

    service: Service
    alone: bool
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.states = RunStates(lambda: self.service, self.clock)

    def found(self, *run_ids: str) -> dict[str, str]:
        summaries = (
            self.states.of_job("c", "job", run_ids) if self.alone else self.states.of_many("c", run_ids)
        )
        return {run_id: summary.lifecycle_state for run_id, summary in summaries.items()}

    def found_after(self, looks: int, seconds: float, *run_ids: str) -> dict[str, str]:
        """Return what the last of several looks has found, the first of them now."""
        found = self.found(*run_ids)
        for _ in range(looks - 1):
            self.clock.now += seconds / (looks - 1)
            found = self.found(*run_ids)
        return found


each_way = pytest.mark.parametrize("alone", [True, False], ids=["one gang", "many"])


@each_way
def test_a_run_that_the_list_does_not_have_yet_is_not_gone(alone: bool) -> None:
    asker = Asker(Service("a", "b"), alone)
    for listed in ({"a"}, set[str]()):
        asker.service.listed = listed
        assert asker.found_after(5, 600, "a", "b") == {"a": "IN_PROGRESS", "b": "IN_PROGRESS"}


@each_way
def test_one_404_of_one_run_of_two_changes_nothing_of_what_is_known(alone: bool) -> None:
    asker = Asker(Service("a", "b"), alone)
    asker.service.listed = {"a"}
    assert asker.found("a", "b") == {"a": "IN_PROGRESS", "b": "IN_PROGRESS"}
    asker.service.runs = {"a"}
    assert asker.found("a", "b") == {"a": "IN_PROGRESS", "b": "IN_PROGRESS"}
    assert asker.states.of_many("c", ["a", "b"])["b"].lifecycle_details == (
        "not found (404) at 2 looks; asked for again"
    )


@each_way
def test_a_run_that_was_never_seen_is_unknown_and_not_gone(alone: bool) -> None:
    asker = Asker(Service("a"), alone)
    assert asker.found("a", "b") == {"a": "IN_PROGRESS", "b": "NOT_FOUND"}
    assert state_of(asker.states.of_many("c", ["b"])["b"]) is NodeState.UNKNOWN


@each_way
@pytest.mark.parametrize("left", [{"a"}, set()], ids=["beside another", "all"])
def test_runs_that_stay_unknown_for_minutes_are_gone(alone: bool, left: set[str]) -> None:
    asker = Asker(Service("a", "b"), alone)
    asker.found("a", "b")
    asker.service.runs = left
    assert asker.found_after(ABSENT_ANSWERS, ABSENT_FOR - 1, "a", "b").keys() == {"a", "b"}
    asker.clock.now += 1
    assert asker.found("a", "b").keys() == left


@each_way
@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_service_answers_a_run_is_gone_only_by_consistent_evidence(
    alone: bool, seed: int
) -> None:
    """Each look the service knows a run, does not, hides the compartment, or is behind with its list."""
    dice = random.Random(seed)
    asker = Asker(Service("a", "b"), alone)
    since: float | None = None
    answers = 0
    for _ in range(60):
        asker.clock.now += dice.choice([1, 5, 30, 60])
        known = dice.random() < 0.15
        asker.service.hidden = dice.random() < 0.2
        asker.service.runs = {"a", "b"} if known else {"a"}
        asker.service.listed = set(dice.sample(sorted(asker.service.runs), dice.randint(0, 1)))
        if asker.service.hidden:
            with pytest.raises(RunNotFound, match="these credentials may not see it"):
                asker.found("a", "b")
            continue
        found = asker.found("a", "b")
        if known:
            since, answers = None, 0
        else:
            since, answers = since or asker.clock.now, answers + 1
        gone = since is not None and answers >= ABSENT_ANSWERS and asker.clock.now - since >= ABSENT_FOR
        assert found.keys() == ({"a"} if gone else {"a", "b"}), f"seed {seed}"


@each_way
def test_runs_in_a_compartment_that_may_not_be_seen_are_not_gone(alone: bool) -> None:
    asker = Asker(Service("a", "b"), alone)
    asker.service.hidden = True
    for _ in range(10):
        asker.clock.now += ABSENT_FOR
        with pytest.raises(RunNotFound, match="these credentials may not see it"):
            asker.found("a", "b")


@each_way
def test_a_run_that_the_service_says_is_deleted_is_gone_at_once(alone: bool) -> None:
    asker = Asker(Service("a"), alone)
    asker.service.states["a"] = "DELETED"
    asker.service.listed = {"a"}
    assert asker.found("a") == {"a": "DELETED"}
    assert state_of(asker.states.of_many("c", ["a"])["a"]) is NodeState.MISSING


def test_rights_that_are_lost_between_two_looks_make_no_run_gone() -> None:
    service = Service("a", "b")
    states = RunStates(lambda: service)
    assert set(states.of_many("c", ["a", "b"])) == {"a", "b"}
    service.hidden = True
    for _ in range(3):
        with pytest.raises(RunNotFound):
            states.of_many("c", ["a", "b"])


@each_way
@pytest.mark.parametrize("seed", range(15))
def test_what_one_process_has_missed_the_next_one_goes_on_with(alone: bool, seed: int) -> None:
    """Gone counts from the same look, whether one process asks or each look has one of its own."""
    print("seed", seed)
    dice = random.Random(seed)
    service = Service("a")
    service.listed = {"a"}
    one, many = Asker(service, alone), Asker(service, alone)
    assert one.found("a", "b") == many.found("a", "b")
    for _ in range(2 * ABSENT_ANSWERS + 4):
        pause = dice.uniform(1, ABSENT_FOR / 2)
        if dice.random() < 0.1:
            service.runs = {"a", "b"} ^ service.runs | {"a"}
        kept = {
            run_id: replace(each, seconds=each.seconds + pause)
            for run_id, each in many.states.missed(["a", "b"]).items()
        }
        one.clock.now += pause
        known = dict(many.states._known)
        many = Asker(service, alone)
        many.states._known = known
        many.states.recall(kept)
        assert one.found("a", "b") == many.found("a", "b")
        assert one.states.missed(["a", "b"]).keys() == many.states.missed(["a", "b"]).keys()
