"""All that a job can bring to its nodes, on nodes of the emulator: private code, data, mounts, outputs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from airflow_provider_ocidist.agent.prepare.git.credentials import TOKEN_USER
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState, RunRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access
from tests.agent.prepare.git_server import serve
from tests.training_jobs import a_job, a_key, wait_until

PROGRAM = """
import os, pathlib
import lib.near
mounted = pathlib.Path(os.environ.get("OCIDIST_MOUNT_ROOT", "/"), "mnt/corpus/a.txt").read_text()
text = " ".join([lib.near.NAME, pathlib.Path("data/a.txt").read_text(), mounted, os.environ["TEAM"]])
pathlib.Path("out").mkdir()
pathlib.Path("out/seen.txt").write_text(text)
"""


def test_private_code_inputs_mounts_and_roles_come_together(
    backend: OciDataScience, emulator: Access, tmp_path: Path, ends: Callable[[RunRef], RunRef]
) -> None:
    work = tmp_path / "project"
    (work / "src" / "lib").mkdir(parents=True)
    (work / "train.py").write_text(PROGRAM)
    (work / "src" / "lib" / "near.py").write_text("NAME = 'near'")
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    for command in (
        ("init", "--quiet"),
        ("add", "."),
        (*identity, "commit", "--quiet", "-m", "1"),
        ("clone", "--quiet", "--bare", ".", "../project.git"),
    ):
        subprocess.run(["git", "-C", str(work), *command], check=True)
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/bring"
    access = OciAccess(config_file=emulator.config_file, profile=emulator.profile, endpoint=emulator.url)
    open_store(f"{bucket}/corpus", access).write("a.txt", b"data")
    with serve(tmp_path, user=TOKEN_USER, password=emulator.secret_value) as server:
        program = {
            "source": f"{server.url}/project.git",
            "source_secret": emulator.secret_id,
            "script": "train.py",
            "python_path": ["src"],
        }
        job = a_job(
            program=program,
            checkpoints=None,
            inputs=[{"source": f"{bucket}/corpus/", "target": "data"}],
            mounts=[{"source": f"{bucket}/corpus", "path": "corpus"}],
            outputs=[{"path": "out", "uri": f"{bucket}/to/${{TEAM}}", "nodes": "all"}],
            env={"TEAM": "ml"},
        )
        plan = backend.plan(job, a_key())
        ref = ends(backend.submit(plan))
        status = wait_until(backend, ref, lambda seen: all(node.state.terminal for node in seen.nodes), 60)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2, status
    outputs = open_store(f"{bucket}/to", access)
    found = {entry.name: outputs.read(entry.name).decode() for entry in outputs.list()}
    assert found == dict.fromkeys(("ml/seen.txt", "ml/node-1/seen.txt"), "near data data ml")
