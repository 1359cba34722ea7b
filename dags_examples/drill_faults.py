"""Inject faults into a training, and compare the models and the steps with those of an undisturbed training.

Use it to test the retries, restarts and checkpoints of a job before a training that takes days: replace
`jobs/drill.yaml` by your own job. Each fault is one mapped task with nodes of its own. The variable OCIDIST_DRILL makes
a node inflict the fault on itself only. The last task shows for each fault the seconds until the training went on, and
how many steps it trained again.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator

FAULTS = [
    "kill-rank@training:node=1,step=100",
    "kill-rank@saving:node=0,step=30",
    "kill-node@training:node=0,step=60",
]

with DAG(
    dag_id="drill_faults",
    description="Train with faults on purpose and compare the models",
    schedule=None,
    catchup=False,
    params={
        "faults": Param(
            FAULTS, type="array", items={"type": "string"}, minItems=1, title="Faults (docs/drills.md)"
        )
    },
    tags=["example", "ocidist"],
) as dag:

    @task
    def drills(params: dict) -> list[dict[str, str]]:
        """Return the environment of each training; the first has no fault."""
        return [{}, *({"OCIDIST_DRILL": fault} for fault in params["faults"])]

    @task
    def compare(results: list[dict], drilled: list[dict]) -> list[dict]:
        """Return for each fault how the training went on; fail if one did not happen, or a model has another loss."""
        undisturbed, *others = results
        report = [
            {
                "fault": drill["OCIDIST_DRILL"],
                **(OciHook().drill_recovery(result) or {}),
                "restarts_in_last_try": len(result["restarts"]),
                "same_loss": result["checkpoint"]["loss"] == undisturbed["checkpoint"]["loss"],
            }
            for drill, result in zip(drilled[1:], others, strict=True)
        ]
        columns = ["fault", "at_step", "back_after_s", "lost_steps", "restarts_in_last_try", "same_loss"]
        for row in [dict(zip(columns, columns, strict=True)), *report]:
            cells = ["-" if row.get(column) is None else str(row[column]) for column in columns]
            print(cells[0].ljust(44), *(cell.rjust(20) for cell in cells[1:]))
        if absent := [row["fault"] for row in report if "at_step" not in row]:
            raise ValueError(f"{', '.join(absent)} did not happen")
        if changed := [row["fault"] for row in report if not row["same_loss"]]:
            raise ValueError(f"the model is another one after {', '.join(changed)}")
        return report

    drilled = drills()
    train = DistributedTrainingOperator.partial(
        task_id="train",
        job="jobs/drill.yaml",
        deferrable=True,
        retries=2,
        retry_delay=timedelta(seconds=5),
        max_active_tis_per_dagrun=2,
        map_index_template="{{ task.env.get('OCIDIST_DRILL', 'undisturbed') }}",
    ).expand(env=drilled)

    compare(train.output, drilled)
