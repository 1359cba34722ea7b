"""What Kubeflow Trainer and JobSet do with a TrainJob, as it was seen on Trainer 2.3.0: rules, without a server."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.kind import JOBSET
from airflow_provider_ocidist.emulator.kubernetes.controllers.jobsets.look import look as look_at_jobset
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.admission import changed, refusals
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.jobset import jobset
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.kinds import kinds
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.look import look
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.release import (
    RELEASES,
    Release,
    release,
)
from airflow_provider_ocidist.emulator.kubernetes.controllers.trainjob.runtime import TORCH_DISTRIBUTED
from tests.emulator.kubernetes.operated import Operated, dice

GROUP = "trainer.kubeflow.org"
PATCHES = {
    "2.0": {"targetJobs": [{"name": "node"}], "tolerations": [{"operator": "Exists"}]},
    "2.1": {"targetJobs": [{"name": "node"}], "spec": {"tolerations": [{"operator": "Exists"}]}},
    "2.3": {
        "manager": "example.com/airflow",
        "trainingRuntimeSpec": {
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}
                            },
                        }
                    ]
                }
            }
        },
    },
}


def trainjob(name="tj1", *, trainer=None, **spec):
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": "training", "uid": "uid-1"},
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "ClusterTrainingRuntime", "name": "torch-distributed"},
            "trainer": {"numNodes": 2, "numProcPerNode": 2, "image": "image", **(trainer or {})},
            "suspend": False,
            **spec,
        },
    }


def operated(version="2.3", **fields) -> Operated:
    owned = {"ClusterTrainingRuntime": [TORCH_DISTRIBUTED]}
    made = Operated(trainjob(**fields), partial(look, release=release(version)), owned)
    made.settle()
    return made


def set_of(job) -> Operated:
    """Return the JobSet of a job, under the JobSet controller."""
    made = jobset(job, TORCH_DISTRIBUTED, Release())
    JOBSET.defaults(made)
    under = Operated(made, look_at_jobset)
    under.settle()
    return under


def node(job) -> dict:
    """Return the pod template of a job's nodes."""
    [made] = set_of(job).owned["Job"]
    return made["spec"]["template"]


def environment(job) -> dict:
    return {one["name"]: one.get("value") for one in node(job)["spec"]["containers"][0]["env"]}


# --- what is made


def test_a_job_becomes_a_jobset_of_its_name_with_one_indexed_job_and_one_headless_service():
    [made] = operated().owned["JobSet"]
    assert made["metadata"]["name"] == "tj1"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "TrainJob"
    under = set_of(trainjob())
    [job], [service] = under.owned["Job"], under.owned["Service"]
    assert job["metadata"]["name"] == "tj1-node-0"
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (2, 2)
    assert (job["spec"]["completionMode"], job["spec"].get("backoffLimit")) == ("Indexed", None)
    assert service["metadata"]["name"] == "tj1"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]


def test_nodes_are_found_by_the_label_of_their_jobset_and_know_their_subdomain():
    template = node(trainjob())
    labels = template["metadata"]["labels"]
    assert labels["jobset.sigs.k8s.io/jobset-name"] == "tj1"
    assert labels["jobset.sigs.k8s.io/replicatedjob-name"] == "node"
    assert (template["spec"]["subdomain"], template["spec"]["restartPolicy"]) == ("tj1", "OnFailure")
    assert [one["name"] for one in template["spec"]["containers"]] == ["node"]


def test_a_node_learns_its_place_in_the_words_of_torchrun_and_in_no_others():
    variables = environment(trainjob(trainer={"env": [{"name": "MINE", "value": "1"}]}))
    assert variables == {
        "MINE": "1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": "tj1-node-0-0.tj1",
        "PET_MASTER_PORT": "29500",
    }
    rank = next(
        one for one in node(trainjob())["spec"]["containers"][0]["env"] if one["name"] == "PET_NODE_RANK"
    )
    assert "job-completion-index" in rank["valueFrom"]["fieldRef"]["fieldPath"]


@pytest.mark.parametrize(
    "trainer,processes",
    [
        ({}, "auto"),
        ({"numProcPerNode": 4}, "4"),
        ({"resourcesPerNode": {"limits": {"cpu": "3"}}}, "3"),
        ({"resourcesPerNode": {"requests": {"cpu": "2500m"}}}, "3"),
        ({"resourcesPerNode": {"limits": {"cpu": "3", "nvidia.com/gpu": 8}}}, "auto"),
        ({"resourcesPerNode": {"limits": {"cpu": "3"}}, "numProcPerNode": 2}, "2"),
    ],
)
def test_without_a_number_a_node_has_a_process_for_each_of_its_cpus_if_it_has_no_gpu(trainer, processes):
    job = trainjob()
    job["spec"]["trainer"] = {"image": "image", **trainer}
    assert environment(job)["PET_NPROC_PER_NODE"] == processes


def test_any_job_says_all_its_nodes_the_same_and_keeps_what_the_person_gave():
    die = dice()
    for _ in range(30):
        nodes, name = die.randint(1, 9), die.choice("abc") * die.randint(1, 30)
        args = [str(die.random()) for _ in range(die.randint(0, 3))]
        job = trainjob(name, trainer={"numNodes": nodes, "command": ["torchrun"], "args": args})
        variables = environment(job)
        assert variables["PET_NNODES"] == str(nodes)
        assert variables["PET_MASTER_ADDR"] == f"{name}-node-0-0.{name}"
        container = node(job)["spec"]["containers"][0]
        assert (container["command"], container.get("args", [])) == (["torchrun"], args)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.3"])
def test_each_release_has_its_own_words_for_a_change_of_the_pods(version):
    field = RELEASES[version].patches
    [made] = operated(version, **{field: [PATCHES[version]]}).owned["JobSet"]
    pods = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pods["tolerations"] == [{"operator": "Exists"}]
    assert pods["containers"][0]["image"] == "image"
    served = kinds(release(version))[0].schema["spec"]
    assert [
        name for name in ("podSpecOverrides", "podTemplateOverrides", "runtimePatches") if name in served
    ] == [field]
    assert ("activeDeadlineSeconds" in served, "labels" in served) == (version == "2.3", version != "2.3")


def test_a_patch_merges_containers_volumes_and_mounts_by_name():
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    mounts = [{"name": "data", "mountPath": "/data"}]
    spec = {"volumes": [volume], "containers": [{"name": "node", "volumeMounts": mounts}]}
    patch = {"targetJobs": [{"name": "node"}], "metadata": {"labels": {"team": "a"}}, "spec": spec}
    [made] = operated("2.1", podTemplateOverrides=[patch, patch]).owned["JobSet"]
    template = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    [container] = template["spec"]["containers"]
    assert (container["image"], container["volumeMounts"]) == ("image", mounts)
    assert (template["spec"]["volumes"], template["metadata"]["labels"]) == ([volume], {"team": "a"})


# --- admission


@pytest.mark.parametrize(
    "name", ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"]
)
def test_the_words_of_torchrun_are_reserved(name):
    job = trainjob(trainer={"env": [{"name": name, "value": "1"}]})
    [text] = refusals(job, TORCH_DISTRIBUTED, Release())
    assert "spec.trainer.env" in text
    assert f"[{name}]" in text


def test_the_runtime_has_to_be_there():
    assert refusals(trainjob(), TORCH_DISTRIBUTED, Release()) == []
    [text] = refusals(trainjob(), None, Release())
    assert 'clustertrainingruntimes.trainer.kubeflow.org "torch-distributed" not found' in text


def test_a_patch_names_its_manager_with_a_domain():
    good = refusals(trainjob(runtimePatches=[PATCHES["2.3"]]), TORCH_DISTRIBUTED, Release())
    [bad] = refusals(trainjob(runtimePatches=[{"manager": "airflow"}]), TORCH_DISTRIBUTED, Release())
    assert good == []
    assert "must be a domain-prefixed path" in bad


def test_a_patch_is_for_a_job_that_the_runtime_has_and_brings_no_variables():
    patch = {"targetJobs": [{"name": "other"}], "spec": {}}
    [text] = refusals(trainjob(podTemplateOverrides=[patch]), TORCH_DISTRIBUTED, release("2.1"))
    assert "targetJob that doesn't exist" in text
    spec = {"containers": [{"name": "node", "env": [{"name": "A", "value": "1"}]}]}
    patch = {"targetJobs": [{"name": "node"}], "spec": spec}
    [text] = refusals(trainjob(podTemplateOverrides=[patch]), TORCH_DISTRIBUTED, release("2.1"))
    assert "must not have envs" in text


def test_runtime_and_deadline_do_not_change_and_a_deadline_is_at_least_a_second():
    before = trainjob(activeDeadlineSeconds=5)
    after = trainjob(activeDeadlineSeconds=6)
    after["spec"]["runtimeRef"]["name"] = "other"
    paths = [problem.path for problem in changed(after, before)]
    assert paths == ["spec.runtimeRef", "spec.activeDeadlineSeconds"]
    assert [problem.path for problem in changed(trainjob(activeDeadlineSeconds=0), None)] == [
        "spec.activeDeadlineSeconds"
    ]


def test_a_version_that_nobody_knows_is_an_error_that_names_the_others():
    assert release("2.2.1") == release("2.2")
    with pytest.raises(ValueError, match=r"no Kubeflow Trainer 1\.9; there are 2\.0, 2\.1, 2\.2, 2\.3"):
        release("1.9")


# --- how it goes on


def advance(made: Operated, under: Operated, **status) -> None:
    """Give the Job a status, and let both controllers look."""
    [job] = under.owned["Job"]
    job["status"] = status
    under.settle()
    [there] = made.owned["JobSet"]
    there["status"] = under.status
    made.settle()


def ended(kind, reason="x"):
    return [{"type": kind, "status": "True", "reason": reason, "message": reason}]


def test_there_is_no_created_and_no_running_only_counts_of_jobs():
    made, under = operated(), set_of(trainjob())
    assert made.status.get("conditions", []) == []
    advance(made, under, active=2, ready=1)
    assert made.status["jobsStatus"] == [
        {"name": "node", "ready": 0, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}
    ]
    advance(made, under, active=2, ready=2)
    assert made.status["jobsStatus"][0]["ready"] == 1
    assert made.status.get("conditions", []) == []


def test_node_0_that_is_done_does_not_end_the_job_and_all_nodes_do():
    made, under = operated(), set_of(trainjob())
    advance(made, under, active=1, ready=1, succeeded=1, completedIndexes="0")
    assert made.truths() == {}
    advance(made, under, succeeded=2, conditions=ended("Complete"))
    assert made.truths() == {"Complete": True}
    assert made.condition("Complete")["reason"] == "AllJobsCompleted"
    assert made.status["jobsStatus"][0]["succeeded"] == 1


def test_a_failed_job_fails_the_set_and_the_trainjob():
    made, under = operated(), set_of(trainjob())
    advance(made, under, failed=1, conditions=ended("Failed", "BackoffLimitExceeded"))
    assert made.truths() == {"Failed": True}
    assert made.condition("Failed")["reason"] == "FailedJobs"
    assert made.deleted == [], "what is there stays: the Job itself has deleted its pods"


def test_a_jobset_that_may_restart_makes_its_jobs_anew():
    job = jobset(trainjob(), TORCH_DISTRIBUTED, Release())
    job["spec"]["failurePolicy"] = {"maxRestarts": 1}
    JOBSET.defaults(job)
    under = Operated(job, look_at_jobset)
    under.settle()
    for restarts in (1, 1):
        [made] = under.owned["Job"]
        made["status"] = {"conditions": ended("Failed")}
        under.settle()
        assert under.status["restarts"] == restarts
    assert under.deleted == ["Job/tj1-node-0"]
    assert under.condition("Failed")["reason"] == "ReachedMaxRestarts"


def test_a_suspended_job_has_a_suspended_job_below_and_goes_on_when_resumed():
    made = operated(suspend=True)
    assert made.truths() == {"Suspended": True}
    assert made.condition("Suspended")["reason"] == "Suspended"
    [there] = made.owned["JobSet"]
    under = Operated(there, look_at_jobset)
    under.settle()
    assert (under.owned["Job"][0]["spec"]["suspend"], under.truths()) == (True, {"Suspended": True})
    made.obj["spec"]["suspend"] = False
    made.settle()
    assert made.truths() == {"Suspended": False}
    assert made.condition("Suspended")["reason"] == "Resumed"
    under.obj = made.owned["JobSet"][0]
    under.settle()
    assert (under.owned["Job"][0]["spec"]["suspend"], under.truths()) == (False, {"Suspended": False})


def test_a_deadline_is_kept_to_the_second_and_the_jobset_goes():
    made = operated(activeDeadlineSeconds=8)
    assert made.again_s == 8
    made.later(7)
    made.settle()
    assert (made.truths(), made.again_s) == ({}, 1)
    made.later(1)
    made.settle()
    assert made.truths() == {"Failed": True}
    assert made.condition("Failed")["reason"] == "DeadlineExceeded"
    assert made.owned["JobSet"] == []


def test_a_deadline_begins_anew_when_a_job_is_resumed_and_does_not_run_before():
    made = operated(activeDeadlineSeconds=8, suspend=True)
    made.later(100)
    made.settle()
    assert made.truths() == {"Suspended": True}
    made.obj["spec"]["suspend"] = False
    made.settle()
    assert (made.truths(), made.again_s) == ({"Suspended": False}, 8)


def test_a_jobs_time_to_live_is_the_jobsets():
    under = set_of(trainjob())
    under.obj["spec"]["ttlSecondsAfterFinished"] = 3
    [job] = under.owned["Job"]
    job["status"] = {"conditions": ended("Complete")}
    under.settle()
    assert (under.removed, under.again_s) == (False, 3)
    under.later(3)
    under.look_once()
    assert under.removed


def test_a_job_that_another_controller_manages_is_left_alone():
    made = operated(managedBy="kueue.x-k8s.io/multikueue")
    assert ("JobSet" in made.owned, made.status) == (False, {})
