"""Real torchrun that keeps what its processes print to itself, by `--tee` and `--redirects`."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.process_logs import NewOutput, read_process_logs
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions
from tests.agent.gangs import Gang

PROGRAM = """
import os, pathlib, sys, time
print("step 7/9 loss 0.5", flush=True)
# Rank 0, of which alone torchtitan's script shows lines, has printed it before the other rank fails.
printed = pathlib.Path("printed")
if os.environ["RANK"] == "0":
    printed.touch()
    time.sleep(600)
while not printed.exists():
    time.sleep(0.05)
{}
"""
RECORDED = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1":
        os.close(2)
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    import time
    time.sleep(600)
main()
"""
"""Its last words reach nothing but the error file."""
OUT_OF_MEMORY = PROGRAM.format('raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")')
PORT_IN_USE = PROGRAM.format(
    "import socket; first = socket.create_server(('127.0.0.1', 0)); socket.create_server(first.getsockname())"
)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, program, cause, words",
    [
        (("--tee", "3"), PORT_IN_USE, Cause.NODE, "Address already in use"),
        (("--redirects=3",), OUT_OF_MEMORY, Cause.OOM, "CUDA out of memory"),
        # As torchtitan's run_train.sh has it: of the other ranks nothing is shown.
        (
            ("--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
            OUT_OF_MEMORY,
            Cause.OOM,
            "CUDA out of memory",
        ),
        (("-r", "1:3"), RECORDED, Cause.OOM, "CUDA out of memory"),
    ],
    ids=["tee", "redirects", "torchtitan", "error file"],
)
def test_an_error_keeps_its_diagnosis_wherever_torchrun_puts_it(
    tmp_path: Path, flags: tuple[str, ...], program: str, cause: Cause, words: str
) -> None:
    options = LauncherOptions(kind="torchrun", args=flags, processes_per_node=2)
    with Gang(tmp_path, program, kind="torchrun", launcher=options) as gang:
        gang.run()
        report = gang.agents[0].report
    assert (report.cause, report.exit_code) == (cause, 1)
    assert words in str(report.message)
    assert "(rank 1)" in str(report.message)
    if program is not RECORDED:
        assert report.progress
        assert (report.progress.step, report.progress.steps) == (7, 9)


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run_x" / "attempt_0" / "3"
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("noise\n" * 1_000_000 + "the end\n")
    found = read_process_logs(tmp_path)
    assert len(found) < 1_000_000
    assert found.endswith("[default3]:the end\n")
    assert read_process_logs(tmp_path / "absent") == ""


def test_what_files_grow_by_is_taken_once_and_in_whole_lines(tmp_path: Path) -> None:
    folder = tmp_path / "run_x" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    new, log = NewOutput(tmp_path), folder / "stdout.log"
    assert list(new.take()) == []
    log.write_bytes(b"step 1\nst")
    assert [output for _, output in new.take()] == [b"step 1\n"]
    with log.open("ab") as file:
        file.write(b"ep 2\n")
    assert [output for _, output in new.take()] == [b"step 2\n"]
    assert list(new.take()) == []
