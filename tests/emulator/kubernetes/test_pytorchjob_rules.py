"""What the training operator does with a PyTorchJob, as it was seen on operator 1.9.4: rules, without a server."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.admission import changed, refusals
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.generation import (
    GENERATIONS,
    generation,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.pytorchjob.look import Settings, look
from tests.emulator.kubernetes.operated import Operated, dice

LABEL = "training.kubeflow.org/"


def replica(count=1, policy="Never", **container):
    own = {"name": "pytorch", "image": "image", "command": ["python"], **container}
    return {"replicas": count, "restartPolicy": policy, "template": {"spec": {"containers": [own]}}}


def pytorchjob(*, workers=1, master=True, policy="Never", name="train", run_policy=None, **spec):
    specs = {"Master": replica(1, policy)} if master else {}
    specs |= {"Worker": replica(workers, policy)} if workers else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"runPolicy": run_policy or {}, "pytorchReplicaSpecs": specs, **spec},
    }


def operated(version="1.9.4", *, delay_s=0.0, **fields) -> Operated:
    settings = Settings(generation=generation(version), status_delay_s=delay_s)
    job = Operated(pytorchjob(**fields), partial(look, settings=settings))
    job.settle()
    return job


def running(**fields) -> Operated:
    job = operated(**fields)
    for name in job.pods:
        job.pod(name, "Running")
    job.settle()
    return job


def environment(job: Operated, name: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in job.pods[name]["spec"]["containers"][0]["env"]}


# --- what is made


def test_each_replica_has_a_pod_and_a_headless_service_of_the_same_name():
    job = operated(workers=2)
    services = {one["metadata"]["name"]: one for one in job.owned["Service"]}
    assert list(job.pods) == list(services) == ["train-master-0", "train-worker-0", "train-worker-1"]
    for name, service in services.items():
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["ports"][0]["port"] == 23456
        assert service["spec"]["selector"].items() <= job.pods[name]["metadata"]["labels"].items()


def test_pods_and_services_belong_to_the_job():
    job = operated()
    for thing in (*job.owned["Pod"], *job.owned["Service"]):
        assert thing["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "kubeflow.org/v1",
                "kind": "PyTorchJob",
                "name": "train",
                "uid": "uid-1",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_labels_say_job_operator_kind_and_index_and_rank_0_is_the_master():
    job = operated(workers=2)
    assert job.pods["train-worker-1"]["metadata"]["labels"] == {
        f"{LABEL}job-name": "train",
        f"{LABEL}operator-name": "pytorchjob-controller",
        f"{LABEL}replica-type": "worker",
        f"{LABEL}replica-index": "1",
    }
    roles = {name: pod["metadata"]["labels"].get(f"{LABEL}job-role") for name, pod in job.pods.items()}
    assert roles == {"train-master-0": "master", "train-worker-0": None, "train-worker-1": None}


def test_the_environment_of_a_job_with_a_master_comes_after_the_persons_own_in_the_order_seen():
    job = operated(workers=1, nprocPerNode="4")
    assert environment(job, "train-worker-0") == {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": "23456",
        "PET_MASTER_PORT": "23456",
        "MASTER_ADDR": "train-master-0",
        "PET_MASTER_ADDR": "train-master-0",
        "WORLD_SIZE": "8",
        "RANK": "1",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_NNODES": "2",
    }
    own = pytorchjob()
    own["spec"]["pytorchReplicaSpecs"]["Worker"] = replica(env=[{"name": "MINE", "value": "1"}])
    mine = Operated(own, look)
    mine.settle()
    assert next(iter(environment(mine, "train-worker-0"))) == "MINE"


def test_every_container_of_a_pod_gets_the_environment():
    own = pytorchjob(workers=0)
    containers = own["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    containers.append({"name": "beside", "image": "image"})
    job = Operated(own, look)
    job.settle()
    both = job.pods["train-master-0"]["spec"]["containers"]
    assert both[0]["env"] == both[1]["env"]


def test_workers_without_a_master_learn_neither_their_rank_nor_an_address():
    job = operated(master=False, workers=2)
    assert environment(job, "train-worker-1") == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2",
    }
    assert job.pods["train-worker-0"]["metadata"]["labels"][f"{LABEL}job-role"] == "master"


def test_an_elastic_job_meets_at_its_first_worker():
    policy = {"minReplicas": 1, "maxReplicas": 3, "maxRestarts": 5, "rdzvConf": [{"key": "a", "value": "b"}]}
    job = operated(master=False, workers=2, elasticPolicy=policy)
    given = environment(job, "train-worker-1")
    assert (
        given.items()
        >= {
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "train-worker-0:23456",
            "PET_NNODES": "1:3",
            "PET_MAX_RESTARTS": "5",
            "PET_RDZV_CONF": "a=b",
        }.items()
    )
    assert "RANK" not in given


@pytest.mark.parametrize(
    "bounds,nodes", [({}, "4:4"), ({"minReplicas": 2}, "2:2"), ({"maxReplicas": 3}, "3:3")]
)
def test_a_missing_bound_of_an_elastic_job_is_the_other_one_or_the_number_of_workers(bounds, nodes):
    job = operated(master=False, workers=4, elasticPolicy=bounds)
    assert environment(job, "train-worker-0")["PET_NNODES"] == nodes


def test_workers_wait_for_the_masters_name_and_only_they():
    job = operated()
    assert "initContainers" not in job.pods["train-master-0"]["spec"]
    [waiting] = job.pods["train-worker-0"]["spec"]["initContainers"]
    assert (waiting["name"], waiting["image"]) == ("init-pytorch", "alpine:3.10")
    assert "nslookup train-master-0" in waiting["command"][2]
    alone = operated(master=False)
    assert "initContainers" not in alone.pods["train-worker-0"]["spec"]


def test_any_job_numbers_its_nodes_and_keeps_what_the_template_says():
    die = dice()
    for _ in range(50):
        workers, processes = die.randint(0, 6), die.choice(["auto", "cpu", "gpu", "1", "8"])
        port = die.randint(1024, 65535)
        job = pytorchjob(workers=workers, nprocPerNode=processes, name=die.choice("abc") * die.randint(1, 40))
        for spec in job["spec"]["pytorchReplicaSpecs"].values():
            template = spec["template"]
            template["metadata"] = {
                "labels": {"team": "a"},
                "annotations": {"sidecar.istio.io/inject": "false"},
            }
            template["spec"]["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": port}]
            template["spec"]["tolerations"] = [{"operator": "Exists"}]
        made = Operated(job, look)
        made.settle()
        nodes = [environment(made, name) for name in made.pods]
        assert sorted(int(node["RANK"]) for node in nodes) == list(range(workers + 1))
        each = int(processes) if processes.isdigit() else 1
        assert {node["WORLD_SIZE"] for node in nodes} == {str((workers + 1) * each)}
        assert {(node["MASTER_ADDR"], node["MASTER_PORT"]) for node in nodes} == {
            (f"{job['metadata']['name']}-master-0", str(port))
        }
        for pod in made.pods.values():
            assert pod["metadata"]["labels"]["team"] == "a"
            assert pod["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}
            assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]


@pytest.mark.parametrize(
    "policy,pods",
    [("Never", "Never"), ("ExitCode", "Never"), ("OnFailure", "OnFailure"), ("Always", "Always")],
)
def test_the_replicas_restart_policy_is_the_pods_whatever_the_template_says(policy, pods):
    job = pytorchjob(policy=policy)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["restartPolicy"] = "Always"
    made = Operated(job, look)
    made.settle()
    assert {pod["spec"]["restartPolicy"] for pod in made.pods.values()} == {pods}


def test_what_is_not_said_is_on_failure_one_replica_and_any_number_of_processes():
    job = pytorchjob()
    del job["spec"]["runPolicy"], job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
    del job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"]
    made = Operated(job, look)
    made.settle()
    assert made.pods["train-worker-0"]["spec"]["restartPolicy"] == "OnFailure"
    assert environment(made, "train-worker-0")["PET_NPROC_PER_NODE"] == "auto"
    assert "runPolicy" not in made.obj["spec"], "the stored object keeps its gaps"


# --- versions


def test_before_1_7_a_node_learns_only_the_four_names_that_torch_reads():
    for version in ("1.3", "1.4", "1.6"):
        given = environment(operated(version, nprocPerNode="4"), "train-worker-0")
        assert set(given) == {"PYTHONUNBUFFERED", "MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE", "RANK"}
        assert given["WORLD_SIZE"] == "2"


def test_in_1_3_the_masters_address_is_localhost_for_the_master_itself():
    job = operated("1.3")
    assert environment(job, "train-master-0")["MASTER_ADDR"] == "localhost"
    assert environment(job, "train-worker-0")["MASTER_ADDR"] == "train-master-0"


@pytest.mark.parametrize(
    "version,old,new",
    [("1.3", True, False), ("1.5", True, True), ("1.7", False, True), ("1.9.4", False, True)],
)
def test_the_label_job_name_was_the_only_one_then_a_twin_then_gone(version, old, new):
    labels = operated(version).pods["train-master-0"]["metadata"]["labels"]
    assert ("job-name" in labels, f"{LABEL}job-name" in labels) == (old, new)


def test_every_version_runs_a_job_to_its_end():
    for version in GENERATIONS:
        job = operated(version, workers=2)
        for name in job.pods:
            job.pod(name, "Succeeded", code=0)
        job.settle()
        assert job.truths()["Succeeded"], version


def test_a_version_that_nobody_knows_is_an_error_that_names_the_others():
    assert generation("1.8.1") == generation("1.8")
    with pytest.raises(ValueError, match=r"no training operator 2\.0; there are 1\.3, .*1\.9\.4"):
        generation("2.0")


def test_before_1_8_no_webhook_refuses_a_bad_job_and_it_fails():
    job = pytorchjob()
    job["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    made = Operated(job, partial(look, settings=Settings(generation=generation("1.7"))))
    made.settle()
    assert made.truths()["Failed"]
    assert made.pods == {}


# --- admission


@pytest.mark.parametrize(
    "change,text",
    [
        (lambda job: job["metadata"].update(name="9bad"), 'metadata.name: Invalid value: "9bad"'),
        (lambda job: specs(job)["Master"].update(replicas=2), "[Master].replicas: Forbidden: must be 1"),
        (lambda job: specs(job)["Master"].pop("replicas"), "[Master].replicas: Forbidden: must be 1"),
        (
            lambda job: container(job).update(name="main"),
            "must have at least one container with name pytorch",
        ),
        (lambda job: container(job).pop("image"), "containers[0].image: Required value"),
        (lambda job: specs(job).update(PS=replica()), 'Unsupported value: "PS"'),
        (lambda job: job["spec"].update(pytorchReplicaSpecs={}), "spec.pytorchReplicaSpecs: Required value"),
        (lambda job: job["spec"].update(runPolicy={"managedBy": "me"}), 'Unsupported value: "me"'),
        (
            lambda job: (specs(job).pop("Worker"), job["spec"].update(elasticPolicy={})),
            "[Worker]: Required value: must be configured if elastic policy is used",
        ),
    ],
)
def test_the_webhook_refuses(change, text):
    job = pytorchjob()
    assert refusals(job) == []
    change(job)
    assert text in " ".join(refusals(job))


@pytest.mark.parametrize(
    "fields",
    [
        {"run_policy": {"cleanPodPolicy": "Maybe"}},
        {"name": "a" * 63},
        {"run_policy": {"schedulingPolicy": {"minAvailable": 2, "queue": "q", "priorityClass": "high"}}},
        {"run_policy": {"managedBy": "kueue.x-k8s.io/multikueue"}},
    ],
)
def test_the_webhook_lets_pass(fields):
    assert refusals(pytorchjob(**fields)) == []


def test_who_manages_a_job_and_its_queue_cannot_change():
    before = pytorchjob(
        run_policy={"managedBy": "kubeflow.org/training-operator", "schedulingPolicy": {"queue": "a"}}
    )
    after = pytorchjob(
        run_policy={"managedBy": "kueue.x-k8s.io/multikueue", "schedulingPolicy": {"queue": "b"}}
    )
    assert changed(before, before) == []
    assert [problem.path for problem in changed(after, before)] == [
        "spec.runPolicy.managedBy",
        "spec.runPolicy.schedulingPolicy.queue",
    ]


def test_a_job_that_another_controller_manages_is_left_alone():
    job = operated(run_policy={"managedBy": "kueue.x-k8s.io/multikueue"})
    assert (job.pods, job.status) == ({}, {})


# --- how it goes on


def test_created_then_running_as_soon_as_the_master_runs_though_workers_are_pending():
    job = operated(workers=2)
    assert job.truths() == {"Created": True}
    assert job.status["startTime"]
    job.pod("train-master-0", "Running")
    status = job.settle()
    assert job.truths() == {"Created": True, "Running": True}
    assert job.condition("Running")["reason"] == "PyTorchJobRunning"
    assert status["replicaStatuses"]["Master"]["active"] == 1
    assert set(status["replicaStatuses"]["Worker"]) == {"selector"}, "counts of none are left out"


def test_the_status_may_stay_empty_for_a_while_and_pods_are_there_all_the_same():
    job = operated(delay_s=5)
    assert job.status == {}
    assert job.pods
    assert 5 <= job.again_s <= 6
    job.later(6)
    assert job.settle()["conditions"]


def test_the_masters_success_is_the_jobs_whatever_workers_do():
    job = running(workers=2, policy="OnFailure")
    job.pod("train-worker-0", "Running", restarts=30)
    job.pod("train-master-0", "Succeeded", code=0)
    job.settle()
    assert job.truths() == {"Created": True, "Running": False, "Succeeded": True}
    assert job.status["completionTime"]


def test_after_success_the_workers_selector_is_gone_and_what_ran_counts_as_succeeded():
    job = running(workers=2)
    job.pod("train-master-0", "Succeeded", code=0)
    counts = job.settle()["replicaStatuses"]
    assert "selector" in counts["Master"]
    assert counts["Worker"] == {"succeeded": 2}


def test_without_a_master_all_workers_have_to_succeed():
    job = running(master=False, workers=2)
    job.pod("train-worker-0", "Succeeded", code=0)
    job.settle()
    assert not job.truths().get("Succeeded")
    job.pod("train-worker-1", "Succeeded", code=0)
    job.settle()
    assert job.truths()["Succeeded"]


def test_an_elastic_job_has_succeeded_with_its_first_worker():
    job = running(master=False, workers=2, elasticPolicy={"minReplicas": 1, "maxReplicas": 2})
    job.pod("train-worker-1", "Succeeded", code=0)
    job.settle()
    assert job.truths()["Succeeded"]


@pytest.mark.parametrize(
    "failing,other", [("train-worker-0", "train-master-0"), ("train-master-0", "train-worker-0")]
)
def test_a_node_that_fails_ends_the_job_and_the_other_runs_on(failing, other):
    job = running()
    job.pod(failing, "Failed", code=3)
    job.settle()
    assert job.truths() == {"Created": True, "Running": False, "Failed": True}
    assert "failed because 1" in job.condition("Failed")["message"]
    assert "exit" not in job.condition("Failed")["message"]
    assert job.status["completionTime"]
    assert other in job.pods
    assert job.deleted == []


def test_once_failed_nothing_changes_any_more():
    job = running()
    job.pod("train-worker-0", "Failed", code=3)
    job.settle()
    before = job.status["conditions"]
    job.pod("train-master-0", "Succeeded", code=0)
    assert job.settle()["conditions"] == before


@pytest.mark.parametrize(
    "policy,left",
    [
        ("None", ["train-master-0", "train-worker-0", "train-worker-1"]),
        ("Running", ["train-master-0", "train-worker-0"]),
        ("All", []),
    ],
)
def test_clean_pod_policy_says_which_pods_go_at_the_end_each_with_its_service(policy, left):
    job = running(workers=2, run_policy={"cleanPodPolicy": policy})
    job.pod("train-worker-0", "Failed", code=3)
    job.pod("train-master-0", "Succeeded", code=0)
    job.settle()
    assert job.truths()["Succeeded"]
    assert list(job.pods) == left
    assert [one["metadata"]["name"] for one in job.owned["Service"]] == left


def test_a_pending_pod_goes_with_the_running_ones():
    job = operated(run_policy={"cleanPodPolicy": "Running"})
    job.pod("train-master-0", "Failed", code=1)
    job.settle()
    assert list(job.pods) == ["train-master-0"]


def test_a_restart_in_place_counts_against_backoff_limit_and_the_kubelet_goes_on_restarting():
    job = running(policy="OnFailure", run_policy={"backoffLimit": 1})
    job.pod("train-worker-0", "Running", restarts=1)
    job.settle()
    assert job.condition("Failed")["message"] == (
        "Job train has failed because it has reached the specified backoff limit"
    )
    assert list(job.pods) == ["train-master-0", "train-worker-0"]


def test_up_to_1_9_3_the_backoff_limit_deletes_all_pods_whatever_the_policy():
    job = running(version="1.9.3", policy="OnFailure", run_policy={"backoffLimit": 1})
    job.pod("train-worker-0", "Running", restarts=1)
    job.settle()
    assert job.pods == {}


def test_without_a_backoff_limit_it_restarts_for_ever():
    job = running(policy="OnFailure")
    job.pod("train-worker-0", "Running", restarts=1000)
    job.settle()
    assert job.truths() == {"Created": True, "Running": True}


@pytest.mark.parametrize("code,again", [(1, False), (127, False), (128, True), (255, True)])
def test_exit_codes_up_to_127_are_permanent(code, again):
    job = running(policy="ExitCode")
    job.pod("train-worker-0", "Failed", code=code)
    job.settle()
    assert job.truths().get("Failed", False) is not again


def test_a_permanent_exit_code_fails_the_job_without_completion_time_so_that_its_ttl_never_begins():
    job = running(policy="ExitCode", run_policy={"ttlSecondsAfterFinished": 1})
    job.pod("train-worker-0", "Failed", code=3)
    job.settle()
    assert job.truths() == {"Created": True, "Running": False, "Failed": True}, "nothing is restarting"
    assert "completionTime" not in job.status
    job.later(3600)
    job.look_once()
    assert not job.removed


def test_a_retryable_exit_code_makes_the_pod_anew_again_and_again_whatever_the_limit():
    job = running(policy="ExitCode", run_policy={"backoffLimit": 2})
    for _ in range(10):
        job.pod("train-worker-0", "Failed", code=137)
        job.look_once()
        assert job.truths() == {"Created": True, "Restarting": True}, "Restarting takes the place of Running"
        job.settle()
        assert "status" not in job.pods["train-worker-0"]
        job.pod("train-worker-0", "Running")
        job.settle()
    assert job.deleted == ["Pod/train-worker-0"] * 10
    assert job.truths() == {"Created": True, "Running": True}


def test_with_a_backoff_limit_of_0_the_first_failed_pod_is_the_limit():
    job = running(run_policy={"backoffLimit": 0})
    job.pod("train-worker-0", "Failed", code=3)
    job.settle()
    assert "backoff limit" in job.condition("Failed")["message"]


def test_a_deadline_alone_is_no_reason_to_look_and_fails_the_job_at_the_next_one():
    job = running(run_policy={"activeDeadlineSeconds": 6})
    assert job.again_s is None
    job.later(60)
    job.settle()
    assert job.condition("Failed")["message"] == (
        "Job train has failed because it was active longer than specified deadline"
    )


def test_the_ttl_begins_with_completion_and_removes_the_job():
    job = running(run_policy={"ttlSecondsAfterFinished": 4})
    job.pod("train-master-0", "Succeeded", code=0)
    job.settle()
    assert (job.removed, job.again_s) == (False, 4)
    job.later(4)
    job.look_once()
    assert job.removed


def test_a_suspended_job_has_no_pods_until_it_is_resumed():
    job = operated(run_policy={"suspend": True})
    assert (job.truths(), job.pods) == ({"Created": True, "Suspended": True}, {})
    job.obj["spec"]["runPolicy"]["suspend"] = False
    job.settle()
    for name in job.pods:
        job.pod(name, "Running")
    job.settle()
    assert job.truths() == {"Created": True, "Suspended": False, "Running": True}
    assert job.condition("Suspended")["reason"] == "PyTorchJobResumed"


def test_suspending_a_running_job_deletes_its_pods_and_it_runs_no_more():
    job = running()
    job.obj["spec"]["runPolicy"]["suspend"] = True
    job.settle()
    assert (job.truths(), job.pods) == ({"Created": True, "Running": False, "Suspended": True}, {})
    job.later(60)
    job.obj["spec"]["runPolicy"]["suspend"] = False
    job.settle()
    assert job.status["startTime"] == "2026-11-20T12:01:00Z", "it begins anew"


def test_before_1_7_suspend_is_ignored():
    assert operated("1.6", run_policy={"suspend": True}).pods


def test_a_pod_that_is_deleted_while_it_runs_counts_as_failed():
    job = running()
    job.pods["train-worker-0"]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
    job.settle()
    assert job.truths()["Failed"]


def test_a_pod_that_vanished_is_made_anew_with_on_failure():
    job = running(policy="OnFailure")
    job.delete(job.pods["train-worker-0"])
    job.settle()
    assert "train-worker-0" in job.pods


@pytest.mark.parametrize("name", ["train-master-0", "train-worker-0"])
def test_with_on_failure_no_pod_that_is_lost_ends_the_others_or_counts_against_the_backoff_limit(name):
    # ReconcilePods and PastBackoffLimit in kubeflow/training-operator, pkg/controller.v1/common.
    job = running(workers=2, policy="OnFailure", run_policy={"backoffLimit": 1, "cleanPodPolicy": "Running"})
    others = {each: pod for each, pod in job.pods.items() if each != name}
    for _ in range(5):
        # Deleted, and not gone yet.
        job.pods[name]["metadata"]["deletionTimestamp"] = "2026-11-20T12:00:00Z"
        job.look_once()
        assert job.truths().get("Restarting")
        job.delete(job.pods[name])
        job.settle()
        assert "status" not in job.pods[name], "another pod"
        job.pod(name, "Running")
        job.settle()
        # Evicted: it stays as failed, and the operator deletes it.
        job.pod(name, "Failed")
        job.settle()
        assert "status" not in job.pods[name], "another pod"
        job.pod(name, "Running")
        job.settle()
        assert not job.truths().get("Failed")
    assert {each: job.pods[each] for each in others} == others
    assert set(job.deleted) == {f"Pod/{name}"}


def test_nothing_in_the_status_says_that_an_image_is_missing():
    job = operated()
    job.pods["train-master-0"]["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "pytorch", "state": {"waiting": {"reason": "ImagePullBackOff"}}}],
    }
    job.settle()
    assert job.truths() == {"Created": True}


def test_whatever_pods_do_conditions_keep_their_rules():
    die = dice()
    for _ in range(100):
        limit = die.choice([None, 0, 1, 3])
        job = operated(
            workers=die.randint(0, 3),
            policy=die.choice(["Never", "OnFailure", "ExitCode", "Always"]),
            run_policy={
                "cleanPodPolicy": die.choice(["None", "Running", "All"]),
                **({} if limit is None else {"backoffLimit": limit}),
            },
        )
        ended = None
        for _ in range(15):
            name = die.choice([*job.pods, ""])
            if name:
                phase = die.choice(["Pending", "Running", "Failed", "Succeeded"])
                code = {"Failed": die.choice([1, 3, 127, 128, 137]), "Succeeded": 0}.get(phase)
                job.pod(name, phase, code=code, restarts=die.randint(0, 4))
            status = job.settle()
            kinds = [one["type"] for one in status["conditions"]]
            assert len(kinds) == len(set(kinds))
            assert kinds[0] == "Created"
            assert not {"Running", "Restarting"} <= set(kinds)
            truths = job.truths()
            assert not (truths.get("Failed") and truths.get("Succeeded"))
            if truths.get("Failed") or truths.get("Succeeded"):
                assert not truths.get("Running")
                assert ended in (None, status["conditions"])
                ended = status["conditions"]
            for counts in status["replicaStatuses"].values():
                assert 0 not in counts.values()


def specs(job):
    return job["spec"]["pytorchReplicaSpecs"]


def container(job):
    return specs(job)["Worker"]["template"]["spec"]["containers"][0]
