"""TaskJob: how often a job is read, and which changes are seen."""

from __future__ import annotations

import json
import logging
import random
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import Plan, RunKey, RunRef
from airflow_provider_ocidist.operators.job_arguments import JobArguments, WrittenCode
from airflow_provider_ocidist.operators.task_jobs import DEFAULT_LEASE, TaskConnection, TaskJob

FILE = """
name: digits
nodes: {nodes}
program: {{source: "https://git.example.com/x.git", script: train.py}}
backend: {{shape: VM.Standard.E4.Flex, ocpus: 1, memory_gb: 8}}
"""


@pytest.fixture
def job() -> TaskJob:
    return TaskJob(TaskConnection("none_such"))


def as_it_is(text: str) -> Any:
    return text


def test_a_file_is_read_once_whatever_becomes_of_it(tmp_path: Path, job: TaskJob) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(FILE.format(nodes=2))
    arguments = JobArguments(job="job.yaml", folder=tmp_path)
    first = job.job(arguments, as_it_is)
    for text in (FILE.format(nodes=3), "name: [", None):
        file.unlink() if text is None else file.write_text(text)
        assert job.job(replace(arguments), as_it_is) is first
    assert (first.nodes, first.limits.lease) == (2, DEFAULT_LEASE)


def test_arguments_that_change_after_rendering_are_seen(tmp_path: Path, job: TaskJob) -> None:
    (tmp_path / "job.yaml").write_text(FILE.format(nodes=2))
    arguments = JobArguments(job="job.yaml", folder=tmp_path)
    assert job.job(arguments, as_it_is).nodes == 2
    nodes = random.randint(3, 50)
    print("nodes", nodes)
    assert job.job(replace(arguments, nodes=nodes), as_it_is).nodes == nodes
    assert job.job(replace(arguments, overrides={"nodes": nodes + 1}), as_it_is).nodes == nodes + 1


def test_what_fails_to_be_read_is_read_again(tmp_path: Path, job: TaskJob) -> None:
    arguments = JobArguments(job="job.yaml", folder=tmp_path)
    with pytest.raises(JobFileError):
        job.job(arguments, as_it_is)
    (tmp_path / "job.yaml").write_text(FILE.format(nodes=2))
    assert job.job(arguments, as_it_is).nodes == 2


def test_code_that_a_task_writes_is_there_only_while_it_is_sent(tmp_path: Path, job: TaskJob) -> None:
    (tmp_path / "job.yaml").write_text(FILE.format(nodes=2))
    code = WrittenCode(folder="own", files={"own.py": "pass"}, overrides={"program.script": "own.py"})
    read = job.job(JobArguments(job="job.yaml", folder=tmp_path, code=code), as_it_is)
    assert not Path(str(read.program.source)).exists()
    with job.with_code(read) as complete:
        folder = Path(str(complete.program.source))
        assert (folder.name, complete.program.script) == ("own", "own.py")
        assert (folder / "own.py").read_text() == "pass"
    assert not folder.exists()
    assert job.plans(complete) == ()


def test_each_gang_is_looked_for_at_its_own_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BOTH", '{"conn_type": "oci", "extra": {"region": "eu-frankfurt-1"}}')
    connection = TaskConnection("both")
    # The job as its file is now, then the gang that the task waits for.
    kinds = ["local", "oci_data_science", "local"]
    assert [connection.backend(kind).kind for kind in kinds] == kinds
    assert connection.backend("local") is connection.backend("local")
    assert connection.backend(None).kind == "local"


def test_what_was_planned_to_be_shown_is_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(FILE.format(nodes=1))
    made: list[TrainingJob] = []
    real = Local.plan

    def counted(self: Local, job: TrainingJob, key: RunKey) -> Plan:
        made.append(job)
        return real(self, job, key)

    monkeypatch.setattr(Local, "plan", counted)
    code = WrittenCode(folder="own", files={"own.py": "pass"}, overrides={"program.script": "own.py"})
    at_home = {"backend": {"kind": "local"}, "work_dir": str(tmp_path / "work")}
    arguments = JobArguments(job="job.yaml", folder=tmp_path, code=code, overrides=at_home)
    connection, key = TaskConnection("oci_default"), RunKey(dag_id="dag", run_id="run", task_id="train")
    job = TaskJob(connection)
    assert "no plan" not in job.shown_plan(None, lambda: arguments, as_it_is, key)
    with job.with_code(job.job(arguments, as_it_is)) as complete:
        (plan,) = job.plans(complete)
        log, stop = logging.getLogger("test"), threading.Event()
        gang = GangSubmitter(connection.backend("local"), complete, log, None, stop, plans=[plan])
        assert gang.cancel_earlier(key, 1, ValueError("to be ended")) == []
        assert plan.code == complete.program.source
    assert len(made) == 1
    # Of another job they are none.
    assert job.plans(replace(complete, nodes=5)) == ()


@pytest.mark.parametrize("seed", range(20))
def test_credentials_are_read_again_at_each_connection_that_can_be_read(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A candidate's connection that is removed, and not needed, keeps no gang from its own renewed key."""
    print("seed", seed)
    dice = random.Random(seed)
    others = ["fra", "phx", "lhr"]

    def define(profile: str) -> None:
        for name in ("oci_default", *others):
            fields = {"conn_type": "oci", "extra": {"profile": profile, "region": "eu-frankfurt-1"}}
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))

    define("OLD")
    connection = TaskConnection("oci_default")
    own = connection.backend("oci_data_science")
    connected: dict[str | None, Any] = {
        conn_id: beside(own, conn_id) for conn_id in (None, *dice.sample(others, len(others)))
    }
    define("NEW")
    removed = dice.sample(others, dice.randint(1, len(others)))
    for name in removed:
        monkeypatch.delenv(f"AIRFLOW_CONN_{name.upper()}")
    key = RunKey(dag_id="dag", run_id="run", task_id="train")
    gang = RunRef(
        backend="oci_data_science",
        key=key,
        nodes=1,
        job_id="job",
        run_ids=("a",),
        run_dir="oci://b@n/x",
        submitted_at=0.0,
        conn_id=dice.choice([None, *others]),
    )
    said = f"no connection '{gang.conn_id}'" if gang.conn_id in removed else None
    with pytest.raises(Exception, match=said) if said else nullcontext():
        connection.reconnect(gang)
    assert {conn_id for conn_id, each in connected.items() if each.access.profile == "OLD"} == set(removed)
    # Where all are needed, the caller learns that not all could be read.
    with pytest.raises(Exception, match="no connection"):
        connection.reconnect()
