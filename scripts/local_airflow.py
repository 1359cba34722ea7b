"""LocalAirflow: Airflow's four processes on free loopback ports, in one folder, on SQLite or another database."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import TracebackType

from airflow_provider_ocidist.backports import Self
from scripts.airflow_api import AirflowClient
from scripts.service import Service, ServiceError, stop_all

ROOT = Path(__file__).resolve().parent.parent
USER = "admin"
COMPONENTS = {
    "api-server": ("api-server", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    # Both log servers would listen on all addresses of the machine, whatever the settings say.
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
LISTENING_PORTS = range(10_000, 20_000)
"""Ports below those that Linux gives to outgoing connections, and those at which nodes meet."""
HEALTH_NAMES = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}


class LocalAirflow:
    """Airflow by hand: `with LocalAirflow(home, dags=folder) as airflow: airflow.api.trigger(...)`.

    `database` names a migrated, empty SQLite file to start from; it is made where it is missing and can be shared.
    `database_url` names an empty database to use instead, as SQLAlchemy does.
    """

    def __init__(
        self,
        home: Path,
        *,
        dags: Path,
        env: Mapping[str, str] | None = None,
        port: int = 0,
        database: Path | None = None,
        database_url: str | None = None,
        start_timeout: float = 180,
    ) -> None:
        self.home = home.resolve()
        self.password = secrets.token_urlsafe(9)
        self._port = port or free_port()
        self._start_timeout = start_timeout
        self._database = database or self.home / "empty.db"
        self._database_url = database_url
        self.env = {**os.environ, **self._settings(dags.resolve()), **(env or {})}
        self.url = f"http://127.0.0.1:{self._port}"
        self.api = AirflowClient(self.url, USER, self.password)
        self._services = {name: self._service(name, arguments) for name, arguments in COMPONENTS.items()}

    def __enter__(self) -> Self:
        try:
            self.prepare()
            for name in COMPONENTS:
                self.start(name)
            self.wait_healthy()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def prepare(self) -> None:
        """Lay out the folder: password file and a fresh database."""
        (self.home / "logs").mkdir(parents=True, exist_ok=True)
        self._passwords.write_text(json.dumps({USER: self.password}))
        self._passwords.chmod(0o600)
        if self._database_url is not None:
            migrate(self._database_url, self.env)
        else:
            make_database(self._database, self.env)
            shutil.copyfile(self._database, self.home / "airflow.db")
            _let_readers_in(self.home / "airflow.db")

    def start(self, component: str) -> None:
        self._services[component].start()

    def stop_component(self, component: str) -> None:
        """End one component by SIGTERM, as an administrator does."""
        self._services[component].stop()

    def kill(self, component: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send one component a signal; with SIGKILL or SIGTERM, wait until nothing is left of it."""
        service = self._services[component]
        service.kill(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            service.wait(timeout=30)

    def orphan(self, component: str) -> None:
        """SIGKILL one component but for its children, and make room for its successor; all end with the rest."""
        service = self._services[component]
        service.orphan()
        self._services[f"{component}-{service.pid_of_keeper}"] = service
        self._services[component] = self._service(component, COMPONENTS[component])

    def start_second(self, component: str) -> Service:
        """Start another process of a kind that runs already, as on a second machine; ends with the rest."""
        name = f"{component}-2"
        self._services[name] = self._service(name, COMPONENTS[component])
        self._services[name].start()
        return self._services[name]

    def wait_gone(self, component: str) -> None:
        """Wait until nothing is left of a component that was killed."""
        self._services[component].wait(timeout=30)

    def pid(self, component: str) -> int:
        return self._services[component].pid

    def check(self) -> None:
        """Raise ServiceError, with the end of the component's log, when one has ended by itself."""
        for service in self._services.values():
            service.check()

    def wait_healthy(self) -> None:
        """Wait until every component reports that it is healthy."""
        deadline = time.monotonic() + self._start_timeout
        while unwell := self._unwell():
            self.check()
            if time.monotonic() > deadline:
                words = "\n".join(f"--- {name}\n{self._services[name].tail()}" for name in unwell)
                raise ServiceError(
                    f"not healthy after {self._start_timeout:.0f} s: {', '.join(unwell)}\n{words}"
                )
            time.sleep(0.1)
        self.api.warm_up()

    def _unwell(self) -> list[str]:
        health = self.api.health()
        if not health:
            return ["api-server"]
        return [name for name, key in HEALTH_NAMES.items() if health.get(key) != "healthy"]

    def stop(self) -> None:
        """End everything; returns when all processes are gone, after about ten seconds at the most."""
        stop_all(list(self._services.values()))
        self.api.close()

    @property
    def _passwords(self) -> Path:
        return self.home / "passwords.json"

    def _service(self, name: str, arguments: tuple[str, ...]) -> Service:
        command = [sys.executable, "-m", "scripts.airflow_component", *arguments]
        return Service(name, command, log=self.home / "logs" / f"{name}.log", env=self.env, cwd=self.home)

    def _settings(self, dags: Path) -> dict[str, str]:
        """Return Airflow's settings: all by environment, so that no component reads a file another still writes."""
        url = f"http://127.0.0.1:{self._port}"
        settings = {
            "CORE__DAGS_FOLDER": str(dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__PARALLELISM": "4",  # a worker is forked for each
            "CORE__FERNET_KEY": "",
            "CORE__DAGBAG_IMPORT_TIMEOUT": "180",
            "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
            "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
            "CORE__TEST_CONNECTION": "Enabled",
            "DATABASE__SQL_ALCHEMY_CONN": self._database_url or f"sqlite:///{self.home}/airflow.db",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__BASE_URL": url,
            "API__SECRET_KEY": secrets.token_hex(16),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "DAG_PROCESSOR__REFRESH_INTERVAL": "2",
            # To parse all examples takes six seconds of a core; a DAG file that was changed is read at once anyway.
            "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
            "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
            "DAG_PROCESSOR__PARSING_PROCESSES": "1",
            # A shorter sleep takes a seventh of a core from the training beside it.
            "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            # A scheduler that has no time for a heartbeat within 30 s would count as dead, and reset its own tasks.
            "SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "180",
            # With the default of 5 s the executor notices an exit so late that a quick event looks like a fault.
            "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            # Where ten workers start at once on a slow machine, an answer takes longer than the default of 5 s, and
            # three heartbeats of a second each that are missed end a task.
            "WORKERS__EXECUTION_API_TIMEOUT": "60",
            "WORKERS__MAX_FAILED_HEARTBEATS": "60",
            "LOGGING__COLORED_CONSOLE_LOG": "False",
        }
        names = {f"AIRFLOW__{name}": value for name, value in settings.items()}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return {
            "AIRFLOW_HOME": str(self.home),
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "SCARF_ANALYTICS": "False",
            "DO_NOT_TRACK": "1",
            **names,
        }


def make_database(path: Path, env: Mapping[str, str]) -> None:
    """Make a migrated, empty SQLite database, unless it is there: it appears whole or not at all."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.unlink(missing_ok=True)
    migrate(f"sqlite:///{draft}", env)
    draft.replace(path)


def _let_readers_in(path: Path) -> None:
    """Set SQLite to write-ahead logging, so that readers and writers do not block one another."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def migrate(url: str, env: Mapping[str, str]) -> None:
    """Make Airflow's tables in an empty database."""
    command = [sys.executable, "-m", "scripts.airflow_component", "db", "migrate"]
    settings = {**env, "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url}
    result = subprocess.run(command, env=settings, capture_output=True, text=True, check=False, timeout=600)
    if result.returncode:
        raise ServiceError(f"airflow db migrate failed:\n{result.stderr[-2000:] or result.stdout[-2000:]}")


_unseeded = random.SystemRandom()
"""Two processes of a test run have the same seed, and a component listens only seconds after its port was chosen."""


def free_port() -> int:
    """Return a port without a listener, outside the range of outgoing connections."""
    while True:
        port = _unseeded.choice(LISTENING_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
