"""Oracle ADS, which takes the emulator for OCI: its Python API and `ads opctl`, native and old multi-node."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import oci
import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.actions import Cancel, Fail, Succeed, Wait
from airflow_provider_ocidist.gangs.submission import GangSubmitter
from airflow_provider_ocidist.gangs.watch import Watch
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, RunStatus
from scripts.emulator_process import Access
from tests.clients.processes import AGENT_IMAGE, CLUSTER_IMAGE, CONDA, PROGRAMS
from tests.http_client import http
from tests.training_jobs import a_key

OCID = re.compile(r"ocid1\.\w+\.[\w.]+")
SEED = Path(__file__).parent.parent / "job_file" / "dialects" / "ads_train.yaml"
"""The file that Oracle's documents show."""


@pytest.fixture
def logs(emulator: Access, config: dict[str, Any]) -> Any:
    return oci.loggingsearch.LogSearchClient(config, service_endpoint=emulator.url)


def lines(access: Access, logs: Any, run_id: str) -> list[str]:
    """Return what a job run has printed."""
    now = dt.datetime.now(dt.timezone.utc)
    place = f"{access.compartment_id}/{access.log_group_id}/{access.log_id}"
    details = oci.loggingsearch.models.SearchLogsDetails(
        time_start=now - dt.timedelta(hours=1),
        time_end=now + dt.timedelta(minutes=1),
        search_query=f"search \"{place}\" | where source = '*{run_id}' | sort by datetime asc",
    )
    return [found.data["logContent"]["data"]["message"] for found in logs.search_logs(details).data.results]


def forget_calls(access: Access) -> None:
    http.delete(f"{access.url}/_emulator/calls").raise_for_status()


def job_calls(access: Access) -> list[str]:
    """Return the calls to Data Science since then, OCIDs left out."""
    calls = http.get(f"{access.url}/_emulator/calls").json()
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
    # How often ADS looks meanwhile depends on how fast the runs begin.
    assert [call for call in job_calls(emulator) if not call.startswith("GET ")] == [
        "POST /20190101/jobs",
        "HEAD /20190101/jobs/ID/artifact/content",
        *["POST /20190101/jobRuns"] * nodes,
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
    reported = [json.loads(line) for run in ended for line in lines(emulator, logs, run.id)]
    assert [one["name"] for one in reported] == [run.display_name for run in ended]
    assert [(one["environment"]["RANK"], one["environment"]["OCI__MODE"]) for one in reported] == [
        ("0", "MAIN"),
        ("1", "WORKER"),
        ("2", "WORKER"),
    ]
    assert reported[0]["environment"]["OCI__WORKER_COUNT"] == "2"


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
    place = asdict(emulator) | {"conda": CONDA}
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
    assert [call for call in job_calls(emulator) if not call.startswith("GET ")][:3] == [
        "POST /20190101/jobs",
        "POST /20190101/jobs/ID/artifact",
        "POST /20190101/jobRuns",
    ]
    job = jobs.get_job(ocids(printed, "datasciencejob")[0])
    layout = job.data.job_node_configuration_details
    [group] = layout.job_node_group_configuration_details_list
    assert (layout.startup_order, group.name) == ("IN_PARALLEL", "node-group")
    assert (group.replicas, group.minimum_success_replicas) == (3, 3)
    oci.wait_until(jobs, job, "lifecycle_state", "DELETED", max_interval_seconds=1, max_wait_seconds=20)
    saved = objects.head_object(emulator.namespace, emulator.bucket, "by-ads/model.pt")
    assert int(saved.headers["content-length"]) > 1000


# Our image, started by ADS


def reports(objects: Any, access: Access, folder: str) -> list[NodeReport]:
    """Return what the nodes of the one gang below a folder have said, by rank."""
    place = (access.namespace, access.bucket)
    names = [item.name for item in objects.list_objects(*place, prefix=folder).data.objects]
    found = [name for name in names if re.search(r"/nodes/\d+\.json$", name)]
    read = [NodeReport.from_json(objects.get_object(*place, name).data.content) for name in found]
    return sorted(read, key=lambda report: report.rank)


@pytest.mark.slow
@pytest.mark.torch
def test_a_cluster_of_opctl_trains_in_our_image(clients, emulator, jobs, objects, logs, tmp_path):
    place = (emulator.namespace, emulator.bucket)
    objects.put_object(*place, "cluster-code/training.py", (PROGRAMS / "training.py").read_bytes())
    root = f"oci://{emulator.bucket}@{emulator.namespace}"
    document = yaml.safe_load(SEED.read_text())
    document["spec"]["infrastructure"]["spec"] |= infrastructure(emulator)
    document["spec"]["cluster"]["spec"] |= {"image": AGENT_IMAGE, "workDir": f"{root}/cluster-work"}
    document["spec"]["cluster"]["spec"]["worker"]["replicas"] = 1
    document["spec"]["runtime"] |= {"type": "remote"}
    document["spec"]["runtime"]["spec"] = {"uri": f"{root}/cluster-code/", "entryPoint": "training.py"}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(document))
    printed = clients.run(
        *("ads", "opctl", "run", "-f", "train.yaml", "--nobuild", "--nopush"), folder=tmp_path
    )
    runs = list(dict.fromkeys(ocids(printed, "datasciencejobrun")))
    ended = [
        oci.wait_until(
            jobs, jobs.get_job_run(run), "lifecycle_state", "SUCCEEDED", max_interval_seconds=1
        ).data
        for run in runs
    ]
    said = "\n".join(line for run in ended for line in lines(emulator, logs, run.id))
    trained = re.findall(r"rank (\d) of 2 on node (\d): fits True, same True", said)
    assert sorted(trained) == [("0", "0"), ("1", "1")]
    work = f"cluster-work/{ended[0].job_id}"
    assert [report.phase for report in reports(objects, emulator, work)] == [Phase.DONE, Phase.DONE]
    main = json.loads(objects.get_object(*place, f"{work}/MAIN_config.json").data.content)
    assert main["MASTER_ADDR"] == reports(objects, emulator, work)[0].address


@pytest.mark.slow
@pytest.mark.torch
def test_replicas_of_our_image_train_in_one_job_run_and_in_one_each(clients, emulator, objects, tmp_path):
    place = asdict(emulator)
    root = f"oci://{emulator.bucket}@{emulator.namespace}"
    code = (PROGRAMS / "training.py").read_bytes()
    objects.put_object(emulator.namespace, emulator.bucket, "replicas/training.py", code)
    words = (json.dumps(place), AGENT_IMAGE, f"{root}/replicas/work", f"{root}/replicas/training.py")
    printed = clients.run("python", PROGRAMS / "ads_containers.py", *words, folder=tmp_path)
    ended = json.loads(printed.splitlines()[-1])
    for mode, count in (("one run", 1), ("a run each", 2)):
        job_id, states = ended[mode]
        assert states == ["SUCCEEDED"] * count
        found = reports(objects, emulator, f"replicas/work/{job_id}/")
        assert [(report.rank, report.phase) for report in found] == [(0, Phase.DONE), (1, Phase.DONE)]
        assert all(re.search(r"of 2 on node \d: fits True, same True", report.tail) for report in found)


# An image of ADS, started by us

ENTRY = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "main at", os.environ["MASTER_ADDR"], *sys.argv[1:])
if "--fail" in sys.argv:
    if os.environ["RANK"] == "1":
        raise SystemExit(3)
    time.sleep(300)
"""


@pytest.fixture
def run_by_us(emulator, objects):
    """Runs a cluster file to the end of its gang, as our operator does; returns the last decision and the status."""
    backend = OciDataScience.connect(emulator.connection_fields())
    refs = []

    def run(document: dict[str, Any]) -> tuple[Any, RunStatus]:
        job = parsing.parse(yaml.safe_dump(document))
        gang = GangSubmitter(backend, job, logging.getLogger("test"), None, threading.Event())
        record = gang.adopt_or_submit(a_key(), None)
        refs.append(record.ref)
        assert not record.expects.reports
        watch = Watch(backend, record, logging.getLogger("test"))
        deadline = time.monotonic() + 120
        while isinstance(action := watch.look(time.time()), Wait | Cancel):
            assert time.monotonic() < deadline, watch.status
            if isinstance(action, Cancel):
                watch.end(action.ending)
            time.sleep(0.2)
        return action, watch.status

    yield run
    for ref in refs:
        backend.cancel(ref)


@pytest.mark.slow
def test_an_image_of_ads_runs_under_our_operator_and_one_failed_node_ends_all(
    run_by_us, emulator, jobs, objects, logs
):
    root = f"oci://{emulator.bucket}@{emulator.namespace}"
    objects.put_object(emulator.namespace, emulator.bucket, "entry/train.py", ENTRY.encode())
    document = yaml.safe_load(SEED.read_text())
    document["spec"]["infrastructure"]["spec"] |= infrastructure(emulator)
    cluster = document["spec"]["cluster"]["spec"] | {"image": CLUSTER_IMAGE, "workDir": f"{root}/ads-image"}
    document["spec"]["cluster"]["spec"] = cluster
    cluster["config"]["env"].append({"name": "OCI__CODE_DIR", "value": "code"})
    document["spec"]["runtime"] |= {"type": "remote"}
    runtime = {"uri": f"{root}/entry/", "entryPoint": "train.py", "args": ["--lr", "0.1"]}
    document["spec"]["runtime"]["spec"] = runtime
    action, status = run_by_us(document)
    assert isinstance(action, Succeed), (action, status)
    said = [line for node in status.nodes for line in lines(emulator, logs, node.run_id)]
    assert sorted(line.partition(" main at")[0] for line in said) == [
        f"rank {rank} of 3" for rank in range(3)
    ]
    assert all(line.endswith("--lr 0.1") for line in said)

    runtime["args"] = ["--fail"]
    action, status = run_by_us(document)
    assert isinstance(action, Fail)
    assert [node.state for node in status.nodes] == [NodeState.CANCELED, NodeState.FAILED, NodeState.CANCELED]
