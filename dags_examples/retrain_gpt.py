"""Retrain a small GPT on two nodes: stage the text, train, copy the results, report the checkpoint."""

from __future__ import annotations

import json
import pydoc_data.topics

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import CopyOutputsOperator, StageDataOperator

WORK_DIR = "{{ conn.oci_default.extra_dejson.work_dir }}"
"""The connection's folder for all files of runs."""

with DAG(
    dag_id="retrain_gpt",
    description="Train a character-level GPT by DDP on two nodes, on any text",
    schedule=None,
    catchup=False,
    params={
        "data_uri": Param(
            f"file://{pydoc_data.topics.__file__}",
            type="string",
            title="Text to learn from",
            description="Any URI; the default is the documentation that comes with every Python.",
        ),
        "nodes": Param(2, type="integer", minimum=1, maximum=64, title="Nodes"),
        "steps": Param(300, type="integer", minimum=1, title="Steps"),
        "learning_rate": Param(3e-3, type="number", exclusiveMinimum=0, title="Learning rate"),
        "results_dir": Param("/tmp/retrain_gpt", type="string", title="Local folder for metrics and samples"),
    },
    tags=["example", "ocidist"],
) as dag:
    stage_data = StageDataOperator(
        task_id="stage_data",
        data=[
            {
                "source": "{{ params.data_uri }}",
                "target": WORK_DIR + "/data/{{ run_id }}/{{ params.data_uri.split('/') | last }}",
            }
        ],
    )

    train = DistributedTrainingOperator(
        task_id="train",
        job="jobs/retrain_gpt.yaml",
        nodes="{{ params.nodes }}",
        poll_interval=2.0,  # seconds; for a run of a minute
        deferrable=True,
    )

    copy_outputs = CopyOutputsOperator(
        task_id="copy_outputs",
        data=[{"source": WORK_DIR + "/outputs/{{ run_id }}/", "target": "{{ params.results_dir }}"}],
    )

    @task
    def report(checkpoint_uri: str, run_id: str) -> dict[str, object]:
        """Print the result of the training; a real DAG would evaluate and promote here."""
        summary = json.loads(OciHook().store(f"outputs/{run_id}").read("summary.json"))
        print("checkpoint:", checkpoint_uri)
        print("summary:", summary)
        return {"checkpoint_uri": checkpoint_uri, **summary}

    stage_data >> train >> copy_outputs >> report(train.output["checkpoint_uri"])
