"""What a job says becomes the fields of the requests. No service."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import MAIN_RUN
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.run import Expectations, Plan
from tests.training_jobs import BACKEND, a_key

CONNECTION = {
    "compartment_id": "ocid1.compartment.oc1..a",
    "project_id": "ocid1.p",
    "work_dir": "oci://b@n/w",
    "subnet_id": "ocid1.subnet.s",
}
IMAGE = {"image": "iad.ocir.io/ns/img:1", "container": {}}


def a_plan(
    backend: dict[str, Any] | None = None, connection: dict[str, str] | None = None, **job: Any
) -> Plan:
    described = {
        "name": "x",
        "nodes": 2,
        "program": {"source": "git+https://host/repo.git", "script": "train.py"},
        "backend": {**BACKEND, **(backend or {})},
        **job,
    }
    return OciDataScience.connect({**CONNECTION, **(connection or {})}).plan(
        parsing.build(described), a_key()
    )


def job_of(plan: Plan) -> dict[str, Any]:
    return dict(plan.requests[0].body)


def environment_of(plan: Plan) -> dict[str, str]:
    return dict(job_of(plan)["jobConfigurationDetails"]["environmentVariables"])


def runs_of(plan: Plan) -> list[dict[str, str]]:
    bodies = [request.body for request in plan.requests if request.verb == "CreateJobRun"]
    return [body["jobConfigurationOverrideDetails"]["environmentVariables"] for body in bodies]


def problems_of(**job: Any) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        a_plan(**job)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


# roles


def test_roles_have_their_environment_in_the_job_runs() -> None:
    plan = a_plan(main_env={"A": "main"}, worker_env={"A": "worker"})
    assert runs_of(plan) == [
        {"A": "main", "OCIDIST_NODE_RANK": "0"},
        {"A": "worker", "OCIDIST_NODE_RANK": "1"},
    ]
    config = AgentConfig.from_env(environment_of(plan))
    assert (config.main_env, config.worker_env) == ({}, {})


def test_in_one_run_the_agent_gets_the_environment_of_the_roles() -> None:
    plan = a_plan({"topology": "multi_node"}, main_env={"A": "main"}, worker_env={"A": "worker"})
    (group,) = job_of(plan)["jobNodeConfigurationDetails"]["jobNodeGroupConfigurationDetailsList"]
    config = AgentConfig.from_env(group["jobConfigurationDetails"]["environmentVariables"])
    assert (config.main_env, config.worker_env) == ({"A": "main"}, {"A": "worker"})


def test_the_variables_of_ads_follow_the_job_that_an_operator_has_changed() -> None:
    program = {"script": "/code/src/train.py", "args": ["--note", "two words"]}
    backend = {"contract": "ads_distributed", "topology": "job_runs"}
    plan = a_plan(backend, nodes=4, program=program, **IMAGE)
    told = environment_of(plan)
    assert {name: value for name, value in told.items() if name.startswith("OCI__")} == {
        "OCI__WORK_DIR": "oci://b@n/w",
        "OCI__EPHEMERAL": "None",
        "OCI__CLUSTER_TYPE": "PYTORCH",
        "OCI__WORKER_COUNT": "3",
        "OCI__START_ARGS": "",
        "OCI__ENTRY_SCRIPT": "src/train.py",
        "OCI__ENTRY_SCRIPT_ARGS": "--note 'two words'",
    }
    assert [(run["OCI__MODE"], run["RANK"]) for run in runs_of(plan)] == [
        ("MAIN", "0"),
        *[("WORKER", str(rank)) for rank in (1, 2, 3)],
    ]


@pytest.mark.parametrize("image", [{}, IMAGE], ids=["conda", "image"])
def test_workers_of_a_job_of_ads_get_the_main_nodes_run(image: dict[str, Any]) -> None:
    plan = a_plan({"contract": "ads_job", "topology": "job_runs"}, nodes=3, **image)
    told = [run.get("MAIN_JOB_RUN_OCID") for run in runs_of(plan)]
    assert told == [None, MAIN_RUN, MAIN_RUN]


# the container


def test_an_image_that_starts_what_it_likes_is_left_alone_and_expected_to_say_nothing() -> None:
    plan = a_plan(outputs=[{"path": "out", "uri": "oci://b@n/out"}], checkpoints={}, **IMAGE)
    assert job_of(plan)["jobEnvironmentConfigurationDetails"] == {
        "jobEnvironmentType": "OCIR_CONTAINER",
        "image": "iad.ocir.io/ns/img:1",
    }
    assert plan.expects == Expectations(reports=False)
    assert AgentConfig.from_env(environment_of(plan)).program.script == "train.py"


def test_a_container_may_have_its_own_command_and_a_pinned_image() -> None:
    container = {"entrypoint": ["/bin/sh", "-c"], "command": ["sleep 5"]}
    backend = {"image_digest": "sha256:1", "image_signature_id": "ocid1.s", "topology": "multi_node"}
    plan = a_plan(backend, image="i:1", container=container, program={"args": ["--lr", "two words"]})
    (group,) = job_of(plan)["jobNodeConfigurationDetails"]["jobNodeGroupConfigurationDetailsList"]
    assert group["jobEnvironmentConfigurationDetails"] == {
        "jobEnvironmentType": "OCIR_CONTAINER",
        "image": "i:1",
        "imageDigest": "sha256:1",
        "imageSignatureId": "ocid1.s",
        "entrypoint": ["/bin/sh", "-c"],
        "cmd": ["sleep 5"],
    }
    assert group["jobConfigurationDetails"]["commandLineArguments"] == "--lr 'two words'"


def test_several_nodes_of_such_an_image_need_a_subnet() -> None:
    (problem,) = problems_of(backend={"topology": "job_runs"}, connection={"subnet_id": ""}, **IMAGE)
    assert problem.startswith("backend.subnet_id: is needed: the nodes of this image talk through a subnet")


def test_a_range_of_nodes_needs_a_subnet_since_each_node_is_a_run_of_its_own() -> None:
    wanted: dict[str, Any] = {"nodes": {"min": 1, "max": 2}, "restarts": {"node": 1}}
    (problem,) = problems_of(connection={"subnet_id": ""}, **wanted)
    assert problem.startswith("backend.subnet_id: is needed: a range of nodes needs topology job_runs")
    config = AgentConfig.from_env(environment_of(a_plan(**wanted)))
    assert (config.nodes, config.min_nodes) == (2, 1)


def test_what_pins_an_image_needs_one() -> None:
    assert problems_of(backend={"image_digest": "sha256:1"}) == ["backend.image_digest: needs an 'image'"]


# mounts, tags, conda, logs, network


def test_storage_mounts_are_those_of_the_service() -> None:
    mounts = [
        {"source": "oci://sets@ns/a/b", "path": "data"},
        {"source": "oci://sets@ns", "path": "/fast/sets/"},
        {"source": "ocid1.mounttarget.m:ocid1.export.e", "path": "fss"},
        {"source": "10.0.0.1:/export", "path": "home"},
    ]
    plan = a_plan(mounts=mounts)
    assert job_of(plan)["jobStorageMountConfigurationDetailsList"] == [
        {
            "storageType": "OBJECT_STORAGE",
            "destinationDirectoryName": "data",
            "namespace": "ns",
            "bucket": "sets",
            "prefix": "a/b",
        },
        {
            "storageType": "OBJECT_STORAGE",
            "destinationDirectoryName": "sets",
            "destinationPath": "/fast",
            "namespace": "ns",
            "bucket": "sets",
        },
        {
            "storageType": "FILE_STORAGE",
            "destinationDirectoryName": "fss",
            "mountTargetId": "ocid1.mounttarget.m",
            "exportId": "ocid1.export.e",
        },
        {
            "storageType": "FILE_STORAGE",
            "destinationDirectoryName": "home",
            "mountTargetId": "<mount target at 10.0.0.1>",
            "exportId": "<export /export>",
        },
    ]
    assert AgentConfig.from_env(environment_of(plan)).mounts == ("data", "/fast/sets/", "fss", "home")


def test_defined_tags_are_on_the_job_and_on_its_runs() -> None:
    tags = {"Finance": {"CostCenter": "42"}}
    plan = a_plan({"defined_tags": tags})
    bodies = [request.body for request in plan.requests if request.verb in ("CreateJob", "CreateJobRun")]
    assert [body["definedTags"] for body in bodies] == [tags] * 3


def test_a_published_conda_environment_is_reported_by_its_parts() -> None:
    backend = {"conda_uri": "oci://packs@ns/gpu/train_v1"}
    told = environment_of(a_plan(backend, {"region": "eu-frankfurt-1"}))
    assert {name: value for name, value in told.items() if name.startswith("CONDA_")} == {
        "CONDA_ENV_TYPE": "published",
        "CONDA_ENV_NAMESPACE": "ns",
        "CONDA_ENV_BUCKET": "packs",
        "CONDA_ENV_OBJECT_NAME": "gpu/train_v1",
        "CONDA_ENV_REGION": "eu-frankfurt-1",
    }
    (problem,) = problems_of(backend=backend)
    assert problem.startswith("backend.conda_region: is needed here")


@pytest.mark.parametrize(
    "backend, expected",
    [
        ({}, {"logGroupId": "g", "logId": "l", "enableAutoLogCreation": False}),
        ({"log_group_id": "other"}, {"logGroupId": "other", "enableAutoLogCreation": True}),
        ({"log_id": "mine"}, {"logGroupId": "g", "logId": "mine", "enableAutoLogCreation": False}),
    ],
)
def test_the_log_of_the_connection_goes_with_its_group(
    backend: dict[str, str], expected: dict[str, Any]
) -> None:
    plan = a_plan(backend, {"log_group_id": "g", "log_id": "l"})
    assert job_of(plan)["jobLogConfigurationDetails"] == {"enableLogging": True, **expected}


def test_the_group_of_a_log_is_left_to_be_looked_for() -> None:
    details = job_of(a_plan({"log_id": "mine"}))["jobLogConfigurationDetails"]
    assert details["logGroupId"] == "<log group of mine>"


def test_the_network_may_be_left_to_the_service_against_the_connection() -> None:
    plan = a_plan({"managed_network": True})
    assert plan.topology == "multi_node"
    network = job_of(plan)["jobNodeConfigurationDetails"]["jobNetworkConfiguration"]
    assert network == {"jobNetworkType": "DEFAULT_NETWORK"}
