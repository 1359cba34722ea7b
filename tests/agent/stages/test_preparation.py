"""With whom a node shares what it reads before it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.preparation import exchange_of
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.job import Checkpoints, Input, Program
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, AgentConfig

INPUTS = {"inputs": (Input(source="oci://bucket@namespace/data/", target="data"),)}
KEPT = "oci://bucket@namespace/kept"


def a_context(tmp_path: Path, changes: dict[str, Any], **environ: str) -> NodeContext:
    program, run_dir = Program(script="program.py"), str(tmp_path / "run")
    config = AgentConfig(**{"run_name": "run", "nodes": 2, "run_dir": run_dir, "program": program, **changes})
    environ = {"OCIDIST_NODE_RANK": "1", "HOME": str(tmp_path), **environ}
    return NodeContext(config, environ, StopSwitch())


def test_a_node_in_the_place_of_a_lost_one_asks_no_other_for_inputs(tmp_path: Path) -> None:
    assert exchange_of(a_context(tmp_path, INPUTS)) is not None
    assert exchange_of(a_context(tmp_path, INPUTS, **{INCARNATION_VARIABLE: "1"})) is None


@pytest.mark.parametrize(
    "changes, shares",
    [
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT)}, True),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT)}, False),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT), "checkpoints_stem": f"{KEPT}-g"}, True),
        ({"attempt": 1, "checkpoints": Checkpoints(uri=KEPT, start_from=f"{KEPT}/step-1")}, True),
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT, path="/mnt/of/several")}, False),
        ({"attempt": 2, "checkpoints": Checkpoints(uri=KEPT), "share_inputs": False}, False),
        ({"attempt": 2}, False),
    ],
)
def test_nodes_share_the_checkpoint_to_go_on_from_where_there_may_be_one(
    tmp_path: Path, changes: dict[str, Any], *, shares: bool
) -> None:
    assert (exchange_of(a_context(tmp_path, changes)) is not None) == shares
