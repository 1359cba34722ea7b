"""The stand-in for Run:ai, asked by plain HTTP for what the public description of its REST promises."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from airflow_provider_ocidist.emulator.runai.server import RunaiServer
from airflow_provider_ocidist.emulator.runai_settings import RunaiSettings
from tests.emulator.runai.clusters import PaperCluster
from tests.emulator.runai.conftest import Plane


def starts(plane: Plane, cluster: PaperCluster, workload_id: str, name: str = "train") -> None:
    """Wait until a workload's pods exist, and let them run."""
    plane.until(lambda: cluster.names("Pod"), lambda pods: any(pod.startswith(name) for pod in pods))
    cluster.set_pods(name, "Running")
    plane.becomes(workload_id, "Running")


# tokens


def test_a_service_account_gets_a_token_in_either_generation(plane: Plane) -> None:
    access = plane.access
    v2 = plane.http.post(
        "/api/v2/token",
        data={
            "grant_type": "client_credentials",
            "client_id": access.client_id,
            "client_secret": access.client_secret,
        },
    ).json()
    assert v2["token_type"] == "Bearer"
    assert v2["expires_in"] == 3600
    for body in (
        {
            "grantType": "client_credentials",
            "clientID": access.client_id,
            "clientSecret": access.client_secret,
        },
        {"grantType": "app_token", "AppId": access.client_id, "AppSecret": access.client_secret},
    ):
        assert plane.http.post("/api/v1/token", json=body).json()["accessToken"].count(".") == 2


def test_a_wrong_secret_is_refused_in_either_generation(plane: Plane) -> None:
    wrong = {"client_id": plane.access.client_id, "client_secret": "guess"}
    refused = plane.http.post("/api/v2/token", data={"grant_type": "client_credentials", **wrong})
    assert (refused.status_code, refused.json()["error"]) == (401, "invalid_client")
    body = {"grantType": "client_credentials", "clientID": plane.access.client_id, "clientSecret": "guess"}
    assert plane.http.post("/api/v1/token", json=body).status_code == 400


@pytest.mark.parametrize("authorization", [None, "Bearer x.y.z", "Basic eA=="])
def test_without_a_token_of_its_own_nothing_is_answered(plane: Plane, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    refused = plane.http.get("/api/v1/workloads", headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (401, 401)


def test_a_token_expires_and_an_old_control_plane_has_one_generation_only(cluster: PaperCluster) -> None:
    old = RunaiSettings(token_lifetime_s=0.5, token_versions=("v1",))
    with RunaiServer(cluster, old) as access, httpx.Client(base_url=access.url, trust_env=False) as http:
        assert http.post("/api/v2/token", data={}).status_code == 404
        body = {
            "grantType": "client_credentials",
            "clientID": access.client_id,
            "clientSecret": access.client_secret,
        }
        token = http.post("/api/v1/token", json=body).json()["accessToken"]
        headers = {"authorization": f"Bearer {token}"}
        Plane.until(lambda: http.get("/api/v1/clusters", headers=headers).status_code, lambda it: it == 401)


def test_revoked_tokens_are_worth_nothing(plane: Plane) -> None:
    assert plane.call("GET", "/api/v1/clusters").status_code == 200
    plane.http.delete("/_emulator/tokens")
    assert plane.call("GET", "/api/v1/clusters").status_code == 401
    plane.token = plane.new_token()
    assert plane.call("GET", "/api/v1/clusters").status_code == 200


# what is submitted


def test_workers_do_not_count_the_master(plane: Plane, cluster: PaperCluster) -> None:
    workers = random.Random(4).randrange(1, 9)
    workload_id = plane.submit(numWorkers=workers)
    pods = plane.until(lambda: cluster.names("Pod"), bool)
    assert pods == sorted(["train-master-0", *(f"train-worker-{number}" for number in range(workers))])
    starts(plane, cluster, workload_id)
    assert plane.get(f"/api/v1/workloads/{workload_id}")["requestedPods"] == {"number": workers + 1}


def test_command_and_arguments_are_split_as_a_shell_does(plane: Plane, cluster: PaperCluster) -> None:
    plane.submit(command="python3 -c 'print(\"a b\")'", args="--name 'two words' --plain")
    plane.until(lambda: cluster.names("PyTorchJob"), bool)
    (job,) = [obj for obj in cluster.created if obj["kind"] == "PyTorchJob"]
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["command"] == ["python3", "-c", 'print("a b")']
    assert container["args"] == ["--name", "two words", "--plain"]


def test_all_that_is_submitted_arrives_in_the_pods(plane: Plane, cluster: PaperCluster) -> None:
    plane.submit(
        environmentVariables=[
            {"name": "MODE", "value": "fast"},
            {"name": "HF_TOKEN", "secret": {"name": "hugging-face", "key": "token"}},
        ],
        compute={"gpuDevicesRequest": 8, "cpuMemoryRequest": "1G", "largeShmRequest": True},
        storage={"pvc": [{"claimName": "data", "existingPvc": True, "path": "/data", "readOnly": True}]},
        imagePullSecrets=[{"name": "dockerreg-acme"}],
        cleanPodPolicy="Running",
        restartPolicy="Never",
        backoffLimit=0,
        workingDir="/app",
        tolerations=[{"name": "t", "key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        labels=[{"name": "stage", "value": "lab"}],
        annotations=[{"name": "billing", "value": "me"}],
    )
    plane.until(lambda: cluster.names("PyTorchJob"), bool)
    (job,) = [obj for obj in cluster.created if obj["kind"] == "PyTorchJob"]
    assert job["metadata"]["namespace"] == "runai-research"
    assert job["spec"]["runPolicy"] == {"cleanPodPolicy": "Running", "backoffLimit": 0}
    for replica in job["spec"]["pytorchReplicaSpecs"].values():
        assert replica["restartPolicy"] == "Never"
        template = replica["template"]
        pod = template["spec"]
        (container,) = pod["containers"]
        variables = {item["name"]: item for item in container["env"]}
        assert variables["MODE"]["value"] == "fast"
        assert variables["HF_TOKEN"]["valueFrom"] == {
            "secretKeyRef": {"name": "hugging-face", "key": "token"}
        }
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert container["workingDir"] == "/app"
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/dev/shm"}
        assert {"persistentVolumeClaim": {"claimName": "data"}, "name": "pvc-0"} in pod["volumes"]
        assert pod["imagePullSecrets"] == [{"name": "dockerreg-acme"}]
        assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]
        assert template["metadata"]["labels"]["stage"] == "lab"
        assert template["metadata"]["annotations"] == {"billing": "me"}


def test_a_training_on_one_node_is_one_pod(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit(kind="trainings")
    assert plane.until(lambda: cluster.names("Pod"), bool) == ["train-0-0"]
    assert cluster.names("PyTorchJob") == []
    cluster.set_pods("train", "Succeeded")
    assert plane.becomes(workload_id, "Completed")["completedAt"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"spec": {"image": "i", "numWorker": 1}}, "unknown field spec.numWorker"),
    ({"spec": {"image": "i", "command": ["torchrun"]}}, "spec.command"),
    ({"spec": {"image": "i", "numWorkers": 0}}, "numWorkers"),
    ({"spec": {"numWorkers": 1}}, "image"),
    ({"spec": {"image": "i", "compute": {"gpuRequestType": "portion"}}}, "gpuPortionRequest"),
    ({"spec": {"image": "i", "cleanPodPolicy": "Maybe"}}, "cleanPodPolicy"),
    ({"spec": {"image": "i", "storage": {"pvc": [{"claimName": "c"}]}}}, "pvc[0].path"),
    ({"spec": {"image": "i", "environmentVariables": [{"name": "A", "value": "1", "secret": {}}]}}, "[0]"),
    ({"spec": {"image": "i", "priorityClass": "urgent"}}, "policy"),
    ({"name": "Under_Score"}, "lower-case"),
    ({"name": "x" * 64}, "63"),
    ({"projectId": "77"}, "project 77"),
    ({"clusterId": "none"}, "cluster none"),
    ({"nodes": 2}, "unknown field nodes"),
    ({"masterSpecSameAsWorker": True, "masterSpec": {}}, "masterSpec"),
]


@pytest.mark.parametrize("changes, words", WRONG, ids=[words for _, words in WRONG])
def test_a_wrong_submission_is_refused_by_the_field_that_is_wrong(
    plane: Plane, changes: dict[str, Any], words: str
) -> None:
    refused = plane.call("POST", "/api/v1/workloads/distributed", json={**plane.body(), **changes})
    assert refused.status_code == 400
    assert refused.json()["code"] == 400
    assert words in refused.text


def test_a_name_is_taken_once_in_a_project_until_it_is_deleted(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit()
    again = plane.call("POST", "/api/v1/workloads/trainings", json=plane.body(kind="trainings"))
    assert again.status_code == 409
    assert "already exists" in again.json()["message"]
    plane.until(lambda: cluster.names("PyTorchJob"), bool)
    assert plane.call("DELETE", f"/api/v1/workloads/distributed/{workload_id}").status_code == 202
    plane.until(
        lambda: plane.call("GET", f"/api/v1/workloads/{workload_id}").status_code, lambda it: it == 404
    )
    assert plane.submit() != workload_id


def test_a_given_name_is_a_prefix_only_where_that_is_asked_for(plane: Plane) -> None:
    body = {**plane.body(), "useGivenNameAsPrefix": True}
    answers = [plane.call("POST", "/api/v1/workloads/distributed", json=body).json() for _ in range(3)]
    assert {answer["requestedName"] for answer in answers} == {"train"}
    assert len({answer["name"] for answer in answers}) == 3
    assert all(answer["name"].startswith("train-") for answer in answers)


# phases


def test_phases_follow_the_pods(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit(numWorkers=2)
    plane.becomes(workload_id, "Initializing")
    cluster.set_pods("train", "Running", "Pending")
    time.sleep(0.3)
    assert plane.phase(workload_id) == "Initializing"
    cluster.set_pods("train", "Running")
    assert plane.becomes(workload_id, "Running")["runningPods"] == 3
    cluster.set_pods("train", "Running", "Failed", "Running")
    plane.becomes(workload_id, "Degraded")
    cluster.set_job("train", "Failed", "PyTorchJob train is failed because 1 Worker replica(s) failed.")
    assert "1 Worker" in plane.becomes(workload_id, "Failed")["phaseMessage"]
    history = [item["phase"] for item in plane.get(f"/api/v1/workloads/{workload_id}/history")["history"]]
    assert history[0] == "Failed"
    assert history[-1] == "Creating"
    events = plane.get(f"/api/v1/workloads/{workload_id}/events")["events"]
    assert events[0]["type"] == "Warning"


def test_what_is_over_stays_over(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit()
    starts(plane, cluster, workload_id)
    cluster.set_job("train", "Succeeded")
    plane.becomes(workload_id, "Completed")
    cluster.set_pods("train", "Failed")
    cluster.set_job("train", "Failed")
    time.sleep(0.3)
    assert plane.phase(workload_id) == "Completed"


def test_an_image_that_cannot_be_pulled_is_named(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit()
    plane.until(lambda: cluster.names("Pod"), bool)
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "nvcr.io/acme/train:1"'}
    cluster.set_pods(
        "train", "Pending", containerStatuses=[{"name": "pytorch", "state": {"waiting": waiting}}]
    )
    assert "nvcr.io/acme/train:1" in plane.becomes(workload_id, "Failed")["phaseMessage"]


def test_a_suspended_workload_gives_back_its_pods_and_begins_anew_when_resumed(
    plane: Plane, cluster: PaperCluster
) -> None:
    workload_id = plane.submit()
    starts(plane, cluster, workload_id)
    cluster.holds_deletions = True
    assert plane.call("POST", f"/api/v1/workloads/distributed/{workload_id}/suspend").status_code == 202
    plane.becomes(workload_id, "Stopping")
    cluster.finish_deletions()
    plane.becomes(workload_id, "Stopped")
    own = plane.get(f"/api/v1/workloads/distributed/{workload_id}")
    assert (own["desiredPhase"], own["actualPhase"]) == ("Stopped", "Stopped")
    assert plane.call("POST", f"/api/v1/workloads/distributed/{workload_id}/resume").status_code == 202
    plane.until(lambda: cluster.names("Pod"), bool)
    starts(plane, cluster, workload_id)


def test_what_a_person_deletes_in_the_cluster_is_gone_here(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit()
    starts(plane, cluster, workload_id)
    cluster.delete("PyTorchJob", plane.access.namespace, "train")
    plane.until(
        lambda: plane.call("GET", f"/api/v1/workloads/{workload_id}").status_code, lambda it: it == 404
    )
    (gone,) = plane.get("/api/v1/workloads", deleted="true")["workloads"]
    assert gone["id"] == workload_id
    assert gone["deletedAt"]


# quota


def quota(plane: Plane, **changes: float | None) -> None:
    answer = plane.http.put(f"/_emulator/projects/{plane.access.project_id}", json=changes)
    assert answer.status_code == 200, answer.text


def test_a_workload_that_cannot_be_preempted_waits_within_the_quota(
    plane: Plane, cluster: PaperCluster
) -> None:
    quota(plane, gpus=8)
    own: dict[str, Any] = {"compute": {"gpuDevicesRequest": 4}, "preemptibility": "non-preemptible"}
    first = plane.submit("first", **own)
    starts(plane, cluster, first, "first")
    second = plane.submit("second", **own)
    waiting = plane.becomes(second, "Pending")
    assert waiting["phaseReason"] == "NonPreemptibleOverQuota"
    assert (
        "requested 8 GPUs, but research quota is 8 GPUs, while 8 GPUs are already" in waiting["phaseMessage"]
    )
    assert waiting["pendingSchedulingMessages"][0]["phaseReason"] == "NonPreemptibleOverQuota"
    assert cluster.names("PyTorchJob") == ["first"]
    third = plane.submit("third", **{**own, "preemptibility": "preemptible"})
    starts(plane, cluster, third, "third")
    cluster.set_job("first", "Succeeded")
    starts(plane, cluster, second, "second")


def test_nobody_exceeds_the_limit_and_the_next_is_admitted_when_it_is_raised(
    plane: Plane, cluster: PaperCluster
) -> None:
    quota(plane, limit=1)
    workload_id = plane.submit(compute={"gpuDevicesRequest": 1})
    waiting = plane.becomes(workload_id, "Pending")
    assert waiting["phaseReason"] == "OverLimit"
    assert "Limit is 1 GPUs" in waiting["phaseMessage"]
    half = plane.submit(
        "half", compute={"gpuRequestType": "portion", "gpuPortionRequest": 0.5, "gpuDevicesRequest": 1}
    )
    starts(plane, cluster, half, "half")
    quota(plane, limit=3)
    starts(plane, cluster, workload_id)


# pools of nodes


@pytest.fixture
def pooled(cluster: PaperCluster) -> Iterator[Plane]:
    with RunaiServer(cluster, RunaiSettings(lag_s=0.0, node_pools=("h100", "a100"))) as access:
        plane = Plane(access)
        yield plane
        plane.http.close()


def bound(plane: Plane, pool: str, gpus: float | None) -> None:
    assert plane.http.put(f"/_emulator/node-pools/{pool}", json={"gpus": gpus}).json() == {"gpus": gpus}


def test_a_workload_runs_in_the_first_of_its_pools_that_has_room(
    pooled: Plane, cluster: PaperCluster
) -> None:
    bound(pooled, "h100", 2)
    bound(pooled, "a100", 2)
    asked: dict[str, Any] = {"compute": {"gpuDevicesRequest": 1}, "nodePools": ["h100", "a100"]}
    for name, pool in (("first", "h100"), ("second", "a100")):
        workload_id = pooled.submit(name, **asked)
        starts(pooled, cluster, workload_id, name)
        assert pooled.becomes(workload_id, "Running")["currentNodePools"] == [pool]
    third = pooled.submit("third", **asked)
    waiting = pooled.becomes(third, "Pending")
    assert waiting["phaseMessage"] == "Not enough resources in the requested nodepool"
    assert waiting["requestedNodePools"] == ["h100", "a100"]
    bound(pooled, "a100", None)
    starts(pooled, cluster, third, "third")


def test_a_workload_in_a_pool_that_is_not_there_waits_and_says_so(
    pooled: Plane, cluster: PaperCluster
) -> None:
    workload_id = pooled.submit(nodePools=["h200"])
    assert pooled.becomes(workload_id, "Pending")["phaseMessage"] == "There is no nodepool h200"
    assert cluster.names("PyTorchJob") == []


def test_a_project_names_the_pools_that_it_may_use(pooled: Plane) -> None:
    (project,) = [
        each
        for each in pooled.get("/api/v1/org-unit/projects")["projects"]
        if each["id"] == pooled.access.project_id
    ]
    assert [each["nodePool"]["name"] for each in project["resources"]] == ["h100", "a100"]
    assert pooled.http.put("/_emulator/node-pools/h200", json={"gpus": 1}).status_code == 404


# lists


def test_lists_are_filtered_sorted_and_paged(plane: Plane) -> None:
    names = [f"run-{number}" for number in range(7)]
    for name in names:
        plane.submit(name)
    found, offset = [], 0
    while True:
        part = plane.get("/api/v1/workloads", limit=3, offset=offset, sortBy="name")
        found += [item["name"] for item in part["workloads"]]
        if "next" not in part:
            break
        offset = part["next"]
    assert found == names
    (one,) = plane.get("/api/v1/workloads", filterBy="name==run-3")["workloads"]
    assert one["name"] == "run-3"
    after = plane.get("/api/v1/workloads", filterBy=f"name=^run,createdAt>={one['createdAt']}")["workloads"]
    assert {"run-3", "run-6"} <= {item["name"] for item in after}
    assert plane.get("/api/v1/workloads", filterBy="projectName==others")["workloads"] == []
    assert plane.call("GET", "/api/v1/workloads", params={"filterBy": "size==3"}).status_code == 400
    assert plane.call("GET", "/api/v1/workloads", params={"limit": "501"}).status_code == 400


def test_a_workload_shows_its_variables_but_no_secret(plane: Plane) -> None:
    workload_id = plane.submit(
        environmentVariables=[
            {"name": "MODE", "value": "fast"},
            {"name": "TOKEN", "secret": {"name": "s", "key": "k"}},
        ]
    )
    assert plane.get(f"/api/v1/workloads/{workload_id}")["environmentVariables"] == {
        "MODE": "fast",
        "TOKEN": "",
    }


def test_pods_of_a_workload_are_listed(plane: Plane, cluster: PaperCluster) -> None:
    workload_id = plane.submit()
    starts(plane, cluster, workload_id)
    pods = plane.get(f"/api/v1/workloads/{workload_id}/pods")["pods"]
    assert [pod["name"] for pod in pods] == ["train-master-0", "train-worker-0"]
    assert {pod["k8sPhase"] for pod in pods} == {"Running"}
    assert plane.get("/api/v1/workloads/pods", filterBy=f"workloadId=={workload_id}")["pods"] == pods


def test_projects_and_clusters_are_named(plane: Plane) -> None:
    projects = plane.get("/api/v1/org-unit/projects")["projects"]
    assert {(item["id"], item["name"]) for item in projects} >= {
        (plane.access.project_id, plane.access.project)
    }
    (cluster,) = plane.get("/api/v1/clusters")
    assert cluster["uuid"] == plane.access.cluster_id


# what goes wrong


def test_what_is_not_there_is_not_found(plane: Plane) -> None:
    workload_id = plane.submit(kind="trainings")
    for path in (
        "/api/v1/workloads/no-such-id",
        "/api/v1/workloads/no-such-id/pods",
        f"/api/v1/workloads/distributed/{workload_id}",
    ):
        assert plane.call("GET", path).status_code == 404


def test_a_fault_befalls_so_many_requests(plane: Plane) -> None:
    plane.fault(path="/api/v1/workloads", status=503, times=2, retry_after_s=1)
    answers = [plane.call("GET", "/api/v1/workloads") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [503, 503, 200]
    assert answers[0].headers["retry-after"] == "1"


def test_a_submission_whose_answer_is_lost_was_taken_all_the_same(plane: Plane) -> None:
    plane.fault(method="POST", path="/api/v1/workloads/distributed", drop="after", times=1)
    with pytest.raises(httpx.TransportError):
        plane.call("POST", "/api/v1/workloads/distributed", json=plane.body())
    (found,) = plane.get("/api/v1/workloads", filterBy="name==train")["workloads"]
    assert found["name"] == "train"


def test_experimental_endpoints_are_late(cluster: PaperCluster) -> None:
    with RunaiServer(cluster, RunaiSettings(lag_s=3600)) as access:
        plane = Plane(access)
        workload_id = plane.submit()
        starts(plane, cluster, workload_id)
        assert plane.get(f"/api/v1/workloads/distributed/{workload_id}")["actualPhase"] == "Creating"
        assert plane.phase(workload_id) == "Running"
        plane.http.close()


def test_the_secret_is_not_in_what_is_printed_of_the_access(plane: Plane) -> None:
    assert plane.access.client_secret not in repr(plane.access)
    assert plane.access.client_secret in str(dataclasses.asdict(plane.access))
