"""A training whose machines are not used is ended; one that works, fetches or saves on any node is not."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.monitor import usage
from airflow_provider_ocidist.agent.monitor.idle import IdleWatch, is_used
from airflow_provider_ocidist.agent.monitor.usage import UsageMeter
from airflow_provider_ocidist.agent.monitor.watches import SAMPLES
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Limits, Restarts
from airflow_provider_ocidist.model.report import NodeReport, Usage
from tests.agent.gangs import Gang

SEED = random.randrange(10_000)
SLEEPS = """
import os, sys, time
end = time.monotonic() + float(sys.argv[1])
works = os.environ["RANK"] in sys.argv[2:]
while time.monotonic() < end:
    if not works:
        time.sleep(0.5)
"""


def test_a_gang_is_idle_exactly_when_all_its_nodes_are_known_to_be() -> None:
    print("seed", SEED)
    draw = random.Random(SEED)
    for _ in range(500):
        idle = [draw.choice([None, draw.uniform(0, 200)]) for _ in range(draw.randrange(1, 6))]
        said: list[str] = []
        watch = IdleWatch(100.0, own=lambda: idle[0], others=lambda: idle[1:], declare=said.append)  # noqa: B023 - ends with the loop
        watch.look()
        watch.look()
        assert len(said) == all(each is not None and each >= 100.0 for each in idle), idle


@pytest.mark.parametrize(
    "seen, used",
    [
        (Usage(cores=0.03), False),
        (Usage(cores=0.03, gpu=0.0), False),
        (Usage(cores=0.5), True),
        (Usage(cores=0.03, gpu=0.4), True),
        (Usage(), False),
    ],
)
def test_a_machine_is_used_by_its_processors_or_its_gpus(seen: Usage, used: bool) -> None:
    assert is_used(seen) is used


@pytest.mark.parametrize(
    "seen, used",
    [
        (Usage(cores=0.03), None),
        (Usage(cores=0.03, gpu=0.0), False),
        (Usage(cores=0.5), True),
        (Usage(cores=0.03, gpu=0.4), True),
        (Usage(), None),
    ],
)
def test_of_a_machine_with_gpus_their_use_must_be_known(seen: Usage, used: bool | None) -> None:
    assert is_used(seen, has_gpus=True) is used


@pytest.mark.parametrize(
    "busy, idle", [("0", True), ("35", False), ("0 0 0 0 0 0 12 0", False), ("1 0 1 1", True)]
)
def test_gpus_are_asked_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, busy: str, idle: bool
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\nfor share in {busy}; do echo "$share, 0, 40000, 80000"; done\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(usage, "processor_time", lambda _: 0.0)
    now = [1000.0]
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    meter = UsageMeter(1, lambda _: None, lambda: None)
    now[0] += 60.0
    assert meter.look().idle == (60.0 if idle else 0.0)


ANSWERS = {
    "at rest": (["0, 0, 40000, 80000"] * 2, False),
    "at work": (["0, 0, 40000, 80000", "35, 9, 40000, 80000"], True),
    "a slice": (["[N/A], [N/A], 10, 20000"], None),
    "a slice beside one at rest": (["0, 0, 40000, 80000", "[N/A], [N/A], 10, 20000"], None),
    "a slice beside one at work": (["35, 9, 40000, 80000", "[N/A], [N/A], 10, 20000"], True),
    "no memory": (["0, 0, 0, 0"], None),
    "nothing": ([], None),
    "fails": (None, None),
}
"""What nvidia-smi prints, None where it fails; and whether a GPU was in use, None where that is not known."""


@pytest.mark.parametrize("number", range(10))
def test_a_machine_whose_gpus_are_not_known_to_rest_is_not_known_to_be_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    draw, table = random.Random(f"{SEED}.{number}"), tmp_path / "table"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nexec cat {table}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    now, cores = [1000.0], [0.0]
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(usage, "processor_time", lambda _: cores[0])
    meter = UsageMeter(1, lambda _: None, lambda: None)
    rested_since = now[0]
    for _ in range(12):
        name, works = draw.choice(sorted(ANSWERS)), draw.random() < 0.2
        lines, of_gpus = ANSWERS[name]
        table.unlink(missing_ok=True)
        if lines is not None:
            table.write_text("".join(f"{line}\n" for line in lines))
        now[0] += 60.0
        cores[0] += 30.0 if works else 0.0
        print(f"seed {SEED}.{number}: {name}, processors at work: {works}")
        used = True if works else of_gpus
        rested_since = rested_since if used is False else now[0]
        assert meter.look().idle == (None if used is None else now[0] - rested_since)


def test_a_driver_that_does_not_answer_in_time_says_nothing_of_the_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\nexec sleep 600\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(usage, "SMI_LIMIT", 0.2)
    meter = UsageMeter(os.getpid(), lambda _: None, lambda: None)
    monkeypatch.setattr(usage, "processor_time", lambda _: 0.0)
    assert meter.look().idle is None


def test_a_gpu_that_begins_to_work_is_noticed_within_the_limit_however_short_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi, share = tmp_path / "nvidia-smi", tmp_path / "share"
    smi.write_text(f'#!/bin/sh\necho "$(cat {share}), 0, 40000, 80000"\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(usage, "processor_time", lambda _: 0.0)
    now, limit = [1000.0], random.Random(SEED).uniform(2.0, 25.0)
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    meter = UsageMeter(1, lambda _: None, lambda: None, limit / SAMPLES)
    share.write_text("0")
    meter.look()
    share.write_text("90")
    for _ in range(2 * SAMPLES):
        now[0] += limit / SAMPLES
        assert (meter.look().idle or 0.0) < limit, f"seed {SEED}"


def run(
    tmp_path: Path,
    nodes: int,
    seconds: int,
    *working: str,
    limit: float = 4.0,
    environ: dict[str, str] | None = None,
    **changes: Any,
) -> list[NodeReport]:
    limits = Limits(idle=limit, stop_grace=2.0, join_timeout=30.0)
    args = [str(seconds), *working]
    with Gang(tmp_path, SLEEPS, nodes=nodes, args=args, limits=limits, **changes) as gang:
        gang.run(**(environ or {}))
        return [agent.report for agent in gang.agents]


@pytest.mark.parametrize("restarts", [Restarts(), Restarts(program=2, hang=2)])
def test_a_gang_that_sleeps_is_ended_with_its_cause_whatever_may_be_launched_again(
    tmp_path: Path, restarts: Restarts
) -> None:
    reports = run(tmp_path, 2, 120, restarts=restarts)
    assert Cause.IDLE in [report.cause for report in reports]
    assert [report.restarts for report in reports] == [(), ()]


def test_nodes_that_wait_for_one_that_works_are_not_idle(tmp_path: Path) -> None:
    assert [report.cause for report in run(tmp_path, 2, 9, "1", limit=3.0)] == [None, None]


@pytest.mark.parametrize("answer", ["echo '[N/A], [N/A], 10, 20000'", "exit 9"], ids=["slices", "fails"])
def test_nodes_whose_gpus_are_not_known_to_rest_are_left_alone(tmp_path: Path, answer: str) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\n{answer}\n")
    smi.chmod(0o755)
    path = {"PATH": f"{smi.parent}:{os.environ['PATH']}"}
    assert [report.cause for report in run(tmp_path, 2, 9, limit=3.0, environ=path)] == [None, None]


def test_without_a_limit_a_program_may_sleep(tmp_path: Path) -> None:
    limits = Limits(stop_grace=2.0)
    with Gang(tmp_path, SLEEPS, args=["3"], limits=limits) as gang:
        assert gang.run() == [0]
