"""One emulator for all tests that speak to OCI, and a proxy before it that misbehaves on request."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_provider_ocidist.oci_client.credentials import OciAccess
from scripts.emulator_process import Access, EmulatorProcess
from tests.storage.unruly_proxy import UnrulyProxy


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Access]:
    """One of its own: these tests add faults."""
    with EmulatorProcess(tmp_path_factory.mktemp("emulator")) as access:
        yield access


@pytest.fixture
def access(emulator: Access) -> OciAccess:
    return OciAccess(
        config_file=emulator.config_file,
        profile=emulator.profile,
        endpoint=emulator.url,
        max_attempts=4,
    )


@pytest.fixture
def bucket(emulator: Access) -> str:
    """A folder of the emulator's bucket that no other test uses."""
    return f"oci://{emulator.bucket}@{emulator.namespace}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def proxy(emulator: Access) -> Iterator[UnrulyProxy]:
    with UnrulyProxy(emulator.url) as running:
        yield running


@pytest.fixture
def unruly(access: OciAccess, proxy: UnrulyProxy) -> OciAccess:
    """Access by way of the proxy."""
    return replace(access, endpoint=proxy.url)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A plain web server: its URL, and the folder that it serves."""
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()
    thread.join()
