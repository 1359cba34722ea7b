"""Train with checkpoints that hardly stop the training, and return the newest.

Use it if saving stops a training for too long: the program calls `airflow_provider_ocidist.saves`, which copies the
state in memory and writes it while the training continues. Here the nodes are processes of the machine that runs the
task; another section `backend` in `jobs/saved.yaml` names another home.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.operators import DistributedTrainingOperator

with DAG(
    dag_id="train_with_saves",
    description="Train with saves beside the training",
    schedule=None,
    catchup=False,
    params={
        "steps": Param(300, type="integer", minimum=1, title="Steps"),
        "save_every": Param(50, type="integer", minimum=1, title="Steps between two saves"),
    },
    tags=["example", "ocidist"],
) as dag:
    train = DistributedTrainingOperator(
        task_id="train",
        job="jobs/saved.yaml",
        deferrable=True,
        retries=2,
        retry_delay=timedelta(seconds=5),
    )

    @task
    def show(result: dict, params: dict) -> str:
        """Return the place of the newest checkpoint, which is that of the last step."""
        checkpoint = result["checkpoint"]
        if checkpoint["step"] != params["steps"]:
            raise ValueError(f"the newest checkpoint is of step {checkpoint['step']}")
        print(f"trained to step {checkpoint['step']}, loss {checkpoint['loss']}: {checkpoint['uri']}")
        return checkpoint["uri"]

    show(train.output)
