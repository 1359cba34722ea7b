"""The example DAG through `airflow dags test` (dag.test()), with real torchrun on two nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.emulator_process import Access
from scripts.local_airflow import LocalAirflow

EXAMPLES = Path(__file__).parents[2] / "dags_examples"
TEXT = "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer.\n" * 400


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_the_example_retrains_a_gpt_by_torchrun_and_hands_on_its_checkpoint(
    emulator: Access, tmp_path: Path, database: Path
) -> None:
    text = tmp_path / "hamlet.txt"
    text.write_text(TEXT)
    results = tmp_path / "results"
    airflow = LocalAirflow(tmp_path / "airflow", dags=EXAMPLES, env=emulator.airflow_env(), database=database)
    airflow.prepare()
    conf = {"data_uri": f"file://{text}", "steps": 20, "results_dir": str(results)}
    command = [sys.executable, "-m", "airflow", "dags", "test", "retrain_gpt", "--conf", json.dumps(conf)]
    done = subprocess.run(
        command, env=airflow.env, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert "torch.distributed.run" in output or "torchrun" in output, output[-4000:]
    assert "step 20/20" in output
    assert "step-000020" in output
    summary = json.loads((results / "summary.json").read_text())
    assert summary["steps"] == 20
    assert summary["val_loss_last"] < summary["val_loss_first"]
    assert (results / "sample.txt").read_text()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_the_example_with_saves_beside_the_training_hands_on_the_last_of_them(
    tmp_path: Path, database: Path
) -> None:
    airflow = LocalAirflow(tmp_path / "airflow", dags=EXAMPLES, env={}, database=database)
    airflow.prepare()
    conf = {"steps": 30, "save_every": 20}
    command = [
        sys.executable,
        "-m",
        "airflow",
        "dags",
        "test",
        "train_with_saves",
        "--conf",
        json.dumps(conf),
    ]
    done = subprocess.run(
        command,
        # The work directory of a connection that nobody has made lies below the home.
        env={**airflow.env, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert "trained to step 30, loss 0." in output, output[-4000:]
    (metadata, *_) = sorted(tmp_path.rglob("step-30*/.metadata"))
    assert (metadata.parent / "manifest.json").exists()


LOCAL = """
from airflow.sdk import DAG

from airflow_provider_ocidist.operators import DistributedTrainingOperator

JOB = {{
    "name": "steps",
    "nodes": 2,
    "program": {{"source": {programs!r}, "script": "steps.py", "args": ["--seconds", "1"]}},
    "launcher": {{"kind": "python"}},
    "checkpoints": {{}},
    "work_dir": {work_dir!r},
    "backend": {{"kind": "local"}},
}}
with DAG(dag_id="local_training", schedule=None):
    DistributedTrainingOperator(task_id="train", job=JOB)
"""


@pytest.mark.timeout(600)
def test_backend_local_trains_in_an_airflow_without_any_connection(tmp_path: Path, database: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    programs = str(Path(__file__).parent / "programs")
    text = LOCAL.format(programs=programs, work_dir=str(tmp_path / "work"))
    (dags / "local_training.py").write_text(text)
    airflow = LocalAirflow(tmp_path / "airflow", dags=dags, env={}, database=database)
    airflow.prepare()
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "test", "local_training"],
        env=airflow.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    assert "[node 1]" in output, output[-4000:]
    assert list((tmp_path / "work" / "checkpoints").glob("*/*/manifest.json"))
