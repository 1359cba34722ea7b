"""The demo: `python -m scripts.demo run|up|down`. Airflow trains a GPT on two nodes of the emulator, in `.demo/`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NoReturn

if __name__ == "__main__":
    # Until `main` takes over: Ctrl-C ends us here, where nothing runs yet, and no import can catch it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from rich.console import Console

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.run import RunRef, RunStatus
from scripts import demo_results
from scripts.airflow_api import ENDED, AirflowApiError
from scripts.demo_view import View
from scripts.emulator_process import Access, EmulatorProcess
from scripts.local_airflow import USER, LocalAirflow
from scripts.service import ServiceError

ROOT = Path(__file__).resolve().parent.parent
DAG_ID = "retrain_gpt"
BROWSER_PORT = 8080
RUN_TIMEOUT_S = 900.0
ONE_AMONG_MANY = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
"""The other examples, some of which have a schedule, wait for a person."""


class DemoError(Exception):
    """The demo cannot go on; the message is one line for a person."""


# One demo at a time


@dataclass(frozen=True)
class Place:
    """The demo's own folder, and the lock that shows whether a demo runs in it."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def note(self) -> Path:
        """The file that says how to reach what `up` has started."""
        return self.folder / "up.json"

    @property
    def database(self) -> Path:
        """A migrated, empty database, kept between runs because migrating takes seconds."""
        return self.folder / "cache" / f"airflow-{version('apache-airflow')}.db"

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Lock the folder. The lock names its process, and ends with it in any case."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+") as lock:
            if not _lock(lock):
                raise DemoError("the demo runs already; `make down` ends it")
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def holder(self) -> int | None:
        """Return the process id of the demo that runs now; None when none does."""
        path = self.folder / "lock"
        if not path.exists():
            return None
        with path.open("r+") as lock:
            return None if _lock(lock) else int(lock.read() or 0) or None


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Emulator and Airflow


@dataclass
class Stage:
    """The emulator and Airflow, both running."""

    access: Access
    airflow: LocalAirflow
    start_up_s: float

    def trigger(self, results: Path) -> str:
        """Start the DAG; return the id of its run."""
        return self.airflow.api.trigger(DAG_ID, {"results_dir": str(results)})


@contextmanager
def stage(place: Place, view: View, *, port: int = 0) -> Iterator[Stage]:
    """Start the emulator and Airflow in clean folders; always end both."""
    began = time.monotonic()
    for name in ("airflow", "emulator"):
        shutil.rmtree(place.folder / name, ignore_errors=True)
    with ExitStack() as stack:
        view.phase("starting the emulator")
        access = stack.enter_context(EmulatorProcess(place.folder / "emulator"))
        view.phase("starting Airflow")
        airflow = LocalAirflow(
            place.folder / "airflow",
            dags=ROOT / "dags_examples",
            env={**access.airflow_env(), **ONE_AMONG_MANY},
            port=port,
            database=place.database,
        )
        stack.enter_context(airflow)
        airflow.api.wait_for_dag(DAG_ID)
        airflow.api.unpause(DAG_ID)
        yield Stage(access, airflow, time.monotonic() - began)


# The run


@dataclass
class Follower:
    """Looks at one DAG run: its tasks through Airflow, its nodes through our own backend."""

    stage: Stage
    run_id: str
    backend: OciDataScience = field(init=False)
    ref: RunRef | None = None

    def __post_init__(self) -> None:
        self.backend = OciDataScience.connect(self.stage.access.connection_fields())

    def tasks(self) -> dict[str, dict[str, Any]]:
        return self.stage.airflow.api.task_instances(DAG_ID, self.run_id)

    def nodes(self) -> RunStatus | None:
        """Return the gang's state, once the task has recorded what it created."""
        if self.ref is None:
            value = self.stage.airflow.api.xcom(DAG_ID, self.run_id, "train", "run")
            if value is None:
                return None
            self.ref = RunRef.from_json(json.loads(value) if isinstance(value, str) else value)
        with suppress(OcidistError):  # one update is missed; the task itself reports failures
            return self.backend.status([self.ref])[0]
        return None

    def follow(self, view: View) -> str:
        """Show the run until it ends; return its final state."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while time.monotonic() < deadline:
            self.stage.airflow.check()
            tasks = self.tasks()
            training = tasks.get("train", {}).get("state") in ("running", "deferred", "queued", "scheduled")
            view.show(tasks, self.nodes() if training else view.scene.run)
            state = str(self.stage.airflow.api.dag_run(DAG_ID, self.run_id)["state"])
            if state in ENDED:
                view.show(self.tasks(), view.scene.run)
                return state
            time.sleep(0.7)
        raise DemoError(f"the DAG run has not ended after {RUN_TIMEOUT_S:.0f} s")

    def failure(self) -> str:
        """Return one line that names the failed task, and why it failed."""
        for name, task in self.tasks().items():
            if task["state"] == "failed":
                lines = self.stage.airflow.api.task_log(DAG_ID, self.run_id, name)
                return f"task {name} failed: {_cause(lines)}"
        return "the DAG run failed, though none of its tasks did"


def _cause(lines: list[str]) -> str:
    """Return the last exception in a task's log, else its last line."""
    text = [line.strip() for part in lines for line in part.splitlines() if line.strip()]
    errors = [line for line in text if "Error: " in line or "Exception: " in line or "Failed: " in line]
    return (errors or text or ["its log is empty"])[-1]


def run(place: Place, console: Console) -> None:
    """The whole demo, once."""
    began = time.monotonic()
    with place.claim(), View(console) as view, stage(place, view) as running:
        shutil.rmtree(place.results, ignore_errors=True)
        follower = Follower(running, running.trigger(place.results))
        view.phase(
            f"{DAG_ID} runs; Airflow is at {running.airflow.url} ({USER} / {running.airflow.password})"
        )
        if follower.follow(view) != "success":
            raise DemoError(follower.failure())
        results = demo_results.Results(
            folder=place.results,
            checkpoint_uri=str(running.airflow.api.xcom(DAG_ID, follower.run_id, "train", "checkpoint_uri")),
            tasks=follower.tasks(),
            start_up_s=running.start_up_s,
            total_s=time.monotonic() - began,
        )
        view.phase("ending Airflow and the emulator")
    demo_results.show(results, console)


# Left running


def host(place: Place, console: Console) -> None:
    """Keep everything running until a signal: the process behind `up`."""
    with place.claim(), stage(place, View(console), port=_browser_port()) as running:
        running.trigger(place.results)
        note = {"url": running.airflow.url, "user": USER, "password": running.airflow.password}
        _write_private(place.note, json.dumps({**note, "emulator": running.access.url}))
        while True:
            running.airflow.check()
            time.sleep(1)


def up(place: Place, console: Console) -> None:
    """Start `host` as a process of its own, and print how to reach it once it is up."""
    if place.holder():
        raise DemoError("the demo runs already; `make down` ends it")
    place.folder.mkdir(parents=True, exist_ok=True)
    place.note.unlink(missing_ok=True)
    log = place.folder / "host.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "scripts.demo", "--folder", str(place.folder), "host"]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        with console.status("starting the emulator and Airflow"):
            while not place.note.exists():
                if process.poll() is not None:
                    raise DemoError(f"it did not start:\n{log.read_text()[-2000:].strip()}")
                time.sleep(0.1)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    note = json.loads(place.note.read_text())
    lines = (
        f"Airflow    {note['url']}/dags/{DAG_ID}   user {note['user']}   password {note['password']}",
        "           the run: the task's tab Training; all runs: Browse / Training runs",
        f"emulator   {note['emulator']}",
        f"{DAG_ID} runs now; `make down` ends everything",
    )
    console.print("\n".join(lines), highlight=False, soft_wrap=True)


def down(place: Place, console: Console) -> None:
    """End the running demo, and wait until all of its processes are gone."""
    process = place.holder()
    if process is None:
        console.print("nothing runs")
        return
    for number, patience_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 15.0)):
        with suppress(ProcessLookupError):
            os.kill(process, number)
        deadline = time.monotonic() + patience_s
        while place.holder() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not place.holder():
            break
    place.note.unlink(missing_ok=True)
    console.print("ended")


def _browser_port() -> int:
    """Return the usual port, or 0 (any) when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", BROWSER_PORT))
        except OSError:
            return 0
    return BROWSER_PORT


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads; it appears whole."""
    draft = path.with_suffix(".draft")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)


# Command line


def _terminated(number: int, _frame: object) -> NoReturn:
    # Once is enough: a second Ctrl-C must not interrupt the cleanup.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    raise SystemExit(128 + number)


COMMANDS = {"run": run, "up": up, "down": down, "host": host}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.demo", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".demo", help="everything lies here (%(default)s)"
    )
    args = parser.parse_args()
    console = Console()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        COMMANDS[args.command](Place(args.folder.resolve()), console)
    except (DemoError, ServiceError, AirflowApiError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"demo: {error.strerror or error}{f': {error.filename}' if error.filename else ''}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
