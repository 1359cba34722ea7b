"""Train on the cheaper of two homes, by the prices and durations in the form, and return the cost.

Use it if the same job can run in several places. A price is that of a node for an hour: enter those of your contract or
your cluster. Take the durations from the last run, or from `compare_nodes`.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.transfers import StageDataOperator

READINGS = Path(__file__).parent / "data" / "demand.csv"
HOMES = {
    "in_cloud": {"conn_id": "oci_default", "overrides": {}},
    "on_cluster": {
        "conn_id": "kubernetes_default",
        "overrides": {
            "image": "pytorch/pytorch:2.7.1-cuda12.6-cudnn9-runtime",
            "backend": {
                "kind": "pytorchjob",
                "cpu": "1",
                "memory": "8Gi",
                # The variable OCI_CONFIG_FILE of the pods, by which they open the bucket: docs/kubernetes.md.
                "env_from": [{"secretRef": {"name": "oci-config"}}],
            },
        },
    },
}

with DAG(
    dag_id="train_where_cheaper",
    description="Train on the cheaper of two homes",
    schedule=None,
    catchup=False,
    params={
        "prices": Param(
            {"in_cloud": 0.4, "on_cluster": 0.3}, type="object", title="Price of a node for an hour"
        ),
        "hours": Param({"in_cloud": 0.5, "on_cluster": 0.5}, type="object", title="Hours that each takes"),
    },
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

    @task.branch
    def cheaper(params: dict) -> str:
        costs = {home: params["prices"][home] * params["hours"][home] for home in HOMES}
        print(costs)
        return min(costs, key=costs.__getitem__)

    @task(trigger_rule="none_failed_min_one_success")
    def bill(ti, params: dict) -> dict[str, object]:
        """Return what the nodes have cost, from when each began to when it ended."""
        ((home, result),) = [(home, result) for home in HOMES if (result := ti.xcom_pull(home))]
        seconds = sum(node["finished_at"] - node["started_at"] for node in result["nodes"])
        cost = seconds / 3600 * params["prices"][home]
        return {"home": home, "node_hours": seconds / 3600, "cost": cost}

    chosen, billed = cheaper(), bill()
    stage_data >> chosen
    for home, given in HOMES.items():
        train = DistributedTrainingOperator(task_id=home, job="jobs/demand.yaml", deferrable=True, **given)
        chosen >> train >> billed
