"""Who is slower than the others: named with the step time beside the median, and with the state of the machine."""

from __future__ import annotations

import os
import random
import statistics
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.stragglers import FEWEST_STEPS, find_slow
from airflow_provider_ocidist.job import Limits
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, RankPace
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


@pytest.mark.parametrize("who, script", [("rank 1 (on node 1)", OWN_TIMES), ("node 1", PACES)])
def test_the_slow_one_of_a_real_gang_is_named_in_log_and_report(
    tmp_path: Path, who: str, script: str
) -> None:
    with Gang(tmp_path, script, nodes=3, limits=Limits(stop_grace=1.0, join_timeout=60.0)) as three:
        first = three.start()[0]
        first.shows(lambda: f"{who} is slow: " in first.stderr.read_text())
        first.shows(lambda: first.report.slow)
        (slow,) = first.report.slow
        said = first.stderr.read_text()
    assert slow.node == 1
    assert slow.seconds > 1.5 * slow.median
    assert "nothing was found wrong with its machine" in said
    assert said.count("is slow: ") == 1, "once"
