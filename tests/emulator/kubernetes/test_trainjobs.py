"""TrainJobs on the running stand-in, by the official client: each scenario as it was seen on Trainer 2.3.0."""

from __future__ import annotations

import kubernetes
import pytest

from tests.emulator.kubernetes.gangs import Gangs, refused, wait
from tests.emulator.kubernetes.waiting import until

MEET = (
    "import os, socket; place = (os.environ['PET_MASTER_ADDR'], int(os.environ['PET_MASTER_PORT']))\n"
    "if os.environ['PET_NODE_RANK'] == '0': socket.create_server(place).accept()\n"
    "else:\n"
    "    while True:\n"
    "        try: socket.create_connection(place); break\n"
    "        except OSError: pass\n"
    "print('met', os.environ['PET_NODE_RANK'], socket.gethostname())"
)
FIRST = '[ "$PET_NODE_RANK" = 0 ]'


@pytest.fixture
def gangs(kube, tmp_path) -> Gangs:
    return Gangs(kube, tmp_path)


def test_nodes_meet_under_the_names_in_their_environment(gangs):
    job = gangs.create(gangs.trainjob(f'python -c "{MEET}"'))
    assert gangs.condition(job, "Complete")["reason"] == "AllJobsCompleted"
    said = {gangs.kube.log(gangs.node(index)) for index in range(2)}
    assert said == {"met 0 train-node-0-0\n", "met 1 train-node-0-1\n"}
    service = gangs.kube.core.read_namespaced_service("train", gangs.kube.namespace)
    assert service.spec.cluster_ip == "None"


def test_that_it_runs_shows_in_the_counts_of_its_jobs(gangs):
    job = gangs.create(gangs.trainjob(wait("go")))
    until(lambda: gangs.status(job).get("jobsStatus", [{}])[0].get("ready") == 1)
    assert gangs.status(job)["jobsStatus"][0]["active"] == 1
    assert gangs.truths(job) == {}
    gangs.opened("go")
    gangs.condition(job, "Complete")


def test_node_0_done_early_does_not_end_the_job(gangs):
    job = gangs.create(gangs.trainjob(f"{FIRST} || {wait('go')}"))
    gangs.kube.in_phase("Succeeded", name=gangs.node(0))
    assert gangs.truths(job) == {}
    gangs.opened("go")
    gangs.condition(job, "Complete")


def test_a_node_that_always_fails_is_restarted_in_place_six_times_and_then_pod_and_log_are_gone(gangs):
    job = gangs.create(gangs.trainjob(f"{FIRST} && {wait('never')}; echo x >> /gate/starts; exit 3"))
    pod = gangs.node(1)
    failed = gangs.condition(job, "Failed")
    assert failed["reason"] == "FailedJobs"
    assert len((gangs.gate / "starts").read_text().splitlines()) >= 6
    until(lambda: not gangs.pods())
    with refused(404):
        gangs.kube.log(pod)


def test_a_deadline_ends_the_job_and_its_pods(gangs):
    job = gangs.create(gangs.trainjob(wait("never"), activeDeadlineSeconds=1))
    assert gangs.condition(job, "Failed")["reason"] == "DeadlineExceeded"
    until(lambda: not gangs.pods())


def test_suspended_and_resumed(gangs):
    job = gangs.create(gangs.trainjob(wait("go"), suspend=True))
    assert gangs.condition(job, "Suspended")["reason"] == "Suspended"
    assert gangs.pods() == {}
    gangs.patch(job, {"suspend": False})
    until(lambda: gangs.runs(gangs.node(0)))
    gangs.patch(job, {"suspend": True})
    until(lambda: not gangs.pods())
    gangs.opened("go")
    gangs.patch(job, {"suspend": False})
    gangs.condition(job, "Complete")


def test_the_words_of_an_older_release_are_dropped_unless_the_client_is_strict(gangs):
    job = gangs.trainjob("true", podTemplateOverrides=[{"targetJobs": [{"name": "node"}]}])
    with refused(400) as caught:
        gangs.create(job, field_validation="Strict")
    assert 'unknown field \\"spec.podTemplateOverrides\\"' in caught.value.body
    assert "podTemplateOverrides" not in gangs.create(job)["spec"]


@pytest.mark.parametrize(
    "change,code,text",
    [
        (lambda spec: spec["runtimeRef"].update(name="nothing"), 403, "not found"),
        (lambda spec: spec["trainer"].update(numProcPerNode="auto"), 400, "cannot unmarshal string"),
        (
            lambda spec: spec["trainer"].update(env=[{"name": "PET_NNODES", "value": "3"}]),
            403,
            "reserved envs",
        ),
        (lambda spec: spec["runtimePatches"][0].update(manager="airflow"), 403, "domain-prefixed path"),
        (lambda spec: spec.update(activeDeadlineSeconds=0), 422, "greater than or equal to 1"),
    ],
)
def test_what_is_refused(gangs, change, code, text):
    job = gangs.trainjob("true")
    change(job["spec"])
    with refused(code) as caught:
        gangs.create(job)
    assert text in caught.value.body


def test_deleting_a_job_takes_everything_along(gangs):
    job = gangs.create(gangs.trainjob(wait("never")))
    until(lambda: gangs.runs(gangs.node(1)))
    gangs.delete(job)
    batch = kubernetes.client.BatchV1Api(gangs.kube.client)
    until(lambda: not gangs.pods() and not batch.list_namespaced_job(gangs.kube.namespace).items)


def test_the_runtime_that_comes_along_can_be_read(gangs):
    found = gangs.kube.custom.get_cluster_custom_object(
        "trainer.kubeflow.org", "v1alpha1", "clustertrainingruntimes", "torch-distributed"
    )
    assert found["spec"]["mlPolicy"]["torch"] == {"numProcPerNode": "auto"}
