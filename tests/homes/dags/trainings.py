"""The same training with one thing after another that befalls it; where it runs is said by the job file alone."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_ocidist.operators import DistributedTrainingOperator

WORDS = Path(os.environ["OCIDIST_TEST_WORDS"])


def training(
    name: str,
    *,
    job: str = "job.yaml",
    waits: bool = False,
    deferrable: bool = False,
    retries: int = 1,
    **overrides: object,
) -> DAG:
    given = {"program.args": ["--waits", str(WORDS / name)]} if waits else {}
    with DAG(dag_id=name, schedule=None, catchup=False) as dag:
        DistributedTrainingOperator(
            task_id="train",
            job=job,
            conn_id="home",
            overrides={**given, **overrides},
            deferrable=deferrable,
            retries=retries,
            retry_delay=timedelta(seconds=1),
            poll_interval=0.5,
        )
    return dag


for each in (
    training("trains"),
    training("trains_deferred", deferrable=True),
    training("fails", **{"program.args": ["--fails"]}),
    training("loses_a_node", waits=True),
    training("is_evicted", waits=True, deferrable=True),
    training("is_preempted", waits=True),
    training("outlives_an_outage", waits=True, deferrable=True),
    training("outlives_its_token", waits=True),
    training("lacks_its_image", image="registry.example/missing:1"),
    training("lacks_room", job="greedy.yaml", retries=0, **{"limits.start_timeout": 3}),
):
    globals()[each.dag_id] = each
