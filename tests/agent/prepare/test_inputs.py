"""Inputs from real servers: through cuts, onto disks that are too small, and secrets of Vault beside them."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.prepare import disk, inputs
from airflow_provider_ocidist.agent.prepare.inputs import fetch_inputs
from airflow_provider_ocidist.agent.prepare.vault import read_secret
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.job import Input
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.copying import resuming
from airflow_provider_ocidist.storage.stores import http
from airflow_provider_ocidist.testing import OciEmulator

CONTENT = bytes(range(256)) * 4096


class Corpus(BaseHTTPRequestHandler):
    """One megabyte, without ranges."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Corpus)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(folder: Path, **mapping: str) -> None:
    items = [Input(source=source, target=target) for target, source in mapping.items()]
    fetch_inputs(items, folder, OciAccess(), StopSwitch())


def test_targets_are_relative_absolute_files_or_folders(server: str, tmp_path: Path) -> None:
    items = [
        Input(source=f"{server}/corpus.bin?signature=x", target="data/renamed.bin"),
        Input(source=f"{server}/corpus.bin", target="data/"),
        Input(source=f"{server}/corpus.bin", target=f"{tmp_path}/elsewhere/c.bin"),
    ]
    fetch_inputs(items, tmp_path / "work", OciAccess(), StopSwitch())
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.bin"))
    assert names == ["elsewhere/c.bin", "work/data/corpus.bin", "work/data/renamed.bin"]
    assert all(path.read_bytes() == CONTENT for path in tmp_path.rglob("*.bin"))


def test_a_copy_that_breaks_off_goes_on_as_long_as_it_gets_further(
    oci_emulator: OciEmulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resuming, "PAUSE_S", 0.05)
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    objects = oci_emulator.client("object_storage")
    for number in range(6):
        objects.put_object(*place, f"corpus/{number}.bin", CONTENT)
    # More failures than one attempt at a file bears, each before its first byte. The second attempt moves less than
    # the first: one file.
    for name, times in (("3.bin", 5), ("4.bin", 13)):
        oci_emulator.fault(
            path=f"/n/.*/o/corpus.*{name}", method="GET", drop="body", body_bytes=0, times=times
        )
    access = OciAccess(config_file=oci_emulator.access.config_file, endpoint=oci_emulator.url, max_attempts=2)
    item = Input(source=f"oci://{place[1]}@{place[0]}/corpus/", target="corpus")
    fetch_inputs([item], tmp_path, access, StopSwitch())
    assert [path.read_bytes() == CONTENT for path in sorted(tmp_path.glob("corpus/*.bin"))] == [True] * 6
    said = [record.getMessage() for record in caplog.records if record.name == inputs.__name__]
    interrupted = [line for line in said if "was interrupted after" in line and line.endswith("; resuming")]
    assert len(interrupted) == 2


def test_one_that_cannot_be_had_ends_the_others_and_shows_no_signature(
    oci_emulator: OciEmulator, server: str, tmp_path: Path
) -> None:
    place = (oci_emulator.access.namespace, oci_emulator.access.bucket)
    oci_emulator.client("object_storage").put_object(*place, "slow/1.bin", CONTENT * 8)
    oci_emulator.fault(path="/n/.*/o/slow.*", method="GET", bytes_per_s=100_000)
    access = OciAccess(config_file=oci_emulator.access.config_file, endpoint=oci_emulator.url)
    items = [
        Input(source=f"oci://{place[1]}@{place[0]}/slow/", target="slow"),
        Input(source=f"{server.replace('//', '//me:hush@')}1/corpus.bin?signature=good", target="x"),
    ]
    started = time.monotonic()
    with pytest.raises(
        AgentError, match=r"the input http://127\.0\.0\.1:\d+/corpus\.bin cannot be"
    ) as caught:
        fetch_inputs(items, tmp_path, access, StopSwitch())
    assert time.monotonic() - started < 40
    assert not any(secret in str(caught.value) for secret in ("good", "hush"))


def test_what_does_not_fit_is_reported_with_what_is_needed(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = disk.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(AgentError, match=r"needs .* and the disk .* has 1 kB free: give the nodes") as caught:
        fetch(tmp_path, corpus=f"{server}/corpus.bin")
    assert caught.value.cause is Cause.DATA


def test_a_full_disk_is_distinguished_from_other_failures(tmp_path: Path) -> None:
    small = Path("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught, small.open("wb", buffering=0) as file:
        file.write(b"x")
    assert disk.is_full(caught.value)
    wrapped = ValueError("copy failed")
    wrapped.__cause__ = caught.value
    assert disk.is_full(wrapped)
    assert not disk.is_full(FileNotFoundError(2, "absent"))


def test_a_secret_is_read_from_the_vault_and_an_absent_one_is_named(oci_emulator: OciEmulator) -> None:
    access = OciAccess(config_file=oci_emulator.access.config_file, endpoint=oci_emulator.url)
    assert read_secret(oci_emulator.access.secret_id, access) == oci_emulator.access.secret_value
    absent = "ocid1.vaultsecret.oc1.iad.absent"
    with pytest.raises(AgentError, match=f"reading the secret {absent}.*read secret-bundles") as caught:
        read_secret(absent, access)
    assert caught.value.cause is Cause.CONFIG


def test_a_web_page_with_a_link_that_leads_nowhere_is_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LOOK_AGAIN_AFTER", 0.05)
    site = tmp_path / "site"
    site.mkdir()
    (site / "a.bin").write_bytes(b"1")
    (site / "index.html").write_text('<a href="a.bin">it</a><a href="gone.bin">gone</a>')
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            with pytest.raises(AgentError, match=r"links to gone\.bin, where nothing is") as caught:
                fetch(tmp_path / "node", data=f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.cause is Cause.DATA
    assert not (tmp_path / "node").exists(), "it is known before anything is copied"


def test_a_web_page_that_is_just_being_deployed_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LOOK_AGAIN_AFTER", 0.05)
    refusals = iter([404, 404])

    class Deploying(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            refused = next(refusals, None) if self.path == "/late.bin" else None
            self.send_error(refused) if refused else super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    site = tmp_path / "site"
    site.mkdir()
    (site / "late.bin").write_bytes(b"1")
    (site / "index.html").write_text('<a href="late.bin">it</a>')
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Deploying, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            fetch(tmp_path / "node", data=f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join()
    assert (tmp_path / "node/data/late.bin").read_bytes() == b"1"
