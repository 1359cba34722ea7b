"""Retrain every night on the data of the day before, starting from the last model.

Use it when data arrive daily. Each success sends an event of the asset `nightly_demand`, and the next run starts from
the checkpoint in the newest event. A failed night sends no event, so the next one starts from the last good model. A
retry resumes from the checkpoints of its own task.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, Asset, Param, task
from airflow.timetables.interval import CronDataIntervalTimetable  # since 3.2 in airflow.sdk

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator

nightly_demand = Asset("nightly_demand")

with DAG(
    dag_id="retrain_nightly",
    description="Train on each day's data, from the checkpoint of the day before",
    # A plain "0 3 * * *" has no interval in Airflow 3: its runs mark a moment, not a day.
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,  # each run starts from the model of the one before
    params={"epochs": Param(100, type="integer", minimum=1, title="Epochs on each day")},
    tags=["example", "ocidist"],
) as dag:

    @task
    def extract(data_interval_start: datetime, data_interval_end: datetime) -> str:
        """Write the hours of this run's day; a real DAG queries the database of the meters."""
        lines, hour = ["hour,temperature,demand"], data_interval_start
        while hour < data_interval_end:
            warmth = 8 - 6 * abs(hour.hour - 14) / 12
            lines.append(
                f"{hour:%Y-%m-%dT%H:00},{warmth:.1f},{900 + 25 * (hour.hour % 12) - 12 * warmth:.0f}"
            )
            hour += timedelta(hours=1)
        store = OciHook().store(f"nightly/{data_interval_start:%Y-%m-%d}")
        store.write("demand.csv", "\n".join(lines).encode())
        return f"{store.uri}/"

    @task(inlets=[nightly_demand])
    def last_model(*, inlet_events) -> dict[str, object]:
        """Return the newest model and its epoch, as the last success recorded them; before the first there is none."""
        # An event that a user created names no model.
        saved = [event.extra for event in inlet_events[nightly_demand] if event.extra.get("checkpoint_uri")]
        if not saved:
            return {"checkpoint_uri": "", "epoch": 0}
        return {"checkpoint_uri": saved[-1]["checkpoint_uri"], "epoch": saved[-1]["step"]}

    DistributedTrainingOperator(
        task_id="train",
        job="jobs/demand.yaml",
        # The epoch to reach, not a number of further epochs: so a retry ends at the same epoch as the first try.
        env={"EPOCHS": "{{ ti.xcom_pull('last_model')['epoch'] + params.epochs }}"},
        overrides={
            "inputs.0.source": extract(),
            "checkpoints.start_from": last_model()["checkpoint_uri"],
        },
        outlets=[nightly_demand],
        deferrable=True,
        retries=2,
    )
