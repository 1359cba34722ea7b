"""What nodes agree on when they meet for another launch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.meeting import meet_others
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.train.launch import load_launcher
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE, report_of


@pytest.mark.parametrize("seed", range(20))
def test_a_new_node_takes_itself_for_no_lost_one_however_many_were_shown_as_lost_one_after_another(
    tmp_path: Path, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    nodes = dice.randint(3, 5)
    lost = dice.sample(range(nodes), dice.randint(2, nodes - 1))
    # A node in the place of a lost one reads the request when its own loss stands in it, or later ones too.
    known = {rank: dice.choice([shown, shown, len(lost)]) for shown, rank in enumerate(lost, 1)}
    own = dice.choice(lost)

    def agreed(count: int) -> tuple[Restart, ...]:
        return (Restart(cause=Cause.NODE, message="lost", rank=lost[0], lost=tuple(sorted(lost[:count]))),)

    config = AgentConfig(
        run_name="run",
        nodes=nodes,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        launcher=LauncherOptions(kind="python"),
    )
    environ = {"OCIDIST_NODE_RANK": f"{own}", "OCIDIST_INCARNATION": "1", "HOME": str(tmp_path)}
    context = NodeContext(config, {**environ, "FQDN": f"127.0.99.{own + 1}"}, StopSwitch())
    heartbeat = context.heartbeat
    heartbeat.take_part(agreed(known[own]))
    for rank in {*range(nodes)} - {own}:
        other = NodeReport(
            rank=rank,
            phase=Phase.JOINING,
            address=f"127.0.99.{rank + 1}",
            started_at=0.0,
            heartbeat_at=0.0,
            incarnation=int(rank in known),
            restarts=agreed(known.get(rank, 1)),
        )
        heartbeat.store.write(report_of(rank), other.to_json())
    request = StopRequest(cause=Cause.NODE, message="lost", restarts=agreed(len(lost)))
    heartbeat.store.write(STOP_FILE, request.to_json())
    assert len(meet_others(context, load_launcher(config.launcher))) == nodes
    heartbeat.read_stop_request()
    assert not context.switch.is_lost
