"""A pod of a TrainJob that is lost is made anew alone where the runtime's Job may lose one, else with all others."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.capabilities import Mark
from airflow_provider_ocidist.backends.trainjob import TrainJob
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import TORCH_DISTRIBUTED
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.actions import Fail, Succeed
from airflow_provider_ocidist.job import TrainingJob
from tests.backends.clusters import Home, cluster
from tests.backends.replaced_pods import (
    a_job,
    alone,
    befall,
    check_replaced,
    cordon,
    followed,
    has_saved,
    submitted,
    uids,
)
from tests.training_jobs import wait_until

KUBERNETES = Path(__file__).parents[3] / "container/kubernetes"
SEED = random.randrange(10_000)
IGNORES = {
    "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    # Only a person, or what a test does, ends pods here.
    with cluster("trainjob", eviction_s=300.0) as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_is_left(home: Home) -> Iterator[None]:
    yield
    cordon(home, held=False)
    home.clear()


@pytest.fixture
def backend(home: Home) -> TrainJob:
    return TrainJob.connect(home.fields)


def runtime_file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text())
    return found


def runtime(home: Home, name: str, policy: str = "Never", **job: Any) -> dict[str, Any]:
    """Let the namespace have a runtime with this Job; return the fields of a job that name it."""
    made = copy.deepcopy(runtime_file("training-runtime"))
    made["metadata"] = {"name": name, "namespace": home.namespace}
    (replicated,) = made["spec"]["template"]["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    spec.update(job)
    spec["template"]["spec"]["restartPolicy"] = policy
    return created(home, made)


def created(home: Home, made: dict[str, Any]) -> dict[str, Any]:
    store, name = home.emulator.kubernetes.cluster, made["metadata"]["name"]
    made["metadata"]["namespace"] = home.namespace
    if store.find("TrainingRuntime", home.namespace, name) is None:
        store.create(made)
    return {"runtime": name, "runtime_kind": "TrainingRuntime"}


def runtimes(home: Home) -> dict[str, dict[str, Any]]:
    return {
        "ours": created(home, runtime_file("training-runtime-replacing")),
        "torch-distributed": {},
        "ignoring": runtime(home, "ignoring", backoffLimit=0, podFailurePolicy=IGNORES),
        "failed": runtime(home, "failed", backoffLimit=3, podReplacementPolicy="Failed"),
        "in-place": runtime(home, "in-place", "OnFailure", backoffLimit=4),
    }


CASES = [
    ("ours", "delete"),
    ("ours", "kill"),
    ("ours", "evict"),
    ("ours", "preempt"),
    ("torch-distributed", "kill"),
    ("torch-distributed", "evict"),
    ("ignoring", "evict"),
    ("ignoring", "preempt"),
    ("failed", "delete"),
    ("in-place", "kill"),
]
CAUSES = {"delete": Cause.NODE, "kill": Cause.NODE, "evict": Cause.PREEMPTED, "preempt": Cause.PREEMPTED}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{name}-{effect}" for name, effect in CASES])
def test_a_pod_that_is_lost_amid_the_training_alone_is_made_anew_where_the_runtime_allows_it(
    home: Home, backend: TrainJob, tmp_path: Path, number: int
) -> None:
    name, effect = CASES[number]
    # The first node at least once, whatever befalls it.
    rank = 0 if number == SEED % len(CASES) else random.Random(SEED + number).randrange(3)
    print("seed", SEED, "rank", rank)
    record = submitted(backend, a_job(home, tmp_path, backend=runtimes(home)[name]))
    assert record.ref.replaces
    wait_until(backend, record.ref, has_saved)
    before = uids(home, record.ref)
    befall(home, effect, record.ref, rank)
    watch, ended, _ = followed(backend, record)
    assert isinstance(ended, Succeed), ended
    check_replaced(backend, watch, before, rank)
    assert {each.cause for each in watch.record.ref.replaced} == {CAUSES[effect]}


def test_several_pods_are_lost_one_after_the_other_until_the_jobs_limit_ends_the_gang(
    home: Home, backend: TrainJob, tmp_path: Path
) -> None:
    own = runtime(home, "two", backoffLimit=2)
    record = submitted(backend, a_job(home, tmp_path, pause=1.5, backend=own, losses=9))
    # A rank that is lost again at the same step would be a crash loop.
    for loss, rank in enumerate(random.Random(SEED).sample(range(3), 3)):
        wait_until(backend, record.ref, has_saved)
        before = uids(home, record.ref)
        befall(home, "delete", record.ref, rank)
        until = 99 if loss == 2 else loss
        watch, ended, _ = followed(backend, record, enough=lambda ref, until=until: len(ref.replaced) > until)
        record = watch.record
        assert record.ref.lost_runs[loss : loss + 1] in ((before[rank],), ())
    assert isinstance(ended, Fail), ended
    assert ended.cause is Cause.NODE


def test_a_machine_that_answers_no_more_is_replaced_beside_the_pod_whose_end_nobody_confirms(
    tmp_path: Path,
) -> None:
    # One of its own: nothing ever ends the pods of such a machine.
    with cluster("trainjob", eviction_s=300.0) as home:
        backend = TrainJob.connect(home.fields)
        own = runtimes(home)["ours"]
        job = a_job(home, tmp_path, pause=3.0, backend=own, lost_timeout=8, replace_timeout=60)
        record = submitted(backend, job)
        wait_until(backend, record.ref, has_saved)
        before = uids(home, record.ref)
        rank = random.Random(SEED).choice(alone(home, record.ref))
        print("seed", SEED, "rank", rank)
        befall(home, "lose_node", record.ref, rank)
        watch, ended, _ = followed(backend, record)
        assert isinstance(ended, Succeed), ended
        check_replaced(backend, watch, before, rank)


def test_a_program_that_fails_in_a_pod_that_could_be_made_anew_is_none_that_is_lost(
    home: Home, backend: TrainJob, tmp_path: Path
) -> None:
    record = submitted(backend, a_job(home, tmp_path, backend=runtimes(home)["ours"]))
    wait_until(backend, record.ref, has_saved)
    befall(home, "oom", record.ref, 2)
    watch, ended, _ = followed(backend, record)
    assert isinstance(ended, Fail)
    assert ended.cause is Cause.OOM
    assert watch.record.ref.replaced == ()
    backend.end_leftovers(record.ref)
    wait_until(backend, record.ref, lambda _: not home.pods())


def test_where_the_runtime_allows_no_loss_the_gang_is_made_again_whole_and_the_log_says_so(
    home: Home, backend: TrainJob, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = created(home, runtime_file("training-runtime"))
    job: TrainingJob = a_job(home, tmp_path, backend=own)
    with caplog.at_level(logging.WARNING):
        record = submitted(backend, job)
    assert not record.ref.replaces
    said = [each.getMessage() for each in caplog.records]
    assert any(
        "created again only with all others" in each and "backoffLimit of 0" in each for each in said
    ), said
    (finding,) = [each for each in backend.preflight(job) if each.subject == "restarts.node"]
    assert finding.mark is Mark.WARN
    plan = backend.plan(job, record.ref.key)
    assert plan.replaces, "a plan needs no cluster"
    assert "if the runtime's Job may lose one" in plan.reason
    assert backend.planned(plan) == backend.created(record.ref)
    wait_until(backend, record.ref, has_saved)
    befall(home, "evict", record.ref, 1)
    _, ended, changes = followed(backend, record)
    assert isinstance(ended, Fail)
    assert ended.cause is Cause.PREEMPTED
    assert changes == []


@pytest.mark.parametrize("name, may_read", [("torch-distributed", False), ("ours", True)])
def test_a_runtime_that_the_user_may_not_read_allows_no_loss(
    home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, may_read: bool
) -> None:
    fields = home.user(name)
    home.bind(name)
    own = runtimes(home)[name]
    with caplog.at_level(logging.WARNING):
        record = submitted(TrainJob.connect(fields), a_job(home, tmp_path, backend=own))
    assert record.ref.replaces == may_read
    said = [each.getMessage() for each in caplog.records]
    refused = any("ClusterTrainingRuntime torch-distributed: it cannot be read" in each for each in said)
    assert refused != may_read, said


@pytest.mark.parametrize(
    "job, obstacle",
    [
        ({}, None),
        ({"backoffLimit": 1}, None),
        ({"backoffLimit": 0}, "backoffLimit of 0"),
        ({"backoffLimitPerIndex": 1}, None),
        ({"backoffLimitPerIndex": 0}, "backoffLimit of 0"),
        ({"backoffLimit": 0, "podFailurePolicy": IGNORES}, None),
        (
            {
                "backoffLimit": 9,
                "podFailurePolicy": {
                    "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]
                },
            },
            "FailJob for a disruption",
        ),
        ({"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {}}]}}, None),
    ],
)
def test_what_a_runtime_allows(job: dict[str, Any], obstacle: str | None) -> None:
    made = copy.deepcopy(TORCH_DISTRIBUTED)
    made["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"].update(job)
    said = TrainJob.operator.obstacle(made)
    assert (said is None) == (obstacle is None)
    assert obstacle is None or obstacle in str(said)
    assert "no replicated job" in str(TrainJob.operator.obstacle({}))
