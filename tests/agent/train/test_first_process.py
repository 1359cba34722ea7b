"""Process 1 of a container: it passes every signal on, reaps orphans, and ends as the agent does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.train.first_process import FORWARDED
from airflow_provider_ocidist.backends.bundle import BLOCK_SIGNALS, BOOT_VARIABLE
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import LauncherOptions, Program
from tests.agent.gangs import REPOSITORY, until
from tests.agent.starts import as_artifact, as_module, in_a_pod, in_an_image_that_has_it

SEED = int(os.environ.get("TEST_SEED", "20261128"))
OWN_PROCESSES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
PROGRAM = """
import os, signal, sys, time
from airflow_provider_ocidist.agent.train.first_process import FORWARDED, divide
status = divide()
if status is not None:
    sys.exit(status)
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
taken = []
for number in FORWARDED:
    # One write: a handler interrupts another one's print.
    signal.signal(number, lambda number, _: (taken.append(number), os.write(1, b"taken %d\\n" % number)))
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.1)
        os._exit(0)
    os.wait()
print("ready", flush=True)
while signal.SIGTERM not in taken:
    time.sleep(0.01)
states = [open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0]
          for name in os.listdir("/proc") if name.isdigit()]
while "Z" in states:
    time.sleep(0.01)
    states = [open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0]
              for name in os.listdir("/proc") if name.isdigit()]
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
"""


HELD = """
import os, pathlib, sys, time

class Holds:
    def find_spec(self, name, *_):
        if name == os.environ["HOLDS"]:
            sys.meta_path.remove(self)
            place = pathlib.Path(os.environ["PLACE"])
            (place / "began").touch()
            while not (place / "go").exists():
                time.sleep(0.01)

if os.environ.get("HOLDS"):
    sys.meta_path.insert(0, Holds())
"""
"""Holds a process where it begins to import a module."""


@contextmanager
def container(
    tmp_path: Path, command: Sequence[str], **environ: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a program as process 1 and its child; give the process to wait for, and its output."""
    if (
        refused := subprocess.run([*OWN_PROCESSES, "true"], check=False, capture_output=True, text=True)
    ).returncode:
        pytest.skip(f"no process namespace can be made here: {refused.stderr.strip()}")
    output = tmp_path / "output"
    with output.open("wb") as file:
        outer = subprocess.Popen(
            [*OWN_PROCESSES, *command],
            cwd=REPOSITORY,
            env={**os.environ, **environ},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield outer, output
    finally:
        with suppress(ProcessLookupError):
            os.killpg(outer.pid, signal.SIGKILL)
        outer.wait()


def first_process_of(outer: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])


@pytest.mark.parametrize("end, code", [("exits", 7), ("killed", 137)])
def test_each_signal_reaches_the_agent_orphans_are_reaped_and_its_exit_code_is_kept(
    tmp_path: Path, end: str, code: int
) -> None:
    others = [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
    random.Random(f"{SEED}.{end}").shuffle(others)
    print(f"seed {SEED}.{end}: {others}")
    with container(tmp_path, [sys.executable, "-c", PROGRAM, end]) as (outer, output):
        until(lambda: b"ready" in output.read_bytes() or outer.poll() is not None)
        first = first_process_of(outer)
        for number in (*others, signal.SIGTERM):
            os.kill(first, number)
        assert outer.wait(240) == code, output.read_text()
        taken = {int(line.split()[1]) for line in output.read_text().splitlines() if "taken" in line}
    assert taken == {*others, signal.SIGTERM}


def test_what_starts_the_agent_keeps_every_signal_that_process_1_passes_on(tmp_path: Path) -> None:
    program = f"{BLOCK_SIGNALS}print(*sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
    with container(tmp_path, [sys.executable, "-c", program]) as (outer, output):
        assert outer.wait(120) == 0, output.read_text()
        assert output.read_text().split() == [str(int(number)) for number in sorted(FORWARDED)]


@pytest.mark.parametrize(
    "command, module",
    [
        (as_module, "airflow_provider_ocidist.agent.stopping"),
        (as_module, "airflow_provider_ocidist.agent.node"),
        (as_artifact, "airflow_provider_ocidist.agent.__main__"),
        (in_an_image_that_has_it, "airflow_provider_ocidist.agent.__main__"),
        (in_a_pod, "tempfile"),
    ],
)
def test_a_signal_that_comes_while_the_agent_is_loaded_ends_it(
    tmp_path: Path, command: Callable[[Path], list[str]], module: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HELD)
    config = AgentConfig(
        run_name="held",
        nodes=1,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        launcher=LauncherOptions(kind="python"),
    )
    (tmp_path / "program.py").write_text("print('trained')")
    paths = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "HOME": str(tmp_path)}
    variables = {
        "PLACE": str(tmp_path),
        "HOLDS": module,
        "OCIDIST_CODE_DIR": str(tmp_path),
        BOOT_VARIABLE: "boot",
    }
    with container(tmp_path, command(tmp_path), **config.to_env(), **paths, **variables) as (outer, output):
        until(lambda: (tmp_path / "began").exists() or outer.poll() is not None)
        os.kill(first_process_of(outer), signal.SIGTERM)
        (tmp_path / "go").touch()
        assert outer.wait(120) == 143, output.read_text()
        assert "trained" not in output.read_text()
