"""Airflow's own Kubernetes operators, unmodified, on the emulator's cluster: blocking and deferred."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.emulator_process import EmulatorProcess
from scripts.local_airflow import LocalAirflow
from tests.views import need_views

DAG = """
import json

from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG

with DAG(dag_id="official", schedule=None) as dag:
    for deferrable in (False, True):
        how = {
            "image": "python:3.12",
            "in_cluster": False,
            "startup_timeout_seconds": 60,
            "deferrable": deferrable,
            "poll_interval": 0.2,
            "startup_check_interval_seconds": 1,
            "cmds": ["sh", "-c"],
        }
        word = "deferred" if deferrable else "blocking"
        KubernetesPodOperator(
            task_id=f"pod_{word}", name="pod", arguments=[f"echo pod says {word} $((40 + 2))"], **how
        )
        KubernetesJobOperator(
            task_id=f"job_{word}",
            name="job",
            arguments=[f"echo job says {word} $((40 + 2))"],
            completions=2,
            parallelism=2,
            wait_until_job_complete=True,
            job_poll_interval=0.2,
            **how,
        )
    KubernetesPodOperator(task_id="fails", name="fails", arguments=["exit 3"], **how)

if __name__ == "__main__":
    run = dag.test()
    print("STATES", json.dumps({each.task_id: each.state for each in run.get_task_instances()}))
"""


@pytest.mark.timeout(300)
def test_pods_and_jobs_run_to_their_end_and_a_failure_fails_the_task(tmp_path: Path, database: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "official.py").write_text(DAG)
    need_views()
    with EmulatorProcess(tmp_path / "emulator", options=("--kubernetes",)) as access:
        env = access.kubernetes_env()
        airflow = LocalAirflow(tmp_path / "airflow", dags=dags, env=env, database=database)
        airflow.prepare()
        command = [sys.executable, str(dags / "official.py")]
        done = subprocess.run(
            command, env=airflow.env, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
    output = done.stdout + done.stderr
    for word in ("blocking", "deferred"):
        assert f"pod says {word} 42" in output, output[-6000:]
    printed = [line for line in output.splitlines() if line.startswith("STATES")]
    assert printed, output[-6000:]
    states = json.loads(printed[0].removeprefix("STATES"))
    assert states.pop("fails") == "failed"
    assert set(states.values()) == {"success"}, output[-6000:]
