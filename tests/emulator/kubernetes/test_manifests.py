"""The manifests of the vSphere extension's user guide as they are: claim, CPU job, GPU job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

import kubernetes
import pytest
import yaml

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.kubernetes.conftest import Kube
from tests.emulator.kubernetes.gangs import Gangs
from tests.emulator.kubernetes.waiting import until
from tests.views import need_views

HERE = Path(__file__).parent
MANIFESTS = HERE.parent.parent / "job_file" / "dialects"
CPU_IMAGE = "projects.registry.vmware.com/models/kubeflow-docs/model-training-pytorch:1.11.0-cpu-py3.8-v0.1"


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    program = f"{sys.executable} {HERE / 'image_program.py'}"
    options = Options(
        images={CPU_IMAGE: program}, kubernetes=ClusterSettings(backoff_s=0.2, backoff_max_s=0.4)
    )
    need_views()
    with Emulator(options=options) as running:
        yield running


@pytest.fixture
def gangs(emulator, tmp_path) -> Iterator[Gangs]:
    with kubernetes.config.new_client_from_config(emulator.access.kubeconfig) as client:
        yield Gangs(Kube(emulator, client), tmp_path)


def apply_claim(gangs) -> None:
    """Put the guide's variable into the claim, as the person's shell does."""
    text = Template((HERE / "claim.yaml").read_text()).substitute(storageClassName="standard")
    gangs.kube.core.create_namespaced_persistent_volume_claim(gangs.kube.namespace, yaml.safe_load(text))


@pytest.mark.slow
@pytest.mark.torch
def test_the_cpu_manifest_trains_on_three_nodes_and_leaves_its_model_on_the_claim(gangs):
    pytest.importorskip("torch")
    apply_claim(gangs)
    job = gangs.create(
        yaml.safe_load((MANIFESTS / "pytorchjob_cpu.yaml").read_text()), field_validation="Strict"
    )
    name = job["metadata"]["name"]
    gangs.condition(job, "Succeeded")
    for index, pod in enumerate([f"{name}-master-0", f"{name}-worker-0", f"{name}-worker-1"]):
        gangs.kube.in_phase("Succeeded", name=pod)
        lines = gangs.kube.log(pod, container="pytorch").splitlines()
        assert [line for line in lines if line.startswith(f"rank {index} step 15 ")], lines
        assert not any("step 16 " in line for line in lines), "each of three takes a third of the 48 steps"
    reading = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    assert gangs.kube.output("ls /data", name="look", container=reading, volumes=volumes) == "model.pt\n"


def test_the_gpu_manifest_finds_no_gpu_and_says_so(gangs):
    job = gangs.create(
        yaml.safe_load((MANIFESTS / "pytorchjob_gpu.yaml").read_text()), field_validation="Strict"
    )
    pod = f"{job['metadata']['name']}-master-0"

    def sentence():
        found = gangs.pods().get(pod)
        conditions = (found.status.conditions if found else None) or ()
        return next((one.message for one in conditions if one.reason == "Unschedulable"), None)

    assert "4 Insufficient nvidia.com/gpu" in until(sentence)
    assert gangs.truths(job) == {"Created": True}
    assert any(reason == "FailedScheduling" for reason, _ in gangs.kube.events(pod))
