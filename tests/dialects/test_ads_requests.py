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

from airflow_provider_ocidist import job_file
from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.run import Plan
from tests.training_jobs import a_key

GOLDEN = Path(__file__).with_name("golden")
DOC = Path(__file__).parents[2] / "docs" / "ads.md"
CONNECTION = {"work_dir": "oci://work@ns/jobs", "region": "us-ashburn-1"}
SHORT = {
    "jobNodeConfigurationDetails.jobNodeGroupConfigurationDetailsList.0": "group",
    "jobConfigurationDetails.environmentVariables": "environment",
    "jobConfigurationOverrideDetails.environmentVariables": "environment",
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
]


def planned(name: str, topology: str) -> Plan:
    job = job_file.load(GOLDEN / f"{name}.yaml", overrides={"backend.topology": topology})
    return OciDataScience.connect(CONNECTION).plan(job, a_key())


def sent_by_ads(name: str, topology: str) -> dict[str, Any]:
    suffix = "_job_runs" if topology == "job_runs" and not name.startswith("distributed") else ""
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}{suffix}.json").read_text())
    return found


def differences(name: str, topology: str) -> set[str]:
    """Return the paths of all that is not the same in both."""
    plan, golden = planned(name, topology), sent_by_ads(name, topology)
    ours = {
        verb: [dict(request.body) for request in plan.requests if request.verb == verb]
        for verb in ("CreateJob", "CreateJobRun")
    }
    assert len(ours["CreateJob"]) == 1
    assert len(ours["CreateJobRun"]) == len(golden["CreateJobRun"])
    found = set(_different(golden["CreateJob"], ours["CreateJob"][0], "CreateJob"))
    for theirs, own in zip(golden["CreateJobRun"], ours["CreateJobRun"], strict=True):
        # The id that the service gave to the recorded job.
        found |= set(_different(theirs, {**own, "jobId": theirs["jobId"]}, "CreateJobRun"))
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


def listed() -> dict[str, str]:
    """Return the patterns of the document's table of differences, each with its reason."""
    section = DOC.read_text().partition("## Where the requests differ")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "|" in line
    ]
    return {pattern: row[-1] for row in rows[2:] for pattern in re.findall(r"`([^`]+)`", row[0])}


@pytest.mark.parametrize("name, topology", PAIRS)
def test_every_difference_from_what_ads_sends_is_in_the_document(name: str, topology: str) -> None:
    known = listed()
    assert all(known.values()), "each difference has its reason"
    unknown = {
        path
        for path in differences(name, topology)
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in known)
    }
    assert unknown == set()


def test_every_listed_difference_is_there() -> None:
    found = {path for pair in PAIRS for path in differences(*pair)}
    assert [pattern for pattern in listed() if not fnmatch.filter(found, pattern)] == []
