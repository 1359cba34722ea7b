"""The agent travels into images that hold nothing but Python, and needs no package there."""

from __future__ import annotations

import ast
import base64
import os
import re
import subprocess
import sys
import venv
import zlib
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.backends.bundle import BOOT_VARIABLE, START_SCRIPT
from airflow_provider_ocidist.backends.kubernetes import agent_parts
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.model.run import NodeState
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.training_jobs import a_job, a_key, wait_until

PROGRAM = """
import importlib.util, os, pathlib
assert importlib.util.find_spec("oci") is None, "this image is meant to have no SDK"
assert "OCIDIST_BOOT" not in os.environ
rank = os.environ["RANK"]
print("trains as rank", rank, flush=True)
if rank == "0":
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "step-7.bin").write_bytes(b"weights " * 1000)
    pathlib.Path("results").mkdir()
    pathlib.Path("results", "model.txt").write_text("trained")
"""


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The PATH of an image with Python and nothing else."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder, with_pip=False)
    return f"{folder / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"


def test_a_gang_trains_in_an_image_without_a_single_package(
    backend: OciDataScience, fields: dict[str, Any], bare_path: str, ends: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    results = f"{fields['work_dir']}/results"
    job = a_job(
        image="registry.example/python:3.11-slim",
        env={"PATH": bare_path},
        program={"source": str(tmp_path), "script": "train.py"},
        outputs=[{"path": "results", "uri": results}],
    )
    ref = ends(backend.submit(backend.plan(job, a_key())))
    status = wait_until(backend, ref, lambda status: status.ended, seconds=90)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2, status
    assert status.checkpoint is not None
    assert status.checkpoint.step == 7
    assert status.checkpoint_problem is None
    assert open_store(results, backend.access).read("model.txt") == b"trained"


SCRIPTS = {
    "node": bundle.NODE_SCRIPT,
    "boot": bundle.BOOT_SCRIPT,
    "start": bundle.START_SCRIPT,
    "start of a pod": agent_parts.START_SCRIPT,
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_programs_that_are_no_files_have_no_gap_left_to_fill(script: str) -> None:
    assert re.findall(r"\b(VERSION|BOOT_VARIABLE|OLDEST|BLOCK_SIGNALS)\b", script) == []


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_programs_that_are_no_files_have_the_syntax_of_the_oldest_python(script: str) -> None:
    assert ast.parse(script, feature_version=bundle.OLDEST_PYTHON).body
    with pytest.raises(SyntaxError):
        ast.parse("match 1:\n    case _: pass\n", feature_version=bundle.OLDEST_PYTHON)


def test_an_old_python_is_reported_as_one() -> None:
    program = START_SCRIPT.replace("sys.version_info", "(3, 8, 1)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("ocidist: the python3 of this image is 3.8, the agent needs 3.9 or later")


@pytest.mark.parametrize(
    "version, agent",
    [
        (__version__, "def main(): raise SystemExit('an agent that this start does not know')"),
        (__version__, "import no_such_module"),
        ("0.0.1", "def run_and_exit(): raise SystemExit('an older agent')"),
    ],
    ids=["of an earlier checkout", "broken", "of an earlier version"],
)
def test_the_agent_is_fetched_into_an_image_whose_own_does_not_fit(
    tmp_path: Path, version: str, agent: str
) -> None:
    package = tmp_path / "airflow_provider_ocidist"
    (package / "agent").mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}")
    (package / "agent/__init__.py").touch()
    (package / "agent/__main__.py").write_text(agent)
    boot = base64.b64encode(zlib.compress(b"print('fetched')")).decode()
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), BOOT_VARIABLE: boot}
    command = [sys.executable, "-c", START_SCRIPT]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr


def test_an_agent_that_cannot_be_fetched_is_one_clear_line(backend: OciDataScience, bare_path: str) -> None:
    plan = backend.plan(a_job(nodes=1, image="python"), a_key())
    body: Any = plan.requests[0].body
    environment = body["jobConfigurationDetails"]["environmentVariables"]
    command = body["jobEnvironmentConfigurationDetails"]["entrypoint"]
    assert sum(map(len, command)) < 2048
    bare = {**environment, "PATH": bare_path}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"cannot be fetched from {plan.run_dir}/agent.zip" in done.stderr
    assert "OCI_RESOURCE_PRINCIPAL_VERSION is None" in done.stderr
    assert "Remedy" in done.stderr
    assert "Traceback" not in done.stderr
