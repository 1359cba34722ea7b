"""Clocks that differ: every limit of a gang at Run:ai goes by the control plane's clock, on whichever machine.

Each machine is a process with a clock of its own; the control plane's is right.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import pytest

from airflow_provider_ocidist.model.run import RunRecord
from tests.backends.runai.another_machine import AnotherMachine
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane
from tests.training_jobs import PROGRAMS, a_key

SEED = random.randrange(10_000)
APART = (0.0, 130.0, 1860.0)
"""Seconds by which the machines' clocks are ahead of the slowest one's: OCI's tolerance, and 31 minutes."""
Machines = Sequence[AnotherMachine]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    print("seed", SEED)
    slowest = random.Random(SEED).uniform(-1860, 60)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(AnotherMachine(slowest + ahead)) for ahead in APART]


def a_job(**limits: Any) -> Mapping[str, Any]:
    return {
        "name": "steps",
        "nodes": 2,
        "image": "python:3.11",
        "program": {"source": str(PROGRAMS), "script": "steps.py"},
        "launcher": {"kind": "python"},
        "limits": {"stop_grace": 1, **limits},
        "backend": {"kind": "runai"},
    }


def test_a_queued_gang_is_left_alone_whatever_the_clocks_of_its_submitter_and_its_watchers(
    plane: Plane, fields: dict[str, Any], machines: Machines
) -> None:
    del plane
    for submitter, watcher in permutations(machines, 2):
        job = a_job(start_timeout="2m", max_runtime="2m")
        record = submitter.submit(fields, job, a_key(), task_s=100)
        found = watcher.look(fields, record)
        assert found.action == "Wait", f"{watcher.ahead - submitter.ahead:.0f} s apart: {found.said}"


def test_a_gang_that_stays_queued_is_ended_also_by_a_watcher_that_is_far_behind(
    plane: Plane, fields: dict[str, Any], machines: Machines
) -> None:
    record = machines[-1].submit(fields, a_job(start_timeout=2), a_key())
    for watcher in machines:
        found = plane.until(partial(watcher.look, fields, record), lambda it: it.action == "Cancel")
        assert "did not start within 2 s (limits.start_timeout)" in found.said


def cancelled(
    plane: Plane, cluster: PaperCluster, fields: dict[str, Any], machine: AnotherMachine
) -> RunRecord:
    """Return the record of a gang that a machine has just cancelled, and that does not end yet."""
    record = machine.submit(fields, a_job(), a_key())
    plane.until(lambda: cluster.names("Pod"), bool)
    cluster.holds_deletions = True
    late = replace(record, deadline=record.ref.submitted_at - 10)
    found = machine.look(fields, late, ends=True)
    assert found.action == "Cancel"
    plane.becomes(record.ref.job_id, "Deleting")
    return found.record


def test_nobody_gives_up_right_after_a_cancel_by_a_machine_that_is_half_an_hour_behind(
    plane: Plane, cluster: PaperCluster, fields: dict[str, Any], machines: Machines
) -> None:
    for canceller, watcher in permutations(machines, 2):
        record = cancelled(plane, cluster, fields, canceller)
        found = watcher.look(fields, record)
        assert found.action == "Wait", f"{watcher.ahead - canceller.ahead:.0f} s apart: {found.said}"
        cluster.finish_deletions()
        cluster.holds_deletions = False


def test_everybody_gives_up_half_an_hour_after_the_cancel(
    plane: Plane, cluster: PaperCluster, fields: dict[str, Any], machines: Machines
) -> None:
    record = cancelled(plane, cluster, fields, machines[-1])
    assert record.ending is not None
    long_ago = replace(record, ending=replace(record.ending, since=record.ending.since - 1805))
    for watcher in machines:
        found = watcher.look(fields, long_ago)
        assert found.action == "Fail", f"{watcher.ahead:.0f} s ahead: {found.said}"
        assert "NOT ENDED" in found.said


def test_what_is_submitted_bears_the_time_of_the_control_plane(
    plane: Plane, fields: dict[str, Any], machines: Machines
) -> None:
    del plane
    for machine in machines:
        record = machine.submit(fields, a_job(), a_key())
        # The control plane runs in this process.
        assert record.ref.submitted_at == pytest.approx(time.time(), abs=60)
