"""Writes into Airflow's database that the tasks of a run have deferred. Runs with Airflow's settings."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path

from airflow_provider_ocidist.backports import UTC


def main() -> None:
    """`sys.argv[1]`: a JSON file with `dag_id`, `interval` and `records`, one for each mapped task of the only run."""
    settings = json.loads(Path(sys.argv[1]).read_text())
    from airflow.models import DagRun, TaskInstance, Trigger
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    now = datetime.now(UTC)
    with create_session() as session:
        run = session.scalars(select(DagRun).where(DagRun.dag_id == settings["dag_id"])).one()
        tasks = select(TaskInstance).where(
            TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id
        )
        found = session.scalars(tasks.order_by(TaskInstance.map_index)).all()
        for task, record in zip(found, settings["records"], strict=True):
            owner = {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": task.task_id}
            arguments = {
                "conn_id": "oci_default",
                "record": record,
                "owner": {**owner, "map_index": task.map_index, "try_number": 1},
                "poll_interval": settings["interval"],
            }
            task.trigger = Trigger("airflow_provider_ocidist.triggers.DistributedTrainingTrigger", arguments)
            task.state, task.try_number, task.start_date = TaskInstanceState.DEFERRED, 1, now
            task.next_method, task.next_kwargs = "resume", {}
        run.state, run.start_date = DagRunState.RUNNING, now


if __name__ == "__main__":
    main()
