"""The test bed itself: what it starts works, says why when it does not, and leaves nothing behind."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scripts.airflow_api import AirflowClient
from scripts.airflow_component import SQLITE
from scripts.emulator_process import Access
from scripts.local_airflow import USER, LocalAirflow, free_port
from scripts.service import Service, ServiceError

ROOT = Path(__file__).resolve().parent.parent

# A program whose child leaves its session and shrugs at SIGTERM, as a task of Airflow or a node may.
STUBBORN = """
import os, signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
process.stdout.readline()
print("started", flush=True)
time.sleep(300)
"""


def processes_of(folder: Path) -> dict[int, str]:
    """Return the living processes that carry the folder's name in their environment, arguments or working directory.

    All three, because a program that sets its title overwrites the first two.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            told += os.fsencode((process / "cwd").readlink())
            dead = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            command = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if str(folder).encode() in told and not dead and int(process.name) != os.getpid():
            found[int(process.name)] = command
    return found


def eventually_nothing(folder: Path, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while left := processes_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def service(folder: Path, program: str) -> Service:
    env = {"OCIDIST_TEST": str(folder), "PATH": os.environ["PATH"]}
    return Service("a program", [sys.executable, "-c", program], log=folder / "log", env=env, cwd=folder)


def wait_for_words(log: Path, words: str, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while words not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline, f"{words!r} is not in {log}"
        time.sleep(0.02)


# Not for the session: it takes a third of a core for as long as it lives.
@pytest.fixture(scope="module")
def local_airflow(
    tmp_path_factory: pytest.TempPathFactory, emulator: Access, database: Path
) -> Iterator[LocalAirflow]:
    """Airflow's four processes with the example DAGs, connected to the emulator."""
    env = {**emulator.airflow_env(), "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    home = tmp_path_factory.mktemp("airflow")
    with LocalAirflow(home, dags=ROOT / "dags_examples", env=env, database=database) as airflow:
        yield airflow


def test_stopping_a_service_ends_children_that_left_its_session_and_ignore_sigterm(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.service.GRACE_S", 0.5)
    running = service(tmp_path, STUBBORN)
    running.start()
    wait_for_words(running.log, "started")
    running.stop()
    assert processes_of(tmp_path) == {}


def test_a_killed_service_leaves_no_children(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.service.GRACE_S", 0.5)
    running = service(tmp_path, STUBBORN)
    running.start()
    wait_for_words(running.log, "started")
    running.kill(signal.SIGKILL)
    running.wait(timeout=10)
    assert processes_of(tmp_path) == {}


def test_the_children_of_an_orphaned_service_live_until_it_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.service.GRACE_S", 0.5)
    running = service(tmp_path, STUBBORN)
    running.start()
    wait_for_words(running.log, "started")
    program = running.pid
    running.orphan()
    time.sleep(1)
    left = processes_of(tmp_path)
    assert program not in left
    assert any("SIG_IGN" in command for command in left.values())
    running.stop()
    assert processes_of(tmp_path) == {}


def test_a_service_ends_when_the_process_that_started_it_is_killed(tmp_path):
    starter = f"""
import os, sys, time
from pathlib import Path
from scripts import service
service.GRACE_S = 0.5
folder = Path({str(tmp_path)!r})
program = {STUBBORN!r}
env = {{"OCIDIST_TEST": str(folder)}}
service.Service("x", [sys.executable, "-c", program], log=folder / "log", env=env, cwd=folder).start()
time.sleep(300)
"""
    process = subprocess.Popen([sys.executable, "-c", starter], cwd=ROOT)
    try:
        wait_for_words(tmp_path / "log", "started")
    finally:
        process.kill()
        process.wait()
    eventually_nothing(tmp_path, within_s=15)


def test_a_service_that_was_asked_to_stop_is_not_reported_until_it_was_started_again_and_ended_by_itself(
    tmp_path,
):
    running = service(
        tmp_path, "import pathlib, time; time.sleep(0 if pathlib.Path('again').exists() else 300)"
    )
    running.start()
    running.check()
    running.stop()
    running.check()
    (tmp_path / "again").touch()
    running.start()
    running.wait(timeout=20)
    with pytest.raises(ServiceError, match="ended with exit code"):
        running.check()


def test_a_service_that_ends_by_itself_is_reported_with_its_last_words(tmp_path):
    running = service(tmp_path, "raise SystemExit('no space left on the moon')")
    running.start()
    running.wait(timeout=20)
    with pytest.raises(ServiceError, match=r"exit code 1.*\n.*no space left on the moon"):
        running.check()


def test_airflow_that_cannot_start_says_which_component_and_why(tmp_path, database):
    broken = {"AIRFLOW__CORE__EXECUTOR": "NoSuchExecutor"}
    airflow = LocalAirflow(tmp_path, dags=tmp_path / "dags", env=broken, database=database)
    with pytest.raises(ServiceError, match=r"(?s)(scheduler|migrate).*NoSuchExecutor"), airflow:
        pytest.fail("it started")
    assert processes_of(tmp_path) == {}


def start_demo(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scripts.demo", "--folder", str(folder / "demo"), "run"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_program(folder: Path, program: str) -> None:
    deadline = time.monotonic() + 240
    while not any(program in command for command in processes_of(folder).values()):
        assert time.monotonic() < deadline, f"the demo has not started {program}"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("amid", ["scripts.demo", "airflow_provider_ocidist.emulator", "airflow_component"])
def test_ctrl_c_ends_the_demo_and_leaves_nothing(tmp_path, amid):
    process = start_demo(tmp_path)
    wait_for_program(tmp_path, amid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    # Before the demo's first line is read, Python ends itself, and says so in its own way.
    early = amid == "scripts.demo" and "KeyboardInterrupt" in output
    assert early or process.returncode in (130, -signal.SIGINT), output
    assert early or "Traceback" not in output, output
    assert processes_of(tmp_path) == {}


@pytest.mark.slow
def test_killing_the_demo_leaves_nothing(tmp_path):
    process = start_demo(tmp_path)
    wait_for_program(tmp_path, "airflow_provider_ocidist.emulator")
    process.kill()
    process.communicate(timeout=60)
    eventually_nothing(tmp_path, within_s=20)


def test_down_with_nothing_running_is_no_error(tmp_path):
    command = [sys.executable, "-m", "scripts.demo", "--folder", str(tmp_path / "demo"), "down"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "nothing runs"


# Last, so that Airflow runs beside no other test.


@pytest.mark.slow
def test_airflow_serves_loads_the_examples_and_restarts_its_triggerer(local_airflow):
    api = local_airflow.api
    api.wait_for_dag("retrain_gpt")
    assert api.import_errors() == []
    local_airflow.kill("triggerer", signal.SIGKILL)
    with pytest.raises(ServiceError, match="triggerer"):
        local_airflow.check()
    local_airflow.start("triggerer")
    local_airflow.wait_healthy()
    local_airflow.check()


@pytest.mark.slow
def test_airflow_listens_on_loopback_only(local_airflow):
    inodes = set()
    for process in processes_of(local_airflow.home):
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            inodes |= {target[8:-1]} if target.startswith("socket:[") else set()
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    addresses = {row[1].rpartition(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert addresses == {"0100007F"}


@pytest.mark.slow
def test_airflow_lives_on_when_its_database_is_locked_for_longer_than_sqlite_waits_by_itself(local_airflow):
    with closing(sqlite3.connect(local_airflow.home / "airflow.db", timeout=30)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(10)
        # Who reads need not wait.
        assert local_airflow.api.has_dag("retrain_gpt")
        database.rollback()
    local_airflow.wait_healthy()
    local_airflow.check()
    assert "is locked" not in "".join(log.read_text() for log in (local_airflow.home / "logs").glob("*.log"))


class Troubled(BaseHTTPRequestHandler):
    """An api-server that hangs up first, then fails, then serves."""

    calls: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.calls.append(self.path)
        if len(self.calls) == 1:
            self.connection.close()
            return
        self.send_response(500 if len(self.calls) == 2 else 200)
        self.end_headers()
        self.wfile.write(b'{"state": "success"}')

    def do_POST(self) -> None:
        self.send_response(201)
        self.end_headers()
        self.wfile.write(b'{"access_token": "x"}')

    def log_message(self, *_: Any) -> None:
        """Be silent."""


def test_writers_that_come_at_once_do_not_wait_for_one_another_until_they_give_up(
    local_airflow: LocalAirflow,
) -> None:
    """Airflow commits an entry of its audit log before each of these calls; see `commit_in_a_thread`."""
    clients, calls = random.randint(4, 8), 12
    longest_wait_s = int(dict(entry.split("=") for entry in SQLITE)["busy_timeout"]) / 1000

    def write(client: int) -> list[float]:
        api = AirflowClient(local_airflow.url, USER, local_airflow.password)
        return [seconds_of(api, {"key": f"at_once_{client}_{call}", "value": "x"}) for call in range(calls)]

    with ThreadPoolExecutor(clients) as threads:
        seconds = [each for found in threads.map(write, range(clients)) for each in found]
    assert max(seconds) < longest_wait_s
    entries = local_airflow.api.call("GET", "/eventLogs", params={"event": "post_variable", "limit": 1})
    assert entries["total_entries"] == len(seconds)


def seconds_of(api: AirflowClient, variable: dict[str, str]) -> float:
    """Return how long Airflow took to make a variable."""
    began = time.monotonic()
    api.call("POST", "/variables", json=variable)
    return time.monotonic() - began


def test_a_reading_that_airflow_could_not_serve_is_asked_for_again():
    with ThreadingHTTPServer(("127.0.0.1", 0), Troubled) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        client = AirflowClient(f"http://127.0.0.1:{server.server_port}", "admin", "x")
        assert client.dag_run("d", "r") == {"state": "success"}
        client.close()
        server.shutdown()
    assert len(Troubled.calls) == 3


def test_processes_whose_random_numbers_have_the_same_seed_choose_different_ports() -> None:
    chosen = []
    for _ in range(2):
        random.seed(7)
        chosen.append([free_port() for _ in range(3)])
    assert chosen[0] != chosen[1]
