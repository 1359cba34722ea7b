"""Rules across fields: what is wrong with several fields together."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing

GIT = "git+https://host/repo.git"
SECRET = "ocid1.vaultsecret.oc1..aaaa"


@pytest.fixture
def build(tmp_path):
    """Build a job with code of its own and these values."""
    (tmp_path / "train" / "requirements").mkdir(parents=True)
    (tmp_path / "train" / "gpt.py").touch()
    (tmp_path / "train" / "requirements" / "gpu.txt").touch()

    def built(program: dict[str, Any] | None = None, **values: Any):
        code = {"source": "train", "script": "gpt.py", **(program or {})}
        return parsing.build({"name": "x", "program": code, **values}, base_dir=tmp_path)

    return built


def in_image(**program: Any) -> dict[str, Any]:
    return {"program": {"source": None, "script": "/opt/a.py", **program}, "image": "i"}


RIGHT = [
    {
        "dependencies": {
            "requirements": "requirements/gpu.txt",
            "packages": ["fire==0.4.0", "x @ git+https://h/x.git", "a; python_version<'4'"],
        }
    },
    {"dependencies": {"requirements": "gpu.txt"}, "program": {"working_dir": "requirements"}},
    {"program": {"python_path": ["src", "lib/x", "../libs", "/opt/lib"]}},
    {"dependencies": {"packages": ["--extra-index-url", "https://x", "a", "--no-deps", "-i https://y"]}},
    {"program": {"source": GIT, "source_secret": SECRET}},
    {"program": {"source": "{{ params.code }}", "source_secret": "{{ params.secret }}"}},
    in_image(working_dir="/workspace", python_path=["/opt/lib"]),
    {"program": {"script": "./train.sh"}, "launcher": {"kind": "command"}},
    {"program": {"script": "/bin/bash", "args": ["-c", "echo"]}, "launcher": {"kind": "command"}},
    {"program": {"script": "run"}, "launcher": {"kind": "torchrun", "args": ["--no-python"]}},
    {"image": "i", "program": {"script": "", "source": None}, "container": {"command": ["--fast"]}},
    {
        "mounts": [
            {"source": "10.0.0.1:/export", "path": "data"},
            {"source": "oci://b@n/x", "path": "/models"},
        ]
    },
    {"mounts": [{"source": "volumes/data", "path": "/opt/out"}]},
    {"mounts": [{"source": "10.0.0.1:/export", "path": "/mnt/x"}], "checkpoints": {"path": "/mnt/x/run"}},
    {"outputs": [{"path": "out", "uri": "${RESULTS}/x", "nodes": "all", "when": "always"}]},
    {"outputs": [{"path": "out", "uri": "oci://b@n/${JOB_RUN_OCID}/"}]},
    {"nodes": 2, "main_env": {"A": "1"}, "worker_env": {"A": "2"}},
    {"nodes": {"min": 2, "max": 4}, "restarts": {"node": 1}},
    {"nodes": 4, "min_nodes": 4, "restarts": {"node": 1}, "launcher": {"kind": "accelerate"}},
    {
        "nodes": {"min": 1, "max": 2},
        "restarts": {"node": 1},
        "launcher": {"kind": "deepspeed"},
        "backend": {"kind": "local"},
    },
]

RANGE = {"nodes": {"min": 2, "max": 4}, "restarts": {"node": 1}}


@pytest.mark.parametrize("values", RIGHT)
def test_what_is_right_passes(build, values):
    assert build(**values)


WRONG = [
    ({"dependencies": {}}, "dependencies: is empty: name requirements or packages"),
    ({"dependencies": {"requirements": "no.txt"}}, "dependencies.requirements: 'no.txt' is not in "),
    ({"dependencies": {"requirements": "../no.txt"}}, "dependencies.requirements: must not leave its folder"),
    (
        {"dependencies": {"packages": ["--index-url=https://x"]}},
        "dependencies.packages: contains options of pip, but no package",
    ),
    (
        {"dependencies": {"packages": ["a", "-i 'https://x"]}},
        "dependencies.packages.1: cannot be split into arguments",
    ),
    (
        {"dependencies": {"packages": ["a --hash=x"]}},
        "dependencies.packages.0: must be one package without pip's options",
    ),
    ({"dependencies": {"packages": ["a\n-r x"]}}, "dependencies.packages.0: must be one package"),
    ({"program": {"python_path": ["src", "a:b"]}}, "program.python_path.1: must be one folder"),
    (
        {"program": {"source": "https://user:t0ken@host/repo.git"}},
        "program.source: contains a password or token, which the service would store as plain text",
    ),
    ({"program": {"source_secret": SECRET}}, "program.source_secret: is for code that comes from Git"),
    (
        {"program": {"source": GIT, "source_secret": "ghp_token"}},
        "program.source_secret: must be the OCID of a secret",
    ),
    ({"container": {"command": ["a"]}}, "container: needs an image"),
    ({"image": "i", "container": {"entrypoint": []}}, "container.entrypoint: is empty"),
    ({"image": "i", "container": {"command": ["a\0"]}}, "container.command.0: cannot be an argument"),
    ({"launcher": {"args": ["a\0"]}}, "launcher.args.0: cannot be an argument"),
    ({"main_env": {"1A": "x"}}, "main_env.1A: is not a valid name for an environment variable"),
    (
        {"nodes": 2, "worker_env": {"OCIDIST_X": "x"}},
        "worker_env.OCIDIST_X: names that begin with OCIDIST_ are reserved",
    ),
    ({"worker_env": {"A": "x"}}, "worker_env: is for the nodes after the first, and there is only one"),
    ({"mounts": [{"source": "/etc", "path": "x"}]}, "mounts.0.source: must be a relative path"),
    ({"mounts": [{"source": "../x", "path": "x"}]}, "mounts.0.source: must not leave its folder"),
    ({"mounts": [{"source": "a", "path": "/"}]}, "mounts.0.path: must name a folder"),
    ({"checkpoints": {"path": "/"}}, "checkpoints.path: must name a folder"),
    ({"checkpoints": {"path": "/mnt/../etc"}}, "checkpoints.path: must be a path without '..'"),
    ({"checkpoints": {"path": "../x"}}, "checkpoints.path: must not leave its folder"),
    ({"mounts": [{"source": "a", "path": "/x/../y"}]}, "mounts.0.path: must not leave its folder"),
    (
        {"mounts": [{"source": "a", "path": "x"}, {"source": "b", "path": "x/"}]},
        "mounts.1.path: is the path of mounts.0 too",
    ),
    ({"outputs": [{"path": "out", "uri": "x/${A}"}]}, "outputs.0.uri: must be a URI"),
    (
        {"outputs": [{"path": "a", "uri": "oci://b@n/", "nodes": "some"}]},
        "outputs.0.nodes: must be one of 'main', 'all', not 'some'",
    ),
    (
        {"outputs": [{"path": "a", "uri": "oci://b@n/", "when": "never"}]},
        "outputs.0.when: must be one of 'success', 'always', not 'never'",
    ),
    ({**RANGE, "restarts": {}}, "restarts.node: is 0, and the job has a range of nodes"),
    *(
        ({**RANGE, "launcher": launcher}, "launcher: starts one number of nodes, the job has a range of them")
        for launcher in (
            {"kind": "mpirun"},
            {"kind": "python"},
            {"kind": "deepspeed", "args": ["--launcher=pdsh"]},
            {"kind": "torchrun", "args": ["--nnodes=4"]},
            {"kind": "accelerate", "args": ["--num_machines", "4"]},
        )
    ),
    *(
        (
            {**RANGE, "image": "i", "backend": {"kind": kind}},
            f"backend.kind: is '{kind}', and no gang there goes on with fewer nodes",
        )
        for kind in ("pytorchjob", "trainjob", "runai")
    ),
    (
        {**RANGE, "backend": {"topology": "multi_node"}},
        "backend.topology: must be job_runs for a range of nodes",
    ),
]


@pytest.mark.parametrize("values, problem", WRONG, ids=[item[1][:50] for item in WRONG])
def test_what_is_wrong_is_reported_once_with_its_path(build, values, problem):
    with pytest.raises(JobFileError) as caught:
        build(**values)
    assert [str(item)[: len(problem)] for item in caught.value.problems] == [problem]


def test_a_token_in_place_of_a_secrets_ocid_is_not_shown(build):
    with pytest.raises(JobFileError) as caught:
        build({"source": GIT, "source_secret": "ghp_0123456789"})
    assert "ghp_" not in str(caught.value)


SECRET_URIS = [
    "git+https://ghp_16C7e42F292c6912E7710c838347Ae178B4a@github.com/o/r.git",
    "https://ghp_x@github.com/o/r.git#main",
    "https://x-access-token:ghp_x@github.com/o/r.git",
    "https://ghp_x:x-oauth-basic@github.com/o/r.git",
    "https://git:t0ken@host/r.git",
    "https://me%3At0ken@host/r.git",
    "https://me:pa/ss@host:8443/r.git",
    "https://:t0ken@host/code.zip",
    "HTTPS://t0ken@host/code.zip",
    "ssh://git:pw@host/r.git",
    "git+ssh://me:pw@host/r.git",
    "git://me:pw@host/r.git",
    "s3://key:secret@bucket/code.zip",
    "zip://x::https://me:pw@host/code.zip",
    "ftp://me:pw@host/code.zip",
]


@pytest.mark.parametrize("uri", SECRET_URIS)
def test_a_source_with_a_password_or_token_is_refused_without_showing_it(build, uri):
    with pytest.raises(JobFileError) as caught:
        build(program={"source": uri, "script": "train.py"})
    text = str(caught.value)
    assert "program.source: contains a password or token" in text
    assert uri not in text


@pytest.mark.parametrize(
    "uri",
    [
        "git+https://git@github.com/o/r.git@main",
        "https://git:@host/r.git",
        "https://host:8443/o/r.git@v1",
        "https://host/o/r.git@v1",
        "git@github.com:o/r.git",
        "ssh://me@host:22/o/r.git",
        "oci://bucket@namespace/code.zip",
        "https://host/code.zip?sig=a:b@c",
    ],
)
def test_a_source_that_only_names_a_user_or_a_revision_passes(build, uri):
    assert build(program={"source": uri, "script": "train.py"}).program.source == uri


@pytest.mark.parametrize("image", ["me:pw@iad.ocir.io/n/i:1", "https://t0ken@registry/i:1"])
def test_an_image_with_a_password_is_refused(build, image):
    with pytest.raises(JobFileError, match="image: contains a password"):
        build(image=image)


@pytest.mark.parametrize(
    "image", [f"iad.ocir.io/n/i:1@sha256:{'0' * 64}", f"i:1@sha256:{'a' * 64}", "localhost:5000/i:1"]
)
def test_an_image_by_its_digest_or_port_passes(build, image):
    assert build(image=image).image == image
