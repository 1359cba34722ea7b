"""Train once for each learning rate, a few at a time, and return the best.

Use it to search for any value of a job. `expand` makes a task with its own nodes for each item of a list that an
earlier task returns. `max_active_tis_per_dagrun` limits how many train at once, for costs and quota.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import StageDataOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"

with DAG(
    dag_id="sweep_learning_rates",
    description="Train with several learning rates and pick the best",
    schedule=None,
    catchup=False,
    params={
        "learning_rates": Param(
            [0.001, 0.01, 0.1], type="array", items={"type": "number"}, minItems=1, title="Learning rates"
        ),
        "data_uri": Param(READINGS.as_uri(), type="string", title="Data"),
    },
    tags=["example", "ocidist"],
) as dag:
    stage_data = StageDataOperator(
        task_id="stage_data",
        data=[
            {
                "source": "{{ params.data_uri }}",
                "target": "{{ conn.oci_default.extra_dejson.work_dir }}/demand/{{ run_id }}/demand.csv",
            }
        ],
    )

    @task
    def trials(params: dict) -> list[dict[str, str]]:
        return [{"LEARNING_RATE": str(rate)} for rate in params["learning_rates"]]

    @task
    def best(results: list[dict], tried: list[dict]) -> dict[str, object]:
        """Return the trial with the smallest loss at its last checkpoint, and where that checkpoint is."""
        losses = [result["checkpoint"]["loss"] for result in results]
        winner = min(range(len(losses)), key=losses.__getitem__)
        print(dict(zip([trial["LEARNING_RATE"] for trial in tried], losses, strict=True)))
        return {**tried[winner], "loss": losses[winner], "checkpoint_uri": results[winner]["checkpoint_uri"]}

    tried = trials()
    train = DistributedTrainingOperator.partial(
        task_id="train",
        job="jobs/demand.yaml",
        deferrable=True,
        max_active_tis_per_dagrun=2,
        map_index_template="learning rate {{ task.env['LEARNING_RATE'] }}",
    ).expand(env=tried)

    stage_data >> train
    best(train.output, tried)
