"""Clients of OCI as their makers ship them, each in a process of its own, and the emulator that they take for OCI."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import oci
import pytest

from scripts.emulator_process import Access, EmulatorProcess
from tests.clients.processes import AGENT_IMAGE, CLIENTS, CLUSTER_IMAGE, CONDA, IMAGE, PROGRAMS, Cli, Programs


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if not (CLIENTS / ".ready").exists():
        pytest.fail(f"the clients are not installed; run: make {CLIENTS.name}/.ready", pytrace=False)


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    commands = {
        IMAGE: f"{sys.executable} {PROGRAMS / 'container.py'}",
        AGENT_IMAGE: f"{sys.executable} -m airflow_provider_ocidist.agent",
        CLUSTER_IMAGE: f"{sys.executable} {PROGRAMS / 'ads_cluster.py'}",
    }
    images = [word for image, command in commands.items() for word in ("--image", f"{image}={command}")]
    options = ("--conda", f"{CONDA}={CLIENTS}", *images)
    with EmulatorProcess(tmp_path_factory.mktemp("emulator"), options=options) as access:
        yield access


@pytest.fixture
def config(emulator: Access) -> dict[str, Any]:
    return oci.config.from_file(emulator.config_file, emulator.profile)


@pytest.fixture
def jobs(emulator: Access, config: dict[str, Any]) -> Any:
    return oci.data_science.DataScienceClient(config, service_endpoint=emulator.url)


@pytest.fixture
def objects(emulator: Access, config: dict[str, Any]) -> Any:
    return oci.object_storage.ObjectStorageClient(config, service_endpoint=emulator.url)


@pytest.fixture(scope="session")
def home(emulator: Access, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person's home, with credentials where every client looks for them."""
    home = tmp_path_factory.mktemp("home")
    (home / ".oci").mkdir()
    config = home / ".oci" / "config"
    config.write_text(Path(emulator.config_file).read_text())
    config.chmod(0o600)
    return home


@pytest.fixture(scope="session")
def proxied(emulator: Access) -> dict[str, str]:
    """The two variables that make the emulator the OCI of any client."""
    return {"HTTPS_PROXY": emulator.proxy_url, "REQUESTS_CA_BUNDLE": emulator.ca_file}


@pytest.fixture(scope="session")
def clients(home: Path, proxied: dict[str, str]) -> Programs:
    """The clients that clash with Airflow: the command line, ADS; and ocifs with pandas and torch."""
    # Without a word on credentials, ocifs takes itself to be in a job run; a person's shell has this.
    return Programs(CLIENTS, home, {**proxied, "OCIFS_IAM_TYPE": "api_key"})


@pytest.fixture(scope="session")
def cli(clients: Programs, emulator: Access) -> Cli:
    """The command line as it comes: it finds the emulator by the proxy."""
    return Cli(clients, emulator)


@pytest.fixture(scope="session")
def cli_with_endpoint(home: Path, emulator: Access) -> Cli:
    """The command line without a proxy, with an endpoint."""
    return Cli(Programs(CLIENTS, home, {"OCI_CLI_ENDPOINT": emulator.url}), emulator)
