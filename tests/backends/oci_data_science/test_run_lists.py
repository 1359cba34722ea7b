"""The states of many runs are found in few calls: which lists are asked for, and which runs one by one."""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.oci_data_science.run_states import RunStates, RunSummary
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.kept_evidence import Missed

PAGE = 100
NEWEST = "list c sort_by=timeCreated sort_order=DESC"
LIVE = ["IN_PROGRESS", "ACCEPTED", "NEEDS_ATTENTION", "CANCELING"]
FINAL = ["SUCCEEDED", "FAILED", "CANCELED", "DELETED"]


class Service:
    """As the SDK's client: the runs of each compartment, the newest last, listed by pages as the service does."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}
        self.unlisted: set[str] = set()
        self.failure: Exception | None = None
        """Answer to all that is asked for from now on."""
        self._lists: list[str] = []
        self._runs: list[str] = []

    def asked(self) -> list[str]:
        """Return what was asked for since the last look: each page of a list in order, then each run by its name."""
        found = [*self._lists, *sorted(self._runs)]
        self._lists, self._runs = [], []
        return found

    def add(
        self, *run_ids: str, state: str = "IN_PROGRESS", compartment: str = "c", job: str = "job"
    ) -> list[str]:
        for run_id in run_ids:
            self.runs[run_id] = SimpleNamespace(
                id=run_id,
                lifecycle_state=state,
                lifecycle_details=None,
                time_started=None,
                time_finished=None,
                compartment_id=compartment,
                job_id=job,
            )
        return [*run_ids]

    def list_job_runs(self, compartment_id: str, *, limit: int, page: str = "0", **filters: str) -> Any:
        words = [f"{name}={value}" for name, value in filters.items()]
        self._lists.append(" ".join(["list", str(compartment_id), *words, *[f"from {page}"] * (page != "0")]))
        if self.failure:
            raise self.failure
        order = [filters.pop(name, None) for name in ("sort_by", "sort_order")]
        wanted = {"compartment_id": compartment_id, **filters}
        found = [
            run
            for run in self.runs.values()
            if run.id not in self.unlisted and all(getattr(run, name) == wanted[name] for name in wanted)
        ]
        if order[0] == "timeCreated" and order[1] in (None, "DESC"):
            found.reverse()
        ends = int(page) + limit
        return SimpleNamespace(
            data=found[int(page) : ends], headers={"opc-next-page": str(ends)} if ends < len(found) else {}
        )

    def get_job_run(self, run_id: str) -> Any:
        self._runs.append(f"get {run_id}")
        if self.failure:
            raise self.failure
        if run_id not in self.runs:
            raise oci.exceptions.ServiceError(404, "NotAuthorizedOrNotFound", {}, "not found")
        return SimpleNamespace(data=self.runs[run_id])


class Clock:
    """Seconds that pass when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def states(service: Service, clock: Clock) -> RunStates:
    return RunStates(lambda: service, clock)


def of_many(states: RunStates, *run_ids: str, compartment: str = "c") -> dict[str, str]:
    found = states.of_many(compartment, run_ids)
    return {run_id: summary.lifecycle_state for run_id, summary in found.items()}


def from_page_on(first: str, pages: int) -> list[str]:
    """Return a list that was asked for with its further pages."""
    return [first, *(f"{first} from {PAGE * number}" for number in range(1, pages))]


@pytest.mark.parametrize("alone", [True, False], ids=["one gang", "many"])
@pytest.mark.parametrize("details", [None, "Out of host capacity"])
def test_a_run_is_read_as_the_service_describes_it(
    service: Service, states: RunStates, details: str | None, *, alone: bool
) -> None:
    begun, ended = (datetime(2026, 11, 27, hour, tzinfo=timezone.utc) for hour in (10, 12))
    service.add("a", state="FAILED")
    vars(service.runs["a"]).update(lifecycle_details=details, time_started=begun, time_finished=ended)
    found = states.of_job("c", "job", ["a"]) if alone else states.of_many("c", ["a"])
    assert found == {"a": RunSummary("FAILED", details, begun, ended)}


# One job


def test_the_runs_of_a_job_are_among_the_newest_of_its_compartment(
    service: Service, states: RunStates
) -> None:
    service.add(*(f"before-{number}" for number in range(2 * PAGE)), state="FAILED")
    service.add("a", "b")
    service.add(*(f"other-{number}" for number in range(2 * PAGE)), job="other")
    service.add(*(f"there-{number}" for number in range(2 * PAGE)), compartment="d")
    assert states.of_job("c", "job", ["a", "b"]).keys() == {"a", "b"}
    assert service.asked() == ["list c job_id=job sort_by=timeCreated"]


def test_what_the_list_of_a_job_lacks_is_asked_for_and_what_has_no_id_is_not(
    service: Service, states: RunStates
) -> None:
    service.add("a", "b")
    service.unlisted = {"b"}
    assert states.of_job("c", "job", ["a", "b", ""]).keys() == {"a", "b"}
    assert service.asked() == ["list c job_id=job sort_by=timeCreated", "get b"]
    assert states.of_job("c", "job", [""]) == {}
    assert service.asked() == []


# Many


@pytest.mark.parametrize("alone", [True, False], ids=["one gang", "many"])
@pytest.mark.parametrize("state", FINAL)
def test_what_has_ended_is_not_asked_for_again(
    service: Service, states: RunStates, state: str, *, alone: bool
) -> None:
    service.add("a", state=state)
    service.add("b")
    if alone:
        states.of_job("c", "job", ["a", "b"])
    else:
        states.of_many("c", ["a", "b"])
    service.asked()
    assert of_many(states, "a") == {"a": state}
    assert service.asked() == []
    assert of_many(states, "a", "b") == {"a": state, "b": "IN_PROGRESS"}
    assert service.asked() == ["list c lifecycle_state=IN_PROGRESS"]


@pytest.mark.parametrize("state", LIVE)
def test_what_lives_is_looked_for_among_the_runs_in_its_state(
    service: Service, states: RunStates, state: str
) -> None:
    service.add("a", state=state)
    service.add("b", state="PAUSED")
    assert of_many(states, "a", "b") == {"a": state, "b": "PAUSED"}
    assert service.asked() == [NEWEST]
    assert of_many(states, "a", "b") == {"a": state, "b": "PAUSED"}
    # Of a state that this version does not know, it has no list.
    assert service.asked() == [f"list c lifecycle_state={state}", "get b"]


def test_the_runs_in_several_states_take_one_list_each_until_all_are_found(
    service: Service, states: RunStates
) -> None:
    for number, state in enumerate(LIVE[::-1]):
        service.add(f"a{number}", f"b{number}", state=state)
    of_many(states, *service.runs)
    service.asked()
    assert of_many(states, *service.runs) == {
        f"{name}{number}": state for number, state in enumerate(LIVE[::-1]) for name in "ab"
    }
    assert service.asked() == [f"list c lifecycle_state={state}" for state in LIVE]


def test_no_further_list_is_asked_for_once_all_are_found(service: Service, states: RunStates) -> None:
    service.add("a")
    service.add("b", state="ACCEPTED")
    of_many(states, "a", "b")
    service.runs["b"].lifecycle_state = "IN_PROGRESS"
    service.asked()
    assert of_many(states, "a", "b") == dict.fromkeys("ab", "IN_PROGRESS")
    assert service.asked() == ["list c lifecycle_state=IN_PROGRESS"]


@pytest.mark.parametrize("place", [3, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_runs_that_are_fewer_than_the_pages_of_their_list_are_asked_for_one_by_one(
    service: Service, states: RunStates, place: int, number: int
) -> None:
    service.add(*(f"other-{each}" for each in range(place - number)))
    wanted = service.add(*(f"wanted-{each}" for each in range(number)))
    of_many(states, *wanted)
    assert service.asked() == [NEWEST]
    pages = -(-place // PAGE)
    by_state = from_page_on("list c lifecycle_state=IN_PROGRESS", pages)
    of_many(states, *wanted)
    assert service.asked() == by_state
    assert of_many(states, *wanted) == dict.fromkeys(wanted, "IN_PROGRESS")
    assert service.asked() == (by_state if number > pages else [f"get {each}" for each in wanted])


def test_how_long_the_lists_of_one_compartment_are_says_nothing_of_another(
    service: Service, states: RunStates
) -> None:
    service.add("a")
    service.add("x", compartment="d")
    for _ in range(2):
        of_many(states, "a")
    of_many(states, "x", compartment="d")
    service.asked()
    of_many(states, "x", compartment="d")
    assert service.asked() == ["list d lifecycle_state=IN_PROGRESS"]
    of_many(states, "a")
    assert service.asked() == ["get a"]


@pytest.mark.parametrize("number", [1, 2, 50, 51])
def test_up_to_fifty_runs_that_have_left_their_state_are_asked_for_one_by_one(
    service: Service, states: RunStates, number: int
) -> None:
    wanted = service.add(*(f"run-{each:02}" for each in range(number)))
    of_many(states, *wanted)
    for each in wanted:
        service.runs[each].lifecycle_state = "SUCCEEDED"
    service.asked()
    assert of_many(states, *wanted) == dict.fromkeys(wanted, "SUCCEEDED")
    first, *then = service.asked()
    assert first == "list c lifecycle_state=IN_PROGRESS"
    assert then == ([NEWEST] if number > 50 else [f"get {each}" for each in wanted])


@pytest.mark.parametrize("number", [50, 51])
def test_more_than_fifty_unknown_runs_are_looked_for_in_every_state_where_the_newest_are_others(
    service: Service, states: RunStates, number: int
) -> None:
    wanted = [f"run-{each:02}" for each in range(number)]
    for at, each in enumerate(wanted):
        service.add(each, state=LIVE[at % len(LIVE)])
    service.add(*(f"ended-{each}" for each in range(5 * PAGE)), state="SUCCEEDED")
    assert of_many(states, *wanted) == {each: LIVE[at % len(LIVE)] for at, each in enumerate(wanted)}
    lists, runs = service.asked(), [f"get {each}" for each in wanted]
    pages = -(-(2 * number + PAGE) // PAGE)
    if number > 50:
        assert lists == [
            *from_page_on(NEWEST, pages),
            *(f"list c lifecycle_state={state}" for state in LIVE),
        ]
    else:
        assert lists == [*from_page_on(NEWEST, pages), *runs]


@pytest.mark.parametrize("newer", [0, PAGE, PAGE + 1, PAGE + 2, 3 * PAGE])
def test_an_unknown_run_is_looked_for_among_the_newest_and_not_among_all_that_there_ever_were(
    service: Service, states: RunStates, newer: int
) -> None:
    service.add("a")
    service.add(*(f"newer-{each}" for each in range(newer)), state="SUCCEEDED")
    assert of_many(states, "a") == {"a": "IN_PROGRESS"}
    pages = min(newer // PAGE + 1, 2)
    assert service.asked() == [*from_page_on(NEWEST, pages), *["get a"] * (newer > PAGE + 1)]


# What is not found


def test_a_run_that_is_not_found_is_said_once_counted_and_forgotten_with_its_gang(
    service: Service, states: RunStates, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    service.add("a")
    caplog.set_level(logging.WARNING)
    assert of_many(states, "a", "b") == {"a": "IN_PROGRESS", "b": "NOT_FOUND"}
    # A list that is refused would mean that these credentials may not see it.
    assert service.asked() == [NEWEST, "list c", "get b"]
    clock.now += 7.0
    of_many(states, "a", "b")
    assert [record.getMessage() for record in caplog.records] == [
        "job run b is not found (404); it is asked for again until that is certain"
    ]
    assert states.missed(["a", "b", "c"]) == {"b": Missed(answers=2, seconds=7.0)}
    states.forget(["b", "never seen"])
    assert states.missed(["b"]) == {}
    service.asked()
    of_many(states, "a")
    assert NEWEST not in service.asked(), "of the other run all is still known"
    states.forget(["a"])
    of_many(states, "a")
    assert service.asked() == [NEWEST]


def test_what_another_process_has_missed_counts_where_this_one_has_counted_nothing(
    service: Service, states: RunStates, clock: Clock
) -> None:
    of_many(states, "a")
    clock.now += 5.0
    states.recall({"a": Missed(answers=9, seconds=90.0), "b": Missed(answers=4, seconds=40.0)})
    clock.now += 1.0
    assert states.missed(["a", "b"]) == {
        "a": Missed(answers=1, seconds=6.0),
        "b": Missed(answers=4, seconds=41.0),
    }


def test_a_run_that_is_found_again_was_never_missed(service: Service, states: RunStates) -> None:
    of_many(states, "a", "b")
    service.add("a")
    of_many(states, "a", "b")
    assert states.missed(["a", "b"]).keys() == {"b"}


def test_an_error_names_what_was_asked_for(service: Service, states: RunStates) -> None:
    service.add("a")
    for _ in range(2):
        of_many(states, "a")
    service.failure = oci.exceptions.ServiceError(500, "InternalError", {}, "no")
    with pytest.raises(BackendError, match=r"^asking for the state of a job run: the service failed: no"):
        of_many(states, "a")
    with pytest.raises(BackendError, match=r"^asking for the state of the job runs: the service failed: no"):
        of_many(states, "b")


def test_of_many_runs_six_at_most_are_asked_for_side_by_side_and_each_once(
    service: Service, states: RunStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = service.add(*(f"run-{each:02}" for each in range(40)))
    service.unlisted = {*wanted}
    asking: set[int] = set()
    side_by_side = []
    get = service.get_job_run

    def slowly(run_id: str) -> Any:
        asking.add(threading.get_ident())
        side_by_side.append(len(asking))
        time.sleep(0.01)
        asking.discard(threading.get_ident())
        return get(run_id)

    monkeypatch.setattr(service, "get_job_run", slowly)
    assert of_many(states, *wanted, *wanted) == dict.fromkeys(wanted, "IN_PROGRESS")
    assert service.asked() == [NEWEST, *(f"get {each}" for each in wanted)]
    assert max(side_by_side) <= 6
