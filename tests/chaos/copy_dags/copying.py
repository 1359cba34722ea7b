"""DAGs that copy: on the worker, on a node of the platform, and what an upstream task says."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param, task

from airflow_provider_ocidist.transfers import CopyOutputsOperator, StageDataOperator

PARAMS = {"source": Param("", type="string"), "target": Param("", type="string")}
DATA = [{"source": "{{ params.source }}", "target": "{{ params.target }}"}]
RETRIES = {"retries": 2, "retry_delay": timedelta(seconds=1)}


def copying_dag(dag_id: str, **arguments: object) -> DAG:
    with DAG(dag_id=dag_id, schedule=None, catchup=False, params=PARAMS) as dag:
        StageDataOperator(task_id="copy", data=DATA, conn_id="oci_slow", poll_interval=2.0, **arguments)
    return dag


worker = copying_dag("copy_worker", **RETRIES)
blocking = copying_dag("copy_blocking", run_on="platform", deferrable=False, **RETRIES)
deferred = copying_dag("copy_deferred", run_on="platform", deferrable=True)

with DAG(dag_id="copy_what_is_named", schedule=None, catchup=False, params=PARAMS) as named:

    @task
    def items(source: str, target: str) -> list[dict[str, str]]:
        """Return what goes where, as only a running task can know."""
        return [{"source": f"{source}/{name}", "target": f"{target}/{name}"} for name in ("a", "b")]

    known = items("{{ params.source }}", "{{ params.target }}")
    CopyOutputsOperator(task_id="copy", data=known)
    CopyOutputsOperator.partial(task_id="copy_each", mode="changed").expand(data=known)
    CopyOutputsOperator(task_id="copy_json", data="{{ ti.xcom_pull('items') | tojson }}").set_upstream(known)
