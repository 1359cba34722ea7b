"""Real agents and real torchrun on three hosts: what becomes of the others when one is cut off, dies, or is slow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from airflow_provider_ocidist.model.report import Phase
from tests.containers.hosts import Host, Lab, why_not

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ALL_REDUCE = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(int(sys.argv[1])):
    started = time.monotonic()
    dist.all_reduce(torch.ones(1 << 20))
    print(f"step {step} took {time.monotonic() - started:.3f} s", flush=True)
    time.sleep(5 if step == 3 else 0.2)
dist.destroy_process_group()
"""
LOST_TIMEOUT = 20.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Lab(tmp_path, hosts=3) as lab:
        yield lab


def train(lab: Lab, steps: int) -> Sequence[Host]:
    return lab.run(
        ALL_REDUCE,
        program=Program(script="program.py", args=(str(steps),)),
        launcher=LauncherOptions(kind="torchrun", processes_per_node=1),
        limits=Limits(join_timeout=60.0, stop_grace=5.0, lost_timeout=LOST_TIMEOUT),
    )


def seconds_until_all_have_ended(hosts: Sequence[Host]) -> float:
    started = time.monotonic()
    for host in hosts:
        host.wait()
    return time.monotonic() - started


def test_when_everything_on_a_host_is_killed_the_others_end_and_name_it(lab: Lab) -> None:
    first, second, third = train(lab, steps=10_000)
    second.prints("step 3 ")
    first.kill()
    assert seconds_until_all_have_ended([second, third]) < 50
    reports = [second.report, third.report]
    assert {report.phase for report in reports} == {Phase.DONE}
    assert Cause.NODE in {report.cause for report in reports}
    assert all("node 0" in str(report.message) for report in reports), reports


def test_a_host_that_is_cut_off_ends_by_itself_and_the_others_name_it(lab: Lab) -> None:
    first, second, third = train(lab, steps=10_000)
    first.prints("step 3 ")
    second.cut_off(lab.shared)
    assert seconds_until_all_have_ended([first, third]) < 50
    reports = [first.report, third.report]
    assert Cause.NODE in {report.cause for report in reports}
    assert all("node 1" in str(report.message) for report in reports), reports
    assert second.wait() == 69
    assert "this node is cut off" in second.stderr.read_text()


def test_a_slow_link_that_loses_packets_slows_the_training_and_fails_nothing(lab: Lab) -> None:
    hosts = train(lab, steps=8)
    hosts[0].prints("step 3 ")
    hosts[1].slow_down("20mbit")
    hosts[1].lose_packets(0.05)
    assert [host.wait() for host in hosts] == [0, 0, 0]
    last = hosts[1].stdout.read_text().splitlines()[-1]
    # Of 4 MiB every host sends 4/3 in a ring of three: 45 Mbit, of which the link carries 20 in a second.
    assert float(last.split()[3]) > 1.0
