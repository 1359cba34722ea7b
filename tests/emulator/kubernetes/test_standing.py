"""The cluster beside the emulator: its ready file, its end, the fixture for other people's tests."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import kubernetes
import pytest

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from scripts.emulator_process import Access, EmulatorProcess
from tests.emulator.kubernetes.waiting import until
from tests.views import need_views

pytest_plugins = ["pytester"]


def processes_with(mark):
    """Return the processes whose environment has a mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_pod_outlives_the_emulator(tmp_path, number):
    need_views()
    ready, mark = tmp_path / "ready.json", f"MARK={tmp_path}"
    command = [sys.executable, "-m", "airflow_provider_ocidist.emulator", "--kubernetes", "--quiet"]
    with subprocess.Popen([*command, "--ready", str(ready)]) as emulator:
        try:
            until(ready.exists)
            access = Access.from_file(ready)
            client = kubernetes.config.new_client_from_config(access.kubeconfig)
            script = "trap '' TERM; setsid sleep 300 & setsid sh -c 'trap \"\" TERM; sleep 300; sleep 300'"
            env = [{"name": "MARK", "value": str(tmp_path)}]
            container = {"name": "c", "image": "i", "command": ["sh", "-c", script], "env": env}
            body = {"metadata": {"name": "p"}, "spec": {"containers": [container]}}
            kubernetes.client.CoreV1Api(client).create_namespaced_pod(access.kubernetes_namespace, body)
            until(lambda: len(processes_with(mark)) >= 4)
            client.close()
        finally:
            os.kill(emulator.pid, number)
        emulator.wait(60)
    until(lambda: not processes_with(mark))


def test_gpus_are_there_for_those_who_ask(tmp_path):
    need_views()
    with EmulatorProcess(tmp_path / "gpus", options=("--kubernetes", "--kubernetes-gpus", "8")) as access:
        client = kubernetes.config.new_client_from_config(access.kubeconfig)
        nodes = kubernetes.client.CoreV1Api(client).list_node().items
        client.close()
    assert [node.status.allocatable["nvidia.com/gpu"] for node in nodes] == ["8"] * ClusterSettings().nodes


def test_the_fixture_has_a_cluster_where_its_options_say_so(pytester):
    need_views()
    pytester.makepyfile("""
        import json, kubernetes, pytest
        from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings

        @pytest.fixture(scope="session")
        def oci_emulator_options():
            return {"kubernetes": ClusterSettings(namespace="mine")}

        def test_it(oci_emulator):
            extra = json.loads(oci_emulator.kubernetes_connection())["extra"]
            client = kubernetes.config.new_client_from_config(extra["kube_config_path"])
            assert kubernetes.client.CoreV1Api(client).list_namespaced_pod(extra["namespace"]).items == []
            oci_emulator.pods(effect="kill", name="x")
            oci_emulator.cluster_fault(path=".*/secrets", status=503)
    """)
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1)
