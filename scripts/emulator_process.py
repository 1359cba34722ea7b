"""EmulatorProcess: the emulator in a process of its own, and how to reach it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from scripts.service import Service, ServiceError

ROOT = Path(__file__).resolve().parent.parent
WORK_FOLDER = "ocidist"
PYTHON = os.environ.get("OCIDIST_EMULATOR_PYTHON", sys.executable)
"""Python that runs the emulator: tests of what runs on nodes may have an older one than it needs."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The content of the emulator's ready file."""

    url: str
    proxy_url: str
    ca_file: str
    config_file: str
    profile: str
    namespace: str
    bucket: str
    compartment_id: str
    project_id: str
    subnet_id: str
    log_group_id: str
    log_id: str
    secret_id: str
    secret_value: str = field(repr=False)
    region: str = "us-ashburn-1"
    kubeconfig: str = ""
    """Path of the kubeconfig, with the option `--kubernetes`; else empty."""
    kubernetes_namespace: str = ""
    runai: Mapping[str, str] | None = field(default=None, repr=False)
    """Address, account and project of the control plane, with the option `--runai`."""

    @classmethod
    def from_file(cls, path: Path) -> Access:
        values = json.loads(path.read_text())
        known = {item.name for item in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})

    @property
    def work_dir(self) -> str:
        return f"oci://{self.bucket}@{self.namespace}/{WORK_FOLDER}"

    def connection_fields(self, **more: Any) -> dict[str, Any]:
        """Return the extras of an Airflow connection of type `oci` to this emulator."""
        names = ("config_file", "profile", "region", "compartment_id", "project_id", "subnet_id")
        values = {name: getattr(self, name) for name in (*names, "log_group_id", "log_id", "work_dir")}
        return {"auth": "config_file", "endpoint": self.url, **values, **more}

    def kubernetes_env(self, conn_id: str = "kubernetes_default") -> dict[str, str]:
        """Return the variable that holds an Airflow connection of type `kubernetes` to this emulator's cluster."""
        extra = {"kube_config_path": self.kubeconfig, "namespace": self.kubernetes_namespace}
        value = json.dumps({"conn_type": "kubernetes", "extra": extra})
        return {f"AIRFLOW_CONN_{conn_id.upper()}": value}

    def airflow_env(self, conn_id: str = "oci_default", **more: Any) -> dict[str, str]:
        """Return the environment variable that makes the connection known to Airflow."""
        connection = {"conn_type": "oci", "extra": self.connection_fields(**more)}
        return {f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(connection)}


class EmulatorProcess:
    """`with EmulatorProcess(folder) as access: ...`; its nodes end with it."""

    def __init__(
        self, folder: Path, *, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder.resolve()
        self._ready = self.folder / "ready.json"
        command = [PYTHON, "-m", "airflow_provider_ocidist.emulator", "--port", "0", "--quiet"]
        command += ["--state", str(self.folder / "state"), "--ready", str(self._ready), *options]
        # The nodes inherit this: they find torchrun beside our Python, and their output comes at once.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **(env or {})}
        log = self.folder / "emulator.log"
        self.service = Service("the emulator", command, log=log, env=environment, cwd=ROOT)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        self.service.start()

    def wait_ready(self, timeout: float = 120) -> Access:
        """Wait until the emulator serves; return how to reach it."""
        deadline = time.monotonic() + timeout
        while not self._ready.exists():
            self.service.check()
            if time.monotonic() > deadline:
                raise ServiceError(f"the emulator is not ready after {timeout:.0f} s:\n{self.service.tail()}")
            time.sleep(0.02)
        return Access.from_file(self._ready)

    def stop(self) -> None:
        self.service.stop()

    def __enter__(self) -> Access:
        try:
            self.start()
            return self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
