"""Files of Oracle ADS run on the emulator, one of each kind, to the verdict of the task that waits for them."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.gangs.actions import Succeed
from airflow_provider_ocidist.gangs.decisions import decide
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import RunRecord, RunRef, RunStatus
from airflow_provider_ocidist.storage.stores.opening import open_store
from scripts.emulator_process import Access, EmulatorProcess
from tests.training_jobs import a_key, wait_until

IMAGE = "iad.ocir.io/ns/train:1"
"""Starts our agent by its own entrypoint."""
PROGRAM = """
import json, os, pathlib, sys
told = {name: os.environ.get(name) for name in os.environ.get("SHOW", "").split()}
print("told", json.dumps({**told, "args": sys.argv[1:]}, sort_keys=True), flush=True)
folder = pathlib.Path("out")
folder.mkdir(exist_ok=True)
(folder / "rank.txt").write_text(os.environ["RANK"])
"""


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    agent = f"{IMAGE}={sys.executable} -m airflow_provider_ocidist.agent"
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=("--image", agent)) as access:
        yield access


@pytest.fixture
def work_dir(emulator: Access) -> str:
    return f"oci://{emulator.bucket}@{emulator.namespace}/work/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def connected(emulator: Access, work_dir: str) -> OciDataScience:
    return OciDataScience.connect(emulator.connection_fields(work_dir=work_dir))


Run = Callable[[dict[str, Any], Path], tuple[RunRef, RunStatus]]


@pytest.fixture
def run(connected: OciDataScience, tmp_path: Path) -> Iterator[Run]:
    """Runs a file to its end; it must count as a success."""
    refs: list[RunRef] = []

    def started(document: dict[str, Any], folder: Path = tmp_path) -> tuple[RunRef, RunStatus]:
        file = folder / "train.yaml"
        file.write_text(yaml.safe_dump(document))
        job = parsing.load(file)
        plan = connected.plan(job, a_key())
        refs.append(connected.submit(plan))
        status = wait_until(connected, refs[-1], lambda status: status.ended, seconds=90)
        verdict = decide(RunRecord.of(refs[-1], job, plan.expects), status, time.time())
        assert isinstance(verdict, Succeed), (verdict, status)
        return refs[-1], status

    yield started
    for ref in refs:
        connected.cancel(ref)


def infrastructure(emulator: Access) -> dict[str, Any]:
    return {
        "kind": "infrastructure",
        "type": "dataScienceJob",
        "spec": {
            "compartmentId": emulator.compartment_id,
            "projectId": emulator.project_id,
            "subnetId": emulator.subnet_id,
            "logGroupId": emulator.log_group_id,
            "logId": emulator.log_id,
            "shapeName": "VM.Standard.E4.Flex",
            "shapeConfigDetails": {"ocpus": 1, "memoryInGBs": 8},
        },
    }


def lines_of(connected: OciDataScience, ref: RunRef, mark: str) -> list[str]:
    """Return what nodes have printed after a mark, in any order."""
    found = [line.text.partition(mark) for line in connected.logs(ref, [ref.submitted_at - 60] * ref.nodes)]
    return sorted(rest.strip() for _, here, rest in found if here)


def test_a_distributed_file_runs_in_an_image_that_starts_our_agent(
    emulator: Access, connected: OciDataScience, run: Run, work_dir: str
) -> None:
    open_store(f"{work_dir}/src", connected.access).write("train.py", PROGRAM.encode())
    cluster = {
        "image": IMAGE,
        "workDir": work_dir,
        "config": {"env": [{"name": "SHOW", "value": "RANK WORLD_SIZE OCI__MODE ROLE OCI__WORKER_COUNT"}]},
        "main": {"name": "m", "config": {"env": [{"name": "ROLE", "value": "first"}]}},
        "worker": {"name": "w", "replicas": 1, "config": {"env": [{"name": "ROLE", "value": "other"}]}},
    }
    runtime = {"uri": f"{work_dir}/src/", "entryPoint": "train.py", "args": ["--note", "two words"]}
    document = {
        "kind": "distributed",
        "spec": {
            "infrastructure": infrastructure(emulator),
            "cluster": {"kind": "PYTORCH", "spec": {"name": "both", **cluster}},
            "runtime": {"kind": "python", "type": "remote", "spec": runtime},
        },
    }
    ref, status = run(document)
    assert [node.report is not None for node in status.nodes] == [True, True]
    told = [json.loads(line) for line in lines_of(connected, ref, "told ")]
    assert sorted(told, key=lambda each: str(each["RANK"])) == [
        {
            "RANK": rank,
            "WORLD_SIZE": "2",
            "OCI__MODE": mode,
            "ROLE": role,
            "OCI__WORKER_COUNT": "1",
            "args": ["--note", "two words"],
        }
        for rank, mode, role in (("0", "MAIN", "first"), ("1", "WORKER", "other"))
    ]


def test_a_job_file_runs_its_command_and_brings_every_nodes_outputs(
    emulator: Access, connected: OciDataScience, run: Run, work_dir: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    runtime = {
        "replicas": 2,
        "scriptPathURI": "train.py",
        "command": "python train.py --lr 1",
        "args": ["--note", "$WORDS"],
        "env": {"WORDS": "two words", "SHOW": "NODE_COUNT OUTPUT_DIR"},
        "outputDir": "out",
        "outputUri": f"{work_dir}/results",
    }
    document = {
        "kind": "job",
        "spec": {
            "name": "job",
            "infrastructure": infrastructure(emulator),
            "runtime": {"type": "pyTorchDistributed", "spec": runtime},
        },
    }
    ref, _ = run(document)
    line = '{"NODE_COUNT": "2", "OUTPUT_DIR": "out", "args": ["--lr", "1", "--note", "two words"]}'
    assert lines_of(connected, ref, "told ") == [line, line]
    results = open_store(f"{work_dir}/results", connected.access)
    assert results.read("rank.txt") == b"0"
    assert results.read("node-1/rank.txt") == b"1"


def test_a_container_file_runs_what_it_says_on_every_node(
    emulator: Access, connected: OciDataScience, run: Run
) -> None:
    runtime = {
        "image": "registry.example/any:1",
        "entrypoint": ["/bin/sh", "-c"],
        "cmd": ['echo "rank $NODE_RANK of $NODE_COUNT"'],
        "replicas": 2,
    }
    document = {
        "kind": "job",
        "spec": {
            "name": "own",
            "infrastructure": infrastructure(emulator),
            "runtime": {"type": "container", "spec": runtime},
        },
    }
    ref, _ = run(document)
    assert ref.topology == "multi_node"
    assert lines_of(connected, ref, "rank ") == ["0 of 2", "1 of 2"]
