"""The DAGs in the documents run as they stand there, by dag.test(), on nodes of the emulator."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_ocidist.oci_credentials import access_of
from airflow_provider_ocidist.storage.stores import open_store
from scripts.emulator_process import Access
from scripts.local_airflow import LocalAirflow
from tests.documents import blocks

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]

PROGRAM = """
import json, os, pathlib
if os.environ["RANK"] == "0":
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
        file.write(json.dumps({"step": 3, "steps": 3, "loss": 0.5}) + "\\n")
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step-3.tmp").write_text("weights")
    (folder / "step-3.tmp").rename(folder / "step-3.txt")
    pathlib.Path("outputs").mkdir()
    pathlib.Path("outputs", "model.txt").write_text("model")
"""
JOB = """
name: gpt
nodes: 1
program: {source: ../train, script: train.py}
launcher: {kind: python}
checkpoints: {}
outputs:
  - {path: outputs, uri: "oci://bucket@namespace/outputs/{{ run_id }}/"}
limits: {stop_grace: 1s}
backend: {shape: VM.GPU.A10.1}
"""
RUN = """
import sys, traceback
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
for dag in bag.dags.values():
    for task in dag.tasks:  # shorter than in the documents, where a look every ten seconds is enough
        if task.is_mapped and "job" in task.partial_kwargs:
            task.partial_kwargs["poll_interval"] = 1
        elif hasattr(task, "poll_interval"):
            task.poll_interval = 1
assert not bag.import_errors, bag.import_errors
for name in sorted(bag.dag_ids):
    try:
        print("\\nRESULT", name, bag.dags[name].test().state, flush=True)
    except Exception:
        traceback.print_exc()
        print("\\nRESULT", name, "error", flush=True)
"""
LEFT_OUT = {"first": "run by test_document_blocks.py", "tracked": "needs a server of MLflow"}
PLACES = {
    "oci://public@namespace/": "oci://bucket@namespace/public/",
    "s3://other/": "/data/",
    "https://host/": "file:///data/",
    "https://example.com/": "file:///data/",
}
"""Other clouds and the web, which are not here, as folders."""


def documented(place: str, folder: Path) -> list[str]:
    """Return the documents' DAG files, with this emulator's bucket for theirs, and this folder for /data and /srv."""
    found = []
    for block in blocks("python"):
        if "with DAG(" not in block.text or any(f'DAG("{name}"' in block.text for name in LEFT_OUT):
            continue
        text = block.text
        for theirs, here in PLACES.items():
            text = text.replace(theirs, here)
        text = text.replace("bucket@namespace", place)
        found.append(re.sub(r"/(?=(?:data|srv)/)", f"{folder}/", text))
    return found


@pytest.mark.since_airflow("3.3", "DagBag is imported from where 3.3 has it")
def test_the_dags_in_the_documents_run(emulator: Access, tmp_path: Path, database: Path) -> None:
    dags, data = tmp_path / "dags", tmp_path / "data"
    for folder in (dags / "jobs", dags / "train", data / "corpus"):
        folder.mkdir(parents=True)
    place = f"{emulator.bucket}@{emulator.namespace}"
    (dags / "jobs" / "gpt.yaml").write_text(JOB.replace("bucket@namespace", place))
    access = access_of(emulator.connection_fields())
    open_store(f"oci://{place}/outputs", access).write("model.txt", b"of the day before")
    (dags / "train" / "train.py").write_text(PROGRAM)
    for name in ("corpus.txt", "corpus/a.txt", "labels-1.csv", "a.bin", "b.bin"):
        (data / name).write_text(name)
    texts = documented(place, tmp_path)
    assert len(texts) > 6
    for number, text in enumerate(texts):
        (dags / f"documented_{number}.py").write_text(text)
    airflow = LocalAirflow(
        tmp_path / "airflow", dags=dags, env=emulator.airflow_env(shape="VM.GPU.A10.1"), database=database
    )
    airflow.prepare()
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(dags)],
        env=airflow.env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    parts = re.split(r"^RESULT (\w+) (\w+)$", done.stdout, flags=re.MULTILINE)
    results = list(zip(*(parts[first::3] for first in range(3)), strict=False))
    assert len(results) > len(texts), done.stderr[-6000:]
    failed = [f"{name} {state}\n{output[-6000:]}" for output, name, state in results if state != "success"]
    assert not failed, "\n".join(failed)
