"""The examples train for real: on two nodes, each with the launcher it is written for, and go on where they stopped."""

from __future__ import annotations

import os
import pydoc_data.topics
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits, Output, Program
from airflow_provider_ocidist.storage.checkpoints import fetch
from tests.agent.gangs import REPOSITORY, Gang
from tests.launchers.nodes import PYTHON

pytestmark = [pytest.mark.launchers, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

EXAMPLES = REPOSITORY / "dags_examples" / "train"
FEW_DIGITS = ("--images", "128", "--print-freq", "2")
SMALL_GPT = ("--width", "32", "--layers", "1", "--heads", "2", "--block-size", "16")
PARTS = [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]


def gang_of(tmp_path: Path, kind: str, script: str, *args: str, **changes: Any) -> Gang:
    """Return two nodes that run an example, and share the folder of its checkpoints."""
    folder = tmp_path / "shared"
    options = {
        "launcher": LauncherOptions(kind=kind, processes_per_node=1),
        "program": Program(script=str(EXAMPLES / script), args=args),
        "checkpoints": Checkpoints(path=str(folder), uri=str(tmp_path / "safe"), keep=9),
        "limits": Limits(stop_grace=5.0, join_timeout=120.0),
    }
    return Gang(tmp_path, "", nodes=2, python=PYTHON, **{**options, **changes})


def run_alone(tmp_path: Path, script: str, *args: str, **environ: str) -> str:
    """Run an example as one process that goes on from the same checkpoints; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [PYTHON, str(EXAMPLES / script), *args],
        cwd=tmp_path,
        env=clean
        | {
            "OMP_NUM_THREADS": "1",
            "OCIDIST_CHECKPOINT_DIR": str(tmp_path / "shared"),
            "OCIDIST_PROGRESS_FILE": str(tmp_path / "progress.jsonl"),
        }
        | environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def with_decoys(folder: Path) -> None:
    """Give the newest checkpoint a name that sorts before others as a text, and put beside it what is none."""
    newest = max(folder.glob("step-*"))
    newest.rename(folder / f"step-1000000{newest.suffix}")
    for name in (f"step-999999{newest.suffix}", "step-2000000.tmp"):
        if newest.suffix:
            (folder / name).write_bytes(b"no checkpoint")
        else:
            (folder / name).mkdir()
            (folder / name / ".metadata").write_bytes(b"no checkpoint")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+/\d+ loss (\S+)", output, re.MULTILINE)]


def test_the_classifier_learns_digits_with_the_arguments_of_the_tutorial(tmp_path: Path) -> None:
    args = ("--epochs", "2", "--batch-size", "8", "--learning-rate", "0.05", "--momentum", "0.9")
    more = ("--workers", "0", "--output-dir", "outputs", "--backend", "gloo", "--timeout", "5")
    outputs = (Output(path="outputs", uri=str(tmp_path / "out")),)
    with gang_of(tmp_path, "python", "digits.py", *args, *more, *FEW_DIGITS, outputs=outputs) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed, report = gang.agents[0].stdout.read_text(), gang.agents[0].report
    assert losses(printed)[-1] < losses(printed)[0]
    assert "2 processes on cpu, from epoch 0" in printed
    assert report.checkpoint
    assert report.checkpoint.step == 16
    assert (tmp_path / "out" / "digits_net.pt").exists()
    assert "from epoch 2" in run_alone(tmp_path, "digits.py", "--epochs", "3", "--workers", "0", *FEW_DIGITS)


def test_accelerate_trains_and_goes_on(tmp_path: Path) -> None:
    private = Checkpoints(path="checkpoints", uri=str(tmp_path / "safe"))
    with gang_of(
        tmp_path, "accelerate", "digits_accelerate.py", "--epochs", "3", *FEW_DIGITS, checkpoints=private
    ) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed, report = gang.agents[0].stdout.read_text(), gang.agents[0].report
    assert "2 processes" in printed
    assert losses(printed)[-1] < losses(printed)[0] - 0.3
    assert report.checkpoint
    assert report.checkpoint.step == 12
    (tmp_path / "safe" / "step-000012").rename(tmp_path / "fetched")
    (tmp_path / "shared").mkdir()
    (tmp_path / "fetched").rename(tmp_path / "shared" / "step-000012")
    assert "from step 12" in run_alone(tmp_path, "digits_accelerate.py", "--epochs", "4", *FEW_DIGITS)


def test_accelerate_trains_on_two_nodes_that_share_the_folder(tmp_path: Path) -> None:
    with gang_of(tmp_path, "accelerate", "digits_accelerate.py", "--epochs", "2", *FEW_DIGITS) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text() + gang.agents[1].stderr.read_text()
        assert gang.agents[0].report.checkpoint
        assert gang.agents[0].report.checkpoint.step == 8
    assert names_in(tmp_path / "shared") == ["step-000004", "step-000008"]


OF_A_LAUNCHER = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""What DeepSpeed's launcher sets, without which it asks MPI."""
WRITES_UNDER_THE_FINAL_NAME = """
import os, re, sys

def end_at(event, arguments):
    if event == "os.mkdir" and re.fullmatch(r"step-\\d+", os.path.basename(arguments[0])):
        os.write(2, b"a checkpoint has its name before it is written\\n")
        os._exit(9)

sys.addaudithook(end_at)
"""
ALONE = {
    "digits.py": ("--epochs", "1", "--workers", "0", *FEW_DIGITS),
    "digits_accelerate.py": ("--epochs", "1", *FEW_DIGITS),
    "digits_deepspeed.py": ("--epochs", "1", *FEW_DIGITS),
    "gpt_fsdp.py": ("--data", pydoc_data.topics.__file__, "--steps", "2", *SMALL_GPT),
}


@pytest.mark.parametrize("script", ALONE)
def test_a_retry_after_the_last_step_finds_the_greatest_one_and_says_that_all_was_done(
    tmp_path: Path, script: str
) -> None:
    progress = tmp_path / "progress.jsonl"
    environ = OF_A_LAUNCHER if script == "digits_deepspeed.py" else {}
    if script == "digits_deepspeed.py":
        # A process that is killed leaves what has no name yet, and the next one starts from nothing.
        (tmp_path / "sitecustomize.py").write_text(WRITES_UNDER_THE_FINAL_NAME)
        (tmp_path / "shared" / ".step-000008.part" / "of-a-larger-gang").mkdir(parents=True)
        environ = {**environ, "PYTHONPATH": str(tmp_path)}
    run_alone(tmp_path, script, *ALONE[script], **environ)
    assert not list((tmp_path / "shared").rglob(".step-*"))
    assert not progress.exists()
    with_decoys(tmp_path / "shared")
    run_alone(tmp_path, script, *ALONE[script], **environ)
    assert progress.read_text() == '{"complete": true}\n'


def test_deepspeed_trains_in_parts_and_its_tools_are_no_checkpoint(tmp_path: Path) -> None:
    with gang_of(tmp_path, "deepspeed", "digits_deepspeed.py", "--epochs", "2", *FEW_DIGITS) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed, report = gang.agents[0].stdout.read_text(), gang.agents[0].report
    assert "2 processes, ZeRO stage 2" in printed
    assert losses(printed)[-1] < losses(printed)[0]
    assert report.checkpoint
    assert report.checkpoint.step == 8
    parts = sorted(path.name for path in Path(report.checkpoint.uri).rglob("*optim_states.pt"))
    assert len(parts) == 2
    assert (tmp_path / "shared" / "zero_to_fp32.py").exists()


def test_a_sharded_gpt_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    data, small = ("--data", pydoc_data.topics.__file__), (*SMALL_GPT, "--checkpoint-every", "10")
    private = Checkpoints(path="checkpoints", uri=str(tmp_path / "safe"), keep=1)
    first, second, alone = tmp_path / "first", tmp_path / "second", tmp_path / "alone"
    with gang_of(
        first, "torchrun", "gpt_fsdp.py", *data, "--steps", "20", *small, checkpoints=private
    ) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        printed = gang.agents[0].stdout.read_text() + gang.agents[1].stdout.read_text()
    assert "2 processes on cpu" in printed
    assert losses(printed)[-1] < losses(printed)[0] - 0.3
    assert names_in(tmp_path / "safe" / "step-000020") == PARTS

    with gang_of(
        second, "torchrun", "gpt_fsdp.py", *data, "--steps", "30", *small, checkpoints=private
    ) as gang:
        assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
        further = gang.agents[0].stdout.read_text() + gang.agents[1].stdout.read_text()
    assert "2 processes on cpu" in further
    assert "from step 20" in further
    assert losses(further)[0] < losses(printed)[0] - 0.3
    assert names_in(tmp_path / "safe") == ["fence.json", "step-000030"]

    fetch(str(tmp_path / "safe" / "step-000030"), alone / "shared")
    last = run_alone(alone, "gpt_fsdp.py", *data, "--steps", "40", *small)
    assert "1 processes on cpu" in last
    assert "from step 30" in last
    assert losses(last)[0] < losses(printed)[0] - 0.3
