"""What a try does with a refusal of its machines, and with what it has begun: on a service in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.errors import BackendError, Cause, LeftRuns, StillAlive
from airflow_provider_ocidist.gangs.attempt_notes import NOTE
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job import TrainingJob
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.refusal import Refusal
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress
from airflow_provider_ocidist.model.run import Plan, RunStatus
from tests.gangs.tries import Notes, recorded
from tests.service_in_memory import FAILED, LIVE, Model
from tests.training_jobs import BACKEND, a_job, a_key

LOG = logging.getLogger("test")
SECOND = "shape VM.Standard.E5.Flex"
NO_HOST = BackendError("no host", retryable=True, cause=Cause.CAPACITY)


class Remembered:
    """The refusals that a work directory knows, in memory."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, Refusal]] = []

    def note(self, plan: Plan, refusal: Refusal, now: float) -> None:
        assert now >= 0
        self.noted.append((plan.candidate, refusal))

    def of(self, plans: Sequence[Plan]) -> list[Refusal | None]:
        known = dict(self.noted)
        return [known.get(plan.candidate) for plan in plans]


class Home(Model):
    """A service that has no machines for some candidates."""

    def __init__(self, *refused: str, error: BackendError = NO_HOST) -> None:
        super().__init__()
        self.remembered: Any = Remembered()
        self.directories.refusals = self.remembered
        self.refused, self.error = refused, error
        self.no_word = False
        self.gangs.write_off = self._write_off  # type: ignore[method-assign]  # as the work directory records it

    def _write_off(self, plan: Plan) -> None:
        self._do("write_off", plan.candidate)
        if self.no_word:
            raise BackendError("the store is down")
        self.recorded.append(replace(Attempt.of(plan), end=End(succeeded=False)))

    def submit(self, plan: Plan, stop: Any = None, found: Any = None) -> Any:
        if plan.candidate in self.refused:
            self._do("submit", plan, stop, found)
            self.on_submit()
            raise self.error
        return super().submit(plan, stop, found)

    @property
    def asked(self) -> list[str]:
        return [plan.candidate for plan in self.done("submit")]


def a_choice(*, candidates: bool = True) -> TrainingJob:
    more: dict[str, Any] = {"candidates": [{"shape": "VM.Standard.E5.Flex"}]} if candidates else {}
    return a_job(backend={**BACKEND, **more})


def submitter(model: Model, job: TrainingJob | None = None, **more: Any) -> GangSubmitter:
    stop = more.pop("stop", None) or threading.Event()
    return GangSubmitter(model, job or a_choice(), LOG, more.pop("notes", None), stop, **more)


def test_where_a_request_is_refused_for_want_of_machines_the_next_candidate_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    home = Home("")
    record = submitter(home).adopt_or_submit(a_key(), None)
    assert home.asked == ["", SECOND]
    assert (record.ref.candidate, record.ref.key.attempt) == (SECOND, 2)
    assert home.done("write_off") == [""]
    ((candidate, refusal),) = home.remembered.noted
    assert (candidate, refusal.cause, refusal.message) == ("", Cause.CAPACITY, "no host")
    assert "no host; asking for another candidate" in caplog.messages


def test_where_every_candidate_is_refused_the_last_refusal_is_raised() -> None:
    home = Home("", SECOND)
    with pytest.raises(BackendError, match="no host"):
        submitter(home).adopt_or_submit(a_key(), None)
    assert home.asked == ["", SECOND]
    assert home.done("write_off") == ["", SECOND]


@pytest.mark.parametrize(
    "error",
    [
        StillAlive("a node may live", cause=Cause.CAPACITY),
        LeftRuns("a run may live", cause=Cause.CAPACITY),
        BackendError("no such shape", cause=Cause.CONFIG),
        BackendError("busy", retryable=True, cause=Cause.SERVICE),
    ],
    ids=str,
)
def test_another_candidate_is_asked_for_only_where_no_node_lives_and_machines_are_what_is_missing(
    error: BackendError,
) -> None:
    home = Home("", error=error)
    with pytest.raises(type(error), match=str(error)):
        submitter(home).adopt_or_submit(a_key(), None)
    assert home.asked == [""]
    assert home.done("write_off") == home.remembered.noted == []


def test_a_job_without_candidates_or_a_try_that_is_killed_asks_for_no_other() -> None:
    home = Home("")
    with pytest.raises(BackendError, match="no host"):
        submitter(home, a_choice(candidates=False)).adopt_or_submit(a_key(), None)
    killed, stop = Home(""), threading.Event()
    killed.on_submit = stop.set
    with pytest.raises(BackendError, match="no host"):
        submitter(killed, stop=stop).adopt_or_submit(a_key(), None)
    for each in (home, killed):
        assert (each.asked, each.done("write_off")) == ([""], [])


def test_where_the_end_of_the_refused_attempt_cannot_be_recorded_no_other_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    home, key = Home(""), a_key()
    home.no_word = True
    with pytest.raises(BackendError, match="no host"):
        submitter(home).adopt_or_submit(key, None)
    assert home.asked == [""]
    assert (
        f"{key.name}: no other candidate is asked for, since its end could not be recorded: the store is down"
        in caplog.messages
    )


def refused_unseen(home: Home, *, trained: bool = False, seen: bool = False) -> Any:
    """Leave a gang that got no machine after its try had died."""
    key = a_key()
    ref = home.has(key, [FAILED, FAILED])
    recorded(home, ref, candidate="", end=End(succeeded=False) if seen else None)
    real = home.status

    def status(refs: Sequence[Any]) -> list[RunStatus]:
        return [replace(each, nodes=tuple(map(told, each.nodes))) for each in real(refs)]

    def told(node: Any) -> Any:
        report = NodeReport(
            rank=node.rank,
            phase=Phase.DONE,
            address="a",
            started_at=0.0,
            heartbeat_at=1.0,
            progress=Progress(step=3) if trained else None,
        )
        cause = Cause.CAPACITY if node.rank == 1 else None
        return replace(node, cause=cause, details="no host was free", finished_at=77.0, report=report)

    home.status = status  # type: ignore[method-assign]  # of this test's gang
    return key


def test_a_later_try_learns_that_no_machine_was_there_before_it_began() -> None:
    home = Home()
    key = refused_unseen(home)
    submitter(home).adopt_or_submit(key, None, 2)
    assert home.remembered.noted == [
        ("", Refusal(cause=Cause.CAPACITY, message="node 1: no host was free", at=77.0, nodes=2))
    ]


@pytest.mark.parametrize("known", [{"trained": True}, {"seen": True}], ids=str)
def test_machines_that_were_lost_later_or_are_known_to_be_refused_are_none_that_were_refused_now(
    known: dict[str, bool],
) -> None:
    home = Home()
    submitter(home).adopt_or_submit(refused_unseen(home, **known), None, 2)
    assert home.remembered.noted == []


# A caller without a later try, and a try that gives up


@pytest.mark.parametrize("fails", [True, False])
def test_who_has_no_later_try_asks_as_a_try_does_and_leaves_no_node_behind(
    caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    home, key = Model(), a_key()

    def late() -> None:
        recorded(home, home.has(key, [LIVE, LIVE]))
        raise BackendError("no answer", retryable=True)

    if fails:
        home.on_submit = late
        with pytest.raises(BackendError, match="no answer"):
            submitter(home).submit_or_end(key, 2, 5)
        assert home.done("cancel") == [f"job-{key.name}"]
        assert f"{key.name}: the nodes that this try has created are cancelled" in caplog.messages
    else:
        assert submitter(home).submit_or_end(key, 2, 5).ref.complete
        assert home.done("cancel") == []
    (plan,) = home.done("submit")
    assert (plan.tries.try_number, plan.tries.max_tries, plan.tries.retries) == (2, 0, 5)


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_try_that_may_be_killed_reaches_other_homes_before_and_asks_nothing_of_airflow_then(
    *, is_prepared: bool
) -> None:
    home, other, key, reached = Model(), Model(), a_key(), list[str]()
    elsewhere = Attempt(key=key, place=Place(backend="other", run_dir="oci://b@n/other", compartment_id="x"))

    def reach(kind: str) -> Model:
        reached.append(kind)
        return other

    notes = Notes({NOTE: {"attempts": [elsewhere.to_json()]}})
    gang = submitter(home, notes=notes, reach=reach)
    why = BackendError("its time is over")
    if is_prepared:
        canceller = gang.earlier_canceller(key, 1, why)
        assert reached == ["other"]
        canceller()
        assert reached == ["other"]
    else:
        gang.cancel_earlier(key, 1, why)
        assert reached == ["other"]
