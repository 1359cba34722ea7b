"""DAGs of the chaos tests: the same two-node training, waited for in the triggerer and on a worker."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_provider_ocidist.operators import DistributedTrainingOperator

PARAMS = {"steps": Param(16, type="integer"), "mark": Param("", type="string")}
JOB = {
    "name": "beats",
    "nodes": 2,
    "program": {
        "source": "../programs",
        "script": "beats.py",
        "args": ["--steps", "{{ params.steps }}", "--mark", "{{ params.mark }}"],
    },
    "launcher": {"kind": "python"},
    "checkpoints": {"path": "checkpoints"},
    "limits": {"stop_grace": 2},
    "backend": {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8},
}


class WithoutStore(DistributedTrainingOperator):
    """As on an Airflow before 3.3, which has no task state store."""

    def execute(self, context):
        context.pop("task_state_store", None)
        return super().execute(context)


def training(dag_id: str, operator: type = DistributedTrainingOperator, **arguments: object) -> DAG:
    dag_arguments = {name: arguments.pop(name) for name in ("dagrun_timeout",) if name in arguments}
    with DAG(dag_id=dag_id, schedule=None, catchup=False, params=PARAMS, **dag_arguments) as dag:
        operator(task_id="train", job=JOB, poll_interval=2.0, **arguments)
    return dag


# More than a run has kills: the scheduler's count too, since it gives a new number to each try that it takes up again.
RETRIES = {"retries": 9, "retry_delay": timedelta(seconds=1)}
for name, operator in (("", DistributedTrainingOperator), ("_without_store", WithoutStore)):
    for path, deferrable in (("deferred", True), ("blocking", False)):
        dag_id = f"chaos_{path}{name}"
        globals()[dag_id] = training(dag_id, operator, deferrable=deferrable, **RETRIES)

limited_run = training("limited_run", deferrable=True, dagrun_timeout=timedelta(seconds=30))
limited_run_blocking = training(
    "limited_run_blocking", deferrable=False, dagrun_timeout=timedelta(seconds=30)
)
limited_task = training("limited_task", deferrable=True, execution_timeout=timedelta(seconds=20))
limited_task_blocking = training(
    "limited_task_blocking", deferrable=False, execution_timeout=timedelta(seconds=20)
)
