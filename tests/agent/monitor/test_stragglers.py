"""Who is slower than the others: named with the step time beside the median, and with the state of the machine."""

from __future__ import annotations

import logging
import os
import random
import re
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.stragglers import (
    ANSWER_LIMIT,
    FEWEST_STEPS,
    FIRST_LOOK,
    LONGEST_PAUSE,
    SlownessWatch,
    StragglerWatch,
    find_slow,
)
from airflow_provider_ocidist.job import Limits
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, RankPace, Slow
from tests.agent.gangs import Gang

SEED = int(os.environ.get("HANGS_SEED", "20261123"))


def report(
    node: int, *paces: RankPace, phase: Phase = Phase.TRAINING, step_time: float | None = None
) -> NodeReport:
    progress = Progress(paces=paces, step_time=step_time)
    return NodeReport(rank=node, phase=phase, address="", started_at=0.0, heartbeat_at=0.0, progress=progress)


@pytest.mark.parametrize("number", range(40))
def test_a_process_that_takes_half_as_long_again_as_the_median_is_slow_and_no_other(number: int) -> None:
    draw = random.Random(f"{SEED}.{number}")
    print(f"seed {SEED}.{number}")
    times = {rank: draw.uniform(0.5, 0.7) for rank in range(draw.randint(2, 12))}
    slow = set(draw.sample(list(times), draw.randint(0, (len(times) - 1) // 2)))
    times |= {rank: times[rank] * draw.uniform(2.5, 9) for rank in slow}
    of_node = {rank: rank // 3 for rank in times}
    reports = [
        report(node, *(RankPace(rank=r, seconds=s, steps=9) for r, s in times.items() if of_node[r] == node))
        for node in sorted(set(of_node.values()))
    ]
    found = find_slow(reports)
    assert {each.rank for each in found} == slow
    assert all(
        (each.node, each.seconds) == (of_node[each.rank or 0], times[each.rank or 0]) for each in found
    )
    assert all(each.median == statistics.median_low(times.values()) for each in found)
    assert [each.seconds for each in found] == sorted((each.seconds for each in found), reverse=True)


def test_nobody_is_slow_alone_or_by_noise_or_by_the_first_steps() -> None:
    assert find_slow([report(0, RankPace(rank=0, seconds=9.0, steps=20))]) == ()
    noise = [report(rank, RankPace(rank=rank, seconds=0.001 * (1 + rank), steps=20)) for rank in range(3)]
    assert find_slow(noise) == ()
    early = [report(r, RankPace(rank=r, seconds=1.0 + 9 * r, steps=FEWEST_STEPS - 1)) for r in range(2)]
    assert find_slow(early) == ()
    saving = [report(0, step_time=1.0), report(1, step_time=9.0, phase=Phase.SAVING)]
    assert find_slow(saving) == ()


def test_without_own_times_nodes_are_compared_by_the_steps_that_they_show() -> None:
    (found,) = find_slow([report(0, step_time=0.2), report(1, step_time=0.9), report(2, step_time=0.21)])
    assert (found.rank, found.node, found.seconds, found.median) == (None, 1, 0.9, 0.21)


# The state of its machine


@dataclass
class Watched:
    """Three nodes, of which one is slow, second by second: its machine is checked when it reads that, or never."""

    slow: int
    takes: float
    """Seconds that the check takes from the question on."""
    is_sick: bool
    becomes_slow_at: float = 0.0
    now: float = 0.0
    asked_at: float | None = None
    published: tuple[Slow, ...] = ()

    def clock(self) -> float:
        return self.now

    def reports(self) -> list[NodeReport]:
        return [self.report(rank) for rank in range(3)]

    def report(self, rank: int) -> NodeReport:
        is_slow = rank == self.slow and self.now >= self.becomes_slow_at
        pace = RankPace(rank=rank, seconds=9.0 if is_slow else 1.0, steps=9)
        is_checked = self.asked_at is not None and self.now >= self.asked_at + self.takes
        has_answered = rank == self.slow and is_checked
        # The clocks of the nodes are years apart.
        its_clock = 1e8 * rank
        return replace(
            report(rank, pace),
            heartbeat_at=its_clock + self.now,
            health_at=its_clock + (self.asked_at or 0.0) + self.takes if has_answered else its_clock,
            health=("the disk is full",) if has_answered and self.is_sick else (),
            slow=self.published if rank == 0 else (),
        )

    def ask(self) -> None:
        assert self.asked_at is None, "once"
        self.asked_at = self.now

    def publish(self, slow: tuple[Slow, ...]) -> None:
        self.published = slow

    def go_on(self, seconds: float) -> None:
        main = StragglerWatch(self.reports, self.publish, self.clock)
        own = SlownessWatch(self.slow, lambda: self.report(0), self.ask, self.clock)
        while self.now < seconds:
            main.look()
            if self.slow == 0:
                own.heed(self.published)
            else:
                own.look()
            self.now += 0.5


@pytest.mark.parametrize("number", range(30))
def test_a_slow_node_is_named_once_with_what_a_check_has_found_since(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    draw = random.Random(f"{SEED}.checked.{number}")
    slow, at = draw.randrange(3), draw.choice([0.0, draw.uniform(0.0, 900.0)])
    takes = draw.uniform(0.1, ANSWER_LIMIT - LONGEST_PAUSE - 2 * FIRST_LOOK)
    watched = Watched(slow=slow, takes=takes, is_sick=draw.random() < 0.5, becomes_slow_at=at)
    print(f"seed {SEED}.checked.{number}: {watched}")
    watched.go_on(at + 2 * ANSWER_LIMIT)
    (said,) = [record.getMessage() for record in caplog.records]
    state = f"its machine, node {slow}, is unhealthy: the disk is full" if watched.is_sick else WELL
    assert said == f"rank {slow} (on node {slow}) is slow: 9 s for a step, the median is 1 s; {state}"


def test_a_slow_node_whose_machine_does_not_answer_is_named_with_the_age_of_the_last_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Watched(slow=1, takes=1e9, is_sick=False).go_on(3 * ANSWER_LIMIT)
    (said,) = [record.getMessage() for record in caplog.records]
    found = re.search(f"; {WELL} ([0-9]+) s ago, and it has not been checked since$", said)
    assert found, said
    assert ANSWER_LIMIT < int(found[1]) <= ANSWER_LIMIT + 2 * FIRST_LOOK


def test_nothing_is_asked_of_a_node_while_none_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched(slow=1, takes=1.0, is_sick=True, becomes_slow_at=1e9)
    watched.go_on(500.0)
    assert watched.asked_at is None
    assert not caplog.records


def test_exactly_half_as_long_again_is_not_slow() -> None:
    assert find_slow([report(0, step_time=2.0), report(1, step_time=2.0), report(2, step_time=3.0)]) == ()
    (found,) = find_slow([report(0, step_time=2.0), report(1, step_time=2.0), report(2, step_time=3.01)])
    assert found.node == 2


def test_a_slow_node_whose_report_cannot_be_read_any_more_is_named_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = Watched(slow=1, takes=1e9, is_sick=False)
    gone_at = 2 * FIRST_LOOK

    def reports() -> list[NodeReport]:
        return [each for each in watched.reports() if each.rank != 1 or watched.now < gone_at]

    watch = StragglerWatch(reports, watched.publish, watched.clock)
    while watched.now < 2 * ANSWER_LIMIT:
        watch.look()
        watched.now += 0.5
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.endswith("9 s for a step, the median is 1 s; its machine has not been checked")


OWN_TIMES = """
import json, os, time
node = int(os.environ["OCIDIST_NODE_RANK"])
mine = 0.2 if node == 1 else 0.02
for step in range(1, 10_000):
    # Each step takes as long on every node: they wait for one another.
    time.sleep(0.2)
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "rank": node, "seconds": mine}) + "\\n")
"""
PACES = """
import os, time
for step in range(1, 10_000):
    time.sleep(0.5 if os.environ["OCIDIST_NODE_RANK"] == "1" else 0.05)
    print("step", step, flush=True)
"""


SICK_LATER = """#!/bin/sh
# Well when the training begins, and throttled by its hardware from then on.
case "$*" in *throttle*) ;; *) exit 6 ;; esac
if [ -e "$0.begun" ]; then state=Active; else touch "$0.begun"; state="Not Active"; fi
echo "0, 0, Not Active, $state, Not Active"
"""
WELL = "nothing was found wrong with its machine"
SICK = "its machine, node 1, is unhealthy: GPU 0 is slowed down: throttled by the power supply"


@pytest.mark.parametrize(
    "who, script, state", [("rank 1 (on node 1)", OWN_TIMES, SICK), ("node 1", PACES, WELL)]
)
def test_the_slow_one_of_a_real_gang_is_named_with_the_state_of_its_machine_by_then(
    tmp_path: Path, who: str, script: str, state: str
) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SICK_LATER)
    smi.chmod(0o755)
    with Gang(tmp_path, script, nodes=3, limits=Limits(stop_grace=1.0, join_timeout=60.0)) as three:
        first = three.start(0)[0]
        path = f"{smi.parent}:{os.environ['PATH']}" if state == SICK else os.environ["PATH"]
        three.start(1, PATH=path)
        three.start(2)
        first.shows(lambda: f"{who} is slow: " in first.stderr.read_text())
        first.shows(lambda: first.report.slow)
        (slow,) = first.report.slow
        said = first.stderr.read_text()
    assert slow.node == 1
    assert slow.seconds > 1.5 * slow.median
    assert f"; {state}" in said
    assert said.count("is slow: ") == 1, "once"
