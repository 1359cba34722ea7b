"""What programs on a node find: OCI by its own names, all other hosts, the environment or image that the job names."""

from __future__ import annotations

import socket
import sys
from base64 import b64encode
from pathlib import Path

import httpx
import pytest
from oci.data_science import models

from airflow_provider_ocidist.emulator.command import main
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.server import Emulator
from tests.emulator.conftest import Cloud

PLAIN_SDK = """
import oci
signer = oci.auth.signers.get_resource_principals_signer()
print(oci.object_storage.ObjectStorageClient({}, signer=signer).get_namespace().data)
"""
IMAGE = "iad.ocir.io/tenancy/trainer:1"
PUBLISHED = "conda_environments/gpu/train/1.0/train_v1"


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """An emulator that knows one conda environment and one image."""
    environment = tmp_path_factory.mktemp("environment-of-the-job")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(sys.executable)
    known = dict.fromkeys(("pytorch_p311", PUBLISHED), environment)
    options = Options(conda=known, images={IMAGE: "echo from the image"})
    with Emulator(options=options) as running:
        yield running


def test_a_program_that_knows_nothing_of_the_emulator_finds_it(cloud):
    run = cloud.run(PLAIN_SDK)
    assert cloud.messages(run.id) == [cloud.access.namespace]


def test_the_proxy_lets_nodes_through_to_other_hosts(cloud):
    own = httpx.URL(cloud.access.url)
    proxy = httpx.URL(cloud.access.proxy_url)
    node = f"Proxy-Authorization: Basic {b64encode(b'node:').decode()}\r\n"
    answers = []
    for header in ("", node):
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as connection:
            connection.sendall(f"CONNECT {own.host}:{own.port} HTTP/1.1\r\n{header}\r\n".encode())
            answers.append(connection.recv(100).split()[1])
    assert answers == [b"403", b"200"]


@pytest.mark.parametrize(
    "variables, known",
    [
        ({"CONDA_ENV_TYPE": "service", "CONDA_ENV_SLUG": "pytorch_p311"}, True),
        ({"CONDA_ENV_TYPE": "service", "CONDA_ENV_SLUG": "another"}, False),
        ({"CONDA_ENV_TYPE": "published", "CONDA_ENV_OBJECT_NAME": PUBLISHED}, True),
    ],
)
def test_a_job_runs_in_its_conda_environment_where_it_is_known(machine, variables, known):
    cloud = Cloud.of(machine.access)
    run = cloud.run("import os; print(os.environ['PATH'])", environment_variables=variables)
    [path] = cloud.messages(run.id)
    assert ("environment-of-the-job" in path.partition(":")[0]) is known


def test_an_image_is_the_command_that_stands_for_it(machine):
    cloud = Cloud.of(machine.access)
    run = cloud.wait(cloud.start(container_job(cloud, IMAGE)))
    assert cloud.messages(run.id) == ["from the image"]
    run = cloud.wait(cloud.start(container_job(cloud, "another")))
    assert (run.lifecycle_state, "--image another=COMMAND" in run.lifecycle_details) == ("FAILED", True)


def container_job(cloud: Cloud, image: str) -> str:
    job = cloud.job_details()
    job.job_environment_configuration_details = models.OcirContainerJobEnvironmentConfigurationDetails(
        image=image
    )
    return str(cloud.jobs.create_job(job).data.id)


def test_a_pair_without_its_sign_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--conda", "pytorch_p311"])
    assert "'pytorch_p311' is not of the form name=value" in capsys.readouterr().err


def test_the_private_key_has_the_label_that_the_command_line_looks_for(cloud):
    config = Path(cloud.access.config_file).read_text()
    [key_file] = [line.partition("=")[2] for line in config.splitlines() if line.startswith("key_file")]
    assert Path(key_file).read_text().endswith("-----\nOCI_API_KEY\n")
    assert cloud.objects.get_namespace().data == cloud.access.namespace
