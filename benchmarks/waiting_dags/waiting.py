"""The DAG of the memory of Airflow's components: one task, mapped a thousand times. Never run: its state is written."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_ocidist.operators import DistributedTrainingOperator

GANGS = 1000
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
