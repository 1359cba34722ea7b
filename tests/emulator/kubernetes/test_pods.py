"""Pods run as processes: what they see, how they end, what is said of them; by the official client."""

import asyncio
import json
import re
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import kubernetes
import pytest

from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.kubernetes import watching
from airflow_provider_ocidist.emulator.kubernetes.kubelet.containers import ContainerLife
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.kubernetes.conftest import SETTINGS, Kube
from tests.emulator.kubernetes.waiting import until
from tests.views import need_views


def test_a_pod_runs_its_command_and_ends_as_it_did(kube):
    kube.pod("echo hello; echo world >&2; exit 3")
    pod = kube.in_phase("Failed")
    ended = pod.status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (3, "Error")
    assert ended.started_at <= ended.finished_at
    assert sorted(kube.log().splitlines()) == ["hello", "world"]
    assert {reason for reason, _ in kube.events()} == {"Scheduled", "Pulled", "Created", "Started"}


def test_a_pod_sees_its_volumes_its_name_and_its_environment(kube):
    kube.core.create_namespaced_secret(
        kube.namespace, {"metadata": {"name": "s"}, "stringData": {"key": "hidden"}}
    )
    kube.core.create_namespaced_config_map(
        kube.namespace, {"metadata": {"name": "c"}, "data": {"file.txt": "text"}}
    )
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.core.create_namespaced_persistent_volume_claim(
        kube.namespace, {"metadata": {"name": "v"}, "spec": claim}
    )
    env = [
        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "MY_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MY_CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "JOINED", "value": "$(MY_POD)/$(FROM_SECRET)/$(NOT_THERE)/$$(MY_POD)"},
    ]
    mounts = {"s": "/etc/secret", "c": "/config", "v": "/new/place/data", "e": "/scratch", "shm": "/dev/shm"}
    script = (
        'echo "$JOINED $MY_CPU $file"; cat /etc/secret/key /config/file.txt; hostname; pwd;'
        " echo kept > /new/place/data/kept; touch /scratch/x /dev/shm/y; cat /var/run/secrets/*/*/namespace"
    )
    container = {
        "env": env,
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "resources": {"limits": {"cpu": "2"}},
        "workingDir": "/workspace/mine",
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
    }
    volumes = [
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "c", "configMap": {"name": "c"}},
        {"name": "v", "persistentVolumeClaim": {"claimName": "v"}},
        {"name": "e", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    told = kube.output(script, container=container, volumes=volumes).splitlines()
    assert told == [
        "pod/hidden/$(NOT_THERE)/$(MY_POD) 2 ",
        "hiddentextpod",
        "/workspace/mine",
        kube.namespace,
    ]
    container = {"volumeMounts": [{"name": "v", "mountPath": "/elsewhere"}]}
    assert (
        kube.output("cat /elsewhere/kept", name="later", container=container, volumes=volumes[2:3])
        == "kept\n"
    )


def test_pods_find_each_other_by_name_as_they_come_and_go(kube):
    selector = {"clusterIP": "None", "selector": {"app": "gang"}}
    kube.core.create_namespaced_service(kube.namespace, {"metadata": {"name": "gang"}, "spec": selector})
    labels = {"labels": {"app": "gang"}}
    full = "second.gang.training.svc.cluster.local"
    named = {"hostname": "first", "subdomain": "gang"}
    kube.pod(f"while ! getent hosts {full}; do sleep 0.05; done; sleep 60", metadata=labels, **named)
    kube.pod(
        "while ! getent hosts first.gang; do sleep 0.05; done;"
        " python -c 'import socket; print(socket.gethostbyname(socket.gethostname()))'; sleep 60",
        name="other",
        metadata=labels,
        hostname="second",
        subdomain="gang",
    )
    for name in ("pod", "other"):
        kube.in_phase("Running", name=name)
    first, second = kube.read().status.pod_ip, kube.read("other").status.pod_ip
    until(lambda: second in kube.log())
    until(lambda: first in kube.log("other") and second in kube.log("other"))
    assert first != second


def test_init_containers_run_first_one_after_the_other(kube):
    shared = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    inits = [
        {
            "name": f"init-{index}",
            "image": "i",
            "command": ["sh", "-c", f"sleep 0.1; echo {index} >> /e/order"],
        }
        | shared
        for index in range(3)
    ]
    volumes = [{"name": "e", "emptyDir": {}}]
    assert kube.output("cat /e/order", container=shared, initContainers=inits, volumes=volumes) == "0\n1\n2\n"
    kube.pod("true", name="stuck", initContainers=[{"name": "i", "image": "i", "command": ["false"]}])
    assert (
        kube.in_phase("Failed", name="stuck").status.container_statuses[0].state.waiting.reason
        == "PodInitializing"
    )


SAFE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
SAFEST = {**SAFE, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_namespace_takes_pods_of_its_level_of_security_only(kube):
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    kube.core.patch_namespace(kube.namespace, level)
    with pytest.raises(kubernetes.client.ApiException) as caught:
        kube.pod("true", container={"securityContext": SAFE})
    assert caught.value.status == 403
    assert json.loads(caught.value.body)["message"] == (
        'pods "pod" is forbidden: violates PodSecurity "restricted:latest": seccompProfile (pod or container "main" '
        'must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")'
    )
    kube.pod("true", container={"securityContext": SAFEST})
    kube.in_phase("Succeeded")
    of_pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    rest = {name: SAFE[name] for name in ("allowPrivilegeEscalation", "capabilities")}
    kube.pod("true", name="other", container={"securityContext": rest}, securityContext=of_pod)
    kube.in_phase("Succeeded", name="other")
    level["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "baseline"}
    kube.core.patch_namespace(kube.namespace, level)
    kube.pod("true", name="plain")
    for change, words in (
        ({"hostNetwork": True}, "host namespaces (hostNetwork=true)"),
        (
            {"container": {"securityContext": {"privileged": True}}},
            'privileged (container "main" must not set',
        ),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}, 'hostPath volumes (volume "v")'),
    ):
        with pytest.raises(kubernetes.client.ApiException, match=re.escape(json.dumps(words)[1:-1])):
            kube.pod("true", name="beyond", **change)


def sidecar(script):
    return {"name": "proxy", "image": "i", "restartPolicy": "Always", "command": ["sh", "-c", script]}


def test_a_sidecar_runs_beside_the_others_and_ends_after_them(kube):
    shared = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
    beside = "trap 'echo proxy ends >> /e/order; exit 3' TERM; echo proxy >> /e/order; sleep 60 & wait"
    before = {"name": "init", "image": "i", "command": ["sh", "-c", "echo init >> /e/order"]} | shared
    main = "while ! grep -q proxy /e/order; do sleep 0.05; done; echo main >> /e/order; exit 0"
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    kube.core.create_namespaced_persistent_volume_claim(
        kube.namespace, {"metadata": {"name": "v"}, "spec": claim}
    )
    volumes = [{"name": "e", "persistentVolumeClaim": {"claimName": "v"}}]
    inits = [sidecar(beside) | shared, before]
    kube.pod(main, container=shared, initContainers=inits, volumes=volumes)
    # How a sidecar ends does not count.
    status = kube.in_phase("Succeeded").status
    assert status.init_container_statuses[0].state.terminated.exit_code == 3
    order = kube.output("cat /e/order", name="later", container=shared, volumes=volumes).splitlines()
    assert sorted(order[:2]) == ["init", "proxy"]
    assert order[2:] == ["main", "proxy ends"]


def test_a_sidecar_that_ends_is_started_again_and_ends_with_its_pod(kube):
    kube.pod("sleep 60", initContainers=[sidecar("exit 1")], terminationGracePeriodSeconds=1)
    until(lambda: any(each.restart_count for each in kube.read().status.init_container_statuses or []))
    assert kube.in_phase("Running").status.container_statuses[0].state.running
    kube.core.delete_namespaced_pod("pod", kube.namespace)
    until(lambda: not kube.core.list_namespaced_pod(kube.namespace).items)


def test_a_sidecar_whose_image_is_missing_holds_the_others_back(kube):
    kube.pod("true", initContainers=[sidecar("sleep 60") | {"image": "missing:1"}])
    until(
        lambda: (
            [
                each.state.waiting.reason
                for each in kube.read().status.init_container_statuses or []
                if each.state.waiting
            ]
            == ["ImagePullBackOff"]
        )
    )
    assert kube.waiting_reason() == "PodInitializing"


def test_a_machine_pulls_an_image_once(tmp_path):
    need_views()
    with Emulator(options=Options(kubernetes=replace(SETTINGS, nodes=1, pull_s=0.2))) as running:
        client = kubernetes.config.new_client_from_config(running.access.kubeconfig)
        kube = Kube(running, client)
        for name in ("pod", "later"):
            kube.pod("true", name=name)
            kube.in_phase("Succeeded", name=name)
        said = {
            name: {text for reason, text in kube.events(name) if reason in ("Pulling", "Pulled")}
            for name in ("pod", "later")
        }
        client.close()
    assert said["pod"] == {
        'Pulling image "python:3.12"',
        'Successfully pulled image "python:3.12" in 0.2s',
    }
    assert said["later"] == {'Container image "python:3.12" already present on machine'}


@pytest.mark.parametrize("policy", ["Always", "OnFailure"])
def test_a_container_is_restarted_with_growing_pauses(kube, policy):
    kube.pod("exit 9", restartPolicy=policy)
    status = until(lambda: (s := kube.read().status.container_statuses) and s[0].restart_count >= 3 and s[0])
    assert status.last_state.terminated.exit_code == 9
    until(lambda: kube.waiting_reason() == "CrashLoopBackOff")
    assert kube.read().status.phase == "Running"
    assert kube.log(previous=True) == ""
    assert any(reason == "BackOff" for reason, _ in kube.events())


def test_an_image_that_is_missing_keeps_a_pod_waiting(kube):
    kube.pod("true", container={"image": "registry.test/missing:1"})
    until(lambda: kube.waiting_reason() == "ImagePullBackOff")
    assert kube.read().status.phase == "Pending"
    told = "\n".join(message for _, message in kube.events())
    assert 'Failed to pull image "registry.test/missing:1"' in told
    assert "Error: ImagePullBackOff" in told


def test_what_a_pod_refers_to_may_come_later(kube):
    env = [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}]
    kube.pod("echo $K", container={"env": env})
    until(lambda: kube.waiting_reason() == "CreateContainerConfigError")
    assert ("Failed", 'Error: secret "late" not found') in kube.events()
    kube.core.create_namespaced_secret(
        kube.namespace, {"metadata": {"name": "late"}, "stringData": {"k": "now"}}
    )
    kube.in_phase("Succeeded")
    assert kube.log() == "now\n"


def test_a_volume_that_is_missing_keeps_a_pod_waiting(kube):
    mounts = {"volumeMounts": [{"name": "s", "mountPath": "/s"}]}
    kube.pod("cat /s/k", container=mounts, volumes=[{"name": "s", "secret": {"secretName": "late"}}])
    until(lambda: any(reason == "FailedMount" for reason, _ in kube.events()))
    kube.core.create_namespaced_secret(
        kube.namespace, {"metadata": {"name": "late"}, "stringData": {"k": "now"}}
    )
    kube.in_phase("Succeeded")


def test_a_pod_that_asks_for_more_than_there_is_says_so(kube):
    kube.pod("true", container={"resources": {"limits": {"nvidia.com/gpu": 1}}})

    def unschedulable():
        found = [each for each in kube.read().status.conditions or [] if each.type == "PodScheduled"]
        return found and found[0].status == "False" and found[0]

    told = until(unschedulable)
    assert told.reason == "Unschedulable"
    assert told.message.startswith("0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")
    assert ("FailedScheduling", told.message) in kube.events()


def test_a_deleted_pod_is_asked_to_end_then_made_to(kube):
    kube.pod("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.02; done", name="polite")
    kube.pod("trap '' TERM; echo ready; while :; do sleep 0.02; done", name="deaf")
    for name, grace in (("polite", 30), ("deaf", 1)):
        until(lambda name=name: kube.read(name).status.phase == "Running" and "ready" in kube.log(name))
        kube.core.delete_namespaced_pod(name, kube.namespace, grace_period_seconds=grace)
    until(lambda: not kube.core.list_namespaced_pod(kube.namespace).items)


def test_logs_can_be_had_in_every_way(kube):
    kube.pod("for i in 1 2 3; do echo line $i; done; sleep 0.3; printf tail")
    kube.in_phase("Running", "Succeeded")
    followed = kube.log(follow=True)
    assert followed.splitlines() == ["line 1", "line 2", "line 3", "tail"]
    kube.in_phase("Succeeded")
    assert kube.log(tail_lines=2).splitlines() == ["line 3", "tail"]
    assert kube.log(limit_bytes=6) == "line 1"
    stamps = [line.split(" ", 1) for line in kube.log(timestamps=True).splitlines()]
    assert [text for _, text in stamps] == ["line 1", "line 2", "line 3", "tail"]
    path = f"{kube.client.configuration.host}/api/v1/namespaces/{kube.namespace}/pods/pod/log"
    raw = kube.client.request("GET", path, query_params=[("sinceTime", stamps[-1][0])], headers=kube.headers)
    assert raw.data == b"tail\n"


def test_a_pods_deadline_ends_it(kube):
    kube.pod("sleep 60", activeDeadlineSeconds=1)
    assert kube.in_phase("Failed").status.reason == "DeadlineExceeded"


@pytest.mark.parametrize(
    "effect, reason, exit_code", [("kill", None, 137), ("oom", None, 137), ("evict", "Evicted", 137)]
)
def test_a_pod_can_be_made_to_fail(kube, effect, reason, exit_code):
    kube.control("/pods", effect=effect, name="pod")
    kube.pod("sleep 60")
    status = kube.in_phase("Failed").status
    ended = status.container_statuses[0].state.terminated
    assert (status.reason, ended.exit_code) == (reason, exit_code)
    assert ended.reason == ("OOMKilled" if effect == "oom" else "Error")


def test_what_kills_no_process_is_not_the_reason_of_the_next_runs_end():
    container = ContainerLife({"name": "main", "image": "i"}, SimpleNamespace(), "OnFailure")
    container.kill((137, "OOMKilled"))
    assert container._taken_cause() is None


def test_a_preempted_pod_goes_and_the_pod_of_a_lost_node_stays_silent(kube):
    kube.pod("sleep 60", name="preempted")
    kube.control("/pods", effect="preempt", name="preempted")
    until(lambda: not kube.core.list_namespaced_pod(kube.namespace).items)
    assert any(reason == "Preempted" for reason, _ in kube.events("preempted"))

    kube.pod("sleep 60", name="lost")
    kube.in_phase("Running", name="lost")
    kube.control("/pods", effect="lose_node", name="lost")
    pod = until(lambda: (found := kube.read("lost")).metadata.deletion_timestamp and found)
    assert pod.status.phase == "Running"
    assert any(each.reason == "DeletionByTaintManager" for each in pod.status.conditions)
    kube.core.delete_namespaced_pod("lost", kube.namespace, grace_period_seconds=0)
    until(lambda: not kube.core.list_namespaced_pod(kube.namespace).items)


def test_pods_without_a_process_run_until_they_are_deleted(kube):
    kube.control("/pods", effect="idle", name="idle-.*")
    for index in range(25):
        kube.pod("exit 1", name=f"idle-{index}")
    listed = kube.core.list_namespaced_pod
    until(lambda: len(listed(kube.namespace, field_selector="status.phase=Running").items) == 25)
    assert len({pod.status.pod_ip for pod in listed(kube.namespace).items}) == 25
    kube.core.delete_collection_namespaced_pod(kube.namespace)
    until(lambda: not listed(kube.namespace).items)


def test_a_pod_that_is_ended_before_its_containers_exist_starts_none(tmp_path):
    marker, entered, go_on = tmp_path / "marker", threading.Event(), threading.Event()

    def credentials(_):
        entered.set()
        assert go_on.wait(60)
        return {}

    need_views()
    with Emulator(options=Options(kubernetes=SETTINGS)) as emulator:
        kubelet = emulator.kubernetes.kubelet
        kubelet._machines = replace(kubelet._machines, credentials=credentials)
        with kubernetes.config.new_client_from_config(emulator.access.kubeconfig) as client:
            kube = Kube(emulator, client)
            init = {"name": "first", "image": "python:3.12", "command": ["touch", str(marker)]}
            kube.pod(initContainers=[init])
            assert entered.wait(60)
            kube.core.delete_namespaced_pod("pod", kube.namespace, grace_period_seconds=0)
            until(lambda: all(life._stop.is_set() for life in kubelet.lives()))
            go_on.set()
            until(lambda: not [*kubelet.lives()])
    assert not marker.exists()


def test_a_cancel_that_comes_when_a_wait_for_changes_is_over_is_not_lost():
    class Queue(asyncio.Queue):
        """Has its reader cancelled, once, at the moment at which the reader gives up."""

        cancels = 1

        async def get(self):
            try:
                return await super().get()
            except asyncio.CancelledError:
                if self.cancels:
                    self.cancels = 0
                    following.cancel()
                raise

    async def follow(queue):
        cutting = asyncio.get_running_loop().create_future()
        while True:
            await watching._next(queue, cutting, 0.001)

    async def ends():
        nonlocal following
        following = asyncio.create_task(follow(Queue()))
        await asyncio.wait({following}, timeout=5)
        was_cancelled = following.cancelled()
        following.cancel()
        return was_cancelled

    following = None
    assert asyncio.run(ends())


def test_a_watch_that_begins_while_the_server_ends_does_not_hold_it_up():
    need_views()
    query = [("watch", "true"), ("timeoutSeconds", "600")]
    asked = {"query_params": query, "auth_settings": ["BearerToken"], "_request_timeout": 60}
    raw = {"_preload_content": False, "_return_http_data_only": True}
    with (
        Emulator(options=Options(kubernetes=SETTINGS)) as emulator,
        kubernetes.config.new_client_from_config(emulator.access.kubeconfig) as client,
    ):
        emulator.kubernetes.api.end_watches()
        answer = client.call_api("/api/v1/namespaces/training/pods", "GET", **asked, **raw)
        assert answer.data == b""


def test_a_pod_that_is_deleted_by_force_leaves_no_process(kube, tmp_path):
    alive = tmp_path / "alive"
    kube.pod(f"trap '' TERM; while :; do touch {alive}; sleep 0.02; done")
    until(alive.exists)
    kube.core.delete_namespaced_pod("pod", kube.namespace, grace_period_seconds=0)

    def is_over():
        alive.unlink(missing_ok=True)
        time.sleep(0.5)
        return not alive.exists()

    until(is_over)
