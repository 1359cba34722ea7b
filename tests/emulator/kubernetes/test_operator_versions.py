"""A cluster as seed 003 found it: an operator of the first generation, and no Trainer."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import kubernetes
import pytest

from airflow_provider_ocidist.emulator.arguments import add_arguments
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.kubernetes.conftest import Kube
from tests.emulator.kubernetes.gangs import Gangs, refused, wait
from tests.views import need_views


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    settings = ClusterSettings(training_operator="1.3", trainer=None)
    need_views()
    with Emulator(options=Options(kubernetes=settings)) as running:
        yield running


@pytest.fixture
def gangs(emulator, tmp_path) -> Iterator[Gangs]:
    with kubernetes.config.new_client_from_config(emulator.access.kubeconfig) as client:
        yield Gangs(Kube(emulator, client), tmp_path)


def test_a_kind_that_is_not_installed_is_a_page_that_is_not_found_in_plain_text(gangs):
    with refused(404) as caught:
        gangs.create(gangs.trainjob("true"))
    assert caught.value.body == "404 page not found\n"
    assert caught.value.headers["content-type"].startswith("text/plain")
    groups = {group.name for group in kubernetes.client.ApisApi(gangs.kube.client).get_api_versions().groups}
    assert "kubeflow.org" in groups
    assert "trainer.kubeflow.org" not in groups


def test_pods_of_the_first_generation_have_the_old_labels_and_four_names(gangs):
    job = gangs.create(gangs.pytorchjob(f"env; {wait('go')}", "env; touch /gate/go"))
    gangs.condition(job, "Succeeded")
    found = gangs.kube.core.list_namespaced_pod(gangs.kube.namespace, label_selector="job-name=train").items
    assert [pod.metadata.name for pod in found] == ["train-master-0", "train-worker-0"]
    said = gangs.kube.log("train-master-0").splitlines()
    assert {"MASTER_ADDR=localhost", "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=23456"} <= set(said)
    assert not any(line.startswith("PET_") for line in said)
    gangs.kube.in_phase("Succeeded", name="train-worker-0")
    assert "MASTER_ADDR=train-master-0" in gangs.kube.log("train-worker-0", container="pytorch")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_versions_are_chosen_on_the_command_line_and_one_that_nobody_knows_is_refused(capsys):
    chosen = parsed("--kubernetes-training-operator", "1.8.1", "--kubernetes-trainer", "none")
    assert (chosen.kubernetes_training_operator, chosen.kubernetes_trainer) == ("1.8.1", None)
    assert (parsed().kubernetes_training_operator, parsed().kubernetes_trainer) == ("1.9.4", "2.3")
    with pytest.raises(SystemExit):
        parsed("--kubernetes-trainer", "3.0")
    assert "no Kubeflow Trainer 3.0; there are 2.0, 2.1, 2.2, 2.3" in capsys.readouterr().err
