"""With whom a node shares its inputs."""

from __future__ import annotations

from pathlib import Path

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.preparation import exchange_of
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.job import Input, Program
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, AgentConfig


def a_context(tmp_path: Path, **environ: str) -> NodeContext:
    config = AgentConfig(
        run_name="run",
        nodes=2,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        inputs=(Input(source="oci://bucket@namespace/data/", target="data"),),
    )
    environ = {"OCIDIST_NODE_RANK": "1", "HOME": str(tmp_path), **environ}
    return NodeContext(config, environ, StopSwitch())


def test_a_node_in_the_place_of_a_lost_one_asks_no_other_for_inputs(tmp_path: Path) -> None:
    assert exchange_of(a_context(tmp_path)) is not None
    assert exchange_of(a_context(tmp_path, **{INCARNATION_VARIABLE: "1"})) is None
