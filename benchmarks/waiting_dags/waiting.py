"""The DAG of the memory of Airflow's components: one task, mapped for each gang. Never run: its state is written."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_ocidist.operators import DistributedTrainingOperator

GANGS = int(os.environ.get("WAITING_GANGS", "1"))
JOB = {
    "name": "waiting",
    "nodes": 2,
    "program": {"source": str(Path(__file__).parent.parent / "dags" / "programs"), "script": "sleep.py"},
    "launcher": {"kind": "python"},
    "backend": {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8},
}

with DAG("waiting", schedule=None):
    DistributedTrainingOperator.partial(task_id="train", job=JOB, deferrable=True).expand(
        env=[{"SEED": str(number)} for number in range(GANGS)]
    )
