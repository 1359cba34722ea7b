"""Train on demand, with values from a form that Airflow makes and checks.

Use it for experiments: "Trigger" in the UI shows the form. Airflow refuses a value outside the limits before a run
exists, in the form and over the REST API.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import StageDataOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"

with DAG(
    dag_id="train_from_form",
    description="Train with values from a form",
    schedule=None,
    catchup=False,
    params={
        "data_uri": Param(
            READINGS.as_uri(),
            type="string",
            pattern=r"^(oci://[^@/]+@[^/]+|https?://[^/]+|file://)/.+\.csv$",
            title="Data",
            description="A CSV file with hour, temperature, demand: oci://bucket@namespace/..., https:// or file://",
            section="Data",
        ),
        "nodes": Param(2, type="integer", minimum=1, maximum=16, title="Nodes", section="Machines"),
        "shape": Param(
            "VM.Standard.E4.Flex",
            enum=["VM.Standard.E4.Flex", "VM.Standard.E5.Flex", "VM.Standard3.Flex"],
            title="Shape of each node",
            section="Machines",
        ),
        "epochs": Param(200, type="integer", minimum=1, maximum=100_000, title="Epochs", section="Training"),
        "learning_rate": Param(
            0.02, type="number", exclusiveMinimum=0, maximum=1, title="Learning rate", section="Training"
        ),
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

    train = DistributedTrainingOperator(
        task_id="train",
        job="jobs/demand.yaml",
        nodes="{{ params.nodes }}",
        shape="{{ params.shape }}",
        env={"EPOCHS": "{{ params.epochs }}", "LEARNING_RATE": "{{ params.learning_rate }}"},
        deferrable=True,
    )

    stage_data >> train
