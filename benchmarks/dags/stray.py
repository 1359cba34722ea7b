"""DAGs of P17: one and the same training, under our operator and under a plain deferrable one."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from benchmarks.dags.plain import PlainTrainingOperator

JOB = {
    "name": "stray",
    "nodes": 2,
    "program": {
        "source": str(Path(__file__).parent / "programs"),
        "script": "sleep.py",
        "args": ["{{ params.seconds }}"],
    },
    "launcher": {"kind": "python"},
    "backend": {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8},
}
PARAMS = {"seconds": Param(60.0, type="number")}

with DAG("ours", schedule=None, params=PARAMS):
    DistributedTrainingOperator(task_id="train", job=JOB, deferrable=True, poll_interval=2.0)

with DAG("plain", schedule=None, params=PARAMS):
    PlainTrainingOperator(task_id="train", job=JOB)
