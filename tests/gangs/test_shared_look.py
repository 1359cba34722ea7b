"""One look at several gangs: few calls, and an error harms only those that it concerns."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from airflow_provider_ocidist.gangs.actions import Wait
from airflow_provider_ocidist.gangs.log_follower import LogFollower
from airflow_provider_ocidist.gangs.shared_look import look_together
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.run import RunKey, RunRecord, RunRef, RunStatus
from tests.gangs.test_poller import Gangs


class Odd(Gangs):
    """A backend that returns nonsense for one compartment, and for all log lines."""

    def status(self, refs: Sequence[RunRef]) -> list[RunStatus]:
        if refs[0].compartment_id == "odd":
            raise KeyError("logContent")
        return super().status(refs)

    def logs_of(self, wanted: Any, most: int = 0) -> Any:
        raise KeyError("logContent")


def a_watch(backend: Gangs, name: str, compartment_id: str) -> Watch:
    ref = RunRef(
        backend="x",
        key=RunKey(dag_id="dag", run_id="run", task_id="x"),
        nodes=1,
        job_id=name,
        run_ids=(name,),
        run_dir=name,
        submitted_at=1.0,
        compartment_id=compartment_id,
    )
    return Watch(backend, RunRecord(ref=ref, logs_since=(1.0,)), logging.getLogger("test"))


def test_the_states_of_all_gangs_of_a_compartment_are_read_in_one_call() -> None:
    backend = Gangs()
    watches = [a_watch(backend, f"gang-{number}", "ab"[number % 2]) for number in range(6)]
    found = look_together(backend, watches, time.time())
    assert found.outcomes == (Wait(),) * 6
    assert backend.looks == [["gang-0", "gang-2", "gang-4"], ["gang-1", "gang-3", "gang-5"]]


def test_a_state_that_cannot_be_made_out_harms_only_its_own_compartment() -> None:
    backend = Odd()
    watches = [a_watch(backend, place, place) for place in ("odd", "sound")]
    found = [look_together(backend, watches, time.time()).outcomes for _ in range(3)]
    assert found[:2] == [(Wait(), Wait())] * 2
    assert isinstance(found[2][0], KeyError)
    assert found[2][1] == Wait()


class Asked(Gangs):
    """A backend that knows no time, and notes from when on lines are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.since: list[Sequence[float]] = []

    def logs_of(self, wanted: Any, most: int = 0) -> Any:
        self.since += [since for _, since in wanted]
        return super().logs_of(wanted, most)


def test_where_the_service_knows_no_time_lines_are_read_by_the_clock_of_who_looks() -> None:
    backend = Asked()
    watch = a_watch(backend, "gang", "a")
    for now in (1000.0, 1010.0):
        look_together(backend, [watch], now)
    assert backend.since == [[1.0], [1000.0 - LogFollower.LAG]]
