"""Gangs under other versions of the operators than the newest, and in clusters that lack what is needed."""

from __future__ import annotations

from collections.abc import Iterator

import kubernetes
import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.pytorchjob.operator import WAITER
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.run import NodeState
from tests.backends.clusters import Home, cluster
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import a_key, wait_until

OPERATORS = ("1.3", "1.6", "1.8")
TRAINERS = ("2.0", "2.1", "2.2")


def connected(home: Home) -> KubernetesBackend:
    found: KubernetesBackend = kinds.load("backends", home.kind).BACKEND.connect(home.fields)
    return found


@pytest.fixture(
    scope="module",
    params=range(len(OPERATORS)),
    ids=[f"{a}-{b}" for a, b in zip(OPERATORS, TRAINERS, strict=True)],
)
def older(request: pytest.FixtureRequest) -> Iterator[Home]:
    """A cluster with an older version of each operator."""
    with cluster("", training_operator=OPERATORS[request.param], trainer=TRAINERS[request.param]) as home:
        yield home


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob"])
def test_two_nodes_train_to_a_checkpoint_under_every_version(older: Home, kind: str) -> None:
    home = Home(older.emulator, kind)
    backend = connected(home)
    ref = backend.submit(backend.plan(home.job(), a_key()))
    status = wait_until(backend, ref, lambda found: found.ended)
    assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2
    assert status.checkpoint is not None
    lines = [line.text for line in backend.logs(ref, [0.0, 0.0])]
    assert [line for line in lines if line.startswith("step")] == ["step 1/1 loss 1.0000"] * 2
    backend.delete(ref)
    wait_until(backend, ref, lambda found: found.ended)


def test_a_program_that_starts_itself_arrives_at_every_version(older: Home) -> None:
    own = {"container": {"entrypoint": ["true"]}, "program": {}, "checkpoints": None}
    home = Home(older.emulator, "pytorchjob")
    backend = connected(home)
    job = home.job(**own, launcher={"processes_per_node": 2})
    ref = backend.submit(backend.plan(job, a_key()))
    wait_until(backend, ref, lambda found: found.ended)
    backend.delete(ref)
    suspended = home.job(**own, launcher={}, backend={"suspend": True})
    if home.emulator.kubernetes.settings.training_operator in ("1.3", "1.6"):
        with pytest.raises(BackendError, match=r"older than 1\.7: .*suspend") as caught:
            backend.submit(backend.plan(suspended, a_key()))
        assert caught.value.cause is Cause.CONFIG


def test_a_worker_whose_master_has_no_machine_names_what_the_master_waits_for() -> None:
    with cluster("pytorchjob", init_tries=1) as home:
        backend = connected(home)
        master = {"spec": {"nodeSelector": {"pool": "no-such-pool"}}}
        own = {"container": {"entrypoint": ["true"]}, "program": {}, "checkpoints": None, "launcher": {}}
        job = home.job(**own, backend={"main_template": master})
        ref = backend.submit(backend.plan(job, a_key()))
        status = wait_until(backend, ref, lambda found: found.nodes[1].state.terminal)
        assert (status.nodes[1].state, status.nodes[1].cause) == (NodeState.FAILED, Cause.CAPACITY)
        assert "didn't match Pod's node affinity/selector" in str(status.nodes[1].details)
        backend.cancel(ref)
        wait_until(backend, ref, lambda found: found.ended)


def test_a_worker_with_an_agent_waits_for_its_master_longer_than_the_operator_lets_it() -> None:
    with cluster("pytorchjob", init_tries=1) as home:
        backend = connected(home)
        master = {"spec": {"nodeSelector": {"pool": "new"}}}
        ref = backend.submit(backend.plan(home.job(backend={"main_template": master}), a_key()))
        with home.client as client:
            core = kubernetes.client.CoreV1Api(client)

            def state_of(container: str) -> str:
                pod = core.read_namespaced_pod(ref.run_ids[1], home.namespace)
                states = {each.name: each.state for each in pod.status.init_container_statuses or ()}
                return "running" if container in states and states[container].running else ""

            until(lambda: state_of(WAITER))
            status = wait_until(backend, ref, lambda found: bool(found.nodes[0].cause))
            assert [node.state for node in status.nodes] == [NodeState.PENDING] * 2
            # As an autoscaler adds a machine.
            core.patch_node("node-0", {"metadata": {"labels": {"pool": "new"}}})
        status = wait_until(backend, ref, lambda found: found.ended)
        assert [node.state for node in status.nodes] == [NodeState.SUCCEEDED] * 2


def test_a_cluster_without_the_operator_is_named_with_the_remedy() -> None:
    with cluster("", training_operator=None, trainer=None) as place:
        for kind in ("pytorchjob", "trainjob"):
            home = Home(place.emulator, kind)
            backend = connected(home)
            words = f"the cluster has no {backend.operator.kind} .*: install"
            with pytest.raises(BackendError, match=words) as caught:
                backend.submit(backend.plan(home.job(), a_key()))
            assert caught.value.cause is Cause.CONFIG
            assert not caught.value.retryable
