"""Oracle ADS, which takes the emulator for OCI: its Python API and `ads opctl`, native and old multi-node."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import httpx
import oci
import pytest
import yaml

from scripts.emulator_process import Access
from tests.clients.processes import CONDA, PROGRAMS

OCID = re.compile(r"ocid1\.\w+\.[\w.]+")
SEED = Path(__file__).parent.parent / "dialects" / "ads_train.yaml"
"""The file that Oracle's documents show."""


@pytest.fixture
def logs(emulator: Access, config: dict[str, Any]) -> Any:
    return oci.loggingsearch.LogSearchClient(config, service_endpoint=emulator.url)


def lines(access: Access, logs: Any, run_id: str) -> list[str]:
    """Return what a job run has printed."""
    now = dt.datetime.now(dt.UTC)
    place = f"{access.compartment_id}/{access.log_group_id}/{access.log_id}"
    details = oci.loggingsearch.models.SearchLogsDetails(
        time_start=now - dt.timedelta(hours=1),
        time_end=now + dt.timedelta(minutes=1),
        search_query=f"search \"{place}\" | where source = '*{run_id}' | sort by datetime asc",
    )
    return [found.data["logContent"]["data"]["message"] for found in logs.search_logs(details).data.results]


def forget_calls(access: Access) -> None:
    httpx.delete(f"{access.url}/_emulator/calls").raise_for_status()


def job_calls(access: Access) -> list[str]:
    """Return the calls to Data Science since then, OCIDs left out."""
    calls = httpx.get(f"{access.url}/_emulator/calls").json()
    return [
        OCID.sub("ID", f"{call['method']} {call['path']}")
        for call in calls
        if "/20190101/job" in call["path"]
    ]


def infrastructure(access: Access) -> dict[str, Any]:
    """Return this emulator's place in the words of ADS's files."""
    return {
        "compartmentId": access.compartment_id,
        "projectId": access.project_id,
        "subnetId": access.subnet_id,
        "logGroupId": access.log_group_id,
        "logId": access.log_id,
    }


def ocids(printed: str, kind: str) -> list[str]:
    return [found for found in OCID.findall(printed) if found.startswith(f"ocid1.{kind}.")]


def test_opctl_runs_the_distributed_file_of_the_documents(clients, emulator, jobs, logs, tmp_path):
    document = yaml.safe_load(SEED.read_text())
    document["spec"]["infrastructure"]["spec"] |= infrastructure(emulator)
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(document))
    forget_calls(emulator)
    printed = clients.run(
        *("ads", "opctl", "run", "-f", "train.yaml", "--nobuild", "--nopush"), folder=tmp_path
    )
    nodes = 3
    assert job_calls(emulator)[: 3 + 2 * nodes] == [
        "POST /20190101/jobs",
        "GET /20190101/jobs/ID",
        "HEAD /20190101/jobs/ID/artifact/content",
        *["POST /20190101/jobRuns", "GET /20190101/jobRuns/ID"] * nodes,
    ]
    info = yaml.safe_load(printed[printed.index("jobId:") :])
    runs = [*info["mainJobRunId"].values(), *(run for one in info["otherJobRunIds"] for run in one.values())]
    ended = [
        oci.wait_until(
            jobs, jobs.get_job_run(run), "lifecycle_state", "SUCCEEDED", max_interval_seconds=1
        ).data
        for run in runs
    ]
    assert [run.display_name for run in ended] == [
        "PyTorch-Distributed-main",
        "PyTorch-Distributed-worker_0",
        "PyTorch-Distributed-worker_1",
    ]
    assert {run.job_id for run in ended} == {info["jobId"]}
    told = [json.loads(line) for run in ended for line in lines(emulator, logs, run.id)]
    assert [one["name"] for one in told] == [run.display_name for run in ended]
    assert [(one["environment"]["RANK"], one["environment"]["OCI__MODE"]) for one in told] == [
        ("0", "MAIN"),
        ("1", "WORKER"),
        ("2", "WORKER"),
    ]
    assert told[0]["environment"]["OCI__WORKER_COUNT"] == "2"


@pytest.mark.slow
@pytest.mark.torch
def test_opctl_runs_and_watches_a_job_file(clients, emulator, tmp_path):
    runtime = {
        "conda": {"type": "service", "slug": CONDA},
        "scriptPathURI": str(PROGRAMS / "training.py"),
        "command": "torchrun training.py",
        "replicas": 1,
    }
    job = {
        "kind": "job",
        "spec": {
            "name": "from a file",
            "infrastructure": {
                "kind": "infrastructure",
                "type": "dataScienceJob",
                "spec": {**infrastructure(emulator), "shapeName": "VM.GPU.A10.1", "blockStorageSize": 50},
            },
            "runtime": {"kind": "runtime", "type": "pyTorchDistributed", "spec": runtime},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    [run, *_] = ocids(
        clients.run("ads", "opctl", "run", "-f", "job.yaml", folder=tmp_path), "datasciencejobrun"
    )
    watched = clients.run("ads", "opctl", "watch", run, "--interval", "1", "--wait", "1", folder=tmp_path)
    assert "rank 0 of 1 on node 0: fits True, same True" in watched
    assert "Job Run SUCCEEDED" in watched


@pytest.mark.slow
@pytest.mark.torch
def test_three_nodes_train_under_adss_own_driver(clients, emulator, jobs, objects, tmp_path):
    place = {name: getattr(emulator, name) for name in emulator.__slots__} | {"conda": CONDA}
    forget_calls(emulator)
    printed = clients.run(
        *("python", PROGRAMS / "ads_jobs.py", json.dumps(place), PROGRAMS / "training.py"), folder=tmp_path
    )
    # Which node gets which rank is torchrun's affair: it sorts them by their addresses, as text.
    trained = re.findall(r"rank (\d) of 3 on node (\d): fits True, same True", printed)
    assert {rank for rank, _ in trained} == {node for _, node in trained} == {"0", "1", "2"}
    assert json.loads(printed.splitlines()[-1]) == {
        "run": "SUCCEEDED",
        "groups": ["DELETED"],
        "canceled": "CANCELED",
        "replicas": 3,
        "command": "torchrun training.py",
        "runs": 2,
    }
    assert job_calls(emulator)[:5] == [
        "POST /20190101/jobs",
        "GET /20190101/jobs/ID",
        "POST /20190101/jobs/ID/artifact",
        "POST /20190101/jobRuns",
        "GET /20190101/jobRuns/ID",
    ]
    job = jobs.get_job(ocids(printed, "datasciencejob")[0])
    layout = job.data.job_node_configuration_details
    [group] = layout.job_node_group_configuration_details_list
    assert (layout.startup_order, group.name) == ("IN_PARALLEL", "node-group")
    assert (group.replicas, group.minimum_success_replicas) == (3, 3)
    oci.wait_until(jobs, job, "lifecycle_state", "DELETED", max_interval_seconds=1, max_wait_seconds=20)
    saved = objects.head_object(emulator.namespace, emulator.bucket, "by-ads/model.pt")
    assert int(saved.headers["content-length"]) > 1000
