"""The proxy: two environment variables redirect clients that know nothing of the emulator."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator

import fsspec
import httpx
import oci
import pytest

from airflow_provider_ocidist.emulator import certificates
from airflow_provider_ocidist.emulator.context import Options
from airflow_provider_ocidist.emulator.proxy import Refused, is_oci, target_of
from airflow_provider_ocidist.emulator.server import Emulator

HOST = "objectstorage.us-ashburn-1.oraclecloud.com"


@pytest.fixture
def redirected(cloud, monkeypatch):
    """The emulator, with nothing but the two variables set."""
    for name, value in cloud.access.proxy_environment().items():
        monkeypatch.setenv(name, value)
    for name in ("https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return cloud


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that is not OCI's: it sends one message back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(connection.recv(100))

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        yield listener.getsockname()[1]


def connect(proxy_url: str, request: bytes) -> socket.socket:
    connection = socket.create_connection((httpx.URL(proxy_url).host, httpx.URL(proxy_url).port), timeout=10)
    connection.sendall(request)
    return connection


def test_a_config_file_is_all_that_the_sdk_needs(redirected):
    config = oci.config.from_file(redirected.access.config_file)
    objects = oci.object_storage.ObjectStorageClient(config)
    assert objects.get_namespace().data == redirected.access.namespace
    jobs = oci.data_science.DataScienceClient(config)
    job_id = jobs.create_job(redirected.job_details()).data.id
    assert [job.id for job in jobs.list_jobs(redirected.access.compartment_id).data] == [job_id]
    assert {call["status"] for call in redirected.control("GET", "/calls")} == {200}


def test_realm_specific_hosts_come_here_too(redirected):
    config = oci.config.from_file(redirected.access.config_file)
    host = f"{redirected.access.namespace}.objectstorage.us-ashburn-1.oci.customer-oci.com"
    objects = oci.object_storage.ObjectStorageClient(config, service_endpoint=f"https://{host}")
    assert objects.get_namespace().data == redirected.access.namespace


def test_large_objects_go_both_ways(redirected, tmp_path):
    config = oci.config.from_file(redirected.access.config_file)
    objects = oci.object_storage.ObjectStorageClient(config)
    local = tmp_path / "in"
    local.write_bytes(os.urandom(1_000_000) * 12)
    manager = oci.object_storage.UploadManager(objects)
    manager.upload_file(*redirected.place, "big", str(local), part_size=5 * 2**20)
    assert objects.get_object(*redirected.place, "big").data.content == local.read_bytes()


def test_an_upload_does_not_wait_for_leave_to_send_its_body(redirected):
    """The SDK sends `Expect: 100-continue` over https, and waits 3 seconds for the answer."""
    config = oci.config.from_file(redirected.access.config_file)
    objects = oci.object_storage.ObjectStorageClient(config)
    objects.get_namespace()
    started = time.monotonic()
    objects.put_object(*redirected.place, "o", b"x")
    assert time.monotonic() - started < 2.5


def test_plain_oci_urls_work_in_ocifs(redirected):
    files = fsspec.filesystem("oci", config=redirected.access.config_file, skip_instance_cache=True)
    url = f"oci://{redirected.access.bucket}@{redirected.access.namespace}/a/b.txt"
    with files.open(url, "wb") as file:
        file.write(b"hello")
    assert files.cat(url) == b"hello"
    assert files.ls(url.rpartition("/")[0], detail=False) == [url.removeprefix("oci://")]


def test_other_hosts_are_refused_with_the_remedy(redirected):
    with pytest.raises(httpx.ProxyError, match=r"--proxy-pass-through to reach example\.com"):
        httpx.get("https://example.com", proxy=redirected.access.proxy_url)


def test_plain_http_is_refused_with_the_remedy(redirected):
    answer = httpx.get("http://example.org", proxy=redirected.access.proxy_url)
    assert (answer.status_code, "HTTPS_PROXY" in answer.reason_phrase) == (405, True)


def test_other_hosts_are_reached_when_asked_for(echo):
    with Emulator(options=Options(pass_through=True)) as emulator:
        assert emulator.access.ca_file.endswith("ca-bundle.crt")
        with connect(emulator.access.proxy_url, b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % echo) as tunnel:
            assert tunnel.recv(100).startswith(b"HTTP/1.1 200 ")
            tunnel.sendall(b"hello")
            assert tunnel.recv(100) == b"hello"
            assert tunnel.recv(100) == b""


def test_a_host_that_cannot_be_reached_is_reported():
    with Emulator(options=Options(pass_through=True)) as emulator, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        request = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % unused.getsockname()[1]
        with connect(emulator.access.proxy_url, request) as tunnel:
            assert tunnel.recv(200).startswith(b"HTTP/1.1 502 127.0.0.1 port ")


def test_a_client_that_does_not_trust_us_fails_alone(redirected):
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(f"https://{HOST}/n", proxy=redirected.access.proxy_url, verify=ssl.create_default_context())
    trusting = ssl.create_default_context(cafile=redirected.access.ca_file)
    trusting.verify_flags |= ssl.VERIFY_X509_STRICT
    answer = httpx.get(f"https://{HOST}/health", proxy=redirected.access.proxy_url, verify=trusting)
    assert answer.status_code == 200


def test_each_installation_has_an_authority_of_its_own(folder, emulator):
    def authority() -> bytes:
        with Emulator(state=folder) as started:
            key = started.folder / "proxy" / "ca.pem"
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            assert sorted(path.name for path in key.parent.iterdir()) == ["ca-bundle.crt", "ca.crt", "ca.pem"]
            return (key.parent / "ca.crt").read_bytes()

    first = authority()
    assert authority() == first
    with open(emulator.access.ca_file, "rb") as other:
        assert other.read() != first


def test_of_the_hosts_that_anybody_names_only_some_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(certificates, "MAX_HOSTS", 3)
    authority = certificates.Authority.open(tmp_path / "proxy")
    for number in range(10):
        newest = authority.context(f"h{number}.oraclecloud.com")
    assert len(authority._contexts) == 3
    assert authority.context("h9.oraclecloud.com") is newest


@pytest.mark.parametrize(
    "host,expected",
    [
        (HOST, True),
        ("id.objectstorage.us-ashburn-1.oci.customer-oci.com", True),
        ("oraclecloud.com.evil.example", False),
        ("notoraclecloud.com", False),
        ("127.0.0.1", False),
    ],
)
def test_hosts_of_oci_are_known_by_their_end(host, expected):
    assert is_oci(host) is expected


@pytest.mark.parametrize(
    "head,target",
    [
        (b"CONNECT A.oraclecloud.com:443 HTTP/1.1\r\n\r\n", ("a.oraclecloud.com", 443)),
        (b"CONNECT [::1]:8443 HTTP/1.0\r\nhost: x\r\n\r\n", ("::1", 8443)),
    ],
)
def test_a_tunnels_target_is_read(head, target):
    assert target_of(head) == target


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"CONNECT a\r\nb:1 HTTP/1.1\r\n\r\n",
        b"CONNECT a..oraclecloud.com:443 HTTP/1.1\r\n\r\n",
        b"CONNECT %s.com:443 HTTP/1.1\r\n\r\n" % (b"a" * 64),
        b"CONNECT %s.com:443 HTTP/1.1\r\n\r\n" % (b"a.b" * 100),
        b"CONNECT a.oraclecloud.com:65536 HTTP/1.1\r\n\r\n",
        b"CONNECT a.oraclecloud.com:0 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_connect_is_refused(head):
    with pytest.raises(Refused):
        target_of(head)
