"""The same YAML gives the requests that Oracle ADS sends, but for the differences that docs/ads.md lists.

`golden/<name>.json` is what oracle-ads 2.16.1 sent for `golden/<name>.yaml`, recorded; `<name>_job_runs.json` the same
with the multi-node jobs of the SDK turned off, as older versions send it.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.prepare.packages import _words
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.backends.oci_data_science.ads_variables import with_main_run
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import Plan
from tests.training_jobs import a_key

GOLDEN = Path(__file__).with_name("golden")
DOC = Path(__file__).parents[3] / "docs" / "ads.md"
SUBNET = "ocid1.subnet.oc1.iad.connection"
CONNECTION = {"work_dir": "oci://work@ns/jobs", "region": "us-ashburn-1"}
FIRST_RUN = "ocid1.datasciencejobrun.oc1.iad.stub1"
SHORT = {
    "jobNodeConfigurationDetails.jobNodeGroupConfigurationDetailsList.0": "group",
    "jobConfigurationDetails.environmentVariables": "environment",
    "jobConfigurationOverrideDetails.environmentVariables": "environment",
    "jobNodeConfigurationDetails": "nodes",
    "jobInfrastructureConfigurationDetails": "infrastructure",
    "jobConfigurationDetails": "configuration",
    "jobConfigurationOverrideDetails": "override",
}
"""Long paths and how the document abbreviates them."""

PAIRS = [
    ("distributed_train", "job_runs"),
    ("distributed_mingpt", "job_runs"),
    ("distributed_full", "job_runs"),
    ("pytorch_doc", "multi_node"),
    ("pytorch_full", "multi_node"),
    ("pytorch_full", "job_runs"),
    ("pytorch_accelerate", "multi_node"),
    ("container", "multi_node"),
    ("container", "job_runs"),
    ("pytorch_inputs", "multi_node"),
    ("pytorch_one_node", "auto"),
    ("pytorch_one_no_subnet", "auto"),
    ("pytorch_no_subnet", "multi_node"),
    ("container_no_subnet", "multi_node"),
]
WITHOUT_SUBNET = [pair for pair in PAIRS if "no_subnet" in pair[0]]
"""Files that leave open what a connection may say."""


def planned(name: str, topology: str, **more: str) -> Plan:
    job = parsing.load(GOLDEN / f"{name}.yaml", overrides={"backend.topology": topology})
    return OciDataScience.connect({**CONNECTION, **more}).plan(job, a_key())


def sent_by_ads(name: str, topology: str) -> dict[str, Any]:
    suffix = "_job_runs" if topology == "job_runs" and not name.startswith("distributed") else ""
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}{suffix}.json").read_text())
    return found


def differences(name: str, topology: str, **more: str) -> set[str]:
    """Return the paths of all that is not the same in both; `more` is what else the connection says."""
    plan, golden = planned(name, topology, **more), sent_by_ads(name, topology)
    ours = {
        verb: [dict(request.body) for request in plan.requests if request.verb == verb]
        for verb in ("CreateJob", "CreateJobRun")
    }
    assert len(ours["CreateJob"]) == 1
    assert len(ours["CreateJobRun"]) == len(golden["CreateJobRun"])
    found = set(_different(golden["CreateJob"], ours["CreateJob"][0], "CreateJob"))
    for theirs, own in zip(golden["CreateJobRun"], ours["CreateJobRun"], strict=True):
        # The ids that the service gave to the recorded job, and to its first run.
        given = with_main_run(own, FIRST_RUN)
        found |= set(_different(theirs, {**given, "jobId": theirs["jobId"]}, "CreateJobRun"))
    return found


def _different(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    if isinstance(theirs, dict | list) and type(theirs) is type(ours):
        keys = theirs.keys() | ours.keys() if isinstance(theirs, dict) else range(max(len(theirs), len(ours)))
        for key in keys:
            values = [_at(value, key) for value in (theirs, ours)]
            yield from _different(*values, f"{path}.{key}")
    elif isinstance(theirs, dict) and ours is ABSENT:
        yield from _different(theirs, {}, path)
    elif isinstance(ours, dict) and theirs is ABSENT:
        yield from _different({}, ours, path)
    elif theirs != ours:
        for long, short in SHORT.items():
            path = path.replace(long, short)
        yield path


ABSENT = object()


def _at(value: Any, key: Any) -> Any:
    if isinstance(value, list):
        return value[key] if key < len(value) else ABSENT
    return value.get(key, ABSENT)


def listed(*, connection: bool = True) -> dict[str, str]:
    """Return the patterns of the document's table of differences, each with its reason.

    Without `connection` those are left out that only what a connection says can make.
    """
    rows = tables()[0]
    chosen = [row for row in rows if connection or "the connection's" not in row[1]]
    return patterns(chosen)


def tables() -> tuple[list[list[str]], list[list[str]]]:
    """Return the rows of the document's two tables: of all files, and of one node that is asked for as multi-node."""
    section = DOC.read_text().partition("## Where the requests differ")[2].partition("\n## ")[0]
    found: list[list[list[str]]] = [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in paragraph.splitlines()]
        for paragraph in section.split("\n\n")
        if paragraph.lstrip().startswith("|")
    ]
    (all_files, one_node) = (rows[2:] for rows in found)
    return all_files, one_node


def patterns(rows: list[list[str]]) -> dict[str, str]:
    return {pattern: row[-1] for row in rows for pattern in re.findall(r"`([^`]+)`", row[0])}


def unknown(found: set[str], known: dict[str, str]) -> set[str]:
    assert all(known.values()), "each difference has its reason"
    return {path for path in found if not any(fnmatch.fnmatchcase(path, pattern) for pattern in known)}


@pytest.mark.parametrize("name, topology", PAIRS)
def test_every_difference_from_what_ads_sends_is_in_the_document(name: str, topology: str) -> None:
    assert unknown(differences(name, topology), listed(connection=False)) == set()


@pytest.mark.parametrize("name, topology", WITHOUT_SUBNET)
def test_so_is_what_a_connection_adds_to_a_file(name: str, topology: str) -> None:
    assert unknown(differences(name, topology, subnet_id=SUBNET), listed()) == set()


def test_inputs_travel_in_the_very_text_of_ads() -> None:
    """Spaces and escapes too: a driver of ADS may compare it."""

    def text(body: Any) -> str:
        (group,) = body["jobNodeConfigurationDetails"]["jobNodeGroupConfigurationDetailsList"]
        return str(group["jobConfigurationDetails"]["environmentVariables"]["OCI__INPUT_MAPPINGS"])

    (ours,) = [
        each.body for each in planned("pytorch_inputs", "multi_node").requests if each.verb == "CreateJob"
    ]
    assert text(ours) == text(sent_by_ads("pytorch_inputs", "multi_node")["CreateJob"])
    assert len(json.loads(text(ours))) == 3


@pytest.mark.parametrize("name", ["pytorch_one_node", "pytorch_one_no_subnet"])
def test_one_node_is_a_plain_job_as_with_ads(name: str) -> None:
    assert "jobNodeConfigurationDetails" not in sent_by_ads(name, "auto")["CreateJob"]
    requests = planned(name, "auto").requests
    assert not any("jobNodeConfigurationDetails" in each.body for each in requests)


@pytest.mark.parametrize("connection", [{}, {"subnet_id": SUBNET}], ids=["none", "subnet"])
@pytest.mark.parametrize("name", ["pytorch_one_node", "pytorch_one_no_subnet"])
def test_one_node_that_is_asked_for_as_multi_node_differs_as_the_document_says(
    name: str, connection: dict[str, str]
) -> None:
    found = differences(name, "multi_node", **connection)
    own = patterns(tables()[1])
    assert unknown(found, {**listed(), **own}) == set()
    assert [pattern for pattern in own if not fnmatch.filter(found, pattern)] == []


def test_every_listed_difference_is_there() -> None:
    found = {path for pair in PAIRS for path in differences(*pair)}
    found |= {path for pair in WITHOUT_SUBNET for path in differences(*pair, subnet_id=SUBNET)}
    assert [pattern for pattern in listed() if not fnmatch.filter(found, pattern)] == []


def test_a_list_of_packages_with_an_index_among_them_goes_to_pip_word_by_word() -> None:
    # As in the YAML of Llama 2 in Oracle's documentation and samples.
    text = (GOLDEN / "pytorch_full.yaml").read_text()
    old, new = (
        "'\"fire==0.4.0\" loguru'",
        (
            ">-\n          --extra-index-url https://example.com/whl/nightly/cu118 torch==2.1.0\n"
            "          'accelerate>=0.21.0' bitsandbytes==0.39.1 'black[jupyter]'\n"
            "          'git+https://example.com/peft.git' optimum"
        ),
    )
    assert old in text
    packages = parsing.parse(text.replace(old, new)).dependencies.packages
    assert [word for package in packages for word in _words(package)] == [
        "--extra-index-url",
        "https://example.com/whl/nightly/cu118",
        "torch==2.1.0",
        "accelerate>=0.21.0",
        "bitsandbytes==0.39.1",
        "black[jupyter]",
        "git+https://example.com/peft.git",
        "optimum",
    ]
