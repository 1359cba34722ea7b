"""Train on your own cluster; if it has no capacity or loses the gang, continue in the cloud.

Use it if your own machines are cheap but not always available. The training moves only after a failure that another
home can avoid; an error of the program fails the run at once. The second home resumes from the newest checkpoint of the
first, so both connections have the same bucket as `work_dir`.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import StageDataOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"
ON_CLUSTER = {
    "image": "{{ params.image }}",
    "backend": {
        "kind": "pytorchjob",
        "cpu": "1",
        "memory": "8Gi",
        # The variable OCI_CONFIG_FILE of the pods, by which they open the bucket: docs/kubernetes.md.
        "env_from": [{"secretRef": {"name": "oci-config"}}],
    },
}
MOVED_BY = ("CAPACITY", "QUOTA", "PREEMPTED", "NODE", "SERVICE")
"""Causes of a failure that another home may not have."""

with DAG(
    dag_id="fall_over",
    description="Train on the cluster, else in the cloud from its newest checkpoint",
    schedule=None,
    catchup=False,
    params={
        "image": Param("pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime", type="string", title="Image"),
        "patience": Param("10m", type="string", title="How long the cluster may take to start"),
        "data_uri": Param(READINGS.as_uri(), type="string", title="Data"),
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
    on_cluster = DistributedTrainingOperator(
        task_id="on_cluster",
        job="jobs/demand.yaml",
        conn_id="kubernetes_default",
        overrides={
            **ON_CLUSTER,
            "limits.start_timeout": "{{ params.patience }}",
            "limits.capacity_timeout": 0,
        },
        deferrable=True,
    )

    # A skip ends here: `model` decides by its own rule.
    @task.short_circuit(trigger_rule="all_failed", ignore_downstream_trigger_rules=False)
    def another_home_helps(ti) -> bool:
        failure = ti.xcom_pull("on_cluster", key="failure")
        if failure is None:
            print(
                "on_cluster has reported no cause: it never began, its worker was killed, or somebody marked it failed"
            )
            return False
        print(failure["message"])
        return failure["cause"] in MOVED_BY

    in_cloud = DistributedTrainingOperator(
        task_id="in_cloud",
        job="jobs/demand.yaml",
        overrides={
            "checkpoints.start_from": "{{ ti.xcom_pull('on_cluster', key='checkpoint_uri') or '' }}",
        },
        deferrable=True,
    )

    @task(trigger_rule="one_success")
    def model(ti) -> str:
        """Return the checkpoint of the home that has trained to the end."""
        results = [ti.xcom_pull(home) for home in ("on_cluster", "in_cloud")]
        (uri,) = [result["checkpoint_uri"] for result in results if result]
        return uri

    stage_data >> on_cluster >> another_home_helps() >> in_cloud
    [on_cluster, in_cloud] >> model()
