"""What only clusters have: queues, quotas, claims, runtimes, images that start themselves, manifests as they are."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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
from airflow_provider_ocidist.gangs.actions import Fail
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.run import NodeState, RunRef, RunStatus
from tests.backends.clusters import FAST, Home
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import PROGRAMS, a_key, outcome, wait_until
from tests.views import need_views

ROOT = Path(__file__).parents[3]
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
    need_views()
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


def connected(home: Home, **fields: Any) -> KubernetesBackend:
    found: KubernetesBackend = kinds.load("backends", home.kind).BACKEND.connect({**home.fields, **fields})
    return found


def submitted(home: Home, job: TrainingJob, **fields: Any) -> tuple[KubernetesBackend, RunRef]:
    backend = connected(home, **fields)
    return backend, backend.submit(backend.plan(job, a_key()))


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


def test_a_gang_of_workers_alone_trains_and_each_is_known_by_its_rank(pytorchjob: Home) -> None:
    policy = {"minReplicas": 2, "maxReplicas": 2}
    backend, ref = submitted(pytorchjob, pytorchjob.job(backend={"elastic_policy": policy}))
    status = wait_until(backend, ref, ended)
    assert well(status)
    assert status.checkpoint is not None
    assert {line.rank for line in backend.logs(ref, [0.0, 0.0])} == {0, 1}


def test_another_content_under_the_name_of_our_agent_is_never_run(pytorchjob: Home) -> None:
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


@contextmanager
def queue(home: Home, gpus: int) -> Iterator[Callable[[int], None]]:
    """Let the namespace have a queue of Kueue with so many GPUs; what is returned changes the number."""
    cluster = home.emulator.kubernetes.cluster

    def groups(count: int) -> list[dict[str, Any]]:
        flavors = [{"name": "default-flavor", "resources": [{"name": GPU, "nominalQuota": count}]}]
        return [{"coveredResources": [GPU], "flavors": flavors}]

    def resize(count: int) -> None:
        cluster.modify(
            "ClusterQueue", None, "all", lambda obj: obj["spec"].update(resourceGroups=groups(count))
        )

    cluster.create(
        {"kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": {"resourceGroups": groups(gpus)}}
    )
    metadata = {"name": "team", "namespace": home.namespace}
    cluster.create({"kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": "all"}})
    try:
        yield resize
    finally:
        cluster.delete("LocalQueue", home.namespace, "team")
        cluster.delete("ClusterQueue", None, "all")


IN_QUEUE = {"gpus": 1, "queue": "team"}


def evict(home: Home) -> None:
    """Let Kueue take its room from the only gang of a queue."""
    cluster = home.emulator.kubernetes.cluster
    (workload,) = cluster.list("Workload", home.namespace)
    name = workload["metadata"]["name"]
    cluster.modify("Workload", home.namespace, name, lambda obj: obj["spec"].update(active=False))


def test_a_gang_in_a_full_queue_waits_with_kueues_sentence_and_trains_when_there_is_room(home: Home) -> None:
    with queue(home, 1) as resize:
        backend, ref = submitted(home, home.job(backend=IN_QUEUE))
        status = wait_until(backend, ref, lambda found: "insufficient quota" in str(found.nodes[0].details))
        assert [(node.state, node.cause) for node in status.nodes] == [
            (NodeState.PENDING, Cause.CAPACITY)
        ] * 2
        assert "the queue team of Kueue" in str(status.nodes[0].details)
        assert home.pods() == []
        resize(2)
        assert well(wait_until(backend, ref, ended))
        backend.delete(ref)
        wait_until(backend, ref, lambda _: not home.pods())


def test_a_gang_that_kueue_evicts_was_preempted(home: Home) -> None:
    with queue(home, 2):
        backend, ref = submitted(home, home.job(seconds=60, backend=IN_QUEUE))
        wait_until(backend, ref, lambda found: all(node.report for node in found.nodes))
        listed = backend._api.whole

        def evicted_before(path: str, *given: Any, **more: Any) -> Any:
            # A look that sees the pods gone sees why, whatever falls between its requests.
            if path.endswith("/pods"):
                evict(home)
                until(lambda: not home.pods())
            return listed(path, *given, **more)

        backend._api.whole = evicted_before
        status = wait_until(backend, ref, ended)
        assert {node.cause for node in status.nodes} == {Cause.PREEMPTED}
        # It would be admitted again, when nobody waits for it.
        connected(home).end_leftovers(ref)
        until(lambda: not home.pods() and not backend.recent(1000))


def test_a_gang_that_a_quota_refuses_becomes_the_next_candidate_and_trains(home: Home) -> None:
    cluster, backend = home.emulator.kubernetes.cluster, connected(home)
    none = {f"count/{backend.operator.plural}.{backend.operator.group}": "0"}
    metadata = {"name": "none", "namespace": home.namespace}
    cluster.create({"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": none}})
    try:
        job, log = home.job(backend={"candidates": [{"namespace": "default"}]}), logging.getLogger("gang")
        gang = GangSubmitter(backend, job, log, None, threading.Event())
        ref = gang.adopt_or_submit(a_key(), None).ref
        assert (ref.candidate, ref.compartment_id, ref.key.attempt) == ("namespace default", "default", 2)
        assert well(wait_until(backend, ref, ended))
        backend.delete(ref)
        # What was refused is remembered, for all tasks of the work directory.
        other = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(a_key(), None).ref
        assert (other.candidate, other.key.attempt) == ("namespace default", 1)
        backend.delete(other)
    finally:
        cluster.delete("ResourceQuota", home.namespace, "none")


def test_a_gang_that_its_namespace_forbids_fails_at_once_with_the_sentence(home: Home) -> None:
    cluster = home.emulator.kubernetes.cluster

    def enforce(level: str) -> None:
        label = {"pod-security.kubernetes.io/enforce": level}
        cluster.modify(
            "Namespace",
            None,
            home.namespace,
            lambda obj: obj["metadata"].setdefault("labels", {}).update(label),
        )

    enforce("restricted")
    try:
        action = outcome(connected(home), home.job())
        assert isinstance(action, Fail)
        assert action.cause is Cause.CONFIG
        assert 'violates PodSecurity "restricted:latest"' in action.message
    finally:
        enforce("privileged")


@contextmanager
def limits(home: Home, **of_containers: Mapping[str, str]) -> Iterator[None]:
    """Let the namespace have limits and defaults for containers."""
    cluster = home.emulator.kubernetes.cluster
    spec = {"limits": [{"type": "Container", **of_containers}]}
    metadata = {"name": "limits", "namespace": home.namespace}
    cluster.create({"kind": "LimitRange", "metadata": metadata, "spec": spec})
    try:
        yield
    finally:
        cluster.delete("LimitRange", home.namespace, "limits")


def test_a_gang_beyond_the_limits_of_its_namespace_fails_at_once_with_the_sentence(home: Home) -> None:
    for of_containers, asked, words in (
        (
            {"max": {"memory": "1Gi"}},
            {"memory": "2Gi"},
            "maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ),
        # A request without a limit gets the default one.
        ({"default": {"cpu": "1"}}, {"cpu": "2"}, '"2": must be less than or equal to cpu limit of 1'),
    ):
        with limits(home, **of_containers):
            action = outcome(connected(home), home.job(backend=asked))
            assert isinstance(action, Fail)
            assert action.cause is Cause.CONFIG
            assert words in action.message


def test_a_gang_whose_pods_get_defaults_of_their_namespace_trains_and_is_as_planned(home: Home) -> None:
    given = {"cpu": "100m", "memory": "128Mi"}
    with limits(home, default=given):
        backend, ref = submitted(home, home.job())
        assert well(wait_until(backend, ref, ended))
        with home.client as client:
            (pod, *_) = kubernetes.client.CoreV1Api(client).list_namespaced_pod(home.namespace).items
        (own,) = [each for each in pod.spec.containers if each.name == backend.operator.container]
        assert own.resources.limits == own.resources.requests == given
        assert backend.created(ref) == backend.planned(backend.plan(home.job(), ref.key))
        backend.delete(ref)


@contextmanager
def claim(home: Home, name: str) -> Iterator[Path]:
    """Let the namespace have a claim, whose folder on this machine is returned."""
    kubernetes_ = home.emulator.kubernetes
    made = kubernetes_.cluster.create(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": home.namespace},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
        }
    )
    try:
        yield kubernetes_._folder / "claims" / str(made["metadata"]["uid"])
    finally:
        kubernetes_.cluster.delete("PersistentVolumeClaim", home.namespace, name)


MEET = """\
import os, pathlib, sys, time
for folder in sys.argv[1:]:
    (pathlib.Path(folder) / os.environ["RANK"]).touch()
    while not all((pathlib.Path(folder) / str(rank)).exists() for rank in range(2)):
        time.sleep(0.05)
"""


def test_nodes_meet_on_claims_and_exports(home: Home, tmp_path: Path) -> None:
    (tmp_path / "meet.py").write_text(MEET)
    folders = [str(tmp_path / name) for name in ("claim", "export")]
    sources = ("pvc://data/train", "10.0.0.1:/export")
    mounts = [{"source": source, "path": folder} for source, folder in zip(sources, folders, strict=True)]
    program = {"source": str(tmp_path / "meet.py"), "script": "meet.py", "args": folders}
    with claim(home, "data") as folder:
        backend, ref = submitted(home, home.job(program=program, mounts=mounts, checkpoints=None))
        assert well(wait_until(backend, ref, ended))
        assert sorted(path.name for path in (folder / "train").iterdir()) == ["0", "1"]
        backend.delete(ref)


def test_a_work_dir_on_a_claim_that_airflow_mounts_too_is_enough(home: Home) -> None:
    with claim(home, "shared") as folder:
        mounts = [{"source": "pvc://shared", "path": str(folder)}]
        backend, ref = submitted(home, home.job(work_dir=str(folder / "ocidist"), mounts=mounts))
        status = wait_until(backend, ref, ended)
        assert well(status)
        assert status.checkpoint is not None
        assert status.checkpoint.uri.startswith(str(folder))
        backend.delete(ref)


@pytest.mark.slow
@pytest.mark.torch
def test_the_cpu_manifest_of_the_vsphere_guide_trains_on_three_nodes_to_its_claim(pytorchjob: Home) -> None:
    pytest.importorskip("torch")
    job = parsing.load(str(ROOT / "tests/job_file/dialects/pytorchjob_cpu.yaml"))
    with claim(pytorchjob, "data") as folder:
        backend, ref = submitted(pytorchjob, job)
        status = wait_until(backend, ref, ended)
        assert well(status)
        lines = [line for line in backend.logs(ref, [0.0] * 3) if " step 15 " in line.text]
        # The pods of Workers may be gone with their Master's success; each of three takes a third of the steps.
        assert 0 in {line.rank for line in lines}
        assert (folder / "model.pt").exists()
        backend.delete(ref)


def test_the_gpu_manifest_of_the_guide_waits_for_gpus_with_the_schedulers_sentence(pytorchjob: Home) -> None:
    text = (ROOT / "tests/job_file/dialects/pytorchjob_gpu.yaml").read_text()
    # More than a machine of this cluster has; those of the guide's have none.
    job = parsing.parse(text.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: 9"))
    with claim(pytorchjob, "data"):
        backend, ref = submitted(pytorchjob, job)
        status = wait_until(backend, ref, lambda found: bool(found.nodes[0].cause))
        assert (status.nodes[0].state, status.nodes[0].cause) == (NodeState.PENDING, Cause.CAPACITY)
        assert f"Insufficient {GPU}" in str(status.nodes[0].details)
        backend.delete(ref)
        wait_until(backend, ref, ended)


def live_pods(home: Home) -> list[str]:
    with home.client as client:
        found = kubernetes.client.CoreV1Api(client).list_namespaced_pod(home.namespace).items
        return [pod.metadata.name for pod in found if pod.status.phase in ("Pending", "Running")]


def test_what_runs_on_beside_nodes_that_have_ended_is_ended_with_the_gang(pytorchjob: Home) -> None:
    sidecar = {"name": "proxy", "image": "python:3.12", "command": ["sleep", "600"]}
    job = pytorchjob.job(backend={"pod_template": {"spec": {"containers": [sidecar]}}})
    backend, ref = submitted(pytorchjob, job)
    assert well(wait_until(backend, ref, ended))
    assert live_pods(pytorchjob)
    lines = backend.logs(ref, [0.0, 0.0])
    assert {line.rank for line in lines} == {0, 1}
    connected(pytorchjob).end_leftovers(ref)
    until(lambda: not live_pods(pytorchjob))


def test_a_gang_of_which_all_containers_are_started_again_after_their_failure_is_ended(
    pytorchjob: Home,
) -> None:
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "60", "--fail-rank", "1"]}
    limits = {"stop_grace": 1, "lease": 600}
    job = pytorchjob.job(program=program, restarts={"node": 1}, limits=limits)
    backend, ref = submitted(pytorchjob, job)
    assert ref.replaces
    status = wait_until(backend, ref, ended)
    assert {node.state for node in status.nodes} == {NodeState.FAILED}
    # By a process that has seen nothing before.
    connected(pytorchjob).end_leftovers(ref)
    until(lambda: not pytorchjob.pods())


def test_a_native_sidecar_runs_beside_a_node_and_ends_with_it(pytorchjob: Home) -> None:
    sidecar = {
        "name": "proxy",
        "image": "python:3.12",
        "command": ["sleep", "600"],
        "restartPolicy": "Always",
    }
    backend, ref = submitted(pytorchjob, pytorchjob.job(backend={"init_containers": [sidecar]}))
    assert well(wait_until(backend, ref, ended))
    # Nobody ends what is left: nothing is.
    until(lambda: not live_pods(pytorchjob))


def test_pods_that_never_began_do_not_wait_on_when_their_try_has_ended(home: Home) -> None:
    backend, ref = submitted(home, home.job(image="missing:1"))
    wait_until(backend, ref, ended)
    assert live_pods(home)
    connected(home).end_leftovers(ref)
    until(lambda: not live_pods(home))


def test_a_gang_that_leaves_nothing_keeps_its_pods_and_their_logs(home: Home) -> None:
    backend, ref = submitted(home, home.job(1))
    assert well(wait_until(backend, ref, ended))
    backend.end_leftovers(ref)
    assert [line.text for line in connected(home).logs(ref, [0.0])]


def test_a_gang_that_the_operator_would_keep_for_ever_is_deleted(pytorchjob: Home) -> None:
    # Of restartPolicy ExitCode the operator notes no end, and so begins no ttl.
    job = pytorchjob.job(**own_start("exit 3"), backend={"restart_policy": "ExitCode"})
    backend, ref = submitted(pytorchjob, job)
    wait_until(backend, ref, ended)
    until(lambda: backend.end_leftovers(ref) or not backend.recent(10))
    assert not backend.recent(10)


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
    found = {finding.subject: finding for finding in connected(home).preflight(home.job())}
    grace = found.pop("stop_grace", None)
    assert {finding.mark for finding in found.values()} == {Mark.PASS}, found
    # What a TrainJob cannot say stands in its runtime.
    assert (grace is not None) == (home.kind == "trainjob")
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


def test_preflight_warns_a_user_who_may_not_watch_that_looks_cost_more(home: Home) -> None:
    user = f"lister-{home.kind}"
    fields = home.user(user)
    home.bind(user, without="watch")
    (rights,) = [each for each in connected(home, **fields).preflight(home.job()) if each.subject == "rights"]
    assert rights.mark is Mark.WARN
    assert "watch pods" in rights.message


def make_runtime(home: Home, name: str, grace: int) -> None:
    """Make a runtime as ours that lets its pods end for so many seconds."""
    runtime = yaml.safe_load(RUNTIME.read_text())
    runtime["metadata"]["name"] = name
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    job["template"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace
    with home.client as client:
        place = ("trainer.kubeflow.org", "v1alpha1", home.namespace, "trainingruntimes")
        kubernetes.client.CustomObjectsApi(client).create_namespaced_custom_object(*place, runtime)


def test_a_cancelled_trainjob_has_the_time_to_end_that_its_job_says(trainjob: Home) -> None:
    make_runtime(trainjob, "hasty", 1)
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": ["--seconds", "60", "--farewell", "3"]}
    job = trainjob.job(
        program=program,
        limits={"stop_grace": 20},
        backend={"runtime": "hasty", "runtime_kind": "TrainingRuntime"},
    )
    backend, ref = submitted(trainjob, job)
    wait_until(backend, ref, lambda status: status.progress is not None)
    backend.cancel(ref)
    status = wait_until(backend, ref, ended)
    assert [node.report and node.report.phase for node in status.nodes] == [Phase.DONE] * 2
    assert trainjob.pods() == []


def test_a_runtime_that_leaves_no_time_for_the_last_save_is_found_beforehand(trainjob: Home) -> None:
    backend = connected(trainjob)
    make_runtime(trainjob, "roomy", 140)
    roomy = {"runtime": "roomy", "runtime_kind": "TrainingRuntime"}
    for backends, grace, words in (
        (roomy, 20, None),
        (
            roomy,
            60,
            "gives a node 140 s to end, but limits.stop_grace and the last save need 180 s",
        ),
        (
            {},
            20,
            "gives a node 30 s to end, but limits.stop_grace and the last save need 140 s",
        ),
    ):
        job = trainjob.job(backend=backends, limits={"stop_grace": grace})
        found = [each for each in backend.preflight(job) if each.subject == "stop_grace"]
        assert [each.mark for each in found] == ([Mark.WARN] if words else [])
        assert all(words in each.message for each in found)


def test_a_runtime_that_is_missing_is_found_beforehand(trainjob: Home) -> None:
    job = trainjob.job(backend={"runtime": "torch-distribute"})
    failed = [finding for finding in connected(trainjob).preflight(job) if finding.mark is Mark.FAIL]
    assert [finding.message for finding in failed] == ["there is no ClusterTrainingRuntime torch-distribute"]
