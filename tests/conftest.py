"""Fixtures for all tests: an Airflow home of their own, one emulator, one Airflow."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# A suite that was started in the background ignores Ctrl-C, and so would every program whose Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports Airflow: it reads its home once, and must never find a person's own.
_HOME = tempfile.mkdtemp(prefix="ocidist-airflow-")
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=_HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=f"sqlite:///{_HOME}/airflow.db",
    NO_PROXY="127.0.0.1,localhost",
    no_proxy="127.0.0.1,localhost",
)
for _name in [name for name in os.environ if name.startswith(("OCI_", "AIRFLOW_CONN_"))]:
    del os.environ[_name]

from airflow_provider_ocidist.backends.oci_data_science import OciDataScience  # noqa: E402
from airflow_provider_ocidist.run import RunRef  # noqa: E402
from scripts.emulator_process import Access, EmulatorProcess  # noqa: E402
from scripts.local_airflow import LocalAirflow  # noqa: E402
from tests.airflow_versions import mark_by_version  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; `--dist loadfile` gives each file to one worker."""
    mark_by_version(items)
    items.sort(key=lambda item: "e2e" not in item.path.parts and item.path.name != "test_local_airflow.py")


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """One emulator for the session (for each worker, when there are several)."""
    with EmulatorProcess(tmp_path_factory.mktemp("emulator")) as access:
        yield access


@pytest.fixture(scope="session")
def local_airflow(tmp_path_factory: pytest.TempPathFactory, emulator: Access) -> Iterator[LocalAirflow]:
    """Airflow's four processes with the example DAGs, connected to the emulator."""
    home = tmp_path_factory.mktemp("airflow")
    paused = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True"}
    with LocalAirflow(home, dags=ROOT / "dags_examples", env={**emulator.airflow_env(), **paused}) as airflow:
        yield airflow


@pytest.fixture
def fields(emulator: Access) -> dict[str, Any]:
    """The fields of a connection to the emulator."""
    work_dir = f"oci://{emulator.bucket}@{emulator.namespace}/work/{uuid.uuid4().hex[:8]}"
    return emulator.connection_fields(work_dir=work_dir)


@pytest.fixture
def conn_id(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """A connection of its own for each test: what triggers share lives as long as their process."""
    name = f"oci_{uuid.uuid4().hex[:8]}"
    connection = json.dumps({"conn_type": "oci", "extra": fields})
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection)
    return name


@pytest.fixture
def backend(fields: dict[str, Any]) -> OciDataScience:
    return OciDataScience.connect(fields)


@pytest.fixture
def ends(backend: OciDataScience) -> Iterator[Callable[[RunRef], RunRef]]:
    """Registers gangs that the test leaves behind."""
    refs: list[RunRef] = []

    def register(ref: RunRef) -> RunRef:
        refs.append(ref)
        return ref

    yield register
    for ref in refs:
        backend.cancel(ref)
