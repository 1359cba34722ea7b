"""Operators on a cluster's objects: what they write, which events they make, what they delete. Pods do not run here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_ocidist.emulator.kubernetes import objects
from airflow_provider_ocidist.emulator.kubernetes.changes import copy_of
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.operators import Operators
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from tests.emulator.kubernetes.test_job_rules import job
from tests.emulator.kubernetes.test_pytorchjob_rules import pytorchjob
from tests.emulator.kubernetes.test_trainjob_rules import trainjob
from tests.emulator.kubernetes.waiting import until
from tests.emulator.kubernetes.without_pods import cluster_with, create, events, operating, pods, truth, turn


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with operating(Operators()) as made:
        yield made


def test_a_pytorchjob_from_its_creation_to_its_success(cluster):
    create(cluster, pytorchjob())
    for pod in pods(cluster, 2):
        turn(cluster, pod["metadata"]["name"], "Running")
    until(lambda: truth(cluster, "PyTorchJob", "train", "Running"))
    turn(cluster, "train-master-0", "Succeeded", 0)
    until(lambda: truth(cluster, "PyTorchJob", "train", "Succeeded"))
    made = {event["message"] for event in events(cluster, "SuccessfulCreatePod")}
    assert made == {"Created pod: train-master-0", "Created pod: train-worker-0"}
    assert len(events(cluster, "SuccessfulCreateService")) == 2
    assert events(cluster, "PyTorchJobSucceeded")[0]["involvedObject"]["name"] == "train"
    assert events(cluster, "ExitedWithCode")[0]["message"].endswith("exited with code 0")


def test_a_look_at_one_job_copies_nothing_of_the_others(monkeypatch):
    # Else a thousand jobs would take a thousand times as long each.
    operators = Operators()
    cluster, _ = cluster_with(operators)
    (operator,) = [each for each in operators.controllers if getattr(each, "kind", "") == "PyTorchJob"]
    for name in ("train", "other"):
        create(cluster, pytorchjob(name=name))
        operator.reconcile(cluster, "training", name)
    copied = []
    monkeypatch.setattr(objects, "copy_of", lambda obj: copied.append(obj) or copy_of(obj))
    operator.reconcile(cluster, "training", "train")
    assert {obj["metadata"]["name"] for obj in copied} >= {"train", "train-master-0", "train-worker-0"}
    for controller in operators.controllers:
        controller.reconcile(cluster, "", "")
    assert not [obj for obj in copied if obj["metadata"]["name"].startswith("other")]


def test_deleting_a_job_takes_pods_and_services_along(cluster):
    create(cluster, pytorchjob())
    pods(cluster, 2)
    cluster.delete("PyTorchJob", "training", "train")
    until(lambda: not cluster.list("Pod", "training") and not cluster.list("Service", "training"))


def test_a_name_that_is_too_long_for_its_services_passes_the_webhook_and_hangs_with_an_empty_status(cluster):
    create(cluster, pytorchjob(name="a" * 60))
    [event] = until(lambda: events(cluster, "FailedCreateService"))
    assert "must be no more than 63 characters" in event["message"]
    until(lambda: events(cluster, "FailedCreateService")[0]["count"] > 2)
    assert cluster.get("PyTorchJob", "training", "a" * 60).get("status", {}) == {}


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda spec: spec["Master"].update(replicas=2), "[Master].replicas: Forbidden: must be 1"),
        (
            lambda spec: spec["Worker"]["template"]["spec"]["containers"][0].update(name="main"),
            "must have at least one container with name pytorch",
        ),
    ],
)
def test_the_webhook_of_the_training_operator_answers_403(cluster, change, text):
    bad = pytorchjob()
    change(bad["spec"]["pytorchReplicaSpecs"])
    with pytest.raises(KubernetesError) as caught:
        create(cluster, bad)
    assert caught.value.code == 403
    assert 'admission webhook "validator.pytorchjob.training-operator' in caught.value.message
    assert text in caught.value.message


@pytest.mark.parametrize("name,code", [("9bad", 403), ("s_bad", 422)])
def test_a_bad_name_is_the_webhooks_or_already_the_api_servers(cluster, name, code):
    with pytest.raises(KubernetesError) as caught:
        create(cluster, pytorchjob(name=name))
    assert caught.value.code == code


def test_the_runtime_of_a_trainjob_has_to_exist(cluster):
    bad = trainjob()
    bad["spec"]["runtimeRef"]["name"] = "nothing"
    with pytest.raises(KubernetesError, match='"nothing" not found') as caught:
        create(cluster, bad)
    assert caught.value.code == 403


def test_a_text_in_place_of_a_count_of_processes_is_a_bad_request_since_2_2(cluster):
    with pytest.raises(KubernetesError, match="cannot unmarshal string") as caught:
        create(cluster, trainjob(trainer={"numProcPerNode": "auto"}))
    assert caught.value.code == 400
    older, _ = cluster_with(Operators(trainer="2.1"))
    create(older, trainjob(trainer={"numProcPerNode": "auto"}))


def test_a_trainjob_from_its_creation_to_its_success(cluster):
    create(cluster, trainjob())
    found = pods(cluster, 2)
    assert [pod["spec"]["hostname"] for pod in found] == ["tj1-node-0-0", "tj1-node-0-1"]
    assert all(pod["metadata"]["generateName"] == f"{pod['spec']['hostname']}-" for pod in found)
    for pod in found:
        turn(cluster, pod["metadata"]["name"], "Succeeded", 0)
    until(lambda: truth(cluster, "TrainJob", "tj1", "Complete"))
    cluster.delete("TrainJob", "training", "tj1")
    for kind in ("JobSet", "Job", "Pod", "Service"):
        until(lambda kind=kind: not cluster.list(kind, "training"))


def test_a_node_that_always_fails_leaves_neither_pod_nor_log(cluster):
    create(cluster, trainjob())
    name = pods(cluster, 2)[1]["metadata"]["name"]

    def restarted_in_place(pod):
        pod["status"].update(
            phase="Running", containerStatuses=[{"name": "node", "restartCount": 6, "state": {}}]
        )

    cluster.modify("Pod", "training", name, restarted_in_place, "status")
    until(lambda: truth(cluster, "TrainJob", "tj1", "Failed"))
    until(lambda: not cluster.list("Pod", "training"))
    assert cluster.list("Job", "training"), "the Job stays"


def test_a_suspended_trainjob_has_no_pods_until_it_is_resumed(cluster):
    create(cluster, trainjob(suspend=True))
    until(lambda: truth(cluster, "TrainJob", "tj1", "Suspended"))
    until(lambda: truth(cluster, "Job", "tj1-node-0", "Suspended"))
    assert cluster.list("Pod", "training") == []
    cluster.modify("TrainJob", "training", "tj1", lambda obj: obj["spec"].update(suspend=False))
    pods(cluster, 2)
    cluster.modify("TrainJob", "training", "tj1", lambda obj: obj["spec"].update(suspend=True))
    until(lambda: not cluster.list("Pod", "training"))


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_a_job_that_is_deleted_lets_its_pods_go(cluster, propagation):
    create(cluster, job())
    pods(cluster, 1)
    cluster.delete("Job", "training", "work", propagation)
    until(lambda: not cluster.list("Pod", "training") and not cluster.list("Job", "training"))


def test_what_is_not_installed_is_unknown():
    bare, _ = cluster_with(Operators(training_operator=None, trainer=None))
    known = {kind.name for kind in bare.kinds}
    assert not known & {"PyTorchJob", "TrainJob", "JobSet", "ClusterTrainingRuntime"}
    assert "Job" in known
