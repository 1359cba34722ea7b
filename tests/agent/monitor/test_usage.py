"""Processors, memory and GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor import usage
from airflow_provider_ocidist.agent.monitor.usage import GpuUse, UsageMeter, memory_in_use, read_gpus
from airflow_provider_ocidist.model.report import Usage
from tests.agent.gangs import until


def test_processor_time_counts_all_processes_of_the_training() -> None:
    burns = "import os, time\nos.fork()\nprint('on', flush=True)\nwhile True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", burns], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            meter = UsageMeter(process.pid, lambda _: None, lambda: None)
            meter.look()
            process.stdout.readline()
            time.sleep(1)  # the kernel counts in hundredths: over milliseconds a rate means nothing
            cores = meter.look().cores
        finally:
            os.killpg(process.pid, 9)
    assert cores is not None
    assert 0.05 < cores <= (os.cpu_count() or 1) + 0.5


def test_memory_is_that_of_the_machine_where_no_container_limits_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(usage, "CGROUP", tmp_path)
    used, there = memory_in_use()
    assert used
    assert there
    assert 0 < used < there
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("600\n")
    assert memory_in_use() == (600, 1000)


def test_the_table_of_nvidia_smi_is_read() -> None:
    table = "87, 41, 60000, 81559\n[N/A], [N/A], 10, 20\n93, 40, 70000, 81559\n"
    assert read_gpus(table) == GpuUse(((87, 41, 60000, 81559), (93, 40, 70000, 81559)), is_whole=False)
    # An H200 with driver 580.159: one that multiplies matrices, one whose NCCL waits for another rank, one at rest.
    of_h200 = "100, 23, 885, 143771\n100, 0, 2019, 143771\n0, 0, 659, 143771\n"
    found = read_gpus(of_h200)
    assert found.is_whole
    assert [row[1] >= usage.GPU_MEMORY_AT_WORK for row in found.rows] == [True, False, False]
    assert (
        read_gpus("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.")
        == GpuUse()
    )
    assert read_gpus(f"WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n{of_h200}") == found


@pytest.mark.parametrize("memory_use, at_work", [(40, True), (0, False)])
def test_gpus_that_compute_are_a_sign_of_life_and_those_that_spin_are_none(
    tmp_path: Path, monkeypatch, memory_use: int, at_work: bool
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho '100, {memory_use}, 40000, 80000'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    signs: list[str] = []
    told: list[Usage] = []
    meter = UsageMeter(os.getpid(), told.append, lambda: signs.append("at work"))
    seen = meter.look()
    assert (seen.gpu, seen.gpu_memory) == (1.0, 0.5)
    assert bool(signs) == at_work


def test_what_was_still_being_measured_as_its_launch_ended_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A driver may take half a minute; the next launch would seem to idle for as long as this one has.
    asked, go_on = tmp_path / "asked", tmp_path / "go-on"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ntouch {asked}\nwhile [ ! -e {go_on} ]; do sleep 0.05; done\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    published: list[Usage] = []
    meter = UsageMeter(os.getpid(), published.append, lambda: None, interval=0.01)
    meter.start()
    (thread,) = [each for each in threading.enumerate() if each.name == "usage"]
    until(asked.exists)
    meter.close()
    go_on.touch()
    thread.join(60)
    assert not thread.is_alive()
    assert published == []
