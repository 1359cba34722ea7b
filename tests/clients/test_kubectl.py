"""`kubectl`, Debian's or any, against the emulator's cluster: with what all its versions of the last years can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.emulator_process import Access, EmulatorProcess
from tests.emulator.kubernetes.waiting import until
from tests.views import need_views

POD = """
apiVersion: v1
kind: Pod
metadata: {name: hello, labels: {app: hello}}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: busybox, command: [sh, -c, "echo hello from $WHERE"], env: [{name: WHERE, value: a pod}]}
"""
JOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          containers:
          - {name: pytorch, image: torch, command: [sh, -c, "echo rank $RANK of $WORLD_SIZE"]}
"""


class Kubectl:
    def __init__(self, config: Path, home: Path) -> None:
        program = shutil.which("kubectl")
        if program is None:
            pytest.fail("kubectl is not installed: apt-get install kubernetes-client", pytrace=False)
        self._program = program
        self._home = home
        self._env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(config)}

    def fails(self, *arguments: str, text: str = "") -> str:
        """Return what kubectl complains of."""
        done = self.done(*arguments, text=text)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def __call__(self, *arguments: str, text: str = "") -> str:
        done = self.done(*arguments, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def done(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [self._program, *arguments]
        how = {"env": self._env, "cwd": self._home, "input": text, "timeout": 60}
        return subprocess.run(command, capture_output=True, text=True, check=False, **how)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    need_views()
    with EmulatorProcess(tmp_path_factory.mktemp("cluster"), options=("--kubernetes",)) as access:
        yield access


@pytest.fixture
def kubectl(cluster: Access, tmp_path: Path) -> Kubectl:
    return Kubectl(Path(cluster.kubeconfig), tmp_path)


def test_a_pod_is_applied_shown_read_and_deleted(kubectl):
    assert "hello created" in kubectl("apply", "-f", "-", text=POD)
    assert "hello unchanged" in kubectl("apply", "-f", "-", text=POD)
    kubectl("wait", "--for=condition=PodScheduled", "pod/hello", "--timeout=60s")
    until(lambda: "Completed" in kubectl("get", "pods"))
    assert kubectl("logs", "hello") == "hello from a pod\n"
    described = kubectl("describe", "pod", "hello")
    assert "Successfully assigned training/hello" in described
    assert "Exit Code:    0" in described
    assert "hello labeled" in kubectl("label", "pod", "hello", "more=less")
    assert json.loads(kubectl("get", "pod", "hello", "-o", "json"))["metadata"]["labels"]["more"] == "less"
    assert kubectl("get", "pods", "-l", "more=less", "-o", "name") == "pod/hello\n"
    assert 'pod "hello" deleted' in kubectl("delete", "-f", "-", text=POD)
    assert 'pods "hello" not found' in kubectl.fails("get", "pod", "hello")


def test_a_pytorchjob_is_waited_for_and_goes_with_its_pods(kubectl):
    kubectl("apply", "-f", "-", text=JOB)
    kubectl("wait", "--for=condition=Succeeded", "pytorchjob/train", "--timeout=60s")
    assert kubectl("logs", "train-master-0") == "rank 0 of 1\n"
    kubectl("delete", "pytorchjob", "train")
    until(lambda: kubectl("get", "pods") == "")


def test_what_people_make_by_hand_is_made(kubectl, tmp_path):
    (tmp_path / "file.txt").write_text("content")
    kubectl("create", "namespace", "mine")
    kubectl("create", "secret", "generic", "s", "--from-literal=key=value", "-n", "mine")
    kubectl("create", "configmap", "c", "--from-file=file.txt", "-n", "mine")
    assert kubectl("get", "secret", "s", "-n", "mine", "-o", "jsonpath={.data.key}") == "dmFsdWU="
    assert kubectl("get", "configmap", "c", "-n", "mine", "-o", "jsonpath={.data.file\\.txt}") == "content"
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods", "-n", "mine")
    kubectl("create", "rolebinding", "reader", "--role=reader", "--user=ann", "-n", "mine")
    assert kubectl("auth", "can-i", "list", "pods", "-n", "mine", "--as=ann") == "yes\n"
    assert kubectl.done("auth", "can-i", "delete", "pods", "-n", "mine", "--as=ann").stdout == "no\n"
    assert "forbidden" in kubectl.fails("get", "secrets", "-n", "mine", "--as=ann")
    kubectl("delete", "namespace", "mine")
