"""Write down what this version hands to the next: python -m tests.recorded.record FOLDER, before a release."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.backends.node_config import KEY_VARIABLE
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.cli import note
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.capacity import CapacitySearch
from airflow_provider_ocidist.gangs.failure import Failure
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.log_cursor import LogCursor
from airflow_provider_ocidist.model.report import NodeReport, Phase, Progress, Renewal, StopRequest, Usage
from airflow_provider_ocidist.model.run import (
    Ending,
    Expectations,
    NodeState,
    NodeStatus,
    RunKey,
    RunRecord,
    RunRef,
    RunStatus,
    TrainingResult,
)
from airflow_provider_ocidist.triggers import DistributedTrainingTrigger
from airflow_provider_ocidist.triggers.storage import CheckpointTrigger, NewDataTrigger
from airflow_provider_ocidist.triggers.training import PauseTrigger

NOW = 1_790_000_000.0
KEY = RunKey(
    dag_id="nightly", run_id="manual__2026-11-20T20:00:00+00:00", task_id="train", map_index=3, generation=2
)
OWNER = {"dag_id": "nightly", "run_id": KEY.run_id, "task_id": "train", "map_index": 3, "try_number": 2}
CONNECTION = {
    "compartment_id": "ocid1.compartment.oc1..c",
    "project_id": "ocid1.datascienceproject.oc1.iad.p",
    "subnet_id": "ocid1.subnet.oc1.iad.s",
    "log_group_id": "ocid1.loggroup.oc1.iad.l",
    "region": "us-ashburn-1",
    "work_dir": "oci://bucket@space/work",
}
JOB = {
    "name": "gpt",
    "nodes": 3,
    "program": {"source": "https://git.example/x.git#main", "script": "train.py", "args": ["--epochs", "3"]},
    "launcher": {"kind": "torchrun", "processes_per_node": 2},
    "env": {"SEED": "7"},
    "main_env": {"ROLE": "main"},
    "inputs": [{"source": "oci://data@space/corpus/", "target": "data"}],
    "outputs": [{"path": "out", "uri": "oci://models@space/gpt/"}],
    "checkpoints": {"path": "checkpoints", "keep": 2, "resume_after_clear": True},
    "limits": {"max_runtime": "2h", "hang_timeout": "20m", "lease": "1h"},
    "backend": {"kind": "oci_data_science", "shape": "VM.GPU.A10.1"},
}


def ref(topology: str = "job_runs") -> RunRef:
    runs = [f"ocid1.datasciencejobrun.oc1.iad.{rank}" for rank in range(3)]
    return RunRef(
        backend="oci_data_science",
        key=KEY,
        nodes=3,
        topology=topology,
        job_id="ocid1.datasciencejob.oc1.iad.job",
        run_ids=tuple(runs if topology == "job_runs" else runs[:1] * 3),
        run_dir=f"{CONNECTION['work_dir']}/{KEY.name}",
        submitted_at=NOW,
        checkpoints_uri=f"{CONNECTION['work_dir']}/checkpoints/{KEY.task_name}",
        compartment_id=CONNECTION["compartment_id"],
        log_group_id=CONNECTION["log_group_id"],
        lease=3600.0,
    )


CHECKPOINT = CheckpointRef(uri=f"{CONNECTION['work_dir']}/checkpoints/x/step-000030.pt", step=30, loss=2.5)
RECORD = RunRecord(
    ref=ref(),
    expects=Expectations(checkpoint=True, outputs=("oci://models@space/gpt/",)),
    deadline=NOW + 7200,
    start_deadline=NOW + 1800,
    hang_timeout=1200.0,
    lost_timeout=300.0,
    lease=3600.0,
    logs_since=(NOW, NOW + 1, NOW + 2),
)
REPORT = NodeReport(
    rank=1,
    phase=Phase.DONE,
    address="10.0.0.3",
    main=True,
    started_at=NOW,
    heartbeat_at=NOW + 60,
    finished_at=NOW + 61,
    exit_code=-9,
    cause=Cause.NODE,
    message="the program was killed by SIGKILL",
    tail="last lines",
    progress=Progress(step=30, steps=100, loss=2.5, updated_at=NOW + 59, losses=((1, 9.0), (30, 2.5))),
    usage=Usage(cores=3.5, memory=1 << 30, memory_limit=8 << 30, gpu=0.9, gpu_memory=0.5),
    checkpoint=CHECKPOINT,
    outputs=("oci://models@space/gpt/",),
)
STATUS = RunStatus(
    nodes=tuple(
        NodeStatus(
            rank=rank, run_id=ref().run_ids[rank], state=NodeState.FAILED, started_at=NOW, report=REPORT
        )
        for rank in range(3)
    )
)


def everything() -> dict[str, Any]:
    """Return all that outlives a process of ours, by what it is."""
    trigger = DistributedTrainingTrigger("oci_default", RECORD.to_json(), OWNER, 10.0)
    watcher = DistributedTrainingTrigger("oci_default", RECORD.to_json(), {}, 10.0)
    ended = RunRecord(
        ref=ref("multi_node"), ending=Ending(cause=Cause.HANG, message="stood still", since=NOW)
    )
    plan = OciDataScience.connect(CONNECTION).plan(parsing.build(JOB), KEY)
    environment = plan.requests[0].body["jobConfigurationDetails"]["environmentVariables"]
    new_data = NewDataTrigger(
        uri="oci://data@space/in/", conn_id="oci_default", poll_interval=60.0, settle=30.0
    )
    checkpoint = CheckpointTrigger(uri="oci://b@n/c", conn_id="oci_default", after_step=3, poll_interval=60.0)
    return {
        "triggers": [
            list(each.serialize()) for each in (trigger, watcher, PauseTrigger(NOW), new_data, checkpoint)
        ],
        "next_kwargs": {"search": asdict(CapacitySearch(NOW + 3600).failed())},
        "records": [RECORD.to_json(), ended.to_json()],
        "xcom_run": [ref().to_json(), ref("multi_node").to_json()],
        "xcom_result": TrainingResult.of(RECORD, STATUS).to_json(),
        "xcom_failure": Failure.of(Cause.NODE, "the program was killed", RECORD, STATUS).to_json(),
        "task_state": {"generation": 2, "attempt": 4},
        "agent_environment": {name: environment[name] for name in ("OCIDIST_CONFIG", KEY_VARIABLE)},
        "report": json.loads(REPORT.to_json()),
        "stop": json.loads(StopRequest(cause=Cause.USER, message="it failed", rank=1).to_json()),
        "lease": json.loads(Renewal(renewed_at=NOW, token="0123").to_json()),
        "told": codec.encode(
            LogCursor(2, (NOW, NOW, NOW), (NOW - 9, NOW - 9, NOW - 9), ({"a": NOW}, {}, {}))
        ),
        "note": note.info_of(RECORD),
        "begun": {"begun": codec.encode(KEY)},
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in everything().items():
        (folder / f"{name}.json").write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
