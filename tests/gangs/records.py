"""Records and states of gangs for the tests of pure rules, and a watcher whose clock only the test moves."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.gangs.actions import Action, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.gangs.durations import observe
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus

START = 1_000_000.0
KEY = RunKey(dag_id="dag", run_id="run", task_id="train")
CHECKPOINT = CheckpointRef(uri="oci://b@n/checkpoints/step-10", step=10)


def record(nodes: int = 2, **changes: object) -> RunRecord:
    ref = RunRef(
        backend="oci_data_science",
        key=KEY,
        nodes=nodes,
        job_id="job",
        run_ids=tuple(f"run{rank}" for rank in range(nodes)),
        run_dir="oci://b@n/work/x",
        submitted_at=START,
    )
    return replace(RunRecord(ref=ref), **changes)


def report(rank: int, **changes: object) -> NodeReport:
    base = NodeReport(
        rank=rank, phase=Phase.TRAINING, address="127.0.0.1", started_at=START, heartbeat_at=START
    )
    return replace(base, **changes)


def node(rank: int, state: NodeState, **changes: object) -> NodeStatus:
    return replace(NodeStatus(rank=rank, run_id=f"run{rank}", state=state), **changes)


def gang(*states: NodeState, **changes: object) -> RunStatus:
    nodes = tuple(node(rank, state) for rank, state in enumerate(states))
    return replace(RunStatus(nodes=nodes), **changes)


def trained(rank: int, **changes: object) -> NodeStatus:
    return node(rank, NodeState.SUCCEEDED, report=report(rank, exit_code=0, phase=Phase.DONE, **changes))


def watched(known: RunRecord, *looks: tuple[float, RunStatus]) -> Action:
    """Return the last action of a watcher who looks at these times, and compares no clock with another."""
    action, before = Wait(), looks[0][0]
    for at, status in looks:
        known, before = observe(known, status, at - before), at
        action = decide(known, status, at)
    return action
