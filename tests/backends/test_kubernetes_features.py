"""What only clusters have: queues, quotas, claims, runtimes, images that start themselves, manifests as they are."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import kubernetes
import pytest
import yaml

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.capabilities import Mark
from airflow_provider_ocidist.backends.kubernetes import agent_parts
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.gangs.decisions import Fail, Succeed
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.run import NodeState, RunKey, RunRef, RunStatus
from tests.backends.clusters import FAST, Home
from tests.job_file.dialects.test_pytorchjob import CPU
from tests.training_jobs import PROGRAMS, a_key, wait_until

ROOT = Path(__file__).parents[2]
STAND_INS = ROOT / "tests/emulator/kubernetes"
RUNTIME = ROOT / "container/kubernetes/training-runtime.yaml"
CPU_IMAGE = "projects.registry.vmware.com/models/kubeflow-docs/model-training-pytorch:1.11.0-cpu-py3.8-v0.1"
GPU = "nvidia.com/gpu"
KINDS = ("pytorchjob", "trainjob")


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    options = Options(
        images={CPU_IMAGE: f"{sys.executable} {STAND_INS / 'image_program.py'}"},
        kubernetes=ClusterSettings(
            **{**FAST, "node_capacity": {**ClusterSettings().node_capacity, GPU: "8"}}
        ),
    )
    with Emulator(options=options) as running:
        yield running


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[Home]:
    found = Home(emulator, request.param)
    yield found
    found.clear()


@pytest.fixture
def pytorchjob(emulator: Emulator) -> Iterator[Home]:
    found = Home(emulator, "pytorchjob")
    yield found
    found.clear()


@pytest.fixture
def trainjob(emulator: Emulator) -> Iterator[Home]:
    found = Home(emulator, "trainjob")
    yield found
    found.clear()


@pytest.fixture
def apply(emulator: Emulator) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Create objects as a person does, and delete them at the end."""
    made: list[tuple[str, str]] = []
    with Home(emulator, "").client as client:

        def ask(method: str, path: str, body: Any = None) -> dict[str, Any]:
            answer = client.call_api(
                path,
                method,
                header_params={"Accept": "application/json", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                _preload_content=False,
            )
            found: dict[str, Any] = json.loads(answer.data)
            return found

        def create(obj: dict[str, Any]) -> dict[str, Any]:
            group, _, version = obj["apiVersion"].rpartition("/")
            base = f"/apis/{group}/{version}" if group else f"/api/{version}"
            plural = f"{obj['kind'].lower()}s"
            namespaced = (
                ""
                if obj["kind"] in ("ClusterQueue", "ResourceFlavor")
                else (f"/namespaces/{emulator.access.kubernetes_namespace}")
            )
            path = f"{base}{namespaced}/{plural}"
            found = ask("POST", path, obj)
            made.append((path, found["metadata"]["name"]))
            return found

        yield create
        for path, name in reversed(made):
            ask("DELETE", f"{path}/{name}")


def connected(home: Home, **fields: Any) -> KubernetesBackend:
    found: KubernetesBackend = kinds.load("backends", home.kind).BACKEND.connect({**home.fields, **fields})
    return found


def submitted(home: Home, job: TrainingJob, **fields: Any) -> tuple[KubernetesBackend, RunRef]:
    backend = connected(home, **fields)
    return backend, backend.submit(backend.plan(job, a_key()))


def outcome(backend: KubernetesBackend, job: TrainingJob, key: RunKey | None = None) -> Succeed | Fail:
    """Submit a job and wait as a task does, to the decision."""
    log = logging.getLogger("gang")
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key or a_key(), None)
    watch, deadline = Watch(backend, record, log), time.monotonic() + 100
    while time.monotonic() < deadline:
        action = watch.look(time.time())
        if isinstance(action, Succeed | Fail):
            return action
        time.sleep(0.1)
    raise AssertionError(f"no end: {watch.status}")


def ended(status: RunStatus) -> bool:
    return status.ended


def well(status: RunStatus) -> bool:
    return [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * len(status.nodes)


def own_start(script: str) -> dict[str, Any]:
    return {
        "container": {"entrypoint": ["sh", "-c", script]},
        "program": {},
        "checkpoints": None,
        "launcher": {},
    }


def test_an_image_that_starts_itself_succeeds_and_its_lines_arrive(home: Home) -> None:
    backend, ref = submitted(home, home.job(**own_start("echo node $PET_NODE_RANK of $PET_NNODES")))
    assert well(wait_until(backend, ref, ended))
    lines = {line.text for line in backend.logs(ref, [0.0, 0.0])}
    # A PyTorchJob is over, and the pods of its Workers are gone, when its Master has succeeded.
    assert lines <= {"node 0 of 2", "node 1 of 2"}
    assert "node 0 of 2" in lines


def test_an_image_that_starts_itself_and_fails_is_a_failure_with_its_exit_code(pytorchjob: Home) -> None:
    action = outcome(connected(pytorchjob), pytorchjob.job(**own_start("exit $((3 + PET_NODE_RANK))")))
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    assert "exit code 3" in action.message or "exit code 4" in action.message


def test_a_queue_holds_a_gang_back_until_there_is_room_for_all_of_it(
    home: Home, apply: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    for name in ("full", "empty"):
        flavors = [
            {
                "name": "default-flavor",
                "resources": [{"name": GPU, "nominalQuota": 1 if name == "full" else 8}],
            }
        ]
        groups = [{"coveredResources": [GPU], "flavors": flavors}]
        version = "kueue.x-k8s.io/v1beta1"
        apply(
            {
                "apiVersion": version,
                "kind": "ClusterQueue",
                "metadata": {"name": name},
                "spec": {"resourceGroups": groups},
            }
        )
        apply(
            {
                "apiVersion": version,
                "kind": "LocalQueue",
                "metadata": {"name": name},
                "spec": {"clusterQueue": name},
            }
        )
    backend, waits = submitted(home, home.job(backend={"queue": "full", "gpus": 1}))
    status = wait_until(backend, waits, lambda found: "queue full" in str(found.nodes[1].details))
    assert [node.state for node in status.nodes] == [NodeState.PENDING] * 2
    runs = backend.submit(backend.plan(home.job(backend={"queue": "empty", "gpus": 1}), a_key()))
    assert well(wait_until(backend, runs, ended))
    (status,) = backend.status([waits])
    assert [node.state for node in status.nodes] == [NodeState.PENDING] * 2
    for ref in (waits, runs):
        backend.delete(ref)
        wait_until(backend, ref, ended)


def test_a_quota_that_is_exceeded_is_waited_for_with_its_sentence(
    home: Home, apply: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small"},
            "spec": {"hard": {"pods": "0"}},
        }
    )
    backend, ref = submitted(home, home.job())
    status = wait_until(backend, ref, lambda found: found.nodes[1].cause is Cause.QUOTA)
    assert status.nodes[1].state is NodeState.PENDING
    assert "exceeded quota: small" in str(status.nodes[1].details)
    backend.delete(ref)
    wait_until(backend, ref, ended)


def test_work_dir_and_data_lie_on_claims_and_exports(
    home: Home, apply: Callable[[dict[str, Any]], dict[str, Any]], emulator: Emulator, tmp_path: Path
) -> None:
    text = Template((STAND_INS / "claim.yaml").read_text()).substitute(storageClassName="standard")
    claim = apply(yaml.safe_load(text))
    # Where Airflow has the claim too.
    shared = emulator.folder / "kubernetes" / "claims" / claim["metadata"]["uid"]
    shared.mkdir(parents=True, exist_ok=True)
    program = tmp_path / "train.py"
    program.write_text(
        "import os, pathlib, shutil\n"
        "assert pathlib.Path('/data/text').read_text() == 'words'\n"
        "assert pathlib.Path('/export').is_dir()\n"
        "folder = pathlib.Path(os.environ['OCIDIST_CHECKPOINT_DIR'])\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "shutil.copy('/data/text', folder / 'step-000001.bin')\n"
    )
    (shared / "data").mkdir()
    (shared / "data/text").write_text("words")
    mounts = [
        {"source": "pvc://data", "path": str(shared)},
        {"source": "pvc://data/data", "path": "/data"},
        {"source": "10.0.0.1:/export", "path": "/export"},
    ]
    job = home.job(
        program={"source": str(program), "script": "train.py"}, mounts=mounts, work_dir=f"{shared}/ocidist"
    )
    backend, ref = submitted(home, job)
    status = wait_until(backend, ref, ended)
    assert well(status), status
    assert status.checkpoint is not None
    assert status.checkpoint.uri.startswith(f"{shared}/ocidist/checkpoints/")
    backend.delete(ref)
    wait_until(backend, ref, ended)


def test_nodes_of_a_gang_without_a_master_know_their_ranks(pytorchjob: Home) -> None:
    policy = {"minReplicas": 2, "maxReplicas": 2, "rdzvBackend": "c10d"}
    backend, ref = submitted(pytorchjob, pytorchjob.job(backend={"elastic_policy": policy}))
    status = wait_until(backend, ref, ended)
    assert well(status)
    assert status.checkpoint is not None
    assert {line.rank for line in backend.logs(ref, [0.0, 0.0])} == {0, 1}


def test_another_content_under_the_name_of_our_agent_is_never_run(
    pytorchjob: Home, apply: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    backend = connected(pytorchjob, namespace="default")
    job = pytorchjob.job(backend={"namespace": "default"})
    with pytorchjob.client as client:
        core = kubernetes.client.CoreV1Api(client)
        ours = agent_parts.config_map()
        core.create_namespaced_config_map("default", {**ours, "data": {"start.py": "print('mine')"}})
        with pytest.raises(BackendError, match="is not what ocidist has put there: delete it") as caught:
            backend.submit(backend.plan(job, a_key()))
        assert caught.value.cause is Cause.CONFIG
        core.delete_namespaced_config_map(ours["metadata"]["name"], "default")


def test_a_runtime_that_is_not_there_is_named_with_the_remedy(trainjob: Home) -> None:
    for changes in ({"runtime": "torch-distribute"}, {"runtime_kind": "TrainingRuntime"}):
        backend = connected(trainjob)
        with pytest.raises(
            BackendError, match=r"there is no \w+Runtime torch-distribute.*: name one"
        ) as caught:
            backend.submit(backend.plan(trainjob.job(backend=changes), a_key()))
        assert caught.value.cause is Cause.CONFIG
        assert not caught.value.retryable


def test_with_our_runtime_a_node_that_has_failed_keeps_its_pod_with_its_log(
    trainjob: Home, apply: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    apply(yaml.safe_load(RUNTIME.read_text()))
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "30", "--fail-rank", "1"]}
    runtime = {"runtime": "ocidist", "runtime_kind": "TrainingRuntime"}
    backend, ref = submitted(trainjob, trainjob.job(program=program, backend=runtime))
    status = wait_until(backend, ref, ended)
    assert status.nodes[1].state is NodeState.FAILED
    assert status.nodes[1].exit_code == 1
    # By a process that has seen nothing before, once the operator says that it is over.
    another = connected(trainjob)
    lines = [line.text for line in another.logs(ref, [0.0, 0.0]) if line.rank == 1]
    assert any("ValueError: boom" in line for line in lines)


def test_a_node_that_is_started_again_in_its_pod_does_nothing_and_the_lines_of_its_first_start_stay(
    trainjob: Home,
) -> None:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "30", "--fail-rank", "0"]}
    backend, ref = submitted(trainjob, trainjob.job(1, program=program))
    wait_until(backend, ref, ended)

    def second(found: RunStatus) -> bool:
        lines = [line.text for line in backend.logs(ref, [0.0])]
        return any("has begun before" in line for line in lines) and found.ended

    wait_until(backend, ref, second)
    lines = [line.text for line in connected(trainjob).logs(ref, [0.0])]
    assert [line for line in lines if line.startswith("step ")] == ["step 1/60 loss 1.0000"]
    (status,) = connected(trainjob).status([ref])
    assert (status.nodes[0].state, status.nodes[0].exit_code) == (NodeState.FAILED, 1)


def test_a_node_in_whose_place_another_pod_has_come_has_failed_in_every_process(trainjob: Home) -> None:
    backend, ref = submitted(trainjob, trainjob.job(seconds=60))
    wait_until(backend, ref, lambda found: all(node.report for node in found.nodes))
    trainjob.control("/pods", effect="kill", name=f"{ref.run_ids[1]}.*")
    with trainjob.client as client:
        core = kubernetes.client.CoreV1Api(client)
        (pod,) = [name for name in trainjob.pods() if name.startswith(ref.run_ids[1])]
        core.delete_namespaced_pod(pod, trainjob.namespace, grace_period_seconds=0)
    status = wait_until(connected(trainjob), ref, lambda found: found.nodes[1].state.terminal)
    assert status.nodes[1].state is NodeState.FAILED
    (status,) = backend.status([ref])
    assert status.nodes[1].state is NodeState.FAILED


SECRETS = {"API_KEY": "sk-1f0c77aa9b", "MY_TOKEN": "t0ken-of-mine-77"}


def test_another_process_knows_the_secrets_of_a_gang_for_masking(home: Home) -> None:
    backend, ref = submitted(home, home.job(env={**SECRETS, "PLAIN": "1"}, backend={"suspend": True}))
    assert connected(home).secrets_of(ref) >= set(SECRETS.values())
    args = ["--seconds", "1", "--api-key", SECRETS["API_KEY"]]
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": args}
    _, hidden = submitted(home, home.job(program=program, backend={"suspend": True}))
    assert SECRETS["API_KEY"] in connected(home).secrets_of(hidden)
    for each in (ref, hidden):
        backend.delete(each)
        wait_until(backend, each, ended)


def test_what_would_stop_a_job_is_found_beforehand_with_the_remedy(home: Home) -> None:
    found = connected(home).preflight(home.job())
    assert {finding.mark for finding in found} == {Mark.PASS}, found
    secrets = {"HF_TOKEN": {"name": "hugging-face", "key": "token"}}
    job = home.job(backend={"secrets": secrets, "image_pull_secrets": ["ocir"]})
    failed = {finding.message for finding in connected(home).preflight(job) if finding.mark is Mark.FAIL}
    for name in ("hugging-face", "ocir"):
        assert f"there is no Secret {name} in namespace {home.namespace}" in failed
    stranger = connected(home, **home.user("stranger"))
    (rights,) = [finding for finding in stranger.preflight(home.job()) if finding.subject == "rights"]
    assert rights.mark is Mark.FAIL
    assert f"create {stranger.operator.plural}" in rights.message
    assert rights.fix == "docs/kubernetes.md has the Role"


def test_a_gang_of_somebody_else_is_known_by_its_name_in_the_cluster(
    home: Home, emulator: Emulator, tmp_path: Path
) -> None:
    backend, ref = submitted(home, home.job(backend={"suspend": True}))
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "status", ref.job_id, "--json"]
    command += ["--backend", home.kind, "--field", f"kube_config_path={emulator.access.kubeconfig}"]
    for name in ("auth", "config_file", "profile", "region", "endpoint"):
        command += ["--field", f"{name}={home.fields[name]}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [node["state"] for node in json.loads(done.stdout)["nodes"]] == ["PENDING"] * 2
    backend.delete(ref)
    wait_until(backend, ref, ended)


def test_a_runtime_that_is_missing_is_found_beforehand(trainjob: Home) -> None:
    job = trainjob.job(backend={"runtime": "torch-distribute"})
    failed = [finding for finding in connected(trainjob).preflight(job) if finding.mark is Mark.FAIL]
    assert [finding.message for finding in failed] == ["there is no ClusterTrainingRuntime torch-distribute"]


@pytest.mark.slow
@pytest.mark.torch
def test_the_seeds_manifest_trains_by_one_command_and_leaves_its_model_on_the_claim(
    pytorchjob: Home, apply: Callable[[dict[str, Any]], dict[str, Any]], emulator: Emulator, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    text = Template((STAND_INS / "claim.yaml").read_text()).substitute(storageClassName="standard")
    claim = apply(yaml.safe_load(text))
    command = [
        sys.executable,
        "-m",
        "airflow_provider_ocidist.cli",
        "run",
        str(CPU),
        "--wait",
        "--interval",
        "0.3",
    ]
    fields = {"kube_config_path": emulator.access.kubeconfig, "work_dir": tmp_path / "work"}
    for name, value in fields.items():
        command += ["--field", f"{name}={value}"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(3):
        assert f"[node {rank}] rank {rank} step 15 " in done.stdout
    assert (emulator.folder / "kubernetes" / "claims" / claim["metadata"]["uid"] / "model.pt").is_file()
