"""`make test-python39`: what its tests have beside tests/conftest.py, and which files are left out, with the reason."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.testing import OciEmulator
from scripts.emulator_process import EmulatorProcess

ROOT = Path(__file__).resolve().parent
BACKEND = "submits through the backend, which needs Python 3.10: tests/older does that from a newer one"
TORCH = "torch is not installed: there is none for PyPy"
WITH_TORCH = (
    "agent/save/test_judging.py",
    "agent/save/test_layouts.py",
    "agent/save/test_upload_rules.py",
    "agent/save/test_uploads.py",
    "agent/save/test_whole.py",
    "agent/test_torchrun_gang.py",
)
HAS_TORCH = importlib.util.find_spec("torch") is not None
LISTS = "reads a web server's list by aiohttp, of which there are no wheels for PyPy"
NO_LIST = "before Python 3.10 nothing lists the standard library"
OCIFS = "needs ocifs, which was not tried on Python 3.9 yet"
LEFT_OUT = {
    "agent/program/test_checkpoint_paths.py": OCIFS,
    "agent/prepare/test_inputs.py::test_a_web_page_with_a_link_that_leads_nowhere_is_no_input": LISTS,
    "agent/prepare/test_inputs.py::test_a_web_page_that_is_just_being_deployed_is_looked_at_again": LISTS,
    "agent/test_emulated_node.py": BACKEND,
    "oci_client/test_clients.py::test_importing_the_module_loads_the_standard_library_only": NO_LIST,
    "storage/test_copying.py::test_what_a_web_server_refuses_is_one_clear_error": LISTS,
    "storage/test_transfer.py::test_a_web_server_is_a_source_for_files_of_any_size": LISTS,
    "storage/test_transfer.py::test_a_link_of_a_web_page_that_leads_nowhere_is_skipped_and_named": LISTS,
}
if platform.python_implementation() == "PyPy":
    LEFT_OUT["storage/test_copying.py::test_memory_stays_below_150_mb_with_large_files_both_ways"] = (
        "PyPy frees memory later: 408 MB were seen"
    )
if not HAS_TORCH:
    LEFT_OUT.update(dict.fromkeys(WITH_TORCH, TORCH))
    LEFT_OUT["agent/monitor/test_hangs.py::test_what_torch_records_of_its_collectives_is_read"] = TORCH


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return (
        True
        if str(collection_path.relative_to(ROOT.parent)) in {f"tests/{name}" for name in LEFT_OUT}
        else None
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("torch") and not HAS_TORCH:
            LEFT_OUT[item.nodeid.removeprefix("tests/")] = TORCH
    left_out = [item for item in items if item.nodeid.removeprefix("tests/") in LEFT_OUT]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for file, why in LEFT_OUT.items():
        terminalreporter.write_line(f"left out: {file}: {why}")


@pytest.fixture(scope="session")
def oci_emulator_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciEmulator]:
    """As `airflow_provider_ocidist.testing` has it, in a process whose Python is new enough."""
    with EmulatorProcess(tmp_path_factory.mktemp("oci-emulator")) as access:
        yield OciEmulator(access)


@pytest.fixture
def oci_emulator(oci_emulator_server: OciEmulator) -> OciEmulator:
    oci_emulator_server.reset()
    return oci_emulator_server
