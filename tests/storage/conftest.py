"""One emulator for all tests that speak to OCI, and a proxy before it that misbehaves on request."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_provider_ocidist.oci_credentials import OciAccess
from tests.storage.unruly_proxy import UnrulyProxy


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("emulator")
    ready = folder / "ready.json"
    command = [sys.executable, "-m", "airflow_provider_ocidist.emulator", "--port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--state", str(folder / "state"), "--ready", str(ready)],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
    try:
        deadline = time.monotonic() + 30
        while not ready.exists() or not ready.read_text().strip():
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("the emulator did not start:\n" + (folder / "log").read_text()[-3000:])
            time.sleep(0.05)
        yield json.loads(ready.read_text())
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def access(emulator: dict[str, str]) -> OciAccess:
    return OciAccess(
        config_file=emulator["config_file"],
        profile=emulator.get("profile", "DEFAULT"),
        endpoint=emulator["url"],
        max_attempts=4,
    )


@pytest.fixture
def bucket(emulator: dict[str, str]) -> str:
    """A folder of the emulator's bucket that no other test uses."""
    return f"oci://{emulator['bucket']}@{emulator['namespace']}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def proxy(emulator: dict[str, str]) -> Iterator[UnrulyProxy]:
    with UnrulyProxy(emulator["url"]) as running:
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
