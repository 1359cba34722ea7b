"""ADS's `kind: job` for PyTorch runs here, or every reason why not is told by its own path and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist import job_file
from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.errors import JobFileError
from airflow_provider_ocidist.job import Input, LauncherOptions, Output, TrainingJob

DOC = Path(__file__).with_name("ads_pytorch_doc.yaml")
"""The example of ADS's documentation, but for what installs packages."""
FULL = Path(__file__).with_name("ads_pytorch_full.yaml")
RUNTIME = "spec.runtime.spec"


def mapping_of(runtime: dict[str, Any], remove: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the example with some keys of its runtime replaced, some removed."""
    mapping = yaml.safe_load(DOC.read_text())
    spec = mapping["spec"]["runtime"]["spec"]
    spec.pop("dependencies", None)
    spec |= runtime
    for key in remove:
        del spec[key]
    return mapping


def job_of(remove: tuple[str, ...] = (), **runtime: Any) -> TrainingJob:
    return job_file.build(mapping_of(runtime, remove))


def problems_of(remove: tuple[str, ...] = (), **runtime: Any) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        job_of(remove, **runtime)
    return [f"{problem.path}: {problem.message}" for problem in caught.value.problems]


def test_the_example_of_the_documentation_becomes_a_job():
    job = job_of()
    assert (job.name, job.nodes, job.image) == ("PyTorch-MinGPT", 2, None)
    assert job.program.source == (
        "git+https://github.com/pytorch/examples.git#d91085d2181bf6342ac7dafbeee6fc0a1f64dcec"
    )
    assert job.program.script == "distributed/minGPT-ddp/mingpt/main.py"
    assert job.program.args == (
        "data_config.path=data/input.txt",
        "trainer_config.snapshot_path=data/snapshot.pt",
    )
    assert job.inputs == (
        Input(
            source="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            target="data/input.txt",
        ),
    )
    assert job.outputs == (
        Output(path="data", uri="oci://bucket_name@namespace/path/to/dir", required=False),
    )
    assert isinstance(job.backend, OciDataScienceOptions)
    assert (job.backend.shape, job.backend.conda_slug) == ("VM.GPU.A10.1", "pytorch110_p38_gpu_v1")


def test_what_is_not_there_yet_is_told_with_its_line_and_nothing_is_dropped():
    with pytest.raises(JobFileError) as caught:
        job_file.load(FULL)
    found = {problem.path: (problem.message, problem.line) for problem in caught.value.problems}
    lines = FULL.read_text().splitlines()
    assert set(found) == {f"{RUNTIME}.{key}" for key in ("dependencies", "pythonPath", "git.gitSecretId")}
    for path, (message, line) in found.items():
        assert message == "is not supported yet"
        assert path.rpartition(".")[2] in lines[line - 1]


@pytest.mark.parametrize(
    "command, launcher, script, args, module",
    [
        ("torchrun a.py", LauncherOptions(), "a.py", (), False),
        (
            "torchrun --nproc_per_node 2 --rdzv-backend=static -m pkg.main --lr 1",
            LauncherOptions(args=("--nproc_per_node", "2", "--rdzv-backend=static")),
            "pkg.main",
            ("--lr", "1"),
            True,
        ),
        (
            "torchrun --standalone a.py --module x",
            LauncherOptions(args=("--standalone",)),
            "a.py",
            ("--module", "x"),
            False,
        ),
        (
            "python -u a.py 'two words'",
            LauncherOptions(kind="python", processes_per_node=1),
            "a.py",
            ("two words",),
            False,
        ),
    ],
)
def test_a_command_is_taken_apart(command, launcher, script, args, module):
    job = job_of(command=command)
    assert job.launcher == launcher
    assert (job.program.script, job.program.args, job.program.module) == (script, args, module)


def test_without_a_command_torchrun_runs_the_entrypoint():
    job = job_of(("command", "git"), scriptPathURI="oci://bucket@namespace/code/", entrypoint="train.py")
    assert (job.launcher.kind, job.program.script) == ("torchrun", "train.py")


def test_variables_refer_to_one_another_and_to_nothing_else():
    env = [
        {"name": "A", "value": "x"},
        {"name": "B", "value": "${A}/$$1/${HOME}"},
        {"name": "C", "value": None},
    ]
    assert job_of(env=env).env == {"A": "x", "B": "x/$1/${HOME}", "C": ""}
    assert job_of(env={"N": 1, "T": True}).env == {"N": "1", "T": "true"}


def test_the_runtimes_tags_win_over_those_of_the_infrastructure():
    mapping = mapping_of({"freeformTags": {"team": "ml"}})
    mapping["spec"]["infrastructure"]["spec"]["freeformTags"] = {"team": "old", "cost": "1"}
    assert job_file.build(mapping).tags == {"team": "ml", "cost": "1"}


def test_the_maximum_runtime_is_in_minutes():
    assert job_of(maximumRuntimeInMinutes=120).limits.max_runtime == 7200


@pytest.mark.parametrize(
    "runtime, remove, problem",
    [
        ({"replicas": 0}, (), "replicas: must be a whole number of at least 1, not 0"),
        ({"replica": 2}, (), "replica: says the same as 'replicas': remove one of them"),
        (
            {"command": "deepspeed a.py"},
            (),
            "command: the launcher 'deepspeed' is not supported yet: torchrun and python are",
        ),
        ({"command": "torchrun 'a.py"}, (), "command: cannot be split into arguments: no closing quotation"),
        ({"command": "torchrun --nnodes 2"}, (), "command: is needed, or 'command': what to run"),
        ({"comand": "x"}, (), "comand: unknown key 'comand'; did you mean 'command'?"),
        ({}, ("outputDir",), "outputDir: is needed with 'outputUri'"),
        ({}, ("git",), "git: is needed, or 'scriptPathURI': where the code is"),
        ({"inputs": ["x"]}, (), "inputs: must map sources to targets, not a list"),
        ({"env": ["A=1"]}, (), "env: must be a list of sections with name and value"),
    ],
)
def test_what_is_wrong_is_told_by_its_own_path(runtime, remove, problem):
    assert f"{RUNTIME}.{problem}" in problems_of(remove, **runtime)


def test_another_runtime_is_not_taken_for_this_one():
    mapping = mapping_of({})
    mapping["spec"]["runtime"]["type"] = "python"
    with pytest.raises(JobFileError, match="must be pyTorchDistributed, not 'python'"):
        job_file.build(mapping)
