"""A process that waits for a gang shows that to the nodes, often enough and no more."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError
from airflow_provider_ocidist.gangs import leases as renewals_module
from airflow_provider_ocidist.gangs.leases import AT_A_TIME, PAUSE, RENEWALS, LeaseKeeper, Renewals
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job import Limits
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import Ending, RunRecord, RunRef
from airflow_provider_ocidist.model.work_dir import LEASE_FILE
from scripts.emulator_process import Access
from tests.gangs.records import record as a_record
from tests.http_client import http
from tests.training_jobs import a_job, a_key, wait_until

LEASE = 7200.0


class Place(OciDataScience):
    """A backend that only notes when it was asked to renew; a store that is down."""

    directories = property(lambda self: self)

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.renewed_at: list[float] = []
        self.refuses = False

    def renew(self, ref: RunRef) -> None:
        self.renewed_at.append(self.clock.now)
        if self.refuses:
            raise BackendError(f"{ref.key.name}: the store is down", retryable=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waits(record: RunRecord, seconds: float, *, refuses: bool = False) -> tuple[list[float], list[str]]:
    """Look every ten seconds for so long; return when the lease was renewed, and what was said."""
    clock = Clock()
    place, said = Place(clock), []
    place.refuses = refuses
    renewals = Renewals(place, lambda text, error: said.append(text % error), clock)
    while clock.now < seconds:
        renewals.keep_up(record)
        clock.now += 10
    return place.renewed_at, said


def test_a_lease_is_renewed_at_once_and_six_times_in_its_length() -> None:
    renewed_at, _ = waits(a_record(lease=LEASE), LEASE)
    assert renewed_at == [0, 1200, 2400, 3600, 4800, 6000]


def test_a_renewal_that_failed_is_tried_again_before_the_next_and_no_reason_to_stop() -> None:
    renewed_at, said = waits(a_record(lease=LEASE), 1200, refuses=True)
    assert len(renewed_at) == 10
    assert said[0].endswith("the store is down; will renew the lease (limits.lease) later")


@pytest.mark.parametrize(
    "record",
    [a_record(), a_record(lease=LEASE, ending=Ending(cause=Cause.USER, message="x", since=0))],
    ids=["of those who only watch", "of a gang that is being ended"],
)
def test_a_gang_that_is_not_ours_to_keep_is_not_kept(record: RunRecord) -> None:
    assert waits(record, LEASE) == ([], [])


class Gang:
    """A gang with a lease, in a store whose renewals may fail."""

    def __init__(
        self, clock: Clock, *, lease: float = 60.0, refuses: bool = False, takes: float = 0.0
    ) -> None:
        self._clock, self._takes, self._place = clock, takes, Place(clock)
        self._place.refuses = refuses
        self._record = a_record(lease=lease)
        self._renewals = Renewals(self._place, lambda *_: None, clock)

    @property
    def lease_due_at(self) -> float:
        return self._renewals.due_at(self._record)

    def keep_lease(self) -> bool:
        kept = self._renewals.keep_up(self._record)
        self._clock.now += self._takes
        return kept

    @property
    def longest_gap(self) -> float:
        """Seconds between two renewals, or from the last one until now."""
        times = [*self._place.renewed_at, self._clock.now]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def kept_for(seconds: float, clock: Clock, gangs: list[Gang], monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = LeaseKeeper(clock)
    # Without its own thread; and in one thread, for the clock is a number that all add to.
    keeper._kept.update((id(gang), gang) for gang in gangs)
    monkeypatch.setattr(renewals_module, "in_parallel", lambda work, some: [work(gang) for gang in some])
    while clock.now < seconds:
        clock.now += max(keeper.renew_some(), 0.01)


def test_no_gang_of_many_is_kept_less_often_than_its_lease_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    gangs = [Gang(clock, takes=0.05) for _ in range(100)]
    kept_for(600, clock, gangs, monkeypatch)
    assert max(gang.longest_gap for gang in gangs) <= 60.0 / RENEWALS + 100 * 0.05 + PAUSE


def test_gangs_whose_store_refuses_do_not_starve_those_that_come_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    broken = [Gang(clock, lease=600.0, refuses=True, takes=0.2) for _ in range(3 * AT_A_TIME)]
    sound = [Gang(clock) for _ in range(3 * AT_A_TIME)]
    kept_for(600, clock, [*broken, *sound], monkeypatch)
    assert max(gang.longest_gap for gang in sound) <= 30.0


def test_a_renewal_without_an_answer_does_not_outlive_the_process_that_waited() -> None:
    program = (
        "import threading\n"
        "from types import SimpleNamespace\n"
        "from airflow_provider_ocidist.gangs.leases import LeaseKeeper\n"
        "asked = threading.Event()\n"
        "silent = lambda: asked.set() or threading.Event().wait()\n"
        "LeaseKeeper().keep(SimpleNamespace(lease_due_at=0.0, keep_lease=silent))\n"
        "print(asked.wait(60))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_renewal_that_fails_for_a_reason_nobody_thought_of_is_tried_again() -> None:
    clock, said = Clock(), []

    class Odd(Place):
        def renew(self, ref: RunRef) -> None:
            raise KeyError("x")

    renewals = Renewals(Odd(clock), lambda text, error: said.append(text % error), clock)
    assert not renewals.keep_up(a_record(lease=LEASE))
    assert renewals.due_at(a_record(lease=LEASE)) == LEASE / 60
    assert said == ["'x'; will renew the lease (limits.lease) later"]


def test_a_submitted_gang_has_its_first_renewal_and_its_keeper_renews_it_at_once(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    job = a_job(nodes=1, seconds=60)
    job = replace(job, limits=replace(job.limits, lease=LEASE))
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    store = backend._store(ref.run_dir)
    first = store.read(LEASE_FILE)
    (found,) = backend.gangs.find(plan)
    assert (ref.lease, found.lease) == (LEASE, LEASE)
    watch = Watch(backend, RunRecord.of(found, job, plan.expects), logging.getLogger("test"))
    deadline = time.monotonic() + 20
    with LeaseKeeper().keeping(watch):
        while store.read(LEASE_FILE) == first and time.monotonic() < deadline:
            time.sleep(0.05)
    assert store.read(LEASE_FILE) != first


def test_nodes_of_the_service_end_when_nobody_waits_for_them(
    backend: OciDataScience, ends: Callable[[RunRef], RunRef]
) -> None:
    job = a_job(nodes=2, seconds=90)
    job = replace(job, limits=Limits(lease=3.0, stop_grace=1.0))
    ref = ends(backend.submit(backend.plan(job, a_key())))
    status = wait_until(backend, ref, lambda status: status.ended, seconds=60)
    causes = {node.report.cause for node in status.nodes if node.report}
    assert Cause.ABANDONED in causes


@pytest.mark.parametrize("written, seconds", [("2h", 7200), ("0", 0), (0, 0), (None, None)])
def test_a_job_names_its_lease_or_has_none(
    written: Any, seconds: float | None, fields: dict[str, Any]
) -> None:
    job = a_job(limits={"lease": written})
    assert job.limits.lease == seconds
    plan = OciDataScience.connect(fields).plan(job, a_key())
    assert plan.lease == (seconds or None)


@pytest.mark.parametrize(
    "written, told",
    [
        ("30s", "limits.lease: is 30 s: a triggerer that is restarted takes longer"),
        (-1, "limits.lease: must be a number of seconds, 0 or above 0, or as 90s, 15m, 2h, 1d, not -1"),
    ],
)
def test_a_lease_that_cannot_be_kept_is_refused(written: Any, told: str) -> None:
    with pytest.raises(JobFileError, match=told):
        parsing.build({"name": "x", "program": {"script": "a.py"}, "limits": {"lease": written}})


def test_a_work_dir_that_cannot_be_written_is_reported_before_there_is_a_node(
    backend: OciDataScience, emulator: Access
) -> None:
    plan = backend.plan(a_job(nodes=1, limits={"lease": "2h"}), a_key())
    rule = {"path": f".*{LEASE_FILE}", "status": 403}
    http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()
    try:
        with pytest.raises(BackendError, match="work_dir cannot be used"):
            backend.submit(plan)
    finally:
        http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()
    assert backend.gangs.find(plan) == []
