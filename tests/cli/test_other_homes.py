"""Runs by the ids of their platforms, on the stand-ins for Kubernetes and Run:ai: without a note."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes
import pytest
import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.local import Local
from airflow_provider_ocidist.cli import main
from airflow_provider_ocidist.cli.watch import _Follower
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.homes import cancel_command
from airflow_provider_ocidist.model.run import Ending, RunRef
from tests.backends.clusters import FAST, IMAGE
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import PROGRAMS, a_job, a_key, wait_until
from tests.views import need_views

KINDS = ("pytorchjob", "trainjob", "runai")


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    need_views()
    options = Options(grace_s=1.0, kubernetes=ClusterSettings(**FAST), runai=RunaiSettings(lag_s=0.0))
    with Emulator(options=options) as running:
        yield running


@pytest.fixture(params=KINDS)
def gang(
    request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Backend, RunRef]]:
    """A gang that a task has begun, and a shell with its connection in another folder."""
    access = emulator.access
    fields: dict[str, Any] = {
        "work_dir": str(tmp_path / "work"),
        "kube_config_path": access.kubeconfig,
    }
    connection: dict[str, Any] = {"conn_type": "kubernetes", "extra": fields}
    section: dict[str, Any] = {"kind": request.param}
    if request.param == "runai":
        assert access.runai is not None
        fields["project"] = access.runai["project"]
        own = ("url", "host"), ("client_id", "login"), ("client_secret", "password")
        connection |= {"conn_type": "runai"} | {name: access.runai[field] for field, name in own}
        section["volumes"] = [{"claim": "work", "path": str(tmp_path)}]
        from airflow_provider_ocidist.backends.runai.options import runai_fields

        runai = access.runai
        given = runai_fields(runai["url"], runai["client_id"], runai["client_secret"], fields)
    else:
        given = {**fields, "namespace": access.kubernetes_namespace}
        fields["namespace"] = access.kubernetes_namespace
    backend: Backend = kinds.load("backends", request.param).BACKEND.connect(given)
    job = {
        "name": "steps",
        "nodes": 1,
        "image": IMAGE,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "60"]},
        "launcher": {"kind": "python"},
        "env": {"API_TOKEN": "hunter22-of-diff"},
        "limits": {"stop_grace": 1},
        "backend": section,
    }
    ref = backend.submit(backend.plan(parsing.build(job), a_key()))
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps(connection))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    Path("job.yaml").write_text(yaml.safe_dump(job))
    yield backend, ref
    backend.delete(ref)


def test_a_run_is_shown_and_ended_by_the_id_that_its_platform_gives_it(
    gang: tuple[Backend, RunRef], capsys: pytest.CaptureFixture[str]
) -> None:
    backend, ref = gang
    place = ("--conn-id", "home", "--backend", backend.kind)
    assert main(["list", "--json", *place]) == 0
    # What `list` prints is what the others take.
    (found,) = [each for each in json.loads(capsys.readouterr().out) if each["job_id"] == ref.job_id]
    assert main(["status", found["job_id"], *place]) == 0
    assert "node 0: " in capsys.readouterr().out
    assert main(["show-config", found["job_id"], *place]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["jobId"] == ref.job_id
    assert main(["logs", found["job_id"], *place]) == 0
    capsys.readouterr()
    ocidist, *named = shlex.split(cancel_command(ref))
    assert ocidist == "ocidist"
    assert main([*named, "--interval", "0.1", "--conn-id", "home"]) == 0
    assert ref.key.name in capsys.readouterr().out


def test_a_run_is_compared_with_the_file_that_would_run_now(
    gang: tuple[Backend, RunRef], capsys: pytest.CaptureFixture[str]
) -> None:
    backend, ref = gang
    sides = (ref.job_id, "job.yaml", "--conn-id", "home", "--backend", backend.kind)
    assert main(["diff", *sides]) == 0, capsys.readouterr().out
    assert capsys.readouterr().out == "no difference\n"
    Path("job.yaml").write_text(Path("job.yaml").read_text().replace("'60'", "'7'"))
    assert main(["diff", "--json", *sides]) == 1
    said = capsys.readouterr().out
    assert [each["path"].rpartition("OCIDIST_CONFIG.")[2] for each in json.loads(said)] == ["program.args.1"]
    assert "hunter22" not in said


def test_a_run_that_has_ended_leaves_no_container_beside_it(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = emulator.access
    sidecar = {"name": "proxy", "image": IMAGE, "command": ["sleep", "600"]}
    job = {
        "name": "steps",
        "image": IMAGE,
        "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "0.2"]},
        "launcher": {"kind": "python"},
        "backend": {"kind": "pytorchjob", "pod_template": {"spec": {"containers": [sidecar]}}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    namespace = access.kubernetes_namespace
    extra = {
        "work_dir": str(tmp_path / "work"),
        "kube_config_path": access.kubeconfig,
        "namespace": namespace,
    }
    monkeypatch.setenv("AIRFLOW_CONN_HOME", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.chdir(tmp_path)
    assert main(["run", "job.yaml", "--conn-id", "home", "--wait", "--interval", "0.1"]) == 0
    with kubernetes.config.new_client_from_config(access.kubeconfig) as client:
        core = kubernetes.client.CoreV1Api(client)
        until(lambda: not core.list_namespaced_pod(namespace).items)


def test_a_run_that_is_suspended_has_no_node_until_it_is_resumed(
    gang: tuple[Backend, RunRef], emulator: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, ref = gang
    place = ("--conn-id", "home", "--backend", backend.kind)
    cluster = emulator.kubernetes.cluster

    def pods() -> list[str]:
        found = (each["metadata"]["name"] for each in cluster.list("Pod"))
        return [name for name in found if name.startswith(ref.run_ids[0])]

    until(pods)
    assert main(["suspend", ref.job_id, *place]) == 0
    until(lambda: not pods())
    assert main(["resume", ref.job_id, *place]) == 0
    until(pods)
    assert ref.key.name in capsys.readouterr().out


def test_an_id_that_the_platform_does_not_know_is_no_missing_file(
    gang: tuple[Backend, RunRef], capsys: pytest.CaptureFixture[str]
) -> None:
    backend, _ = gang
    place = ("--conn-id", "home", "--backend", backend.kind)
    assert main(["status", "no-such-gang", *place]) != 0
    said = capsys.readouterr().err
    assert "no-such-gang" in said
    assert "No such file" not in said
    # The note that `ocidist run` would have written is a file whatever the backend.
    assert main(["status", *place]) != 0
    assert "info.yaml: No such file" in capsys.readouterr().err


def test_a_gang_of_this_machines_processes_is_named_by_its_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = Local.connect({"work_dir": str(tmp_path)})
    job = a_job(nodes=1, seconds=0.1, backend={"kind": "local"})
    ref = backend.submit(backend.plan(job, a_key()))
    wait_until(backend, ref, lambda status: status.ended)
    place = ("--backend", "local", "--field", f"work_dir={tmp_path}")
    for command, words in {"status": "SUCCEEDED", "logs": "step 1/1 loss 1.0000"}.items():
        assert main([command, ref.run_dir, *place]) == 0
        assert words in capsys.readouterr().out
    # As messages name it, with the usual connection, whose work_dir is another.
    assert main([*shlex.split(cancel_command(ref))[1:], "--field", "work_dir=/elsewhere"]) == 0
    assert ref.key.name in capsys.readouterr().out
    assert main(["status", str(tmp_path), *place]) != 0
    assert "is no run directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "conn_id, connection", [("oci_default", ""), ("oke2", "--conn-id=oke2 ")], ids=["usual", "another"]
)
def test_who_may_only_watch_a_gang_is_given_the_command_that_ends_it(conn_id: str, connection: str) -> None:
    said: list[str] = []
    screen: Any = SimpleNamespace(warning=lambda text, *words: said.append(text % words))
    options = argparse.Namespace(target="team/x", backend="pytorchjob", conn_id=conn_id)
    watch: Any = None
    follower = _Follower(
        options,
        watch,
        screen,
        may_end_it=False,
        on_replaced=lambda _: None,
        on_failed=lambda *_: None,
        to_go_on=lambda _: None,
    )
    follower._cancel(Ending(cause=Cause.DEADLINE, message="too late", since=0.0))
    command = f"ocidist cancel {connection}--backend pytorchjob team/x"
    assert said == [f"DEADLINE: too late; to end it: {command}, or by deleting the PyTorchJob with kubectl"]
