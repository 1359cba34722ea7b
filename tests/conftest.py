"""Fixtures for all tests: an Airflow home of their own, one emulator."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# A suite that was started in the background ignores Ctrl-C, and so would every program whose Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# One under `nohup` goes on when its terminal is gone. What it starts must not inherit that: it would ignore SIGHUP too.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Nothing is compiled when it is installed, and hundreds of programs start here: each would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The test's own seed decides what it draws; with this one the seeds are the same in each run.
TEST_SEED = os.environ.get("TEST_SEED")
if TEST_SEED is not None:
    random.seed(TEST_SEED)

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

from airflow_provider_ocidist import testing  # noqa: E402 - after the environment
from scripts.emulator_process import Access, EmulatorProcess  # noqa: E402 - the same
from scripts.sweeper import sweep_after_us  # noqa: E402 - the same
from tests import failures_at_once, longest, nights, skips  # noqa: E402 - the same

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.oci_data_science import OciDataScience
    from airflow_provider_ocidist.model.run import RunRef

# Here, and in no worker of xdist, which inherits it.
sweep_after_us()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests, and no garbage: going through thousands of tests again and again takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        # No later collection goes through them either.
        if hasattr(gc, "freeze"):  # PyPy has none
            gc.freeze()
        gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (skips, failures_at_once, nights):
        plugin.pytest_configure(config)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """With TEST_SEED, what a file draws as it is imported does not depend on the files before it."""
    if TEST_SEED is not None:
        random.seed(f"{TEST_SEED} {collector.nodeid}")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: each goes to one worker, which it would keep when the others are done."""
    # What runs on nodes is tested on older Pythons too, where there is neither Airflow nor a backend.
    if importlib.util.find_spec("airflow"):
        from tests.airflow_versions import mark_by_version

        mark_by_version(items)
    among_workers = "PYTEST_XDIST_WORKER" in os.environ
    items.sort(key=lambda item: longest.place(item.path, among_workers=among_workers))


@pytest.fixture(scope="session", autouse=True)
def _ended_by_signals() -> Iterator[None]:
    """Let a signal end the session with its fixtures: servers, folders with keys, processes."""
    with testing.ended_by_signals():
        yield


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest) -> None:
    """With TEST_SEED, what a test draws does not depend on the tests before it."""
    if TEST_SEED is not None:
        random.seed(f"{TEST_SEED} {request.node.nodeid}")


@pytest.fixture(autouse=True)
def _mask_nothing_of_earlier_tests() -> Iterator[None]:
    """Airflow compiles all secrets of a process anew for each further one, which takes longer from test to test."""
    yield
    for name in ("airflow.sdk._shared.secrets_masker", "airflow._shared.secrets_masker"):
        if masker := sys.modules.get(name):
            masker.reset_secrets_masker()


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """One emulator for the session (for each worker, when there are several)."""
    with EmulatorProcess(tmp_path_factory.mktemp("emulator")) as access:
        yield access


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where the first LocalAirflow makes an empty database for all of the session, on whichever worker."""
    folder = tmp_path_factory.getbasetemp()
    return (folder if worker_id == "master" else folder.parent) / "airflow.db"


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
    from airflow_provider_ocidist.backends.oci_data_science import OciDataScience

    return OciDataScience.connect(fields)


@pytest.fixture
def faults(emulator: Access) -> Iterator[Callable[..., None]]:
    """Adds rules by which the emulator answers; all is well again afterwards."""
    from tests.http_client import http

    def add(**rule: Any) -> None:
        http.post(f"{emulator.url}/_emulator/faults", json=rule).raise_for_status()

    yield add
    http.delete(f"{emulator.url}/_emulator/faults").raise_for_status()


@pytest.fixture
def no_node_starts(emulator: Access) -> Iterator[None]:
    """Let no node start, for tests to which only the books of the service matter."""
    from tests.http_client import http

    http.post(f"{emulator.url}/_emulator/nodes", json={"never_starts": True}).raise_for_status()
    yield
    http.delete(f"{emulator.url}/_emulator/nodes").raise_for_status()


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
