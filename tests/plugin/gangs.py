"""Gangs as the page may meet them: small, large, failed; names and output that would like to be HTML."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Recovery, Restart, Usage
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRef, RunStatus
from airflow_provider_ocidist.plugin.checkpoint_list import Checkpoint, FoundCheckpoints
from airflow_provider_ocidist.plugin.records import TaskId, TaskRecord
from airflow_provider_ocidist.plugin.status_cache import Snapshot

START = 1_790_000_000.0
NOW = START + 900
HOSTILE = "<img src=x onerror=alert(1)>"
TASK = TaskId(dag_id="nightly", run_id="manual__2026-11-21T20:00:00+00:00", task_id="train")


def ref(nodes: int = 2, **changes: object) -> RunRef:
    base = RunRef(
        backend="oci_data_science",
        key=RunKey(dag_id=TASK.dag_id, run_id=TASK.run_id, task_id=TASK.task_id),
        nodes=nodes,
        job_id="ocid1.datasciencejob.oc1.iad.job",
        run_ids=tuple(f"ocid1.datasciencejobrun.oc1.iad.run{rank}" for rank in range(nodes)),
        run_dir="oci://bucket@ns/work/runs/x",
        submitted_at=START,
        checkpoints_uri="oci://bucket@ns/work/checkpoints/x",
        log_group_id="ocid1.loggroup.oc1.iad.logs",
    )
    return replace(base, **changes)


def record(gang: RunRef | None = None, **changes: object) -> TaskRecord:
    base = TaskRecord(
        id=TASK,
        state="deferred",
        operator="DistributedTrainingOperator",
        try_number=1,
        started_at=START - 5,
        ref=gang or ref(),
    )
    return replace(base, **changes)


def node(rank: int, state: NodeState = NodeState.RUNNING, **changes: object) -> NodeStatus:
    report = NodeReport(
        rank=rank,
        phase=Phase.TRAINING,
        address=f"10.0.{rank // 250}.{rank % 250 + 2}",
        main=rank == 0,
        started_at=START + 60,
        heartbeat_at=NOW - 1,
        progress=Progress(step=40, steps=100, loss=2.5, losses=((1, 9.0), (20, 4.0), (40, 2.5)))
        if rank == 0
        else Progress(updated_at=NOW),
        usage=Usage(cores=3.5, memory=3 << 30, memory_limit=8 << 30, gpu=0.9, gpu_memory=0.5),
    )
    return NodeStatus(
        rank=rank,
        run_id=f"ocid1.datasciencejobrun.oc1.iad.run{rank}",
        state=state,
        started_at=START + 60,
        report=replace(report, **changes),
    )


def running(nodes: int = 2) -> Snapshot:
    return Snapshot(
        at=NOW,
        status=RunStatus(nodes=tuple(node(rank) for rank in range(nodes))),
        remaining=120.0,
        steps_per_second=0.5,
        checkpoints=FoundCheckpoints(
            items=(
                Checkpoint(
                    uri="oci://bucket@ns/work/checkpoints/x/step-000030.pt",
                    step=30,
                    loss=3.0,
                    size=900_000,
                    files=1,
                    created_at=START + 500,
                ),
            )
        ),
    )


def failed() -> Snapshot:
    """Return a gang whose node 1 has raised, and whose output would like to be HTML."""
    bad = node(
        1,
        NodeState.FAILED,
        phase=Phase.DONE,
        exit_code=1,
        cause=Cause.USER,
        message=f"ValueError: {HOSTILE}",
        tail=f"Traceback\n{HOSTILE}",
    )
    told = node(0, NodeState.CANCELED, phase=Phase.DONE, exit_code=143)
    ended = tuple(replace(each, finished_at=START + 660) for each in (told, bad))
    return Snapshot(at=NOW, status=RunStatus(nodes=ended))


def restarted() -> Snapshot:
    """Return a gang that was launched again."""
    why = Restart(cause=Cause.NODE, message=HOSTILE, rank=1, step=40)
    back = Recovery(launch=1, seconds=9.6)
    nodes = tuple(node(rank, restarts=(why,), recoveries=(back,)) for rank in range(2))
    return replace(running(), status=RunStatus(nodes=nodes))


def fewer(state: NodeState = NodeState.RUNNING, lost: NodeState = NodeState.FAILED) -> Snapshot:
    """Return a gang of three of which nodes 1 and 2 go on without node 0, which had been the main node."""
    why = Restart(cause=Cause.CAPACITY, message="no machine came", members=(1, 2))
    nodes = (node(0, lost), *(node(rank, state, restarts=(why,), main=rank == 1) for rank in (1, 2)))
    return replace(running(), status=RunStatus(nodes=nodes))
