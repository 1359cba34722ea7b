"""Train an image classifier on several nodes: the job is written in Python, and the form asks for its sizes."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.job import (
    Checkpoints,
    Dependencies,
    LauncherOptions,
    Limits,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.operators import DistributedTrainingOperator

JOB = TrainingJob(
    name="digits",
    nodes="{{ params.nodes }}",
    program=Program(
        source="train",
        script="digits.py",
        args=("--epochs", "{{ params.epochs }}", "--images", "{{ params.images }}", "--workers", "0"),
    ),
    dependencies=Dependencies(packages=("scikit-learn",)),
    launcher=LauncherOptions(kind="torchrun", processes_per_node=1),
    checkpoints=Checkpoints(keep=2),
    outputs=(
        Output(
            path="outputs",
            uri="{{ conn.oci_default.extra_dejson.work_dir }}/models/{{ run_id }}/",
            when="always",
        ),
    ),
    limits=Limits(max_runtime=1800),
    backend=OciDataScienceOptions(
        shape="VM.Standard.E4.Flex",
        ocpus=1,
        memory_gb=8,
        conda_slug="your_pytorch_p311_env",  # with torch; the emulator, which has none, takes its own Python
    ),
)
"""`job_file.dump(JOB)` is the same as YAML. Nodes that lack scikit-learn install it from PyPI."""

with DAG(
    dag_id="train_digits",
    description="Train a classifier of handwritten digits by DDP, described in Python",
    schedule=None,
    catchup=False,
    params={
        "nodes": Param(2, type="integer", minimum=1, maximum=64, title="Nodes"),
        "epochs": Param(10, type="integer", minimum=1, title="Epochs"),
        "images": Param(1500, type="integer", minimum=100, maximum=1500, title="Images to learn from"),
    },
    tags=["example", "ocidist"],
) as dag:
    DistributedTrainingOperator(task_id="train", job=JOB, deferrable=True)
