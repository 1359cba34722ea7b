"""Gangs on the stand-in for a cluster: real pods, as each backend on Kubernetes runs them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import kubernetes
import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends.kubernetes.backend import KubernetesBackend
from airflow_provider_ocidist.backends.kubernetes.gang_objects import FEW
from airflow_provider_ocidist.errors import BackendError, CancelFailed, Cause, refusal_in
from airflow_provider_ocidist.gangs.actions import Fail
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.model.run import NodeState, RunRef, RunStatus
from tests.backends.clusters import Home, cluster
from tests.emulator.kubernetes.waiting import until
from tests.training_jobs import PROGRAMS, a_key, outcome, wait_until

KINDS = ("pytorchjob", "trainjob")
SUSPENDED = {"suspend": True}
"""A gang without pods."""


@pytest.fixture(scope="module")
def homes() -> Iterator[Callable[[str], Home]]:
    with cluster("") as home:
        yield lambda kind: Home(home.emulator, kind)


@pytest.fixture(params=KINDS)
def home(request: pytest.FixtureRequest, homes: Callable[[str], Home]) -> Iterator[Home]:
    found = homes(request.param)
    yield found
    found.clear()


@pytest.fixture
def backend(home: Home) -> KubernetesBackend:
    return connected(home)


def connected(home: Home, **fields: Any) -> KubernetesBackend:
    found: KubernetesBackend = kinds.load("backends", home.kind).BACKEND.connect({**home.fields, **fields})
    return found


def states(status: RunStatus) -> list[NodeState]:
    return [node.state for node in status.nodes]


def running(status: RunStatus) -> bool:
    return all(node.state is NodeState.RUNNING and node.report for node in status.nodes)


def resume(home: Home, backend: KubernetesBackend, ref: RunRef) -> None:
    """Let a suspended gang begin, as a person does."""
    with home.client as client:
        api = kubernetes.client.CustomObjectsApi(client)
        operator, name = backend.operator, ref.job_id.rpartition("/")[2]
        resumed = {"runPolicy": {"suspend": False}} if home.kind == "pytorchjob" else {"suspend": False}
        api.patch_namespaced_custom_object(
            operator.group, operator.version, home.namespace, operator.plural, name, {"spec": resumed}
        )


def test_two_nodes_train_to_a_checkpoint_and_each_line_arrives_once(
    home: Home, backend: KubernetesBackend
) -> None:
    ref = backend.submit(backend.plan(home.job(), a_key()))
    seen: dict[str, str] = {}
    since = [0.0, 0.0]

    def ended(status: RunStatus) -> bool:
        # Read on from the newest line, as a process that reconnects does: lines of that second come again.
        for line in backend.logs(ref, since):
            assert seen.setdefault(line.id, line.text) == line.text
            since[line.rank] = max(since[line.rank], line.time)
        return status.ended

    status = wait_until(backend, ref, ended)
    whole = backend.logs(ref, [0.0, 0.0])
    assert states(status) == [NodeState.SUCCEEDED] * 2
    assert status.checkpoint is not None
    assert seen.items() <= {line.id: line.text for line in whole}.items()
    assert [line.text for line in whole if line.text.startswith("step")] == ["step 1/1 loss 1.0000"] * 2
    assert sorted(line.time for line in whole) == [line.time for line in whole]


def test_any_submitters_any_number_of_times_make_one_gang(home: Home, backend: KubernetesBackend) -> None:
    plan = backend.plan(home.job(seconds=0.1), a_key())
    with ThreadPoolExecutor(4) as pool:
        refs = list(pool.map(lambda _: connected(home).submit(plan), range(4)))
    assert len(set(refs)) == 1
    wait_until(backend, refs[0], lambda status: status.ended)
    assert backend.recent(10) == [refs[0]]
    assert backend.open(refs[0].job_id).ref == refs[0]


def test_a_gang_that_was_deleted_is_not_created_again(home: Home, backend: KubernetesBackend) -> None:
    plan = backend.plan(home.job(backend=SUSPENDED), a_key())
    ref = backend.submit(plan)
    backend.delete(ref)
    wait_until(backend, ref, lambda status: status.ended)
    assert connected(home).submit(plan) == ref
    assert backend.recent(10) == []


def test_a_gang_whose_creation_was_never_answered_is_found_and_adopted(
    home: Home, backend: KubernetesBackend
) -> None:
    job, key, log = home.job(backend=SUSPENDED), a_key(), logging.getLogger("gang")
    plan = backend.plan(job, key)
    backend.gangs.begin(plan)
    home.control("/faults", method="POST", path=".*jobs", drop="after", times=1)
    with pytest.raises(BackendError) as caught:
        backend.submit(plan)
    assert caught.value.retryable
    record = GangSubmitter(backend, job, log, None, threading.Event()).adopt_or_submit(key, None)
    assert [ref.key for ref in backend.recent(10)] == [record.ref.key] == [plan.key]
    backend.cancel(record.ref)
    wait_until(backend, record.ref, lambda status: status.ended)


def test_an_object_of_somebody_else_under_this_name_is_left_alone(
    home: Home, backend: KubernetesBackend
) -> None:
    plan, operator = backend.plan(home.job(backend=SUSPENDED), a_key()), backend.operator
    (body,) = [each.body for each in plan.requests if each.body["kind"] == operator.kind]
    metadata = {"name": body["metadata"]["name"], "namespace": home.namespace}
    with home.client as client:
        api = kubernetes.client.CustomObjectsApi(client)
        place = (operator.group, operator.version, home.namespace, operator.plural)
        api.create_namespaced_custom_object(*place, {**body, "metadata": metadata})
        with pytest.raises(BackendError, match="exists already, and does not belong to") as caught:
            backend.submit(plan)
        assert not caught.value.retryable
        api.delete_namespaced_custom_object(*place, metadata["name"])


def test_a_cancel_ends_every_pod_and_leaves_none(home: Home, backend: KubernetesBackend) -> None:
    ref = backend.submit(backend.plan(home.job(seconds=60), a_key()))
    wait_until(backend, ref, running)
    backend.cancel(ref)
    backend.cancel(ref)
    wait_until(backend, ref, lambda status: status.ended)
    assert home.pods() == []


@pytest.mark.parametrize("status", [401, 403, 422, 429, 500, 503])
def test_a_gang_is_deleted_whatever_the_server_says_when_it_is_asked_how_it_is(
    home: Home, backend: KubernetesBackend, status: int
) -> None:
    ref = backend.submit(backend.plan(home.job(backend=SUSPENDED), a_key()))
    rule = {"method": "GET", "path": "/apis/.*", "status": status, "message": "injected"}
    httpx.post(
        f"{home.emulator.url}/_emulator/kubernetes/faults", json=rule, trust_env=False
    ).raise_for_status()
    cancel(backend, ref, rounds=3)
    home.control("/faults", method="DELETE")
    until(lambda: backend.recent(1) == [])
    assert home.pods() == []


def test_a_user_who_may_delete_a_gang_and_not_read_it_ends_it(home: Home, backend: KubernetesBackend) -> None:
    user = f"ender-{home.kind}"
    fields = home.user(user)
    home.bind(user, without="get")
    ref = backend.submit(backend.plan(home.job(seconds=60), a_key()))
    wait_until(backend, ref, running)
    cancel(connected(home, **fields), ref, rounds=3)
    wait_until(backend, ref, lambda found: found.ended)
    assert home.pods() == []


def test_the_exit_of_a_program_is_a_failure_of_the_user_with_its_last_words(
    home: Home, backend: KubernetesBackend
) -> None:
    args = ["--seconds", "30", "--fail-rank", "1"]
    program = {"source": str(PROGRAMS), "script": "steps.py", "args": args}
    action = outcome(backend, home.job(program=program))
    assert isinstance(action, Fail)
    assert action.cause is Cause.USER
    assert "boom" in action.message


def test_an_image_that_is_missing_fails_with_the_registrys_answer(
    home: Home, backend: KubernetesBackend
) -> None:
    action = outcome(backend, home.job(1, image="iad.ocir.io/ns/missing:1"))
    assert isinstance(action, Fail)
    assert action.cause is Cause.CONFIG
    assert "missing:1" in action.message


def cancel(backend: KubernetesBackend, ref: RunRef, rounds: float = math.inf) -> None:
    """Cancel a gang as the process that waits for it does: again where a busy server takes over two seconds."""
    while True:
        try:
            return backend.cancel(ref)
        except CancelFailed:
            rounds -= 1
            if rounds <= 0:
                raise
            time.sleep(0.5)


def test_what_cannot_be_scheduled_waits_with_the_schedulers_sentence(
    home: Home, backend: KubernetesBackend
) -> None:
    ref = backend.submit(backend.plan(home.job(backend={"gpus": 8}), a_key()))
    status = wait_until(backend, ref, lambda found: bool(found.nodes[0].cause))
    assert (status.nodes[0].state, status.nodes[0].cause) == (NodeState.PENDING, Cause.CAPACITY)
    assert "Insufficient nvidia.com/gpu" in str(status.nodes[0].details)
    cancel(backend, ref)
    wait_until(backend, ref, lambda found: found.ended)


BEFALLS = [("kill", Cause.NODE), ("oom", Cause.OOM), ("evict", Cause.PREEMPTED), ("preempt", Cause.PREEMPTED)]


@pytest.mark.parametrize("effect, cause", BEFALLS)
def test_what_befalls_a_node_is_the_cause(
    home: Home, backend: KubernetesBackend, effect: str, cause: Cause
) -> None:
    ref = backend.submit(backend.plan(home.job(seconds=60), a_key()))
    wait_until(backend, ref, running)
    home.control("/pods", effect=effect, name=f"{ref.run_ids[1]}.*")
    status = wait_until(backend, ref, lambda found: found.nodes[1].state.terminal)
    assert (status.nodes[1].state, status.nodes[1].cause or Cause.NODE) == (NodeState.FAILED, cause)
    cancel(backend, ref)
    wait_until(backend, ref, lambda found: found.ended)


def test_a_preemption_that_nobody_saw_is_the_cause_by_its_event(
    home: Home, backend: KubernetesBackend
) -> None:
    ref = backend.submit(backend.plan(home.job(seconds=60), a_key()))
    wait_until(backend, ref, running)
    (pod,) = [name for name in home.pods() if name.startswith(ref.run_ids[1])]
    home.control("/pods", effect="preempt", name=pod)
    until(lambda: pod not in home.pods())
    # As after a restart of the triggerer: nobody has seen the pod say why it would go.
    status = wait_until(connected(home), ref, lambda found: found.nodes[1].state.terminal)
    assert (status.nodes[1].state, status.nodes[1].cause) == (NodeState.FAILED, Cause.PREEMPTED)
    assert "Preempted by pod" in str(status.nodes[1].details)
    assert status.nodes[0].cause is not Cause.PREEMPTED
    cancel(backend, ref)
    wait_until(backend, ref, lambda found: found.ended)


def test_a_suspended_gang_waits_with_the_sentence_and_goes_on(home: Home, backend: KubernetesBackend) -> None:
    ref = backend.submit(backend.plan(home.job(backend={"suspend": True}), a_key()))
    status = wait_until(backend, ref, lambda found: "suspended" in str(found.nodes[0].details))
    assert states(status) == [NodeState.PENDING] * 2
    resume(home, backend, ref)
    assert states(wait_until(backend, ref, lambda found: found.ended)) == [NodeState.SUCCEEDED] * 2


def test_a_node_that_begins_between_the_list_of_pods_and_the_reports_has_not_failed(
    home: Home, backend: KubernetesBackend
) -> None:
    ref = backend.submit(backend.plan(home.job(seconds=60, backend=SUSPENDED), a_key()))
    watcher, read = connected(home), backend._reports.read
    wait_until(watcher, ref, lambda found: "suspended" in str(found.nodes[0].details))

    def read_late(wanted: Mapping[str, bool]) -> Any:
        resume(home, backend, ref)
        wait_until(watcher, ref, running)
        return read(wanted)

    backend._reports.read = read_late
    (status,) = backend.status([ref])
    assert not any(state.terminal for state in states(status)), status
    backend._reports.read = read
    (status,) = backend.status([ref])
    assert states(status) == [NodeState.RUNNING] * 2
    cancel(backend, ref)
    wait_until(backend, ref, lambda found: found.ended)


def test_a_user_with_the_role_can_do_all_of_it_and_one_without_gets_the_remedy(home: Home) -> None:
    # All kinds share the cluster: each has a user of its own.
    user = f"airflow-{home.kind}"
    fields = home.user(user)
    stranger = connected(home, **fields)
    plan = stranger.plan(home.job(), a_key())
    with pytest.raises(BackendError, match=r"docs/kubernetes\.md has the Role") as caught:
        stranger.submit(plan)
    assert refusal_in(caught.value) == "403"
    home.bind(user)
    backend = connected(home, **fields)
    ref = backend.submit(backend.plan(home.job(env={"MY_TOKEN": "t0ken-of-mine-77"}), a_key()))
    assert states(wait_until(backend, ref, lambda found: found.ended)) == [NodeState.SUCCEEDED] * 2
    assert backend.logs(ref, [0.0, 0.0])
    assert backend.recent(1) == [ref]
    backend.delete(ref)


def test_answers_of_a_failing_server_are_outages_and_refusals_are_not(
    home: Home, backend: KubernetesBackend
) -> None:
    ref = backend.submit(backend.plan(home.job(backend=SUSPENDED), a_key()))
    # 404: as where somebody has deleted the kind of the object.
    refused = [(status, str(status)) for status in (401, 403, 404)]
    for status, expected in ((429, None), (500, None), (503, None), *refused):
        home.control("/faults", path="/apis/.*", status=status, message="injected")
        with pytest.raises(BackendError) as caught:
            connected(home).status([ref])
        assert refusal_in(caught.value) == expected, status
        home.control("/faults", method="DELETE")
    home.control("/away", seconds=60)
    with pytest.raises(BackendError) as caught:
        connected(home).status([ref])
    assert refusal_in(caught.value) is None
    home.control("/faults", method="DELETE")
    cancel(backend, ref)
    wait_until(backend, ref, lambda found: found.ended)


def made(home: Home, backend: KubernetesBackend) -> RunRef:
    """Make the object of a suspended gang, and nothing else."""
    plan, operator = backend.plan(home.job(backend=SUSPENDED), a_key()), backend.operator
    (body,) = [each.body for each in plan.requests if each.body["kind"] == operator.kind]
    return backend._ref(plan.key, backend._api.create(operator.collection(home.namespace), body))


def test_a_look_takes_three_requests_at_one_gang_at_ten_and_at_a_hundred(
    home: Home, backend: KubernetesBackend
) -> None:
    with ThreadPoolExecutor(8) as pool:
        refs = list(pool.map(lambda _: made(home, backend), range(100)))

    def look(count: int) -> list[str]:
        home.control("/calls", method="DELETE")
        found = backend.status(refs[:count])
        backend.logs_of([(ref, [0.0, 0.0]) for ref in refs[:count]])
        assert [states(status) for status in found] == [[NodeState.PENDING] * 2] * count
        return home.calls()

    for count in (1, 10, 100):
        asked = look(count)
        assert len(asked) == 3, asked
        assert not any("watch=true" in path for path in asked)
    asked = look(100)
    assert len(asked) == 3, asked
    assert all("watch=true" in path for path in asked)


def test_what_changes_of_many_gangs_is_seen_by_the_next_look(home: Home, backend: KubernetesBackend) -> None:
    refs = [made(home, backend) for _ in range(FEW + 1)]
    backend.status(refs)
    backend.delete(refs[0])
    refs.append(backend.submit(backend.plan(home.job(seconds=60), a_key())))
    wait_until(connected(home), refs[-1], running)
    found = backend.status(refs)
    assert states(found[0]) == [NodeState.MISSING] * 2
    assert states(found[-1]) == [NodeState.RUNNING] * 2
    home.control("/pods", effect="kill", name=f"{refs[-1].run_ids[1]}(-.*)?")
    wait_until(connected(home), refs[-1], lambda status: status.nodes[1].state.terminal)
    assert backend.status(refs)[-1].nodes[1].state is NodeState.FAILED


def test_each_of_more_than_twenty_nodes_is_known_by_its_rank(home: Home, backend: KubernetesBackend) -> None:
    home.control("/pods", effect="idle")
    ref = backend.submit(backend.plan(home.job(nodes=25), a_key()))
    wait_until(backend, ref, lambda status: set(states(status)) == {NodeState.RUNNING})
    assert len(set(ref.run_ids)) == 25
    home.control("/pods", effect="oom", name=".*-(worker-20|node-0-21-.*)")
    status = wait_until(backend, ref, lambda status: status.nodes[21].cause is not None)
    # The operator ends the others for it: they have exit codes too, but not this cause.
    assert [node.rank for node in status.nodes if node.cause is Cause.OOM] == [21]
