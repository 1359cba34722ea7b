"""Create a folder of data for one training, and remove it afterwards, also after a failure.

Use it when data are unpacked, joined or decrypted for one run. A setup makes the folder. Teardowns end nodes that still
run and remove the folder; they do not change whether the run is a success. Clearing `train` makes the folder again.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, setup, teardown

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator, EndTrainingOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"

with DAG(
    dag_id="train_in_scratch",
    description="Train on data that exist only while the training runs",
    schedule=None,
    catchup=False,
    params={"data_uri": Param(READINGS.as_uri(), type="string", title="Data")},
    tags=["example", "ocidist"],
) as dag:

    @setup
    def make_scratch(run_id: str, params: dict) -> str:
        """Copy the data to a folder of this run; a real DAG would unpack or join them here."""
        from airflow_provider_ocidist.storage.transfer import copy

        hook = OciHook()
        scratch = hook.uri(f"scratch/{run_id}/")
        copy(params["data_uri"], scratch, access=hook.access)
        return scratch

    @teardown
    def remove_scratch(scratch: str) -> int:
        store = OciHook().store(scratch)
        files = store.list()
        for file in files:
            store.delete(file.name)
        return len(files)

    scratch = make_scratch()
    train = DistributedTrainingOperator(
        task_id="train",
        job="jobs/demand.yaml",
        overrides={"inputs.0.source": scratch},
        deferrable=True,
    )
    # When a user marks the training as failed, teardowns begin while its nodes still read the folder.
    end = EndTrainingOperator(task_id="end", training=train).as_teardown()
    train >> end >> remove_scratch(scratch)
