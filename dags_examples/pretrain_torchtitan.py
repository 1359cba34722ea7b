"""Pretrain with torchtitan on Run:ai, configured by a TOML file, or by a module and the name of a configuration.

Use it with an image that contains torchtitan. A retry resumes from the newest checkpoint in the dump folder. A new
name in the form starts a new training. For another home change the section `backend` of the jobs, and the connection.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_ocidist.operators import DistributedTrainingOperator

with DAG(
    dag_id="pretrain_torchtitan",
    description="Llama 3 by torchtitan on two nodes of eight GPUs",
    schedule=None,
    catchup=False,
    params={
        "generation": Param("torchtitan", enum=["torchtitan", "torchtitan_module"], title="Job file"),
        "run": Param("llama3-8b", type="string", pattern=r"^[\w.-]+$", title="Name of the dump folder"),
        "config_file": Param("./torchtitan/models/llama3/train_configs/llama3_8b.toml", type="string"),
        "config": Param("llama3_8b", type="string"),
        "tensor_parallel": Param(1, type="integer", minimum=1, title="Processes that share each layer"),
    },
    tags=["example", "ocidist"],
) as dag:
    DistributedTrainingOperator(
        task_id="pretrain",
        job="jobs/{{ params.generation }}.yaml",
        conn_id="runai_default",
        deferrable=True,
        retries=3,
        retry_delay=timedelta(minutes=5),
    )
