"""Gangs that train on the stand-in for Run:ai: their nodes are real processes of the Kubernetes stand-in beneath."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from airflow_provider_ocidist.backends.runai import Runai
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Succeed, Wait
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, RunRecord, RunRef
from tests.training_jobs import PROGRAMS, a_key, wait_until
from tests.views import need_views

OPTIONS = Options(
    grace_s=1.0,
    kubernetes=ClusterSettings(backoff_s=0.2, backoff_max_s=0.4, mount_retry_s=0.05),
    runai=RunaiSettings(lag_s=0.0),
)


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    need_views()
    with Emulator(options=OPTIONS) as running:
        yield running


@pytest.fixture
def fields(emulator: Emulator, tmp_path: Path) -> dict[str, Any]:
    told = emulator.access.runai
    assert told is not None
    extra = {
        "project": told["project"],
        "work_dir": str(tmp_path / "work"),
        "kube_config_path": emulator.access.kubeconfig,
    }
    return runai_fields(told["url"], told["client_id"], told["client_secret"], extra)


@pytest.fixture
def backend(fields: dict[str, Any]) -> Runai:
    return Runai.connect(fields)


@pytest.fixture
def core(emulator: Emulator) -> Any:
    return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(emulator.access.kubeconfig))


@pytest.fixture
def ends(backend: Runai) -> Iterator[Callable[[RunRef], RunRef]]:
    refs: list[RunRef] = []

    def end(ref: RunRef) -> RunRef:
        refs.append(ref)
        return ref

    yield end
    for ref in refs:
        backend.delete(ref)


def a_job(
    nodes: int = 2, seconds: float = 0.5, backend: dict[str, Any] | None = None, **changes: Any
) -> TrainingJob:
    return parsing.build(
        {
            "name": "steps",
            "nodes": nodes,
            "image": "python:3.11",
            "program": {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", str(seconds)]},
            "launcher": {"kind": "python"},
            "checkpoints": {},
            "limits": {"stop_grace": 1},
            "backend": {"kind": "runai", **(backend or {})},
            **changes,
        }
    )


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_gang_trains_to_a_checkpoint_and_each_line_arrives_once(
    backend: Runai, ends: Callable[[RunRef], RunRef], nodes: int
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(nodes), a_key())))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * nodes, status
    assert status.checkpoint is not None
    assert Path(status.checkpoint.uri, "manifest.json").exists()
    lines = backend.logs(ref, [0.0] * nodes)
    assert {line.rank for line in lines} == set(range(nodes))
    assert len({line.id for line in lines}) == len(lines)
    after = max(line.time for line in lines) + 1
    assert backend.logs(ref, [after] * nodes) == []


def test_a_program_that_fails_is_the_cause_and_ends_the_others(
    backend: Runai, ends: Callable[[RunRef], RunRef], tmp_path: Path
) -> None:
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    print('boom')\n    sys.exit(3)\ntime.sleep(120)\n"
    )
    program = {"source": str(tmp_path / "fails.py"), "script": "fails.py"}
    job = a_job(program=program, checkpoints=None)
    ref = ends(backend.submit(backend.plan(job, a_key())))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert {node.state for node in status.nodes} == {NodeState.FAILED}
    assert status.nodes[1].report is not None
    assert (status.nodes[1].report.cause, status.nodes[1].exit_code) == (Cause.USER, 3)


def test_an_image_that_is_not_there_is_named(backend: Runai, ends: Callable[[RunRef], RunRef]) -> None:
    ref = ends(backend.submit(backend.plan(a_job(image="registry.example/missing:1"), a_key())))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert {node.cause for node in status.nodes} == {Cause.CONFIG}
    assert "missing" in str(status.nodes[0].details)


def test_a_secret_reaches_the_program_and_nothing_else(
    backend: Runai, ends: Callable[[RunRef], RunRef], core: Any, emulator: Emulator, tmp_path: Path
) -> None:
    told = emulator.access.runai
    assert told is not None
    namespace = told["namespace"]
    if namespace not in {item.metadata.name for item in core.list_namespace().items}:
        core.create_namespace({"metadata": {"name": namespace}})
    core.create_namespaced_secret(
        namespace, {"metadata": {"name": "hugging-face"}, "stringData": {"token": "hf_very_secret"}}
    )
    (tmp_path / "reads.py").write_text(
        "import os, pathlib\nassert os.environ['HF_TOKEN'] == 'hf_very_secret'\n"
        f"assert pathlib.Path('{tmp_path}/keys/token').read_text() == 'hf_very_secret'\n"
    )
    program = {"source": str(tmp_path / "reads.py"), "script": "reads.py"}
    section = {
        "secrets": {"HF_TOKEN": {"name": "hugging-face", "key": "token"}},
        "secret_files": {f"{tmp_path}/keys": "hugging-face"},
    }
    plan = backend.plan(a_job(1, backend=section, program=program, checkpoints=None), a_key())
    assert "hf_very_secret" not in str(plan)
    ref = ends(backend.submit(plan))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED], status


def test_an_image_that_starts_itself_runs_beyond_the_time_to_start(
    backend: Runai, ends: Callable[[RunRef], RunRef], tmp_path: Path
) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    own = {
        "container": {"entrypoint": ["sh", "-c", wait]},
        "program": {},
        "launcher": {},
        "checkpoints": None,
    }
    job = a_job(**own, limits={"start_timeout": "1s"})
    plan = backend.plan(job, a_key())
    ref = ends(backend.submit(plan))
    status = wait_until(backend, ref, lambda found: found.nodes[0].state is NodeState.RUNNING)
    record = RunRecord.of(ref, job, plan.expects)
    assert decide(record, status, ref.submitted_at + 2) == Wait()
    (tmp_path / "go").touch()
    status = wait_until(backend, ref, lambda found: found.ended)
    assert isinstance(decide(record, status, ref.submitted_at + 3), Succeed)


def test_a_cancel_ends_every_process(
    backend: Runai, ends: Callable[[RunRef], RunRef], core: Any, emulator: Emulator
) -> None:
    ref = ends(backend.submit(backend.plan(a_job(seconds=300), a_key())))
    wait_until(backend, ref, lambda found: all(node.state is NodeState.RUNNING for node in found.nodes))
    backend.cancel(ref)
    wait_until(backend, ref, lambda found: found.ended)
    told = emulator.access.runai
    assert told is not None
    left = {pod.metadata.name for pod in core.list_namespaced_pod(told["namespace"]).items}
    assert not left & set(ref.run_ids)
