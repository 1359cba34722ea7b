"""What a namespace may have, and what waits for it, on a cluster whose pods do not run: quotas, limits and Kueue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_ocidist.emulator.kubernetes.controllers.kueue.queues import places
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.operators import Operators
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.kubernetes.tables import table
from tests.emulator.kubernetes.operated import dice
from tests.emulator.kubernetes.test_job_rules import job
from tests.emulator.kubernetes.test_pytorchjob_rules import pytorchjob
from tests.emulator.kubernetes.test_trainjob_rules import trainjob
from tests.emulator.kubernetes.waiting import until
from tests.emulator.kubernetes.without_pods import create, events, operating, pods, truth, turn

GPU = "nvidia.com/gpu"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with operating(Operators()) as made:
        yield made


def queue(cluster, gpus, *, name="team", **spec):
    flavors = [{"name": "default-flavor", "resources": [{"name": GPU, "nominalQuota": gpus}]}]
    groups = [{"coveredResources": [GPU], "flavors": flavors}]
    cluster.create(
        {"kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": {"resourceGroups": groups, **spec}}
    )
    local = {"kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": "all"}}
    create(cluster, local)


def asking(obj, gpus=1, queue_name="team"):
    """Put a job into a queue; each of its pods asks for GPUs."""
    obj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue_name}
    resources = {"limits": {GPU: gpus}}
    if obj["kind"] == "TrainJob":
        obj["spec"]["trainer"]["resourcesPerNode"] = resources
    elif obj["kind"] == "Job":
        obj["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    else:
        for replica in obj["spec"]["pytorchReplicaSpecs"].values():
            replica["template"]["spec"]["containers"][0]["resources"] = resources
    return obj


def limit(cluster, **hard):
    names = {name.replace("__", "/").replace("_", "."): value for name, value in hard.items()}
    create(cluster, {"kind": "ResourceQuota", "metadata": {"name": "limit"}, "spec": {"hard": names}})


def waits_for(cluster, kind="PyTorchJob"):
    """Return what the only workload of a kind waits for."""

    def reason():
        for one in cluster.list("Workload", "training"):
            if one["metadata"]["ownerReferences"][0]["kind"] == kind:
                for condition in one.get("status", {}).get("conditions", ()):
                    if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                        return condition["message"]
        return None

    return until(reason)


# --- Kueue


@pytest.mark.parametrize("make,kind", [(pytorchjob, "PyTorchJob"), (trainjob, "TrainJob"), (job, "Job")])
def test_a_job_of_a_queue_begins_suspended_and_is_released_by_what_the_queue_has(cluster, make, kind):
    queue(cluster, 0)
    made = create(cluster, asking(make()))
    until(lambda: truth(cluster, kind, made["metadata"]["name"], "Suspended"))
    assert "insufficient quota for nvidia.com/gpu in flavor default-flavor" in waits_for(cluster, kind)
    assert cluster.list("Pod", "training") == []
    assert events(cluster, "CreatedWorkload")

    def more(obj):
        obj["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = 8

    cluster.modify("ClusterQueue", None, "all", more)
    until(lambda: cluster.list("Pod", "training"))
    [started] = until(lambda: events(cluster, "Started"))
    assert (started["message"], started["involvedObject"]["kind"]) == ("Admitted by clusterQueue all", kind)


def test_what_one_job_gives_back_at_its_end_is_the_next_ones(cluster):
    queue(cluster, 2)
    create(cluster, asking(pytorchjob(name="first")))
    pods(cluster, 2)
    create(cluster, asking(pytorchjob(name="second")))
    assert waits_for(cluster).endswith(
        "unused quota for nvidia.com/gpu in flavor default-flavor, 1 more needed"
    )
    assert cluster.get("LocalQueue", "training", "team")["status"]["pendingWorkloads"] == 1
    turn(cluster, "first-master-0", "Succeeded", 0)
    until(lambda: cluster.find("Pod", "training", "second-worker-0"))
    finished = [
        one for one in cluster.list("Workload") if one["metadata"]["name"].startswith("pytorchjob-first")
    ]
    assert finished[0]["status"]["conditions"][-1]["type"] == "Finished"


def test_a_person_sees_in_a_table_what_waits_and_what_runs(cluster):
    queue(cluster, 2)
    create(cluster, asking(pytorchjob(name="first")))
    for pod in pods(cluster, 2):
        turn(cluster, pod["metadata"]["name"], "Running")
    create(cluster, asking(pytorchjob(name="second")))
    until(lambda: truth(cluster, "PyTorchJob", "first", "Running"))
    until(lambda: truth(cluster, "PyTorchJob", "second", "Suspended"))
    waits_for(cluster)
    assert [row[:2] for row in rows(cluster, "PyTorchJob")] == [["first", "Running"], ["second", "Suspended"]]
    assert [row[1:5] for row in rows(cluster, "Workload")] == [
        ["team", "all", "True", "<none>"],
        ["team", "<none>", "<none>", "<none>"],
    ]


def rows(cluster, kind):
    return [row["cells"] for row in table(cluster.kind(kind), cluster.list(kind, "training"), "1")["rows"]]


def test_a_job_that_is_deleted_gives_back_too(cluster):
    queue(cluster, 2)
    create(cluster, asking(pytorchjob(name="first")))
    pods(cluster, 2)
    create(cluster, asking(pytorchjob(name="second")))
    waits_for(cluster)
    cluster.delete("PyTorchJob", "training", "first")
    until(lambda: cluster.find("Pod", "training", "second-worker-0"))


def test_a_job_of_a_queue_that_is_not_there_waits_and_says_so(cluster):
    create(cluster, asking(pytorchjob(), queue_name="nothing"))
    assert waits_for(cluster) == "LocalQueue nothing doesn't exist"


def test_a_deactivated_workload_is_evicted_and_its_job_suspended_again(cluster):
    queue(cluster, 8)
    create(cluster, asking(pytorchjob()))
    pods(cluster, 2)
    [one] = cluster.list("Workload", "training")
    name = one["metadata"]["name"]
    cluster.modify("Workload", "training", name, lambda obj: obj["spec"].update(active=False))
    until(lambda: not cluster.list("Pod", "training"))
    until(lambda: truth(cluster, "PyTorchJob", "train", "Suspended"))
    cluster.modify("Workload", "training", name, lambda obj: obj["spec"].update(active=True))
    pods(cluster, 2)


def test_a_job_without_the_label_is_none_of_kueues_business(cluster):
    queue(cluster, 0)
    create(cluster, pytorchjob())
    pods(cluster, 2)
    assert cluster.list("Workload") == []


def test_never_is_more_given_away_than_a_queue_has_and_no_workload_in_part():
    die = dice()
    for _ in range(100):
        quota = die.randint(0, 8)
        strict = die.choice(["StrictFIFO", "BestEffortFIFO"])
        groups = [{"flavors": [{"name": "f", "resources": [{"name": GPU, "nominalQuota": quota}]}]}]
        all_ = {"metadata": {"name": "all"}, "spec": {"resourceGroups": groups, "queueingStrategy": strict}}
        local = {"metadata": {"name": "team", "namespace": "a"}, "spec": {"clusterQueue": "all"}}
        sizes = {str(number): (die.randint(1, 3), die.randint(1, 3)) for number in range(die.randint(1, 6))}
        waiting = [workload(uid, count, gpus) for uid, (count, gpus) in sizes.items()]
        found = places(waiting, [local], [all_])
        given = [uid for uid, place in found.items() if place.cluster_queue]
        assert sum(sizes[uid][0] * sizes[uid][1] for uid in given) <= quota
        left = quota - sum(sizes[uid][0] * sizes[uid][1] for uid in given)
        if strict == "BestEffortFIFO":
            assert all(count * gpus > left for uid, (count, gpus) in sizes.items() if uid not in given)
        else:
            assert given == [*sizes][: len(given)], "none overtakes another"


def workload(uid, count, gpus):
    container = {"name": "main", "resources": {"limits": {GPU: gpus}}}
    pod_set = {"name": "main", "count": count, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": uid, "uid": uid, "namespace": "a", "creationTimestamp": f"2026-11-20T12:00:0{uid}Z"}
    return {"metadata": metadata, "spec": {"queueName": "team", "podSets": [pod_set]}}


# --- ResourceQuota


def test_pods_beyond_a_quota_are_refused_and_an_event_of_the_job_says_why(cluster):
    limit(cluster, requests_nvidia_com__gpu=1)
    obj = asking(pytorchjob())
    obj["metadata"].pop("labels")
    create(cluster, obj)
    [event] = until(lambda: events(cluster, "FailedCreatePod"))
    assert event["message"] == (
        'Error creating: pods "train-worker-0" is forbidden: exceeded quota: limit,'
        " requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
    )
    assert event["type"] == "Warning"
    until(lambda: cluster.get("ResourceQuota", "training", "limit").get("status", {}).get("used"))


def test_a_job_says_failed_create_and_goes_on_when_there_is_room(cluster):
    limit(cluster, pods=0)
    create(cluster, job())
    [event] = until(lambda: events(cluster, "FailedCreate"))
    assert "exceeded quota: limit, requested: pods=1, used: pods=0, limited: pods=0" in event["message"]
    cluster.delete("ResourceQuota", "training", "limit")
    pods(cluster, 1)


def test_a_pod_has_to_say_what_a_quota_of_cpu_counts(cluster):
    limit(cluster, requests_cpu="2")
    with pytest.raises(KubernetesError, match=r"must specify requests\.cpu for: pytorch") as caught:
        create(cluster, pod("silent"))
    assert caught.value.code == 403
    create(cluster, pod("small", cpu="1500m"))
    with pytest.raises(KubernetesError, match=r"requested: requests.cpu=1, used: requests.cpu=1500m"):
        create(cluster, pod("next", cpu="1"))


def test_jobs_may_be_counted_too(cluster):
    create(
        cluster,
        {
            "kind": "ResourceQuota",
            "metadata": {"name": "limit"},
            "spec": {"hard": {"count/pytorchjobs.kubeflow.org": 1}},
        },
    )
    create(cluster, pytorchjob(name="first"))
    with pytest.raises(
        KubernetesError, match=r'pytorchjobs.kubeflow.org "second" is forbidden: exceeded quota'
    ):
        create(cluster, pytorchjob(name="second"))


def test_what_has_ended_counts_no_more(cluster):
    limit(cluster, pods=1)
    create(cluster, pod("first"))
    with pytest.raises(KubernetesError, match="exceeded quota"):
        create(cluster, pod("second"))
    turn(cluster, "first", "Succeeded", 0)
    create(cluster, pod("second"))


# --- LimitRange


def limit_range(cluster, **item):
    limits = [{"type": "Container", **item}]
    return create(cluster, {"kind": "LimitRange", "metadata": {"name": "limits"}, "spec": {"limits": limits}})


def test_a_container_gets_what_it_does_not_say_from_the_limit_range_and_a_note_says_so(cluster):
    made = limit_range(cluster, default={"memory": "1Gi"}, min={"cpu": "100m"}, max={"cpu": "2"})
    [item] = made["spec"]["limits"]
    # What is not said of the defaults follows from the rest.
    assert item["default"] == {"cpu": "2", "memory": "1Gi"}
    assert item["defaultRequest"] == {"cpu": "2", "memory": "1Gi"}
    silent = create(cluster, pod("silent", cpu="500m"))
    [container] = silent["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "500m", "memory": "1Gi"},
        "limits": {"cpu": "2", "memory": "1Gi"},
    }
    assert silent["metadata"]["annotations"]["kubernetes.io/limit-ranger"] == (
        "LimitRanger plugin set: memory request for container pytorch; cpu, memory limit for container pytorch"
    )
    assert silent["status"]["qosClass"] == "Burstable"
    assert create(cluster, pod("other"))["status"]["qosClass"] == "Guaranteed"


@pytest.mark.parametrize(
    "item, resources, words",
    [
        (
            {"max": {"cpu": "2"}},
            {"limits": {"cpu": "4"}},
            "maximum cpu usage per Container is 2, but limit is 4",
        ),
        (
            {"min": {"cpu": "1"}},
            {"requests": {"cpu": "500m"}},
            "minimum cpu usage per Container is 1, but request is 500m",
        ),
        (
            {"max": {"cpu": "2", "memory": "1Gi"}},
            {"limits": {"cpu": "4", "memory": "2Gi"}},
            (
                "[maximum cpu usage per Container is 2, but limit is 4, "
                "maximum memory usage per Container is 1Gi, but limit is 2Gi]"
            ),
        ),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}},
            "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        ),
        ({"type": "Pod", "max": {"cpu": "2"}}, {}, "maximum cpu usage per Pod is 2. No limit is specified"),
        (
            {"type": "Pod", "max": {"cpu": "2"}},
            {"limits": {"cpu": "3"}},
            "maximum cpu usage per Pod is 2, but limit is 3",
        ),
        ({"type": "Pod", "min": {"cpu": "2"}}, {}, "minimum cpu usage per Pod is 2. No request is specified"),
    ],
)
def test_a_pod_beyond_a_limit_range_is_refused_with_the_sentence_and_another_is_not(
    cluster, item, resources, words
):
    limit_range(cluster, **item)
    beyond = pod("beyond")
    beyond["spec"]["containers"][0]["resources"] = resources
    with pytest.raises(KubernetesError) as caught:
        create(cluster, beyond)
    assert (caught.value.code, caught.value.message) == (403, f'pods "beyond" is forbidden: {words}')
    within = pod("within")
    within["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    create(cluster, within)


def test_a_default_limit_below_what_a_container_requests_makes_its_pod_invalid(cluster):
    limit_range(cluster, default={"cpu": "1"})
    obj = pytorchjob()
    for replica in obj["spec"]["pytorchReplicaSpecs"].values():
        replica["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "8"}}
    create(cluster, obj)
    event = until(lambda: events(cluster, "FailedCreatePod"))[0]
    assert event["message"].endswith(
        'is invalid: spec.containers[0].resources.requests: Invalid value: "8": must be less than or equal to '
        "cpu limit of 1"
    )


def test_a_limit_range_whose_amounts_contradict_each_other_is_refused(cluster):
    with pytest.raises(
        KubernetesError, match="default request value 2 is greater than max value 1"
    ) as caught:
        limit_range(cluster, defaultRequest={"cpu": "2"}, max={"cpu": "1"})
    assert caught.value.code == 422
    with pytest.raises(KubernetesError, match=r"spec\.limits\[0\]\.type: Required value"):
        limit_range(cluster, type="", max={"cpu": "1"})


def pod(name, **requests):
    container = {"name": "pytorch", "image": "image", "resources": {"requests": requests}}
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}
