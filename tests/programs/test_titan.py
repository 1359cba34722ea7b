"""The job file of torchtitan on a cluster and on Run:ai, on two nodes without GPUs: killed, and resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import kubernetes
import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.runai.options import runai_fields
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunStatus
from scripts.emulator_process import ROOT, Access, EmulatorProcess
from tests.training_jobs import a_key, wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]

PROGRAMS = ROOT / ".venv-programs"
CODE = Path(__file__).with_name("code")
JOB = ROOT / "dags_examples" / "jobs" / "torchtitan.yaml"
STEPS, SAVED_BEFORE_THE_KILL = 12, 4
"""As tests/programs/code/death.py has them."""
TOKEN = "hf_of-the-secret"
HERE = {
    "image": "python:3.12",
    "program.source": str(CODE),
    "program.script": "titan",
    "program.working_dir": None,
    "checkpoints.keep": 9,
    "env.OMP_NUM_THREADS": "1",
    "env.CUDA_VISIBLE_DEVICES": "",
    "env.HF_HUB_OFFLINE": "1",
    "limits.stop_grace": 5,
}
"""What differs from the file: a shim for processors in the place of torchtitan's own module, and less of everything."""
SECRETS = {"HF_TOKEN": {"name": "hugging-face", "key": "token"}}
HOMES: Mapping[str, Mapping[str, Any]] = {
    "runai": {},
    "pytorchjob": {"backend": {"kind": "pytorchjob", "gpus": 8, "secrets": SECRETS}},
}
"""What a job that was written for Run:ai needs to move."""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    if not (PROGRAMS / ".ready").exists():
        pytest.fail(f"the programs are not installed; run: make {PROGRAMS.name}/.ready", pytrace=False)
    options = ("--runai", "--kubernetes-gpus", "8")
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as access:
        yield access


@dataclass(frozen=True)
class Place:
    """One home, and what gangs leave there."""

    backend: Backend
    kind: str
    folder: Path

    def run(
        self, key: RunKey, dump: str, *, tensor_parallel: int = 1, **env: str
    ) -> tuple[RunStatus, dict[int, dict[str, Any]]]:
        """Train to the end of both nodes; return how, and what the first rank of each has left."""
        results = self.folder / f"{dump}-{key.attempt}"
        job = self._job(dump, results, tensor_parallel, env)
        ref = self.backend.submit(self.backend.plan(job, key))
        try:
            status = wait_until(self.backend, ref, lambda status: status.ended, seconds=400)
        finally:
            self.backend.delete(ref)
        ends = [json.loads(path.read_text()) for path in results.rglob("end.json")]
        return status, {end.pop("rank"): end for end in ends}

    def _job(self, dump: str, results: Path, tensor_parallel: int, env: Mapping[str, str]) -> TrainingJob:
        """Return the job of the file with as many processes on each node as share a layer."""
        params = {
            "config_file": "titan.toml",
            "run": f"{self.kind}-{dump}",
            "tensor_parallel": tensor_parallel,
        }
        more = {
            **HERE,
            **HOMES[self.kind],
            "launcher.processes_per_node": tensor_parallel,
            "env.PATH": f"{PROGRAMS / 'bin'}:/usr/bin:/bin",
            **{f"env.{name}": value for name, value in env.items()},
            "outputs": [{"path": "results", "uri": str(results), "nodes": "all", "required": False}],
        }
        return parsing.load(
            str(JOB),
            overrides=more,
            render=lambda text: jinja2.Template(text).render(params=params),
        )


@pytest.fixture(params=sorted(HOMES))
def place(request: pytest.FixtureRequest, emulator: Access, tmp_path: Path) -> Place:
    return place_of(request.param, emulator, tmp_path)


def place_of(kind: str, emulator: Access, tmp_path: Path) -> Place:
    told = dict(emulator.runai or {})
    extra = {"kube_config_path": emulator.kubeconfig, "work_dir": str(tmp_path / "work")}
    fields, namespace = extra, emulator.kubernetes_namespace
    if kind == "runai":
        own = {**extra, "project": told["project"]}
        fields = runai_fields(told["url"], told["client_id"], told["client_secret"], own)
        namespace = told["namespace"]
    prepare(emulator, namespace)
    return Place(kinds.load("backends", kind).BACKEND.connect(fields), kind, tmp_path)


def prepare(emulator: Access, namespace: str) -> None:
    """Create what the page of torchtitan asks for: a claim and the secret."""
    with kubernetes.config.new_client_from_config(emulator.kubeconfig) as client:
        core = kubernetes.client.CoreV1Api(client)
        with suppress(kubernetes.client.ApiException):
            core.create_namespace({"metadata": {"name": namespace}})
        secret = {"metadata": {"name": "hugging-face"}, "stringData": {"token": TOKEN}}
        core.create_namespaced_secret(namespace, secret)
        size = {"requests": {"storage": "1Gi"}}
        claim = {"accessModes": ["ReadWriteMany"], "resources": size}
        core.create_namespaced_persistent_volume_claim(
            namespace, {"metadata": {"name": "training-data"}, "spec": claim}
        )


def test_a_killed_torchtitan_resumes_by_its_dump_folder(place: Place) -> None:
    undisturbed, whole = place.run(a_key(), "whole")
    assert {node.state for node in undisturbed.nodes} == {NodeState.SUCCEEDED}, undisturbed

    key = a_key()
    killed, _ = place.run(key, "killed", DIES="1")
    assert {node.state for node in killed.nodes} == {NodeState.FAILED}, killed
    assert killed.checkpoint is not None
    assert killed.checkpoint.step == SAVED_BEFORE_THE_KILL
    assert killed.progress is not None
    assert killed.progress.step in (5, 6)

    resumed, left = place.run(dataclasses.replace(key, attempt=2), "killed", DIES="1")
    assert {node.state for node in resumed.nodes} == {NodeState.SUCCEEDED}, resumed
    assert {end["begun"] for end in left.values()} == {f"step-{SAVED_BEFORE_THE_KILL}"}
    for rank in range(2):
        assert left[rank]["weights"] == pytest.approx(whole[rank]["weights"], rel=1e-6)
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.step == STEPS


def test_layers_that_two_processes_share_are_sharded_over_nodes_too_and_resumed(
    emulator: Access, tmp_path: Path
) -> None:
    place = place_of("pytorchjob", emulator, tmp_path)
    _, whole = place.run(a_key(), "shared", tensor_parallel=2)
    assert sorted(whole) == [0, 2], "the first rank of each node"

    key = a_key()
    killed, _ = place.run(key, "killed-shared", tensor_parallel=2, DIES="1")
    assert {node.state for node in killed.nodes} == {NodeState.FAILED}, killed
    resumed, left = place.run(
        dataclasses.replace(key, attempt=2), "killed-shared", tensor_parallel=2, DIES="1"
    )
    assert {node.state for node in resumed.nodes} == {NodeState.SUCCEEDED}, resumed
    assert {end["begun"] for end in left.values()} == {f"step-{SAVED_BEFORE_THE_KILL}"}
    for rank in (0, 2):
        assert left[rank]["weights"] == pytest.approx(whole[rank]["weights"], rel=1e-6)
        assert left[rank]["shards"] == {"fsdp": 2, "tp": 2}
