"""A gang trains on with fewer nodes, and admits those that come late."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose.outcome import STOPPED_CODE
from airflow_provider_ocidist.agent.node import REPLACED_LATE, patience_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits, Program
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.report import Phase, Restart, StopRequest
from tests.agent.gangs import Agent, Gang
from tests.agent.stages.test_restarts import gang

WORLDS = """
nodes = int(os.environ["OCIDIST_NODES"])
print(f"launch {launch}: {node} of {nodes}", flush=True)
at(10 * launch + 3)
until(lambda: (launch and nodes == 3) or os.path.exists(os.environ["OVER"]))
"""


def three(root: Path, **changes: Any) -> Gang:
    return gang(root, WORLDS, nodes=3, **{"replaces": True, "min_nodes": 2, **changes})


def start(gang: Gang) -> list[Agent]:
    agents = gang.start(OVER=str(gang.root / "over"))
    for agent in agents:
        agent.prints("launch 0: ")
        agent.shows(lambda agent=agent: agent.report.phase is Phase.TRAINING)
    return agents


def lose(gang: Gang, rank: int, by: int = signal.SIGKILL) -> list[Agent]:
    """Let a machine go, and the others train on without it; return them, by rank."""
    agents = start(gang)
    agents[rank].signal(by)
    members = tuple(each for each in range(3) if each != rank)
    lost = Restart(cause=Cause.NODE, message=f"node {rank}: gone", rank=rank, step=3, lost=(rank,))
    fewer = Restart(cause=Cause.CAPACITY, message="no machine", members=members)
    request = StopRequest(cause=Cause.CAPACITY, message="no machine", restarts=(lost, fewer))
    (gang.run_dir / "stop.json").write_bytes(request.to_json())
    others = [agents[each] for each in members]
    for number, agent in enumerate(others):
        agent.prints(f"launch 2: {number} of 2")
        agent.shows(lambda agent=agent: agent.report.phase is Phase.TRAINING)
    return others


def late(gang: Gang, rank: int, **environ: str) -> Agent:
    return gang.start(rank, **{INCARNATION_VARIABLE: "1", "OVER": str(gang.root / "over"), **environ})[-1]


@pytest.mark.parametrize("rank", [0, 2])
def test_the_others_train_on_without_a_lost_node_and_admit_the_one_that_comes_late(
    tmp_path: Path, rank: int
) -> None:
    with three(tmp_path) as gang:
        others = lose(gang, rank)
        assert [agent.report.main for agent in others] == [True, False]
        new = late(gang, rank)
        assert [agent.wait() for agent in (*others, new)] == [0, 0, 0]
        found = {agent.report.restarts for agent in (*others, new)}
        assert len(found) == 1
        assert [each.members for each in found.pop()][1:] == [others_of(rank), (0, 1, 2)]
        assert f"launch 3: {rank} of 3" in new.stdout.read_text()


def others_of(rank: int) -> tuple[int, ...]:
    return tuple(each for each in range(3) if each != rank)


def test_a_machine_that_was_called_lost_and_works_again_takes_no_part(tmp_path: Path) -> None:
    with three(tmp_path) as gang:
        others = lose(gang, 2, signal.SIGSTOP)
        asked = (gang.run_dir / "stop.json").read_bytes()
        gang.agents[2].signal(signal.SIGCONT)
        assert gang.agents[2].wait() == STOPPED_CODE
        assert (gang.run_dir / "stop.json").read_bytes() == asked
        (tmp_path / "over").touch()
        assert [agent.wait() for agent in others] == [0, 0]


def test_a_node_that_cannot_take_part_ends_alone(tmp_path: Path) -> None:
    with three(tmp_path) as gang:
        others = lose(gang, 2)
        asked = (gang.run_dir / "stop.json").read_bytes()
        new = late(gang, 2, OCIDIST_CODE_DIR=str(tmp_path / "nothing"))
        assert new.wait() != 0
        assert new.report.cause is not None
        assert (gang.run_dir / "stop.json").read_bytes() == asked
        (tmp_path / "over").touch()
        assert [agent.wait() for agent in others] == [0, 0]


def test_a_node_that_waits_for_the_next_checkpoint_ends_with_the_training(tmp_path: Path) -> None:
    kept = Checkpoints(uri=str(tmp_path / "kept"), required=False)
    with three(tmp_path, checkpoints=kept) as gang:
        others = lose(gang, 2)
        new = late(gang, 2)
        new.shows(lambda: new.waits)
        (tmp_path / "over").touch()
        assert [agent.wait() for agent in others] == [0, 0]
        assert new.wait() == STOPPED_CODE
        assert "without this node" in new.report.message


def test_a_node_that_waits_in_vain_for_a_checkpoint_ends_alone(tmp_path: Path) -> None:
    kept = Checkpoints(uri=str(tmp_path / "kept"), required=False)
    with three(tmp_path, checkpoints=kept) as gang:
        others = lose(gang, 2)
        asked = (gang.run_dir / "stop.json").read_bytes()
        short = replace(gang.config, limits=replace(gang.config.limits, join_timeout=1.0))
        new = late(gang, 2, **short.to_env())
        assert new.wait() == STOPPED_CODE
        report = new.report
        assert (report.phase, report.cause, report.leaves) == (Phase.DONE, None, True)
        assert "no checkpoint of the others came within 1 s (limits.join_timeout)" in report.message
        assert (gang.run_dir / "stop.json").read_bytes() == asked
        assert [agent.process.poll() for agent in others] == [None, None]
        (tmp_path / "over").touch()
        assert [agent.wait() for agent in others] == [0, 0]


@pytest.mark.parametrize(
    "changes, seconds",
    [
        ({}, 0.0),
        ({"replaces": True}, 340.0 + REPLACED_LATE),
        ({"replaces": True, "min_nodes": 2}, 340.0 + REPLACED_LATE),
    ],
)
def test_nodes_wait_until_the_last_machine_that_was_asked_for_is_given_up(
    changes: dict[str, Any], seconds: float
) -> None:
    limits, program = Limits(replace_timeout=100.0, lost_timeout=20.0), Program(script="train.py")
    config = AgentConfig(run_name="run", nodes=3, run_dir="/run", program=program, limits=limits, **changes)
    assert patience_of(config) == seconds
