"""Process 1 of a container: it passes every signal on, reaps orphans, and ends as the agent does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent.gangs import REPOSITORY, until

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
    signal.signal(number, lambda number, _: (taken.append(number), print("taken", number, flush=True)))
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


@contextmanager
def container(tmp_path: Path, end: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the program as process 1 and its child; give the process to wait for, and its output."""
    if (
        refused := subprocess.run([*OWN_PROCESSES, "true"], check=False, capture_output=True, text=True)
    ).returncode:
        pytest.skip(f"no process namespace can be made here: {refused.stderr.strip()}")
    output = tmp_path / "output"
    with output.open("wb") as file:
        outer = subprocess.Popen(
            [*OWN_PROCESSES, sys.executable, "-c", PROGRAM, end],
            cwd=REPOSITORY,
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
    with container(tmp_path, end) as (outer, output):
        until(lambda: b"ready" in output.read_bytes() or outer.poll() is not None)
        first = first_process_of(outer)
        for number in (*others, signal.SIGTERM):
            os.kill(first, number)
        assert outer.wait(240) == code, output.read_text()
        taken = {int(line.split()[1]) for line in output.read_text().splitlines() if "taken" in line}
    assert taken == {*others, signal.SIGTERM}
