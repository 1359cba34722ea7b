"""Retrain as soon as new data have landed, from any source at any time.

Use it for irregular deliveries. The triggerer looks at a folder; when its files have changed and then come to
rest, one event starts one run, for any number of files. Files that lie there at the first look are not new. The model
is an asset in turn: `schedule=[Asset("demand_model")]` starts a DAG with each new one.
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
        """Return where the data lie; the event also has their size."""
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
