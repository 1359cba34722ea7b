"""Postgres: a PostgreSQL of Debian's on a free loopback port, in one folder, that ends when we do."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from airflow_provider_ocidist.backports import Self
from scripts.local_airflow import free_port
from scripts.service import Service, ServiceError

PROGRAMS = Path("/usr/lib/postgresql")
"""Folder in which Debian puts each version's `bin`."""
USER = "airflow"
UNPRIVILEGED = "postgres"
"""The system's user that Debian's package makes; the server refuses to run as root."""
DRIVERS = ("asyncpg", "psycopg2-binary")
"""Packages through both of which Airflow connects to it."""
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # The workers of a scheduler that was killed amid a transaction have its connection too, and keep it with its locks:
    # every other scheduler then waits for them.
    "idle_in_transaction_session_timeout": "20s",
    # A test bed's data need not survive the machine.
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}


class Postgres:
    """`with Postgres() as database: database.url`; its folder goes with it."""

    def __init__(self, *, start_timeout: float = 60) -> None:
        self.port = free_port()
        self._password = secrets.token_urlsafe(12)
        self._start_timeout = start_timeout
        # Not below pytest's folders: those are root's alone.
        self.folder = Path(tempfile.mkdtemp(prefix="ocidist-postgres-"))
        self._data = self.folder / "data"
        settings = [word for item in SETTINGS.items() for word in ("-c", "=".join(item))]
        command = [*_unprivileged(), str(programs() / "postgres"), "-D", str(self._data)]
        command += ["-p", str(self.port), *settings]
        log = self.folder / "postgres.log"
        self._service = Service("PostgreSQL", command, log=log, env=_environment(), cwd=self.folder)

    @property
    def url(self) -> str:
        """The database, as SQLAlchemy names it; holds the password."""
        return f"postgresql+psycopg2://{USER}:{self._password}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        try:
            self._lay_out()
            self._service.start()
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop_server(self) -> None:
        """End the server alone, despite open connections; its data stay for `start_server`."""
        self._service.kill(signal.SIGINT)
        self._service.wait(timeout=30)

    def start_server(self) -> None:
        """Start the server again, at the same place and with the same data."""
        self._service.start()
        self._wait_ready()

    def stop(self) -> None:
        """End it at once, despite open connections, and remove its folder."""
        if self._service.running:
            # SIGTERM alone would wait for every client to leave.
            self._service.kill(signal.SIGINT)
        self._service.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lay_out(self) -> None:
        password = self.folder / "password"
        password.write_text(self._password)
        if os.geteuid() == 0:
            for path in (self.folder, password):
                shutil.chown(path, UNPRIVILEGED)
        command = [*_unprivileged(), str(programs() / "initdb"), "-D", str(self._data), "-U", USER]
        command += ["-A", "scram-sha-256", "--pwfile", str(password), "-E", "UTF8", "--no-sync"]
        result = subprocess.run(
            command,
            cwd=self.folder,
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        if result.returncode:
            raise ServiceError(f"initdb failed:\n{result.stderr[-2000:]}")

    def _wait_ready(self) -> None:
        command = [str(programs() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + self._start_timeout
        while subprocess.run(command, check=False).returncode:
            self._service.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"PostgreSQL is not ready:\n{self._service.tail()}")
            time.sleep(0.1)


def why_not() -> str | None:
    """Return why no PostgreSQL can be started here, and what to do; None when it can."""
    missing = [name for name in DRIVERS if importlib.util.find_spec(name.partition("-")[0]) is None]
    if missing:
        return f"{' and '.join(missing)} must be there: pip install {' '.join(missing)}"
    try:
        programs()
        _unprivileged()
    except ServiceError as error:
        return str(error)
    return None


def programs() -> Path:
    """Return the folder of the newest version's programs. Raises ServiceError where there is none."""
    found = sorted(PROGRAMS.glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    if not found:
        raise ServiceError("PostgreSQL is not installed: apt-get install postgresql, as root")
    return found[-1].parent


def _unprivileged() -> Sequence[str]:
    """Return what runs a command as another user when we are root; it dies with its keeper all the same."""
    if os.geteuid() != 0:
        return ()
    try:
        pwd.getpwnam(UNPRIVILEGED)
    except KeyError as error:
        raise ServiceError(
            f"no user {UNPRIVILEGED!r} to run PostgreSQL as: apt-get install postgresql"
        ) from error
    return (
        "setpriv",
        f"--reuid={UNPRIVILEGED}",
        f"--regid={UNPRIVILEGED}",
        "--clear-groups",
        "--pdeathsig=KILL",
    )


def _environment() -> dict[str, str]:
    """Return as little as it needs: it needs no setting of Airflow."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
