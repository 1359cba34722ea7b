"""Retrain when new data have arrived in a folder.

Use it for irregular deliveries. The triggerer watches the folder. When files have changed and then stayed the same for
a while, one event starts one run, whatever the number of files. Files that are there at the first look cause no event.
The model is an asset too: `schedule=[Asset("demand_model")]` starts a DAG for each new model.
"""

from __future__ import annotations

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.triggers import NewDataTrigger

# A relative place lies in the connection's work_dir; elsewhere it is a whole URI, as oci://bucket@namespace/incoming/.
# Ten seconds without a change is little: files that arrive by slow lines need a longer time to settle.
readings = Asset(
    "demand_readings",
    watchers=[
        AssetWatcher(
            name="demand_readings", trigger=NewDataTrigger("incoming/demand", poll_interval=5, settle=10)
        )
    ],
)

with DAG(
    dag_id="retrain_on_new_data",
    description="Train whenever new data have landed",
    schedule=[readings],
    catchup=False,
    max_active_runs=1,
    tags=["example", "ocidist"],
) as dag:

    @task
    def delivery(triggering_asset_events) -> str:
        """Return the place of the data; the event also has their size."""
        if not triggering_asset_events[readings]:
            raise ValueError("nothing has landed: this DAG is started by its asset, not by hand")
        facts = triggering_asset_events[readings][-1].extra["payload"]
        print(f"{facts['files']} files, {facts['bytes']} bytes in {facts['uri']}")
        return f"{facts['uri']}/"

    DistributedTrainingOperator(
        task_id="train",
        job="jobs/demand.yaml",
        overrides={"inputs.0.source": delivery()},
        outlets=[Asset("demand_model")],
        deferrable=True,
    )
