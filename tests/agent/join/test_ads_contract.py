"""The variables that Oracle ADS gives a node, recorded from oracle-ads 2.16.1, become what our agent does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join import ads_contract, ads_meeting
from airflow_provider_ocidist.agent.join.ads_contract import instructions_of_cluster, instructions_of_job
from airflow_provider_ocidist.agent.join.topology import own_rank
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause, TopologyTimeout
from airflow_provider_ocidist.job import Dependencies, Input, LauncherOptions, Output
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store

SERVICE = {"JOB_OCID": "ocid1.job", "JOB_RUN_OCID": "ocid1.run.own"}
CLUSTER = SERVICE | {
    "CLUSTER_ENV": "1",
    "RT_ENV": "from_runtime",
    "OCI__WORK_DIR": "oci://bucket@ns/prefix",
    "OCI__EPHEMERAL": "False",
    "OCI__CLUSTER_TYPE": "PYTORCH",
    "OCI__WORKER_COUNT": "7",
    "OCI__START_ARGS": "--worker-opt",
    "OCI__ENTRY_SCRIPT": "src/train.py",
    "OCI__RUNTIME_TYPE": "remote",
    "OCI__RUNTIME_URI": "oci://bucket@ns/src",
    "OCI__CODE_DIR": "/home/datascience/code",
    "OCI__RUNTIME_PYTHON_PATH": "['a', 'b']",
    "OCI__ENTRY_SCRIPT_ARGS": "--msg 'hello world' 5 True",
    "OCI__ENTRY_SCRIPT_KWARGS": "{'a': 1}",
    "OCI__CERTIFICATE_OCID": "ocid1.cert",
    "WORKER_ONLY": "7",
    "OCI__MODE": "WORKER",
    "RANK": "1",
}
JOB = SERVICE | {
    "NCCL_DEBUG": "INFO",
    "PYTHON_PATH": "distributed/minGPT-ddp:lib",
    "OUTPUT_DIR": "data",
    "OUTPUT_URI": "oci://bucket_name@namespace/path/to/dir",
    "WORKING_DIR": "sub",
    "OCI__LAUNCH_CMD": "torchrun --nproc_per_node 2 distributed/minGPT-ddp/mingpt/main.py data.path=data/input.txt",
    "NODE_COUNT": "2",
    "NODE_RANK": "1",
    "OCI__INPUT_MAPPINGS": '{"https://example.com/input.txt": "data/input.txt"}',
    "OCI__RUNTIME_URI": "https://github.com/pytorch/examples.git",
    "OCI__RUNTIME_GIT_BRANCH": "main",
    "OCI__RUNTIME_GIT_COMMIT": "d91085d2181bf6342ac7dafbeee6fc0a1f64dcec",
    "OCI__RUNTIME_GIT_SECRET_ID": "ocid1.vaultsecret.oc1.iad.aaaa",
    "OCI__PIP_PKG": '"fire==0.4.0" loguru',
    "OCI__PIP_REQUIREMENTS": "distributed/minGPT-ddp/requirements.txt",
    "OCIDIST_WORK_DIR": "oci://bucket@ns/meet",
}


def instructions_of(environ: dict[str, str], *arguments: str) -> ads_contract.NodeInstructions:
    return instructions_of_job(environ, arguments, "/node")


# kind: distributed


def test_a_node_of_a_cluster_runs_the_entry_script_once_for_each_device() -> None:
    found = instructions_of_cluster(CLUSTER, gang="ocid1.run.main")
    config = found.config
    assert (config.nodes, own_rank(config, found.environ)) == (8, 1)
    assert config.launcher == LauncherOptions(kind="python")
    assert config.program.script == "src/train.py"
    assert config.program.args == ("--msg", "hello world", "5", "True")
    assert config.program.python_path == ("a", "b")
    assert config.program.source == "oci://bucket@ns/src"
    assert config.limits.join_timeout == 600
    assert found.environ["OCIDIST_CODE_DIR"] == "/home/datascience/code"
    assert found.environ["WORKER_ONLY"] == "7"


def test_gangs_of_one_job_meet_in_different_folders() -> None:
    older, newer = (
        instructions_of_cluster(CLUSTER, gang=gang).config for gang in ("ocid1.run.1", "ocid1.run.2")
    )
    assert older.run_dir == "oci://bucket@ns/prefix/ocid1.job/ocid1.run.1"
    assert newer.run_dir == "oci://bucket@ns/prefix/ocid1.job/ocid1.run.2"
    assert older.run_name != newer.run_name


def test_code_baked_into_the_image_is_where_ads_has_it() -> None:
    baked = {
        name: value for name, value in CLUSTER.items() if "RUNTIME" not in name and "CODE_DIR" not in name
    }
    found = instructions_of_cluster(baked, gang="g")
    assert found.config.program.source is None
    assert found.environ["OCIDIST_CODE_DIR"] == "/code"


@pytest.mark.parametrize(
    "script, found",
    [
        ("/src/train.py", "train.py"),
        ("/src/sub/train.py", "sub/train.py"),
        ("/opt/image/train.py", "/opt/image/train.py"),
        ("sub/train.py", "sub/train.py"),
    ],
)
def test_a_script_of_fetched_code_is_looked_for_where_the_code_is(script: str, found: str) -> None:
    environ = {**CLUSTER, "OCI__CODE_DIR": "/src", "OCI__RUNTIME_TYPE": "remote", "OCI__ENTRY_SCRIPT": script}
    assert instructions_of_cluster(environ, gang="g").config.program.script == found


def test_synchronized_artifacts_become_outputs() -> None:
    given = {"SYNC_ARTIFACTS": "1", "WORKSPACE": "bucket", "WORKSPACE_PREFIX": "p"}
    (output,) = instructions_of_cluster(CLUSTER | given, gang="g").config.outputs
    assert output.path == "/opt/ml"
    assert output.uri == "oci://bucket/p/sync/ocid1.job/${JOB_RUN_OCID}"
    assert (output.nodes, output.when, output.required) == ("all", "always", False)


def test_what_is_left_undone_is_said() -> None:
    sentences = " ".join(instructions_of_cluster(CLUSTER | {"PROFILE": "1"}, gang="g").not_done)
    for name in ("PROFILE", "OCI__CERTIFICATE_OCID", "OCI__ENTRY_SCRIPT_KWARGS"):
        assert name in sentences


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"OCI__MODE": "PS"}, "OCI__MODE"),
        ({"OCI__CLUSTER_TYPE": "DASK"}, "must be PYTORCH"),
        ({"OCI__WORKER_COUNT": "many"}, "OCI__WORKER_COUNT is 'many'"),
        ({"OCI__ENTRY_SCRIPT": ""}, "OCI__ENTRY_SCRIPT is not set"),
        ({"OCI__WORK_DIR": ""}, "OCI__WORK_DIR is not set"),
        ({"OCI__ENTRY_SCRIPT_ARGS": "it's"}, "OCI__ENTRY_SCRIPT_ARGS cannot be split"),
        ({"OCI__RUNTIME_TYPE": "svn"}, "must be git or remote"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(changes: dict[str, str], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        instructions_of_cluster(CLUSTER | changes, gang="g")


# kind: job


def test_every_variable_of_a_job_counts() -> None:
    found = instructions_of(JOB | {"CLUSTER_NODES_METADATA_FILE": "/nodes.json"})
    config = found.config
    assert (config.nodes, own_rank(config, found.environ), config.one_run) == (2, 1, True)
    assert config.run_dir == "oci://bucket@ns/meet/ocid1.job/ocid1.run.own"
    assert config.launcher == LauncherOptions(kind="torchrun", args=("--nproc_per_node", "2"))
    program = config.program
    assert program.script == "distributed/minGPT-ddp/mingpt/main.py"
    assert program.args == ("data.path=data/input.txt",)
    assert program.working_dir == "sub"
    assert program.python_path == ("distributed/minGPT-ddp", "lib")
    assert (
        program.source
        == "git+https://github.com/pytorch/examples.git#d91085d2181bf6342ac7dafbeee6fc0a1f64dcec"
    )
    assert program.source_secret == "ocid1.vaultsecret.oc1.iad.aaaa"
    assert config.inputs == (Input(source="https://example.com/input.txt", target="data/input.txt"),)
    assert config.outputs == (
        Output(path="data", uri="oci://bucket_name@namespace/path/to/dir", required=False),
    )
    assert config.dependencies == Dependencies(
        requirements="distributed/minGPT-ddp/requirements.txt", packages=("fire==0.4.0", "loguru")
    )


def test_job_runs_of_their_own_share_the_run_of_the_main_node() -> None:
    main = instructions_of(JOB | {"NODE_RANK": "0", "JOB_RUN_OCID": "ocid1.run.main"}).config
    worker = instructions_of(JOB | {"MAIN_JOB_RUN_OCID": "ocid1.run.main"}).config
    assert main.run_dir == worker.run_dir
    assert not worker.one_run


@pytest.mark.parametrize(
    "command, kind, flags, script, module",
    [
        ("python -u train.py --lr 1", "python", (), "train.py", False),
        ("python3 -m pkg.train --lr 1", "python", (), "pkg.train", True),
        ("/opt/bin/torchrun --nnodes 2 train.py --lr 1", "torchrun", ("--nnodes", "2"), "train.py", False),
        ("torchrun --log-dir=l --local-addr h.py train.py --lr 1", "torchrun",
            ("--log-dir=l", "--local-addr", "h.py"), "train.py", False),
        ("torchrun --standalone run.sh --lr 1", "torchrun", ("--standalone",), "run.sh", False),
        ("torchrun -m pkg.train --lr 1", "torchrun", (), "pkg.train", True),
        ("accelerate launch --num_machines 2 t.py --lr 1", "accelerate", ("--num_machines", "2"), "t.py", False),
        ("accelerate launch --use_deepspeed --deepspeed_config_file make.py t.py --lr 1", "accelerate",
            ("--use_deepspeed", "--deepspeed_config_file", "make.py"), "t.py", False),
        ("python -m torch.distributed.run train.py --lr 1", "torchrun", (), "train.py", False),
        ("deepspeed train.py --lr 1", "deepspeed", (), "train.py", False),
        ("./train --lr 1", "command", (), "./train", False),
        ("torchrun --nnodes 2 \\\n  train.py \\\n--lr 1", "torchrun", ("--nnodes", "2"), "train.py", False),
    ],
)  # fmt: skip
def test_launch_commands_are_taken_apart(
    command: str, kind: str, flags: tuple[str, ...], script: str, module: bool
) -> None:
    by_variable = instructions_of(JOB | {"OCI__LAUNCH_CMD": command}).config
    by_argument = instructions_of(JOB | {"OCI__LAUNCH_CMD": ""}, *command.replace("\\\n", "").split()).config
    by_one_word = instructions_of(JOB | {"OCI__LAUNCH_CMD": ""}, command).config
    assert by_variable.program == by_argument.program == by_one_word.program
    assert (by_variable.launcher.kind, by_variable.launcher.args) == (kind, flags)
    program = by_variable.program
    assert (program.script, program.module, program.args) == (script, module, ("--lr", "1"))


@pytest.mark.parametrize(
    "command, arguments, message",
    [
        ("torchrun --nnodes 2", (), "OCI__LAUNCH_CMD names no program after torchrun and its flags"),
        ("cd code && torchrun train.py", (), "OCI__LAUNCH_CMD contains '&&', but no shell reads it"),
        ("torchrun train.py \\\n&& rm -r old", (), "OCI__LAUNCH_CMD contains '&&', but no shell reads it"),
        ("torchrun it's.py", (), "OCI__LAUNCH_CMD cannot be split into arguments"),
        ("", ("torchrun it's.py",), "the container's cmd cannot be split into arguments"),
        ("", ("python",), "the container's cmd names no program after python"),
        ("", (), "OCI__LAUNCH_CMD is not set: name the program in it"),
    ],
)
def test_a_command_that_cannot_be_run_is_reported_with_where_it_stands(
    command: str, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(AgentError, match=message):
        instructions_of(JOB | {"OCI__LAUNCH_CMD": command}, *arguments)


def test_a_missing_meeting_place_is_reported_with_its_remedy() -> None:
    homeless = JOB | {"OCIDIST_WORK_DIR": ""}
    with pytest.raises(AgentError, match=r"OCIDIST_WORK_DIR is not set.*name one in the job's env"):
        instructions_of(homeless)
    assert instructions_of(homeless | {"NODE_COUNT": "1"}).config.run_dir == "/node"


# the files by which a cluster meets


@pytest.mark.parametrize("seconds", ["10m", "", "-1", "nan", "1e3", "ten", "9" * 400])
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_time_that_is_no_number_of_seconds_is_named_by_every_node(
    tmp_path: Path, seconds: str, rank: str
) -> None:
    place = {"OCI__WORK_DIR": str(tmp_path), "RANK": rank, "OCI__TIMEOUT": seconds}
    with pytest.raises(AgentError, match=r"OCI__TIMEOUT is .*: must be a number") as caught:
        ads_meeting.instructions_of_ads(CLUSTER | place, (), StopSwitch())
    assert caught.value.cause is Cause.CONFIG


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_a_worker_does_not_take_an_older_gangs_main_node_for_its_own(store: Store) -> None:
    store.write(
        ads_meeting.MAIN_FILE, json.dumps({"MASTER_ADDR": "10.0.0.9", "OCIDIST_GANG": "old"}).encode()
    )
    with pytest.raises(TopologyTimeout, match="OCI__TIMEOUT"):
        ads_meeting.await_main(store, StopSwitch(), timeout=0.5)
    found: list[str] = []
    worker = threading.Thread(target=lambda: found.append(ads_meeting.await_main(store, StopSwitch(), 20)))
    worker.start()
    announcement = ads_meeting.MainNodeFile(store, "new", "10.0.0.1", nodes=1)
    announcement.start()
    worker.join()
    assert found == ["new"]
    store.write("new/nodes/0.json", b"{}")
    announcement.join(10)
    assert not announcement.is_alive()
    assert json.loads(store.read(ads_meeting.MAIN_FILE))["MASTER_ADDR"] == "10.0.0.1"


def test_a_main_node_of_another_image_is_refused(store: Store) -> None:
    writer = threading.Timer(0.3, lambda: store.write(ads_meeting.MAIN_FILE, b'{"MASTER_ADDR": "10.0.0.1"}'))
    writer.start()
    with pytest.raises(AgentError, match="all nodes must run this image"):
        ads_meeting.await_main(store, StopSwitch(), timeout=20)
    writer.join()


def test_a_container_of_one_node_runs_its_command_without_a_work_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print('rank', os.environ['RANK'], *sys.argv[1:])")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OCI")}
    environ |= SERVICE | {"NODE_COUNT": "1", "HOME": str(tmp_path), "OCI__METRICS_NAMESPACE": "gpu"}
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_ocidist.agent", "python train.py --lr 1"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 --lr 1" in done.stdout
    assert "OCI__METRICS_NAMESPACE is set, but" in done.stderr
    assert (tmp_path / "ocidist-run" / "nodes" / "0.json").is_file()
