"""Prepare data, train, compare the new model with the one in production, ask a person, promote.

Use it for a model in production. The nodes, which have torch, evaluate both models on the same hours, on which neither
was trained. The asset `demand_in_production` records which model is in production; its event starts the DAGs that are
scheduled by it. If the model is not better, or the person rejects it, the run succeeds and promotes nothing. Without an
answer within three days the run fails.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, Asset, Param, task

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import CopyOutputsOperator, StageDataOperator

WORK_DIR = "{{ conn.oci_default.extra_dejson.work_dir }}"
PRODUCTION = WORK_DIR + "/production/{{ run_id }}"
READINGS = Path(__file__).parent / "data" / "demand.csv"
in_production = Asset("demand_in_production")

with DAG(
    dag_id="promote_if_better",
    description="ETL, training, examination, approval, promotion",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={"data_uri": Param(READINGS.as_uri(), type="string", title="Readings")},
    tags=["example", "ocidist"],
) as dag:
    extract = StageDataOperator(
        task_id="extract",
        data=[{"source": "{{ params.data_uri }}", "target": WORK_DIR + "/raw/{{ run_id }}/demand.csv"}],
    )

    @task
    def transform(run_id: str) -> dict[str, str]:
        """Leave out hours without a reading, and keep the last two days for the evaluation."""
        readings = OciHook().store(f"raw/{run_id}").read("demand.csv").decode()
        header, *hours = [line for line in readings.splitlines() if all(line.split(","))]
        store = OciHook().store(f"demand/{run_id}")
        for name, part in {"train": hours[:-48], "test": hours[-48:]}.items():
            store.write(f"{name}/demand.csv", "\n".join([header, *part]).encode())
        return {"train": f"{store.uri}/train/", "test": f"{store.uri}/test/"}

    @task(inlets=[in_production])
    def contenders(candidate: str, test: str, *, inlet_events) -> list[dict[str, str]]:
        """Return the models to evaluate: the new one, then the one in production if there is one."""
        # An event that a user created names no model.
        announced = [event.extra["uri"] for event in inlet_events[in_production] if event.extra.get("uri")]
        models = [candidate, *announced[-1:]]
        return [{"inputs.0.source": test, "inputs.1.source": f"{model}/"} for model in models]

    @task.short_circuit
    def is_better(results: list[dict]) -> bool:
        new, *old = [result["progress"]["loss"] for result in results]
        print(f"loss of the new model: {new}; of the one in production: {old or 'there is none'}")
        return not old or new < old[0]

    @task(outlets=[in_production])
    def announce(uri: str, *, outlet_events) -> None:
        """Record which model is in production now."""
        outlet_events[in_production].extra = {"uri": uri}

    data = transform()
    train = DistributedTrainingOperator(
        task_id="train", job="jobs/demand.yaml", overrides={"inputs.0.source": data["train"]}, deferrable=True
    )
    examine = DistributedTrainingOperator.partial(
        task_id="examine", job="jobs/examine_demand.yaml", deferrable=True
    ).expand(overrides=contenders(train.output["checkpoint_uri"], data["test"]))
    approve = ApprovalOperator(
        task_id="approve",
        subject="Promote the model of {{ run_id }}?",
        body="{{ ti.xcom_pull('train')['checkpoint_uri'] }}",
        response_timeout=timedelta(days=3),
    )
    promote = CopyOutputsOperator(
        task_id="promote",
        data=[{"source": train.output["checkpoint_uri"], "target": PRODUCTION + "/"}],
    )
    extract >> data
    is_better(examine.output) >> approve >> promote >> announce(PRODUCTION)
