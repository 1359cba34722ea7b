"""When a cancel counts as done, whatever the service answers: docs/failures/service.md, against a service in memory."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import oci
import pytest

from airflow_provider_ocidist.backends.oci_data_science.cancels import Cancels
from airflow_provider_ocidist.backends.oci_data_science.plans import TAG_RUN
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause, RunNotFound, StorageError
from airflow_provider_ocidist.model.report import StopRequest
from airflow_provider_ocidist.model.run import Ending, NodeState, RunRef
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores
from airflow_provider_ocidist.work_dir.run_directories import RunDirectories
from tests.training_jobs import a_key

LIVE, ENDING, ENDED = "IN_PROGRESS", "CANCELING", "CANCELED"
GONE_ON = {"ACCEPTED", LIVE, "NEEDS_ATTENTION", "ODD"}
CODES = {
    400: "InvalidParameter",
    401: "NotAuthenticated",
    404: "NotAuthorizedOrNotFound",
    409: "IncorrectState",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


def directories(open_place: Callable[[str], Store]) -> RunDirectories:
    return RunDirectories(RunDirStores(open_place), RunDirStores(open_place))


class Service:
    """Job runs and their states; answers by a status of their own may come first."""

    def __init__(self, states: Mapping[str, str]) -> None:
        self.states = dict(states)
        self.answers: dict[tuple[str, str], list[int]] = {}
        self.asked: list[tuple[str, str]] = []
        self.described: dict[str, dict[str, Any]] = {}
        """What the service describes a run by, but its id."""
        self._lock = threading.Lock()

    def answer(self, verb: str, what: str, *statuses: int) -> None:
        self.answers.setdefault((verb, what), []).extend(statuses)

    def _do(self, verb: str, what: str) -> None:
        with self._lock:
            self.asked.append((verb, what))
            waiting = self.answers.get((verb, what)) or [0]
            status = waiting.pop(0)
        if status:
            self._refuse(status)

    def _refuse(self, status: int) -> None:
        raise oci.exceptions.ServiceError(status, CODES[status], {}, f"answered {status}")

    def cancel_job_run(self, run_id: str) -> None:
        self._do("cancel", run_id)
        if run_id not in self.states:
            self._refuse(404)
        if self.states[run_id] not in GONE_ON:
            self._refuse(409)
        self.states[run_id] = ENDING

    def get_job_run(self, run_id: str) -> Any:
        self._do("get", run_id)
        if run_id not in self.states:
            self._refuse(404)
        return SimpleNamespace(data=SimpleNamespace(id=run_id, lifecycle_state=self.states[run_id]))

    def described_run(self, run_id: str) -> dict[str, Any]:
        self._do("get", run_id)
        return {"id": run_id, **self.described.get(run_id, {})}

    def list_job_runs(self, compartment_id: str, *, job_id: str, limit: int) -> Any:
        assert (compartment_id, job_id) == ("here", "job")
        assert limit > 0
        self._do("list", job_id)
        runs = [SimpleNamespace(id=run_id, lifecycle_state=state) for run_id, state in self.states.items()]
        return SimpleNamespace(data=runs, headers={})


class Gang:
    """Three runs of one job, and their run directory."""

    def __init__(self, folder: Path, **states: str) -> None:
        self.service = Service({"a": LIVE, "b": LIVE, "c": LIVE, **states})
        self.run_dir = str(folder)
        self.ref = RunRef(
            backend="oci_data_science",
            key=a_key(),
            nodes=3,
            job_id="job",
            run_ids=("a", "b", "c"),
            run_dir=self.run_dir,
            submitted_at=1.0,
            compartment_id="here",
        )
        self.cancels = Cancels(lambda: self.service, directories(open_store))

    def cancel(self, ending: Ending | None = None, **changes: Any) -> CancelFailed | None:
        try:
            self.cancels.cancel(replace(self.ref, **changes), ending)
        except CancelFailed as error:
            return error
        return None

    @property
    def go_on(self) -> set[str]:
        return {run_id for run_id, state in self.service.states.items() if state in GONE_ON}

    @property
    def stop_request(self) -> dict[str, Any]:
        return dict(json.loads(open_store(self.run_dir).read(STOP_FILE)))


@pytest.fixture
def gang(tmp_path: Path) -> Gang:
    return Gang(tmp_path / "run")


def test_every_run_is_cancelled_by_one_request_each(gang: Gang) -> None:
    assert gang.cancel() is None
    assert gang.go_on == set()
    assert sorted(gang.service.asked) == [("cancel", "a"), ("cancel", "b"), ("cancel", "c")]


def test_a_run_of_several_nodes_is_cancelled_once(gang: Gang) -> None:
    assert gang.cancel(run_ids=("a", "a", "a")) is None
    assert gang.service.asked == [("cancel", "a")]


def test_the_nodes_find_word_of_it_with_the_reason(gang: Gang) -> None:
    assert gang.cancel() is None
    assert gang.stop_request == {"cause": "CANCELED", "message": "the run was cancelled"}
    assert gang.cancel(Ending(cause=Cause.HANG, message="no step for 10 s", since=1.0)) is None
    assert gang.stop_request == {"cause": "HANG", "message": "no step for 10 s"}


@pytest.mark.parametrize("state", ["SUCCEEDED", "FAILED", ENDED, ENDING, "DELETED"])
def test_a_409_of_a_run_that_has_ended_or_is_ending_is_what_was_asked_for(tmp_path: Path, state: str) -> None:
    gang = Gang(tmp_path, b=state)
    assert gang.cancel() is None
    assert gang.go_on == set()
    assert ("get", "b") in gang.service.asked


@pytest.mark.parametrize("state", ["ACCEPTED", LIVE, "NEEDS_ATTENTION", "ODD"])
def test_a_409_of_a_run_that_goes_on_is_no_cancel_and_may_be_repeated(tmp_path: Path, state: str) -> None:
    gang = Gang(tmp_path, b=state)
    gang.service.answer("cancel", "b", 409)
    error = gang.cancel()
    assert error
    assert "cancelling job run b: answered 409" in str(error)
    assert "; it is " in str(error)
    assert (error.status_code, error.code, error.retryable) == (409, "IncorrectState", True)
    assert gang.go_on == {"b"}


@pytest.mark.parametrize("status", [401, 503])
def test_a_409_of_a_run_that_cannot_be_read_is_no_cancel(gang: Gang, status: int) -> None:
    gang.service.answer("cancel", "b", 409)
    gang.service.answer("get", "b", status)
    error = gang.cancel()
    assert error
    assert error.status_code == status
    assert "reading job run b, which could not be cancelled" in str(error)


@pytest.mark.parametrize("status", [400, 401, 429, 503])
def test_what_the_service_refuses_is_said_and_the_others_are_cancelled(gang: Gang, status: int) -> None:
    gang.service.answer("cancel", "a", status)
    error = gang.cancel()
    assert error
    assert error.status_code == status
    assert isinstance(error.__cause__, BackendError)
    assert gang.go_on == {"a"}
    assert ("get", "a") not in gang.service.asked
    assert ("list", "job") not in gang.service.asked, "nothing that a list could bear out"


def test_a_404_counts_where_the_list_does_not_have_the_run_and_its_node_finds_the_stop_request(
    gang: Gang,
) -> None:
    del gang.service.states["a"]
    assert gang.cancel() is None
    assert gang.go_on == set()
    assert gang.stop_request


@pytest.mark.parametrize("fault", [StorageError("no bucket"), BackendError("no key"), OSError("no disk")])
@pytest.mark.parametrize("hidden", ["a", "bc", "abc"])
def test_a_run_that_the_service_hides_is_not_cancelled_where_no_stop_request_could_be_written(
    gang: Gang, hidden: str, fault: Exception
) -> None:
    """As in the moments after its creation, or with credentials that may not see it: it may live all the same."""

    def no_store(_: str) -> Any:
        raise fault

    there = {run_id: gang.service.states.pop(run_id) for run_id in hidden}
    gang.cancels = Cancels(lambda: gang.service, directories(no_store))
    for _ in range(3):
        error = gang.cancel()
        assert error, "nobody has reached its node"
        assert (error.status_code, error.stop_requested) == (404, False)
    gang.service.states.update(there)
    assert gang.go_on == set(hidden)
    assert gang.cancel() is None
    assert gang.go_on == set()


@pytest.mark.parametrize("state, done", [(LIVE, False), ("ODD", False), (ENDING, True), (ENDED, True)])
def test_a_404_of_a_run_that_the_list_has_counts_only_where_that_has_ended(
    tmp_path: Path, state: str, done: bool
) -> None:
    gang = Gang(tmp_path, a=state)
    gang.service.answer("cancel", "a", 404)
    error = gang.cancel()
    assert (error is None) is done
    assert error is None or error.status_code == 404


@pytest.mark.parametrize("status", [401, 404, 503])
def test_a_404_without_an_answer_to_the_list_does_not_count(gang: Gang, status: int) -> None:
    del gang.service.states["a"]
    gang.service.answer("list", "job", status)
    error = gang.cancel()
    assert error
    assert error.status_code == 404
    assert gang.go_on == set()


def test_runs_whose_creation_was_never_answered_are_found_and_cancelled(gang: Gang) -> None:
    assert gang.cancel(run_ids=("a", "", "")) is None
    assert gang.go_on == set()
    assert [asked for asked in gang.service.asked if asked == ("cancel", "a")] == [("cancel", "a")]


@pytest.mark.parametrize("status", [401, 404, 503])
def test_where_they_cannot_be_looked_for_the_cancel_is_not_done(gang: Gang, status: int) -> None:
    gang.service.answer("list", "job", status)
    error = gang.cancel(run_ids=("a", "", ""))
    assert error
    assert error.status_code == status
    assert "listing the job runs" in str(error)
    assert gang.go_on == {"b", "c"}


def test_what_one_of_them_meets_is_said_too(gang: Gang) -> None:
    gang.service.answer("cancel", "c", 503)
    error = gang.cancel(run_ids=("a", "b", ""))
    assert error
    assert error.status_code == 503
    assert gang.go_on == {"c"}


@pytest.mark.parametrize("fault", [StorageError("no bucket"), BackendError("no key"), OSError("no disk")])
def test_whether_the_nodes_find_word_of_it_is_said(
    gang: Gang, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def no_store(_: str) -> Any:
        raise fault

    gang.service.answer("cancel", "a", 401, 401)
    with_word = gang.cancel()
    gang.cancels = Cancels(lambda: gang.service, directories(no_store))
    with caplog.at_level(logging.WARNING):
        without = gang.cancel()
    assert with_word
    assert with_word.stop_requested is True
    assert without
    assert without.stop_requested is False
    assert f"{gang.ref.key.name}: could not write a stop request for the nodes: {fault}" in caplog.text
    assert gang.cancel() is None, "the service took it"


def test_what_the_service_did_not_take_is_known_of_each_run(gang: Gang) -> None:
    gang.service.answer("cancel", "b", 503)
    found = gang.cancels.cancel_runs(iter(["a", "", "b", "a"]))
    assert {run_id: error.status_code for run_id, error in found.items()} == {"b": 503}
    assert [what for verb, what in gang.service.asked if verb == "cancel"].count("a") == 1
    assert gang.cancels.cancel_runs([]) == {}


@pytest.mark.parametrize("seed", range(60))
def test_a_cancel_that_has_succeeded_leaves_nothing_that_goes_on(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    states = [*GONE_ON, ENDING, ENDED, "SUCCEEDED", "FAILED"]
    states.sort()
    gang = Gang(tmp_path, **{run_id: dice.choice(states) for run_id in "abc"})
    if dice.random() < 0.3:
        del gang.service.states[dice.choice("abc")]
    for run_id in "abc":
        for _ in range(dice.randint(0, 3)):
            gang.service.answer(dice.choice(["cancel", "cancel", "get"]), run_id, dice.choice(sorted(CODES)))
    gang.service.answer("list", "job", *dice.choices([0, 401, 404, 503], k=dice.randint(0, 4)))
    known = tuple(run_id if dice.random() < 0.8 else "" for run_id in "abc")
    tries = 0
    while gang.cancel(run_ids=known) is not None:
        tries += 1
        assert tries < 30, f"seed {seed}"
    assert gang.go_on == set(), f"seed {seed}"


# What the service has of one run


def test_the_state_of_a_run_is_that_of_this_run(tmp_path: Path) -> None:
    gang = Gang(tmp_path, b="SUCCEEDED", c="FAILED")
    found = [gang.cancels.state(run_id) for run_id in "abc"]
    assert found == [NodeState.RUNNING, NodeState.SUCCEEDED, NodeState.FAILED]
    with pytest.raises(RunNotFound):
        gang.cancels.state("d")


def test_a_run_knows_which_of_its_gang_it_is_by_its_tag(gang: Gang) -> None:
    gang.service.described = {
        "a": {"freeformTags": {TAG_RUN: "0", "team": "7"}},
        "b": {"freeformTags": {TAG_RUN: "12"}},
    }
    assert [gang.cancels.number(run_id) for run_id in "ab"] == [0, 12]


@pytest.mark.parametrize(
    "described",
    [{}, {"freeformTags": None}, {"freeformTags": {"team": "7"}}, {"freeformTags": {TAG_RUN: "one"}}],
)
def test_a_run_without_that_tag_was_not_started_by_us(gang: Gang, described: dict[str, Any]) -> None:
    gang.service.described = {"b": described}
    with pytest.raises(BackendError, match="job run b was not started by ocidist"):
        gang.cancels.number("b")


@pytest.mark.parametrize("status", [404, 503])
def test_what_keeps_a_run_from_being_read_is_said_with_its_name(gang: Gang, status: int) -> None:
    gang.service.answer("get", "b", status)
    with pytest.raises(BackendError, match="reading job run b") as caught:
        gang.cancels.number("b")
    assert caught.value.status_code == status


@pytest.mark.parametrize("fault", [None, BackendError("nothing listens there"), StorageError("no bucket")])
def test_who_writes_a_stop_request_alone_learns_whether_it_is_there(
    tmp_path: Path, fault: Exception | None
) -> None:
    def opened(place: str) -> Store:
        if fault is not None:
            raise fault
        return open_store(place)

    gang = Gang(tmp_path)
    gang.cancels = Cancels(lambda: gang.service, directories(opened))
    request = StopRequest(cause=Cause.CANCELED, message="it was not complete")
    assert gang.cancels.request_stop(gang.ref, request) is (fault is None)
    assert (tmp_path / STOP_FILE).exists() is (fault is None)
    assert gang.service.asked == []
