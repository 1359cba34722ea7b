"""DAGs of the end-to-end tests: the same two-node training, waited for in different ways."""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, Param, task

from airflow_provider_ocidist.hooks import OciHook
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from airflow_provider_ocidist.operators.cleanup import EndTrainingOperator
from airflow_provider_ocidist.sensors import CheckpointSensor, DistributedTrainingSensor
from airflow_provider_ocidist.triggers.storage import NewDataTrigger

PARAMS = {
    "seconds": Param(1.0, type="number"),
    "mark": Param("", type="string"),
    "extra": Param([], type="array"),
}
JOB = {
    "name": "steps",
    "nodes": 2,
    "program": {
        "source": "../programs",
        "script": "steps.py",
        "args": ["--seconds", "{{ params.seconds }}", "--mark", "{{ params.mark }}"],
    },
    "launcher": {"kind": "python"},
    "env": {"DB_PASSWORD": "canary-5552"},
    "checkpoints": {"path": "checkpoints"},
    "limits": {"stop_grace": 2},
    "backend": {"kind": "oci_data_science", "shape": "VM.Standard.E4.Flex", "ocpus": 1, "memory_gb": 8},
}
FAILING = {**JOB, "program": {**JOB["program"], "args": [*JOB["program"]["args"], "--fail-rank", "1"]}}
LYING = {**JOB, "program": {**JOB["program"], "args": [*JOB["program"]["args"], "--no-checkpoint"]}}

SLOW_TO_END = {
    **JOB,
    "program": {**JOB["program"], "args": [*JOB["program"]["args"], "--farewell", "15"]},
    "limits": {"stop_grace": 20},
}
ONE_RUN = {**JOB, "backend": {**JOB["backend"], "topology": "multi_node"}}


def training_dag(dag_id: str, job: dict[str, object], **arguments: object) -> DAG:
    with DAG(dag_id=dag_id, schedule=None, catchup=False, params=PARAMS) as dag:
        DistributedTrainingOperator(task_id="train", job=job, poll_interval=2.0, **arguments)
    return dag


deferred = training_dag("train_deferred", JOB, deferrable=True)
blocking = training_dag("train_blocking", JOB, deferrable=False, retries=2, retry_delay=timedelta(seconds=1))
failing = training_dag("train_failing", FAILING, deferrable=True, retries=3)
lying = training_dag("train_lying", LYING, deferrable=True)
one_run = training_dag("train_one_run", ONE_RUN, deferrable=True)
# Long enough that a busy machine gets to defer: what ends it then is the trigger's doing, not Airflow's on the worker.
limited = training_dag("train_limited", JOB, deferrable=True, execution_timeout=timedelta(seconds=120))

for kind, section in json.loads(os.environ.get("OCIDIST_TEST_HOMES", "{}")).items():
    at_home = {**JOB, "env": {}, "image": "python:3.12", "backend": section}
    globals()[f"on_{kind}"] = training_dag(f"train_on_{kind}", at_home, conn_id=f"on_{kind}", deferrable=True)
    if kind == "pytorchjob":
        blocks = {"deferrable": False, "retries": 2, "retry_delay": timedelta(seconds=1)}
        blocking_there = training_dag("train_blocking_on_pytorchjob", at_home, conn_id=f"on_{kind}", **blocks)

with DAG(dag_id="train_watched", schedule=None, catchup=False, params=PARAMS) as watched:
    started = DistributedTrainingOperator(
        task_id="train", job=JOB, poll_interval=2.0, deferrable=False, outlets=[Asset("steps_model")]
    )
    DistributedTrainingSensor(
        task_id="wait", run=started.output["run"], poke_interval=2.0, require_checkpoint=True
    )
    CheckpointSensor(
        task_id="wait_for_checkpoint",
        uri="{{ ti.xcom_pull('train', key='run')['checkpoints_uri'] }}",
        after_step="5",
        poke_interval=2.0,
    ).set_upstream(started)

with DAG(dag_id="train_cleaned_up", schedule=None, catchup=False, params=PARAMS) as cleaned_up:
    slow_to_end = DistributedTrainingOperator(
        task_id="train", job=SLOW_TO_END, poll_interval=2.0, deferrable=True
    )

    @task
    def clean(ti) -> list[str]:
        """Return the states of the training's nodes when this cleanup begins."""
        ref = RunRef.from_json(ti.xcom_pull("train", key="run"))
        (status,) = OciHook().backend().status([ref])
        return [str(node.state) for node in status.nodes]

    end = EndTrainingOperator(task_id="end", training=slow_to_end).as_teardown()
    slow_to_end >> end >> clean().as_teardown()

with DAG(
    dag_id="wait_for_run", schedule=None, catchup=False, params={"run": Param({}, type="object")}
) as waiting:
    for name, how in {"reschedule": {"mode": "reschedule"}, "deferrable": {"deferrable": True}}.items():
        DistributedTrainingSensor(task_id=f"{name}_run", run="{{ params.run }}", poke_interval=3.0, **how)
        CheckpointSensor(
            task_id=f"{name}_checkpoint",
            uri="{{ params.run['checkpoints_uri'] }}",
            after_step="5",
            poke_interval=3.0,
            **how,
        )

with DAG(dag_id="train_function", schedule=None, catchup=False, params=PARAMS) as function:

    @task.distributed_training(
        job={key: value for key, value in JOB.items() if key != "program"},
        deferrable=False,
        poll_interval=2.0,
    )
    def steps(count: int, *, word: str) -> None:
        import os
        from pathlib import Path

        print(f"{word} from rank {os.environ['RANK']}")
        if os.environ["RANK"] == "0":
            Path("checkpoints").mkdir(exist_ok=True)
            Path("checkpoints", f"step-{count:06}.txt").write_text(word)

    steps(5, word="hello {{ dag.dag_id }}")

WORK_DIR = os.environ["OCIDIST_TEST_WORK_DIR"]
FED = {
    **JOB,
    "inputs": [{"source": f"{WORK_DIR}/texts/", "target": "data/"}],
    "outputs": [{"path": "outputs", "uri": f"{WORK_DIR}/results/{{{{ run_id }}}}/{{{{ ti.map_index }}}}/"}],
}

with DAG(dag_id="train_mapped", schedule=None, catchup=False, params=PARAMS) as mapped:
    DistributedTrainingOperator.partial(
        task_id="train", job=FED, poll_interval=2.0, deferrable=True
    ).expand_kwargs([{"nodes": 1, "env": {"WORD": "one"}}, {"nodes": 2, "env": {"WORD": "two"}}])

    @task.distributed_training(
        job={key: value for key, value in JOB.items() if key != "program"}, nodes=1, poll_interval=2.0
    )
    def say(word: str, count: int) -> None:
        from pathlib import Path

        Path("checkpoints").mkdir(exist_ok=True)
        Path("checkpoints", f"step-{count}.txt").write_text(word)

    say.expand_kwargs([{"word": "three", "count": 3}, {"word": "four", "count": 4}])

incoming = Asset(
    "incoming",
    watchers=[
        AssetWatcher(
            name="incoming",
            trigger=NewDataTrigger(os.environ["OCIDIST_TEST_INCOMING"], poll_interval=1.0, settle=2.0),
        )
    ],
)

with DAG(dag_id="retrain_on_data", schedule=[incoming], catchup=False) as fed:

    @task
    def arrived(triggering_asset_events: dict) -> dict:
        """Return what the event says of the new data."""
        (events,) = triggering_asset_events.values()
        return events[0].extra

    arrived()
