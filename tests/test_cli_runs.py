"""ocidist run, status, logs, watch, cancel, show-config and copy, against the emulator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist import job_file
from scripts.emulator_process import Access
from tests.training_jobs import PROGRAMS, a_job


class Terminal:
    """A folder with a job file, and an `ocidist` that knows the emulator."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = {**os.environ, **env}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "airflow_provider_ocidist.cli", *arguments]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=self.env, text=True, **streams)

    def __call__(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        return out + err

    def write_job(self, **changes) -> None:
        (self.folder / "job.yaml").write_text(job_file.to_yaml(a_job(**changes)))


@pytest.fixture
def ocidist(tmp_path: Path, emulator: Access) -> Terminal:
    terminal = Terminal(tmp_path, emulator.airflow_env())
    terminal.write_job()
    return terminal


def test_a_run_is_followed_to_its_end_and_can_be_looked_at_afterwards(ocidist: Terminal) -> None:
    text = ocidist("run", "job.yaml", "--wait", "--interval", "0.3")
    assert "[node 0] " in text
    assert "[node 1] " in text
    assert "succeeded; newest checkpoint: oci://" in text
    info = yaml.safe_load((ocidist.folder / "info.yaml").read_text())
    assert info["mainJobRunId"].startswith("ocid1.datasciencejobrun.")
    assert len(info["otherJobRunIds"]) == 1
    status = json.loads(ocidist("status", "--json"))
    assert (status["ended"], [node["state"] for node in status["nodes"]]) == (True, ["SUCCEEDED"] * 2)
    assert "[node 1] " in ocidist("logs")
    assert yaml.safe_load(ocidist("show-config")) == info
    assert "succeeded" in ocidist("watch", "info.yaml")


def test_a_second_run_does_not_overwrite_the_note_of_the_first(ocidist: Terminal) -> None:
    (ocidist.folder / "info.yaml").write_text("precious")
    assert "is of an earlier run" in ocidist("run", "job.yaml", code=2)
    assert (ocidist.folder / "info.yaml").read_text() == "precious"


def test_cancel_ends_all_nodes(ocidist: Terminal) -> None:
    ocidist.write_job(seconds=60)
    ocidist("run", "job.yaml")
    assert "CANCELED" in ocidist("cancel", "--interval", "0.3")
    assert "CANCELED: " in ocidist("watch", code=3)


def test_ctrl_c_ends_a_run_that_is_waited_for(ocidist: Terminal) -> None:
    ocidist.write_job(seconds=60)
    process = ocidist.start("run", "job.yaml", "--wait", "--interval", "0.3")
    while not (ocidist.folder / "info.yaml").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert "nodes: 2 " in ocidist("status")
    assert "CANCELED" in ocidist("cancel", "--interval", "0.3")


def test_a_failed_training_is_exit_code_3_with_its_cause(ocidist: Terminal) -> None:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--fail-rank", "1"]}
    ocidist.write_job(program=program)
    assert "USER: " in ocidist("run", "job.yaml", "--wait", "--interval", "0.3", code=3)


def test_copy_brings_a_tree_to_a_bucket_and_back(ocidist: Terminal, emulator: Access) -> None:
    (ocidist.folder / "tree").mkdir()
    (ocidist.folder / "tree" / "a b.txt").write_text("hello")
    bucket = f"oci://{emulator.bucket}@{emulator.namespace}/cli-copy/"
    report = json.loads(ocidist("copy", "tree/", bucket, "--json").partition("copy:")[0])
    assert (report["files"], report["bytes"]) == (1, 5)
    ocidist("copy", bucket, "back/")
    assert (ocidist.folder / "back" / "a b.txt").read_text() == "hello"


@pytest.mark.parametrize(
    "connection, complaint",
    [
        ("{", "AIRFLOW_CONN_OCI_DEFAULT holds no connection: it is no JSON"),
        ('{"extra": {"auth": "nonsense"}}', "auth is 'nonsense'"),
    ],
)
def test_a_wrong_connection_is_one_line_and_exit_code_2(ocidist: Terminal, connection, complaint) -> None:
    ocidist.env["AIRFLOW_CONN_OCI_DEFAULT"] = connection
    text = ocidist("copy", "oci://bucket@namespace/a", "b", code=2)
    assert complaint in text
    assert len(text.splitlines()) == 1


def test_without_a_note_it_says_which_file_is_missing(ocidist: Terminal) -> None:
    assert ocidist("status", code=2).startswith("ocidist: info.yaml: No such file")
