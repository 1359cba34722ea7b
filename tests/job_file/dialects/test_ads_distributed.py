"""ADS YAML runs here unchanged, or every reason why not is reported by its own path and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job import (
    Container,
    LauncherOptions,
    Limits,
    Mount,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.job_file.dialects.ads import DIALECT
from airflow_provider_ocidist.job_file.dialects.ads.infrastructure import SOURCES

TRAIN = Path(__file__).with_name("ads_train.yaml")
"""The example of Oracle's developer guide."""


def job_of(changes=(), remove=()):
    """Return the job of the example after some values were set and some removed, by dotted path."""
    return parsing.parse(changed(dict(changes), remove))


def changed(changes, remove):
    mapping = yaml.safe_load(TRAIN.read_text())
    for path, value in changes.items():
        holder, last = inside(mapping, path)
        holder[last] = value
    for path in remove:
        holder, last = inside(mapping, path)
        del holder[last]
    return yaml.safe_dump(mapping, sort_keys=False)


def inside(mapping, path):
    *above, last = path.split(".")
    for part in above:
        mapping = mapping.setdefault(part, {})
    return mapping, last


def problems_of(changes=(), remove=()):
    text = changed(dict(changes), remove)
    with pytest.raises(JobFileError) as caught:
        parsing.parse(text)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


INFRASTRUCTURE, CLUSTER, RUNTIME = "spec.infrastructure.spec", "spec.cluster.spec", "spec.runtime.spec"


def test_the_example_of_the_developer_guide_becomes_a_job():
    assert parsing.load(TRAIN) == TrainingJob(
        name="my_distributed_training",
        nodes=3,
        image="iad.ocir.io/my-tenancy/image-name:latest",
        work_dir="oci://my-bucket@my-namespace/path/to/dir/",
        program=Program(
            script="/code/train.py",
            args=(
                "--data-dir",
                "/home/datascience/data",
                "--output-dir",
                "/home/datascience/outputs",
                "--timeout",
                "5",
            ),
        ),
        env={"NCCL_ASYNC_ERROR_HANDLING": "1"},
        launcher=LauncherOptions(kind="python"),
        container=Container(),
        backend=OciDataScienceOptions(
            topology="job_runs",
            contract="ads_distributed",
            project_id="oci.xxxx.<project_ocid>",
            compartment_id="oci.xxxx.<compartment_ocid>",
            log_group_id="oci.xxxx.<log_group_ocid>",
            log_id="oci.xxx.<log_ocid>",
            subnet_id="oci.xxxx.<subnet-ocid>",
            shape="VM.GPU2.1",
            block_storage_gb=50,
        ),
    )


def test_only_its_own_kind_is_taken():
    assert DIALECT.matches({"kind": "distributed"})
    assert not DIALECT.matches({"kind": "model"})
    assert not DIALECT.matches({"name": "x"})


@pytest.mark.parametrize(
    "worker, nodes",
    [({"replicas": 7}, 8), ({"replica": 4}, 5), ({"replicas": 0}, 1), ({"name": "w"}, 2), (None, 1)],
)
def test_nodes_are_the_main_one_and_the_workers(worker, nodes):
    if worker is None:
        assert job_of(remove=[f"{CLUSTER}.worker"]).nodes == nodes
    else:
        assert job_of({f"{CLUSTER}.worker": worker}).nodes == nodes


def test_code_from_git_is_cloned_at_its_branch_or_commit():
    git = {"spec.runtime.type": "git", f"{RUNTIME}.uri": "https://github.com/pytorch/examples.git"}
    by_branch = {f"{RUNTIME}.branch": "main", f"{RUNTIME}.entryPoint": "distributed/main.py"}
    program = job_of({**git, **by_branch, f"{RUNTIME}.codeDir": "/home/datascience/pytorch"}).program
    assert program.source == "git+https://github.com/pytorch/examples.git#main"
    assert program.script == "distributed/main.py"
    assert job_of({**git, **by_branch, f"{RUNTIME}.commit": "abc123"}).program.source.endswith(".git#abc123")
    over_ssh = {**git, f"{RUNTIME}.uri": "git@github.com:me/mine.git"}
    assert job_of(over_ssh).program.source == "git@github.com:me/mine.git"
    secret = {f"{RUNTIME}.gitSecretId": "ocid1.vaultsecret.oc1.iad.aaaa"}
    assert job_of({**over_ssh, **secret}).program.source_secret == "ocid1.vaultsecret.oc1.iad.aaaa"


@pytest.mark.parametrize("written", [["../libs", "/opt/lib"], "../libs:/opt/lib"])
def test_any_folder_of_the_node_may_be_on_the_python_path(written):
    remote = {"spec.runtime.type": "remote", f"{RUNTIME}.uri": "oci://b@n/src"}
    job = job_of({**remote, f"{RUNTIME}.pythonPath": written})
    assert job.program.python_path == ("../libs", "/opt/lib")


@pytest.mark.parametrize("written", [["lib", "src"], "lib:src"])
def test_the_python_path_is_a_list_or_joined_by_colons(written):
    remote = {"spec.runtime.type": "remote", f"{RUNTIME}.uri": "oci://b@n/src"}
    assert job_of({**remote, f"{RUNTIME}.pythonPath": written}).program.python_path == ("lib", "src")


def test_code_in_the_image_is_where_its_variable_says():
    moved = {f"{RUNTIME}.env": [{"name": "OCI__CODE_DIR", "value": "/opt/app"}]}
    assert job_of(moved).program.script == "/opt/app/train.py"


def test_code_from_a_bucket_is_fetched():
    program = job_of({"spec.runtime.type": "remote", f"{RUNTIME}.uri": "oci://b@n/src"}).program
    assert (program.source, program.script) == ("oci://b@n/src", "train.py")


@pytest.mark.parametrize(
    "kind, uri", [("remote", "oci://b@n/src"), ("git", "https://example.com/me/mine.git")]
)
@pytest.mark.parametrize(
    "written, code_dir, found",
    [
        ("/code/train.py", None, "train.py"),
        ("/code/sub/train.py", None, "sub/train.py"),
        ("/home/datascience/src/train.py", "/home/datascience/src/", "train.py"),
        ("/opt/image/train.py", "/home/datascience/src", "/opt/image/train.py"),
        ("train.py", "/home/datascience/src", "train.py"),
    ],
)
def test_an_absolute_entry_point_lies_in_the_code_where_ads_puts_it_or_in_the_image(
    kind, uri, written, code_dir, found
):
    changes = {"spec.runtime.type": kind, f"{RUNTIME}.uri": uri, f"{RUNTIME}.entryPoint": written}
    program = job_of({**changes, **({f"{RUNTIME}.codeDir": code_dir} if code_dir else {})}).program
    assert program.script == found
    assert uri in str(program.source)


def test_arguments_keep_their_quoting_and_numbers_become_text():
    as_list = job_of({f"{RUNTIME}.args": ["--msg", "hello world", 5, 0.5, True]}).program.args
    assert as_list == ("--msg", "hello world", "5", "0.5", "True")
    as_text = job_of({f"{RUNTIME}.args": "--msg 'hello world' 5"}).program.args
    assert as_text == ("--msg", "hello world", "5")
    assert job_of(remove=[f"{RUNTIME}.args"]).program.args == ()


def test_numbers_stay_as_they_are_written():
    text = TRAIN.read_text().replace("- 5\n", "- 1e-4\n").replace("value: '1'", "value: 1.10")
    job = parsing.parse(text)
    assert job.program.args[-1] == "1e-4"
    assert job.env == {"NCCL_ASYNC_ERROR_HANDLING": "1.10"}


def test_the_environment_is_merged_in_the_order_of_ads():
    job = job_of(
        {
            f"{CLUSTER}.config.env": [{"name": "A", "value": "cluster"}, {"name": "B", "value": "cluster"}],
            f"{RUNTIME}.env": [{"name": "B", "value": "runtime"}, {"name": "C", "value": "runtime"}],
            f"{CLUSTER}.main.config": {"env": [{"name": "C", "value": 1}]},
            f"{CLUSTER}.worker.config": {
                "env": [{"name": "D", "value": True}],
                "startOptions": ["--a", "--b 1"],
            },
        }
    )
    assert job.env == {"A": "cluster", "B": "runtime", "C": "runtime"}
    assert job.main_env == {"C": "1"}
    assert job.worker_env == {"D": "True", "OCI__START_ARGS": "--a --b 1"}


def test_limits_that_ads_drops_in_silence_are_kept():
    changes = {
        f"{INFRASTRUCTURE}.maximumRuntimeInMinutes": 60,
        f"{CLUSTER}.config.env": [{"name": "OCI__TIMEOUT", "value": "900"}],
    }
    assert job_of(changes).limits == Limits(max_runtime=3600.0, join_timeout=900.0)
    assert job_of(changes).env == {"OCI__TIMEOUT": "900"}


def test_flexible_shapes_and_tags():
    job = job_of(
        {
            f"{INFRASTRUCTURE}.shapeName": "VM.Standard.E4.Flex",
            f"{INFRASTRUCTURE}.shapeConfigDetails": {"ocpus": 8, "memoryInGBs": 64},
            f"{INFRASTRUCTURE}.freeformTags": {"team": "ml"},
            f"{INFRASTRUCTURE}.jobInfrastructureType": "STANDALONE",
        }
    )
    assert (job.backend.ocpus, job.backend.memory_gb, job.tags) == (8.0, 64.0, {"team": "ml"})


def test_storage_is_mounted():
    mounts = [{"src": "oci://data@ns/sets", "dest": "data"}, {"src": "10.0.0.1:/export", "dest": "/fs/home"}]
    assert job_of({f"{INFRASTRUCTURE}.storageMount": mounts}).mounts == (
        Mount(source="oci://data@ns/sets", path="data"),
        Mount(source="10.0.0.1:/export", path="/fs/home"),
    )
    path = f"{INFRASTRUCTURE}.storageMount"
    assert problems_of({path: [{"src": "here", "dest": "x"}, {"src": "oci://b@n"}]}) == [
        f"{path}.0.src: must be {SOURCES}, not 'here'",
        f"{path}.1: must be a section with src and dest",
    ]


def test_keys_of_the_infrastructure_have_two_spellings():
    job = job_of({f"{INFRASTRUCTURE}.block_storage_size": 80}, remove=[f"{INFRASTRUCTURE}.blockStorageSize"])
    assert job.backend.block_storage_gb == 80
    wrong = {f"{INFRASTRUCTURE}.block_storage_size": 10}
    assert problems_of(wrong, remove=[f"{INFRASTRUCTURE}.blockStorageSize"]) == [
        f"{INFRASTRUCTURE}.block_storage_size: must be at least 50"
    ]


def test_the_network_may_be_left_to_the_service():
    managed = {f"{INFRASTRUCTURE}.jobInfrastructureType": "ME_STANDALONE"}
    job = job_of(managed, remove=[f"{INFRASTRUCTURE}.subnetId"])
    assert job.backend.managed_network
    assert problems_of(
        {f"{INFRASTRUCTURE}.jobInfrastructureType": "STANDALONE"}, remove=[f"{INFRASTRUCTURE}.subnetId"]
    ) == [f"{INFRASTRUCTURE}.jobInfrastructureType: needs a 'subnetId'; ME_STANDALONE needs none"]


def test_a_certificate_becomes_variables_of_the_image():
    certificate = {
        "caCert": {"id": "ocid1.ca"},
        "cert": {"id": "ocid1.cert", "keyDownloadLocation": "/k.pem"},
    }
    told = job_of({f"{CLUSTER}.certificate": certificate}).env
    assert {name: value for name, value in told.items() if name.startswith("OCI__C")} == {
        "OCI__CERTIFICATE_AUTHORITY_OCID": "ocid1.ca",
        "OCI__CA_DOWNLOAD_LOCATION": "ca-cert.pem",
        "OCI__CERTIFICATE_OCID": "ocid1.cert",
        "OCI__CERTIFICATE_DOWNLOAD_LOCATION": "cert.pem",
        "OCI__CERTIFICATE_KEY_DOWNLOAD_LOCATION": "/k.pem",
    }
    assert problems_of({f"{CLUSTER}.certificate": {"caCert": {"id": "ocid1.ca"}}}) == [
        f"{CLUSTER}.certificate.cert.id: is needed: a certificate is used together with its authority"
    ]


def test_nodes_that_end_with_the_training_are_what_ephemeral_means():
    assert job_of({f"{CLUSTER}.ephemeral": True}).env["OCI__EPHEMERAL"] == "True"
    (problem,) = problems_of({f"{CLUSTER}.ephemeral": False})
    assert problem.startswith(f"{CLUSTER}.ephemeral: must be true")


def test_variables_in_the_name_are_the_jobs_own():
    changes = {
        f"{INFRASTRUCTURE}.displayName": "run-${SIZE}-$$1",
        f"{RUNTIME}.env": [{"name": "SIZE", "value": 7}],
    }
    assert job_of(changes).name == "run-7-$1"


def test_the_name_is_the_one_that_ads_shows():
    assert job_of({f"{CLUSTER}.name": "cluster"}).name == "cluster"
    assert job_of(remove=[f"{INFRASTRUCTURE}.displayName"]).name == "PyTorch-Distributed"


def test_the_image_may_stand_at_the_main_node():
    job = job_of({f"{CLUSTER}.main.image": "a/b:1"}, remove=[f"{CLUSTER}.image"])
    assert job.image == "a/b:1"


def test_an_operator_may_override_values_in_our_own_terms():
    job = parsing.load(TRAIN, overrides={"nodes": 5, "env.SEED": "1", "backend.shape": "VM.GPU.A10.1"})
    assert (job.nodes, job.env["SEED"], job.backend.shape) == (5, "1", "VM.GPU.A10.1")


WRONG = [
    (f"{CLUSTER}.ps", {"replicas": 1}, "parameter servers are TensorFlow's: PyTorch has none, remove it"),
    (f"{CLUSTER}.config.startOptions", "--x", "must be a list of texts, not '--x'"),
    (f"{CLUSTER}.certificate", "x", "must be a section with keys and values, not 'x'"),
    (f"{RUNTIME}.gitSecretId", "x", "has no meaning without a type: remove it"),
    (f"{INFRASTRUCTURE}.storageMount", "x", "must be a list of src and dest, not 'x'"),
    (f"{INFRASTRUCTURE}.definedTags", "x", "must be a section of names and values, not 'x'"),
    (f"{CLUSTER}.worker.replcas", 4, "unknown key 'replcas'; did you mean 'replicas'?"),
    (f"{CLUSTER}.worker.replica", 4, "says the same as 'replicas': remove one of them"),
    (f"{CLUSTER}.worker.replicas", -1, "must be a whole number of at least 0, not -1"),
    (f"{CLUSTER}.worker.replicas", "two", "must be a whole number of at least 0, not 'two'"),
    (f"{CLUSTER}.main.replicas", 2, "must be 1, not 2: there is one main node"),
    (
        f"{CLUSTER}.worker.image",
        "other:1",
        "all nodes run the same image, and spec.cluster.spec.image says another: remove one of them",
    ),
    (f"{CLUSTER}.config.env", {"A": 1}, "must be a list of name and value, not a section"),
    ("spec.cluster.kind", "dask", "must be PYTORCH, not 'dask'"),
    ("spec.clusters", {}, "unknown key 'clusters'; did you mean 'cluster'?"),
    ("spec.runtime.type", "zip", "must be git or remote, not 'zip'"),
    (f"{RUNTIME}.codeDir", "/x", "has no meaning without a type: remove it"),
    (f"{RUNTIME}.args", "--x 'y", "cannot be split into arguments: no closing quotation"),
    (f"{RUNTIME}.args", {"a": 1}, "must be a list or text, not a section"),
    (f"{INFRASTRUCTURE}.jobType", "OTHER", "must be DEFAULT, not 'OTHER'"),
    (f"{INFRASTRUCTURE}.jobInfrastructureType", "ME_STANDALONE", "must be STANDALONE, not 'ME_STANDALONE'"),
    (
        f"{INFRASTRUCTURE}.displayName",
        "run-${USER}",
        "the variable USER is not in the environment of the job",
    ),
    (f"{INFRASTRUCTURE}.maximumRuntimeInMinutes", "1h", "must be a whole number of at least 1, not '1h'"),
    (f"{INFRASTRUCTURE}.blockStorageSize", "50GB", "must be a whole number, not '50GB'"),
    (f"{INFRASTRUCTURE}.blockStorageSize", 10, "must be at least 50"),
    (
        f"{CLUSTER}.workDir",
        "somewhere",
        "must be a URI, as oci://bucket@namespace/path, or an absolute path, not 'somewhere'",
    ),
]


@pytest.mark.parametrize("path, value, message", WRONG)
def test_a_wrong_value_is_reported_by_its_path_in_the_file(path, value, message):
    assert problems_of({path: value}) == [f"{path}: {message}"]


@pytest.mark.parametrize(
    "path",
    [f"{CLUSTER}.image", f"{CLUSTER}.main", f"{RUNTIME}.entryPoint"],
    ids=["image", "main", "entryPoint"],
)
def test_what_is_missing_is_reported_once(path):
    assert problems_of(remove=[path]) == [f"{path}: is needed"]


def test_variables_that_follow_from_the_file_are_refused():
    variables = [{"name": "OCI__WORKER_COUNT", "value": 9}, {"name": "1A", "value": 1}, {"nme": "x"}]
    assert problems_of({f"{RUNTIME}.env": variables}) == [
        f"{RUNTIME}.env.0.value: OCI__WORKER_COUNT is set on the nodes from other keys of the file: remove it",
        f"{RUNTIME}.env.1.value: is not a valid name for an environment variable: letters, digits and _ only",
        f"{RUNTIME}.env.2: must be a section with name and value",
    ]


def test_switches_of_the_image_pass():
    variables = [{"name": name, "value": 1} for name in ("POST_PROCESSING_WAIT", "PROFILE", "OCI__SYNC_DIR")]
    job = job_of({f"{RUNTIME}.env": variables})
    assert job.env.keys() >= {"POST_PROCESSING_WAIT", "PROFILE", "OCI__SYNC_DIR"}
    assert job.outputs == ()


@pytest.mark.parametrize(
    "variables, path, root",
    [
        ({}, "/opt/ml", "oci://my-bucket@my-namespace/path/to/dir"),
        ({"WORKSPACE": "b", "WORKSPACE_PREFIX": "p/", "OCI__SYNC_DIR": "/out"}, "/out", "oci://b/p"),
    ],
)
def test_synchronized_artifacts_are_an_output_too(variables, path, root):
    variables = {"SYNC_ARTIFACTS": 1, **variables}
    env = [{"name": name, "value": value} for name, value in variables.items()]
    (output,) = job_of({f"{RUNTIME}.env": env}).outputs
    assert output == Output(
        path=path,
        uri=f"{root}/sync/${{JOB_OCID}}/${{JOB_RUN_OCID}}",
        required=False,
        nodes="all",
        when="always",
    )


def test_problems_carry_the_line_of_the_ads_file():
    text = (
        TRAIN.read_text().replace("shapeName: VM.GPU2.1", "shapeName: [VM.GPU2.1]").replace("- 5", "- {a: 5}")
    )
    with pytest.raises(JobFileError) as caught:
        parsing.parse(text)
    lines = text.splitlines()
    assert [lines[problem.line - 1].strip() for problem in caught.value.problems] == [
        "shapeName: [VM.GPU2.1]",
        "- {a: 5}",
    ]


def test_an_empty_file_of_this_kind_says_what_it_needs():
    with pytest.raises(JobFileError) as caught:
        parsing.parse("kind: distributed\nspec: 3\n")
    assert [str(problem) for problem in caught.value.problems] == [
        "line 2: spec: must be a section with keys and values, not 3",
        "line 2: spec.cluster.spec.image: is needed",
        "line 2: spec.cluster.spec.main: is needed",
        "line 2: spec.runtime.spec.entryPoint: is needed",
        "line 2: spec.name: is needed",
    ]
