"""Send a mail if the model of the day is late; the training continues.

Use it when the model has a deadline. Here it is due two hours after the run's logical date, whatever the reason of the
delay: the queue, the data or a retry. To end a training that takes too long, set `limits.max_runtime` in its job. The
mail is sent by the connection `smtp_default`. A run without a logical date (some that users start) has no deadline.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import StageDataOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"

with DAG(
    dag_id="train_by_deadline",
    description="Train every night, and report when it is late",
    schedule="0 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_LOGICAL_DATE,
        interval=timedelta(hours=2),
        # The triggerer imports and calls it; it cannot import a function of this file.
        callback=AsyncCallback(
            SmtpNotifier,
            kwargs={
                "from_email": "airflow@example.com",
                "to": "forecasts@example.com",
                "subject": "{{ dag_run.dag_id }} is late",
                "html_content": "{{ dag_run.dag_run_id }} was due at {{ deadline.deadline_time }}",
            },
        ),
    ),
    tags=["example", "ocidist"],
) as dag:
    stage_data = StageDataOperator(
        task_id="stage_data",
        data=[
            {
                "source": READINGS.as_uri(),
                "target": "{{ conn.oci_default.extra_dejson.work_dir }}/demand/{{ run_id }}/demand.csv",
            }
        ],
    )

    train = DistributedTrainingOperator(
        task_id="train", job="jobs/demand.yaml", deferrable=True, poll_interval=2.0
    )

    stage_data >> train
