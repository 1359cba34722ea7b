"""What the service would refuse is reported before anything is created, by its path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience, rules
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job_file import parsing
from tests.training_jobs import BACKEND, a_key

GIT = {"source": "git+https://host/repo.git", "script": "train.py"}
CONTAINER: dict[str, Any] = {"image": "i:1", "program": {}}


def problems_of(backend: dict[str, Any] | None = None, **job: Any) -> list[str]:
    described = {"name": "x", "program": GIT, "backend": {**BACKEND, **(backend or {})}, **job}
    with pytest.raises(JobFileError) as caught:
        parsing.build(described)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def pack(uri: str) -> dict[str, str]:
    return {"conda_uri": uri}


@pytest.mark.parametrize(
    "job, problem",
    [
        (
            {**CONTAINER, "container": {"entrypoint": ["sh", "-c"], "command": ["ü" * 1024]}},
            "container.command: and entrypoint have 2052 bytes; the service allows 2048: call a script",
        ),
        (
            {**CONTAINER, "container": {}, "program": {"args": ["a b"] * 667}},
            "program.args: have 4001 characters; the service allows 4000",
        ),
        ({"name": "x" * 256}, "name: has 256 characters; 255 are allowed"),
        (
            {"mounts": [{"source": f"oci://b@n/{i}", "path": f"m{i}"} for i in range(6)]},
            "mounts: there are 6; 5 are allowed",
        ),
        (
            {
                "mounts": [
                    {"source": f"oci://b@n/{i}", "path": path} for i, path in enumerate(["m", "/mnt/m"])
                ]
            },
            "mounts.1.path: is the place of mounts.0 too",
        ),
        (
            {"mounts": [{"source": "oci://b/x", "path": "a/b"}]},
            "mounts.0.path: must be the name of a folder in /mnt, or an absolute path, not 'a/b'",
        ),
        (
            {"backend": {"defined_tags": {"Ops": {"a b": "1"}}}},
            "backend.defined_tags.Ops.a b: a key has 1 to 100 characters, no blanks and no dots",
        ),
        (
            {"backend": {"defined_tags": {"Ops": {str(i): "1" for i in range(65)}}}},
            "backend.defined_tags: there are 65; 64 are allowed",
        ),
        (
            {"backend": pack("oci://packs/x")},
            "backend.conda_uri: must be oci://bucket@namespace/path/to/pack, not 'oci://packs/x'",
        ),
        (
            {"backend": {"conda_slug": "a", **pack("oci://b@n/p")}},
            "backend.conda_uri: says the same as 'conda_slug': remove one of them",
        ),
        (
            {"backend": {"conda_region": "r"}},
            "backend.conda_region: is the region of 'conda_uri', which is not there",
        ),
        ({"image": "i:1", "backend": pack("oci://b@n/p")}, "backend.conda_uri: is for jobs without an image"),
        (
            {"backend": {"managed_network": True, "subnet_id": "s"}},
            "backend.managed_network: is the opposite of 'subnet_id': remove one of them",
        ),
        (
            {"backend": {"subnet_id": "ocid1.vcn.oc1.iad.a"}},
            "backend.subnet_id: must be the OCID of a subnet, not of a vcn",
        ),
    ],
)
def test_a_limit_of_the_service_is_reported_by_its_path(job: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(**job)


def test_code_that_no_artifact_can_hold_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(rules.MAX_ARTIFACT + 1)  # takes no room on disk
    (problem,) = problems_of(program={"source": str(tmp_path), "script": "train.py"})
    assert problem.startswith("program.source: ")
    assert "is larger than the 4 GB that the service accepts as an artifact" in problem


@pytest.mark.parametrize("section", ["env", "main_env"])
def test_an_environment_that_is_too_large_is_reported_by_the_plan(section: str) -> None:
    connection = {"compartment_id": "c", "project_id": "p", "work_dir": "oci://b@n/w"}
    job = parsing.build({"name": "x", "program": GIT, "backend": BACKEND, section: {"A": "x" * 20_000}})
    with pytest.raises(JobFileError, match="the service allows 20000"):
        OciDataScience.connect(connection).plan(job, a_key())
