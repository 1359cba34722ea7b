"""Who is asked to end does so, whatever its threads wait for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.bundle import BOOT_VARIABLE
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Input, LauncherOptions, Program
from tests.agent.gangs import REPOSITORY, until
from tests.agent.starts import as_artifact, as_module, in_an_image_that_has_it

BUFFERED = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""}
LEAVES = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from airflow_provider_ocidist.agent.train.interruptible import leave

def ask_a_store() -> None:
    with ThreadPoolExecutor() as pool:
        pool.submit(waits.set)
        pool.submit(threading.Event().wait)

waits = threading.Event()
threading.Thread(target=ask_a_store, daemon=True).start()
waits.wait()
print("said", end="")
leave(3)
"""


def test_a_node_that_ends_waits_for_no_thread_that_asks_a_store_without_an_answer() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES],
        cwd=REPOSITORY,
        env=BUFFERED,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "said"), done.stderr


LEAVES_AMID_HANDLERS = """
import atexit, sys, threading
from airflow_provider_ocidist.agent.train import interruptible

def stop(how: str) -> None:
    print("handled", end="")
    if how == "blocks":
        threading.Event().wait()
    raise {"exits": SystemExit(9), "is interrupted": KeyboardInterrupt(), "fails": OSError("lost")}[how]

atexit.register(stop, sys.argv[1])
interruptible.LEAVE_AFTER = 0.5
print("said", end=" ")
interruptible.leave(3)
"""


@pytest.mark.parametrize("how", ["blocks", "exits", "is interrupted", "fails"])
def test_whatever_its_exit_handlers_do_a_node_ends_with_its_code_and_what_it_has_said(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_AMID_HANDLERS, how],
        cwd=REPOSITORY,
        env=BUFFERED,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = "said " if how == "blocks" else "said handled"
    assert (done.returncode, done.stdout) == (3, said), done.stderr


LEAVES_A_FULL_PIPE = """
import os, sys
from airflow_provider_ocidist.agent.train import interruptible

os.set_blocking(1, False)
try:
    while True:
        os.write(1, bytes(4096))
except BlockingIOError:
    os.set_blocking(1, True)
interruptible.LEAVE_AFTER = 0.2
print("said", end="")
interruptible.leave(3)
"""


def test_a_node_ends_though_nobody_reads_what_it_says() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_FULL_PIPE], cwd=REPOSITORY, env=BUFFERED, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.wait(timeout=20) == 3
        finally:
            process.kill()


@pytest.mark.parametrize("command", [as_module, as_artifact, in_an_image_that_has_it])
def test_however_the_agent_came_here_it_ends_though_a_server_of_inputs_never_answers(
    tmp_path: Path, command: Callable[[Path], list[str]]
) -> None:
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        socket.create_server(("127.0.0.1", 0), backlog=64) as server,
    ):
        server.settimeout(120)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        config = AgentConfig(
            run_name="held",
            nodes=1,
            run_dir=str(tmp_path / "run"),
            program=Program(script="program.py"),
            launcher=LauncherOptions(kind="python"),
            inputs=tuple(Input(source=f"{address}/{name}", target=name) for name in ("one", "two")),
        )
        (tmp_path / "program.py").touch()
        variables = {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path), "OCIDIST_CODE_DIR": str(tmp_path)}
        process = subprocess.Popen(
            command(tmp_path),
            env={**os.environ, **config.to_env(), **variables, BOOT_VARIABLE: "boot"},
            cwd=tmp_path,
            stderr=stderr,
        )
        try:
            asked = [server.accept()[0] for _ in range(2)]
            process.send_signal(signal.SIGTERM)
            # The server answers none of its requests until the node has ended.
            until(lambda: process.poll() is not None, timeout=45)
            assert process.returncode == 143, (tmp_path / "stderr").read_text()
            for each in asked:
                each.close()
        finally:
            process.kill()
            process.wait()
