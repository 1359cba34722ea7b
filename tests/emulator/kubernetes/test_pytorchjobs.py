"""PyTorchJobs on the running stand-in, by the official client: each scenario as it was seen on operator 1.9.4."""

from __future__ import annotations

import os

import pytest

from tests.emulator.kubernetes.gangs import Gangs, refused, wait
from tests.emulator.kubernetes.waiting import until

SEND = (
    "import os, socket; socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])))"
)
RECEIVE = (
    "import os, socket; s = socket.create_server((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])));"
    " s.accept(); print('met')"
)


@pytest.fixture
def gangs(kube, tmp_path) -> Gangs:
    return Gangs(kube, tmp_path)


def test_nodes_meet_under_the_names_in_their_environment(gangs):
    job = gangs.create(
        gangs.pytorchjob(f'python -c "{RECEIVE}"', f'python -c "{SEND}"; echo $RANK of $WORLD_SIZE')
    )
    gangs.condition(job, "Succeeded")
    assert gangs.kube.log("train-master-0") == "met\n"
    gangs.kube.in_phase("Succeeded", name="train-worker-0")
    assert gangs.kube.log("train-worker-0", container="pytorch") == "1 of 2\n"
    assert "train-master-0" in gangs.kube.log("train-worker-0", container="init-pytorch")


def test_a_worker_that_fails_fails_the_job_and_the_master_runs_on_to_its_end(gangs):
    job = gangs.create(gangs.pytorchjob(wait("go"), "exit 3"))
    gangs.condition(job, "Failed")
    assert gangs.status(job)["completionTime"]
    assert gangs.runs("train-master-0")
    gangs.opened("go")
    gangs.kube.in_phase("Succeeded", name="train-master-0")
    assert gangs.truths(job)["Failed"]
    assert "Succeeded" not in gangs.truths(job)


def test_a_master_that_fails_fails_the_job_and_the_worker_runs_on(gangs):
    job = gangs.create(gangs.pytorchjob(f"{wait('fail')}; exit 7", wait("never")))
    until(lambda: gangs.runs("train-worker-0"))
    gangs.opened("fail")
    gangs.condition(job, "Failed")
    assert gangs.runs("train-worker-0")


def test_at_the_backoff_limit_the_job_fails_and_the_kubelet_restarts_the_container_for_ever(gangs):
    policy = {"backoffLimit": 1}
    job = gangs.create(gangs.pytorchjob(wait("never"), "exit 3", policy="OnFailure", runPolicy=policy))
    assert "reached the specified backoff limit" in gangs.condition(job, "Failed")["message"]
    before = gangs.restarts("train-worker-0")
    until(lambda: gangs.restarts("train-worker-0") > before)


def test_without_a_limit_a_worker_restarts_until_the_master_succeeds(gangs):
    job = gangs.create(gangs.pytorchjob(wait("go"), "exit 3", policy="OnFailure"))
    until(lambda: "train-worker-0" in gangs.pods() and gangs.restarts("train-worker-0") >= 2)
    gangs.opened("go")
    gangs.condition(job, "Succeeded")


def test_a_permanent_exit_code_leaves_the_job_failed_without_completion_time(gangs):
    policy = {"ttlSecondsAfterFinished": 0}
    job = gangs.create(gangs.pytorchjob(wait("never"), "exit 3", policy="ExitCode", runPolicy=policy))
    gangs.condition(job, "Failed")
    assert "completionTime" not in gangs.status(job)


def test_a_retryable_exit_code_makes_the_pod_anew_whatever_the_limit(gangs):
    policy = {"backoffLimit": 2}
    job = gangs.create(gangs.pytorchjob(wait("never"), "exit 137", policy="ExitCode", runPolicy=policy))
    seen = set()

    def again():
        if pod := gangs.pods().get("train-worker-0"):
            seen.add(pod.metadata.uid)
        return len(seen) > 3

    until(again)
    assert "Failed" not in gangs.truths(job)


def test_after_its_ttl_the_job_is_gone_with_its_pods(gangs):
    job = gangs.create(gangs.pytorchjob(wait("go"), runPolicy={"ttlSecondsAfterFinished": 1}))
    until(lambda: gangs.runs("train-master-0"))
    gangs.opened("go")
    until(lambda: not gangs.exists(job))
    until(lambda: not gangs.pods())


def test_clean_pod_policy_running_keeps_the_logs_of_what_has_ended(gangs):
    policy = {"cleanPodPolicy": "Running"}
    job = gangs.create(gangs.pytorchjob(f"{wait('go')}; echo said", wait("never"), runPolicy=policy))
    until(lambda: gangs.runs("train-worker-0"))
    gangs.opened("go")
    gangs.condition(job, "Succeeded")
    until(lambda: list(gangs.pods()) == ["train-master-0"])
    assert gangs.kube.log("train-master-0") == "said\n"
    assert gangs.status(job)["replicaStatuses"]["Worker"] == {"succeeded": 1}


def test_clean_pod_policy_all_keeps_nothing(gangs):
    job = gangs.create(gangs.pytorchjob(runPolicy={"cleanPodPolicy": "All"}))
    gangs.condition(job, "Succeeded")
    until(lambda: not gangs.pods())


def test_suspended_at_first_then_resumed(gangs):
    job = gangs.create(gangs.pytorchjob(runPolicy={"suspend": True}))
    gangs.condition(job, "Suspended")
    assert gangs.pods() == {}
    gangs.patch(job, {"runPolicy": {"suspend": False}})
    gangs.condition(job, "Succeeded")
    assert gangs.truths(job)["Suspended"] is False


def test_deleting_a_job_ends_its_processes_with_sigterm_first(gangs):
    note = "trap 'touch /gate/asked-$RANK; exit' TERM; echo $$$$ > /gate/pid-$RANK"
    job = gangs.create(gangs.pytorchjob(f"{note}; {wait('never')}", f"{note}; {wait('never')}", workers=2))
    numbers = [until(lambda rank=rank: number(gangs, f"pid-{rank}")) for rank in range(3)]
    gangs.delete(job)
    until(lambda: not gangs.pods())
    assert all((gangs.gate / f"asked-{rank}").exists() for rank in range(3))
    assert not any(lives(each) for each in numbers)


def number(gangs, name) -> int:
    file = gangs.gate / name
    return int(file.read_text() or 0) if file.exists() else 0


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    "change,code",
    [
        (lambda job: specs(job)["Master"].update(replicas=2), 403),
        (lambda job: specs(job)["Master"].pop("replicas"), 403),
        (lambda job: specs(job)["Master"]["template"]["spec"]["containers"][0].update(name="main"), 403),
        (lambda job: job["metadata"].update(name="9bad"), 403),
        (lambda job: job["metadata"].update(name="s_bad"), 422),
        (lambda job: job["spec"].update(nprocPerNode=2), 422),
    ],
)
def test_a_job_that_the_operators_webhook_or_its_schema_does_not_take_is_refused(gangs, change, code):
    job = gangs.pytorchjob()
    change(job)
    with refused(code):
        gangs.create(job)


def specs(job):
    return job["spec"]["pytorchReplicaSpecs"]


def test_an_unknown_field_is_dropped_unless_the_client_is_strict(gangs):
    job = gangs.pytorchjob()
    specs(job)["Master"]["template"]["spec"]["unheardOf"] = 1
    job["spec"]["runPolicy"]["alsoUnheardOf"] = True
    with refused(400) as caught:
        gangs.create(job, field_validation="Strict")
    assert 'unknown field \\"spec.runPolicy.alsoUnheardOf\\"' in caught.value.body
    assert "strict decoding error" in caught.value.body
    created = gangs.create(job)
    assert "unheardOf" not in specs(created)["Master"]["template"]["spec"]
    assert created["spec"]["runPolicy"] == {}


def test_a_name_too_long_for_services_hangs_with_an_empty_status_and_one_event(gangs):
    job = gangs.pytorchjob()
    job["metadata"]["name"] = "a" * 60
    gangs.create(job)
    until(lambda: any(reason == "FailedCreateService" for reason, _ in gangs.kube.events("a" * 60)))
    assert gangs.status(job) == {}


def test_an_image_that_is_missing_shows_in_the_pod_and_in_no_condition(gangs):
    job = gangs.pytorchjob(worker=None)
    specs(job)["Master"]["template"]["spec"]["containers"][0]["image"] = "missing:1"
    gangs.create(job)
    until(
        lambda: (
            "train-master-0" in gangs.pods()
            and gangs.kube.waiting_reason("train-master-0") in ("ErrImagePull", "ImagePullBackOff")
        )
    )
    assert gangs.truths(job) == {"Created": True}


def test_a_quota_refuses_pods_and_the_job_says_why(gangs):
    gangs.kube.core.create_namespaced_resource_quota(
        gangs.kube.namespace, {"metadata": {"name": "limit"}, "spec": {"hard": {"pods": "1"}}}
    )
    gangs.create(gangs.pytorchjob(wait("never"), wait("never")))
    found = until(
        lambda: [text for reason, text in gangs.kube.events("train") if reason == "FailedCreatePod"]
    )
    assert "exceeded quota: limit, requested: pods=1, used: pods=1, limited: pods=1" in found[0]


def test_a_job_of_a_queue_waits_for_its_quota(gangs):
    flavors = [{"name": "default-flavor", "resources": [{"name": "pods", "nominalQuota": 1}]}]
    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ClusterQueue",
        "metadata": {"name": "all"},
        "spec": {"resourceGroups": [{"coveredResources": ["pods"], "flavors": flavors}]},
    }
    place = ("kueue.x-k8s.io", "v1beta1")
    gangs.kube.custom.create_cluster_custom_object(*place, "clusterqueues", queue)
    local = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "all"}}
    local |= {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "LocalQueue"}
    gangs.kube.custom.create_namespaced_custom_object(*place, gangs.kube.namespace, "localqueues", local)
    job = gangs.pytorchjob()
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    assert gangs.create(job)["spec"]["runPolicy"]["suspend"] is True
    gangs.condition(job, "Suspended")
    flavors[0]["resources"][0]["nominalQuota"] = 2
    gangs.kube.custom.patch_cluster_custom_object(*place, "clusterqueues", "all", {"spec": queue["spec"]})
    gangs.condition(job, "Succeeded")
