"""Gangs whose nodes run the oldest Python that Oracle's environments may have: `make test-python39` makes one."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.bundle import OLDEST_PYTHON
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access, EmulatorProcess
from tests.training_jobs import BACKEND, a_job, a_key, wait_until

ENVIRONMENT = Path(__file__).parents[2] / ".venv-python39"
SLUG = "pytorch20_p39_gpu_v1"
PROGRAM = """
import json, os, pathlib, sys
rank = int(os.environ["OCIDIST_NODE_RANK"])
print("python", "%d.%d" % sys.version_info[:2])
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
if rank == 0:
    (folder / "step-7.json").write_text(json.dumps({"step": 7}))
    print("step 7/7 loss 0.5")
pathlib.Path("results").mkdir(exist_ok=True)
pathlib.Path("results/python.txt").write_text("%d.%d" % sys.version_info[:2])
pathlib.Path("results/data.txt").write_bytes(pathlib.Path("data/large.bin").read_bytes()[-5:])
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    python = str(ENVIRONMENT / "bin" / "python")
    found = subprocess.run(
        [python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(OLDEST_PYTHON)
    options = ("--conda", f"{SLUG}={ENVIRONMENT}")
    with EmulatorProcess(tmp_path_factory.mktemp("older"), options=options) as access:
        yield access


CONDA = {"backend": {**BACKEND, "conda_slug": SLUG}}
IMAGE = {
    "image": "registry.example/python:3.9-slim",
    "env": {"PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"},
    "backend": BACKEND,
}
"""There the agent is fetched by programs that are no files of ours: `bundle.START_SCRIPT`, `bundle.BOOT_SCRIPT`."""


@pytest.mark.parametrize(
    "topology, home",
    [("job_runs", CONDA), ("multi_node", CONDA), ("job_runs", IMAGE)],
    ids=["job_runs", "multi_node", "image"],
)
def test_two_nodes_with_an_old_python_train_to_a_checkpoint(
    older: Access, topology: str, home: dict[str, Any], tmp_path: Path
) -> None:
    fields = older.connection_fields()
    backend = OciDataScience.connect(fields)
    folder = f"{fields['work_dir']}/{uuid.uuid4().hex[:8]}"
    open_store(folder, backend.access).write("in/large.bin", b"x" * (9 << 20) + b"tail!")
    (tmp_path / "train.py").write_text(PROGRAM)
    job = a_job(
        **{**home, "backend": {**home["backend"], "topology": topology}},
        program={"source": str(tmp_path), "script": "train.py"},
        inputs=[{"source": f"{folder}/in/", "target": "data/"}],
        outputs=[{"path": "results", "uri": f"{folder}/out", "nodes": "all"}],
    )
    ref = backend.submit(backend.plan(job, a_key()))
    try:
        status = wait_until(backend, ref, lambda status: status.ended, seconds=200)
    finally:
        backend.cancel(ref)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2, status
    assert status.checkpoint is not None
    assert status.checkpoint.step == 7
    results = open_store(f"{folder}/out", backend.access)
    for name in ("", "node-1/"):
        assert results.read(f"{name}python.txt") == b"3.9"
        assert results.read(f"{name}data.txt") == b"tail!"
