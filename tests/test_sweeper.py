"""Whatever tests start ends with them: pytest is killed with SIGKILL while all of it runs, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.keeper import descendants
from scripts.sweeper import NAME
from tests.agent.gangs import processes_with

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 90
STARTS = {
    "a plain child": "subprocess.Popen(sleeper)",
    "a child in a session of its own": "subprocess.Popen(sleeper, start_new_session=True)",
    "a daemon": """subprocess.run(["sh", "-c", 'setsid "$@" & exit', "sh", *sleeper])""",
    "a child of a child": "subprocess.Popen(['sh', '-c', '\"$@\"; true', 'sh', *sleeper])",
    "an emulator": "subprocess.Popen([sys.executable, '-m', 'airflow_provider_ocidist.emulator', '--state', mark],"
    " start_new_session=True, stdout=subprocess.DEVNULL)",
}
TEST = """
import os, subprocess, sys, time
from pathlib import Path

mark = {mark!r}
sleeper = [sys.executable, "-c", "import time; time.sleep(1000)", mark]

def test_that_is_killed({fixture}):
    {start}
    time.sleep({delay:.2f})
    Path(mark, "ready").touch()
    time.sleep(1000)
"""
NODE = """data_science, access = oci_emulator.client("data_science"), oci_emulator.access
    import oci
    models = oci.data_science.models
    place = dict(project_id=access.project_id, compartment_id=access.compartment_id)
    job = data_science.create_job(models.CreateJobDetails(**place, job_configuration_details=
        models.DefaultJobConfigurationDetails(), job_infrastructure_configuration_details=
        models.StandaloneJobInfrastructureConfigurationDetails(
            shape_name="VM.Standard2.1", block_storage_size_in_gbs=50, subnet_id=access.subnet_id))).data
    script = f"sleep 1000 & touch {mark}/started; sleep 1000".encode()
    data_science.create_job_artifact(job.id, script, content_disposition="attachment; filename=run.sh")
    data_science.create_job_run(models.CreateJobRunDetails(**place, job_id=job.id))
    while not Path(mark, "started").exists():
        time.sleep(0.05)"""


def alive(processes: dict[int, str]) -> list[int]:
    """Return those that still run; a process is known by its number and the moment of its start."""
    return [pid for pid, start in processes.items() if born(pid) == start]


def born(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run pytest on a folder by itself, as a person does, until its test is in the midst of things."""
    # Not the variable of the run that we are part of, which would sweep up after this one.
    environ = {name: value for name, value in os.environ.items() if name != NAME and "PYTEST" not in name}
    environ |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, str(folder)], cwd=folder, env=environ, stdout=log, stderr=log)
        try:
            until(lambda: (folder / "ready").exists() or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            yield process
        finally:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_and_see_nothing_left(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Return how many processes there were besides pytest's own."""
    left = {*descendants(process.pid), *processes_with(str(folder))} - {process.pid}
    processes = {pid: start for pid in left if (start := born(pid))}
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not alive(processes))
    return len(processes)


@pytest.mark.parametrize("workers", [0, 2])
def test_nothing_that_our_tests_started_outlives_a_killed_run(tmp_path: Path, workers: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    starts = [*chance.choices(list(STARTS), k=3), "an emulator"]
    text = TEST.format(
        mark=str(tmp_path),
        fixture="emulator",
        start="; ".join(STARTS[each] for each in starts),
        delay=chance.uniform(0, 0.3),
    )
    (tmp_path / "test_killed.py").write_text(text)
    options = ["-p", "xdist", "-n", str(workers)] if workers else ["-p", "xdist"]
    with started(tmp_path, "-p", "tests.conftest", *options) as process:
        # The fixture's emulator and its keeper, too.
        assert kill_and_see_nothing_left(process, tmp_path) >= len(starts) + 2


@pytest.mark.parametrize("workers", [0, 1])
def test_no_node_of_the_fixtures_emulator_outlives_a_killed_run_of_its_users(
    tmp_path: Path, workers: int
) -> None:
    text = TEST.format(mark=str(tmp_path), fixture="oci_emulator", start=NODE, delay=0)
    (tmp_path / "test_killed.py").write_text(text)
    options = ["-p", "xdist", "-n", str(workers)] if workers else []
    with started(tmp_path, "-p", "airflow_provider_ocidist.testing", *options) as process:
        assert kill_and_see_nothing_left(process, tmp_path) >= 3
