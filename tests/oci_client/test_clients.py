"""Clients are isolated from one another, bounded in time, and explain their failures in one line."""

from __future__ import annotations

import gc
import inspect
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import oci
import pytest
import requests

from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.oci_client import clients
from airflow_provider_ocidist.oci_client.clients import client, namespace
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.oci_client.errors import oci_errors
from tests.storage.conftest import access, emulator, proxy, unruly  # noqa: F401 - fixtures
from tests.storage.unruly_proxy import Fault


def raised(given, service="object_storage", doing="looking"):
    with pytest.raises(BackendError) as caught, oci_errors(doing):
        client(given, service).get_namespace()
    assert "\n" not in str(caught.value)
    return caught.value


def service_error(status, code, message="said so", **headers):
    return oci.exceptions.ServiceError(status, code, {"opc-request-id": "ABC", **headers}, message)


@pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="only CPython frees at once what nothing refers to"
)
def test_an_error_that_was_handled_is_no_garbage():
    class Held:
        pass

    def asks(_held):
        with oci_errors("asking"):
            raise service_error(404, "ObjectNotFound")

    def handles():
        held = Held()
        try:
            asks(held)
        except BackendError:
            return weakref.ref(held)
        raise AssertionError

    gc.disable()
    try:
        assert handles()() is None
    finally:
        gc.enable()


def mapped(error, doing="doing it"):
    with pytest.raises(BackendError) as caught, oci_errors(doing):
        raise error
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(doing)
    return caught.value


# What failures become


def sdk_exceptions():
    classes = [
        cls for _, cls in inspect.getmembers(oci.exceptions, inspect.isclass) if issubclass(cls, Exception)
    ]
    from circuitbreaker import CircuitBreakerError
    from oci._vendor import requests
    from urllib3 import exceptions as urllib3_exceptions

    classes += [CircuitBreakerError]
    for module in (requests.exceptions, urllib3_exceptions):
        found = inspect.getmembers(module, inspect.isclass)
        classes += [cls for _, cls in found if issubclass(cls, Exception) and not issubclass(cls, Warning)]
    return sorted(
        {cls for cls in classes if not cls.__module__.startswith(("builtins", "email", "json"))}, key=str
    )


@pytest.mark.parametrize("cls", sdk_exceptions(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_error_of_the_sdk_and_its_http_library_becomes_ours(cls):
    if issubclass(cls, oci.exceptions.ServiceError):
        error = cls(500, "InternalError", {}, "x")
    else:
        error = cls.__new__(cls)
        Exception.__init__(error, "first line\nsecond line")
        error.__dict__.update(
            errors={"user": "missing"},
            partial=b"" if cls.__module__ == "http.client" else 3,
            expected=5,
            length=b"x",
            response=None,
        )
        error.__dict__["_circuit_breaker"] = (
            oci.circuit_breaker.CircuitBreakerStrategy().get_circuit_breaker()
        )
    assert mapped(error).cause in (Cause.CONFIG, Cause.SERVICE)


def test_errors_of_other_origin_pass_through():
    for error in (ValueError("mine"), FileNotFoundError("mine"), KeyError("mine"), ZeroDivisionError()):
        with pytest.raises(type(error)), oci_errors("x"):
            raise error


@pytest.mark.parametrize(
    "status, code, message, cause, retryable",
    [
        (500, "InternalError", "Out of host capacity.", Cause.CAPACITY, True),
        (400, "LimitExceeded", "The limit was reached", Cause.QUOTA, True),
        (400, "QuotaExceeded", "The quota was reached", Cause.QUOTA, True),
        (400, "InvalidParameter", "bad shape", Cause.CONFIG, False),
        (401, "NotAuthenticated", "no", Cause.CONFIG, False),
        (404, "NotAuthorizedOrNotFound", "no", Cause.CONFIG, False),
        (409, "IncorrectState", "later", Cause.SERVICE, True),
        (409, "InvalidatedRetryToken", "no", Cause.SERVICE, False),
        (412, "NoEtagMatch", "changed", Cause.CONFIG, False),
        (413, "RequestEntityTooLarge", "large", Cause.CONFIG, False),
        (429, "TooManyRequests", "slow down", Cause.SERVICE, True),
        (500, "InternalServerError", "oops", Cause.SERVICE, True),
        (501, "NotImplemented", "never", Cause.SERVICE, False),
        (503, "ServiceUnavailable", "later", Cause.SERVICE, True),
        (404, None, "", Cause.CONFIG, False),
    ],
)
def test_service_errors_name_cause_status_code_and_request(status, code, message, cause, retryable):
    error = mapped(service_error(status, code, message))
    assert (error.cause, error.retryable) == (cause, retryable)
    assert (error.status_code, error.code, error.request_id) == (status, code, "ABC")
    assert isinstance(error, RunNotFound) == (status == 404)
    assert message in str(error)
    assert "opc-request-id ABC" in str(error)


def test_a_wrong_clock_is_distinguished_from_a_wrong_key():
    from email.utils import formatdate

    now = time.time()
    assert "clock is 4" in str(mapped(service_error(401, "NotAuthenticated", date=formatdate(now - 400))))
    assert "ahead" in str(mapped(service_error(401, "NotAuthenticated", date=formatdate(now - 400))))
    assert "behind" in str(mapped(service_error(401, "NotAuthenticated", date=formatdate(now + 400))))
    assert "credentials" in str(mapped(service_error(401, "NotAuthenticated", date=formatdate(now))))


def test_not_found_says_that_it_may_be_a_matter_of_permission():
    assert "or these credentials may not see it" in str(mapped(service_error(404, "NotAuthorizedOrNotFound")))


# Credentials


def test_a_missing_config_file_is_named_with_the_remedy(tmp_path):
    error = raised(OciAccess(config_file=str(tmp_path / "nothing")))
    assert str(tmp_path / "nothing") in str(error)
    assert "oci setup config" in str(error)
    assert (error.cause, error.retryable) == (Cause.CONFIG, False)


def test_a_missing_profile_is_named(tmp_path):
    (tmp_path / "config").write_text("[DEFAULT]\n")
    assert "STAGING" in str(raised(OciAccess(config_file=str(tmp_path / "config"), profile="STAGING")))


@pytest.mark.parametrize(
    "text",
    [
        "no section",
        "[DEFAULT]\n",
        "[DEFAULT]\nuser=x\n",
        "[DEFAULT]\nsecurity_token_file=/nope\nkey_file=/nope\n",
    ],
)
def test_a_config_file_that_cannot_be_used_is_named(tmp_path, text):
    (tmp_path / "config").write_text(text)
    assert str(tmp_path / "config") in str(raised(OciAccess(config_file=str(tmp_path / "config"))))


def test_a_key_that_is_no_key_is_reported(emulator, access):
    given = oci.config.from_file(access.config_file, access.profile)
    fields = {name: given[name] for name in ("tenancy", "user", "fingerprint", "region")}
    error = raised(OciAccess(auth="api_key", key_content="no key", **fields))
    assert "API key" in str(error)
    assert "no key" not in str(error)
    assert "API key" in str(raised(OciAccess(auth="api_key", tenancy="x")))


def test_secrets_stay_out_of_repr():
    assert "hush" not in repr(OciAccess(key_content="hush", pass_phrase="hush"))


def test_a_machine_without_principal_says_so_soon(monkeypatch):
    monkeypatch.delenv("OCI_RESOURCE_PRINCIPAL_VERSION", raising=False)
    monkeypatch.setenv("OCI_METADATA_BASE_URL", "http://127.0.0.1:9/opc/v2")
    started = time.monotonic()
    assert "resource principal" in str(raised(OciAccess(auth="resource_principal")))
    assert "instance principal" in str(raised(OciAccess(auth="instance_principal")))
    assert time.monotonic() - started < 30


def test_a_config_file_works(access):
    assert namespace(access)


def test_an_api_key_without_a_file_works(emulator, access):
    given = oci.config.from_file(access.config_file, access.profile)
    fields = {name: given[name] for name in ("tenancy", "user", "fingerprint", "region")}
    key = Path(given["key_file"]).expanduser().read_text()
    assert namespace(
        OciAccess(auth="api_key", endpoint=access.endpoint, key_content=key, **fields)
    ) == namespace(access)


def test_a_session_token_works_by_itself_and_by_its_profile(access, tmp_path):
    config = oci.config.from_file(access.config_file)
    signer = oci.signer.Signer.from_config(config)
    session = requests.post(f"{access.endpoint}/_emulator/sessions", json={}, auth=signer, timeout=10).json()
    (tmp_path / "token").write_text(session["token"])
    (tmp_path / "key.pem").write_text(session["private_key"])
    (tmp_path / "config").write_text(
        f"[DEFAULT]\ntenancy={config['tenancy']}\nregion=us-ashburn-1\n"
        f"security_token_file={tmp_path}/token\nkey_file={tmp_path}/key.pem\n"
    )
    for auth in ("session_token", "config_file"):
        assert namespace(replace(access, auth=auth, config_file=str(tmp_path / "config")))
    (tmp_path / "token").write_text("x" + session["token"][1:])
    assert raised(replace(access, config_file=str(tmp_path / "config"))).status_code == 401


def test_the_endpoint_may_end_in_a_slash_and_the_region_be_absent(access, tmp_path):
    given = Path(access.config_file).read_text()
    (tmp_path / "config").write_text(
        "".join(line for line in given.splitlines(True) if not line.startswith("region"))
    )
    assert namespace(replace(access, config_file=str(tmp_path / "config"), endpoint=f"{access.endpoint}/"))


def test_a_wrong_key_is_one_clear_error(access, tmp_path):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form))
    given = oci.config.from_file(access.config_file, access.profile)
    text = Path(access.config_file).read_text().replace(given["key_file"], str(tmp_path / "key.pem"))
    (tmp_path / "config").write_text(text)
    error = raised(replace(access, config_file=str(tmp_path / "config")))
    assert (error.status_code, error.cause, error.retryable) == (401, Cause.CONFIG, False)
    assert "does not accept these credentials" in str(error)


# Retries and time


def test_passing_faults_are_retried(unruly, proxy):
    proxy.faults = [Fault(status=503), Fault(status=429), Fault(lose_answer=True)]
    assert namespace(unruly)
    assert len(proxy.seen) == 4


def test_a_request_is_given_up_after_as_many_attempts_as_it_may_make(unruly, proxy):
    proxy.faults = [Fault(status=500, times=100)]
    error = raised(replace(unruly, max_attempts=3))
    assert (error.status_code, error.retryable) == (500, True)
    assert len(proxy.seen) == 3


def test_retry_after_is_heeded(unruly, proxy):
    proxy.faults = [Fault(status=429, retry_after="2")]
    started = time.monotonic()
    assert namespace(unruly)
    assert time.monotonic() - started >= 2


def test_refusals_are_not_retried(unruly, proxy):
    proxy.faults = [Fault(status=400, times=100)]
    raised(unruly)
    assert len(proxy.seen) == 1


def test_one_failing_client_does_not_stop_another(access, unruly, proxy):
    """The SDK's circuit breaker is shared by the whole process by default."""
    proxy.faults = [Fault(status=503, times=1000)]
    failing = client(replace(unruly, max_attempts=1), "object_storage")
    for _ in range(30):
        with pytest.raises(BackendError, match="503"), oci_errors("x"):
            failing.get_namespace()
    assert namespace(access)
    proxy.faults = []
    assert failing.get_namespace().data


def test_an_unreachable_endpoint_is_named_within_seconds(access):
    for endpoint in ("http://127.0.0.1:9", "http://no-such-host.invalid"):
        started = time.monotonic()
        error = raised(replace(access, endpoint=endpoint, max_attempts=8))
        assert time.monotonic() - started < 10
        assert f"cannot reach {endpoint}" in str(error)
        assert error.retryable


def test_a_server_that_speaks_something_else_is_one_error(access):
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        for _ in range(2):
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")
            connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    error = raised(replace(access, endpoint=f"http://127.0.0.1:{listener.getsockname()[1]}", max_attempts=2))
    thread.join()
    listener.close()
    assert "connection to http://127.0.0.1" in str(error)


def test_many_threads_find_connections_enough(access):
    shared = client(replace(access, pool_size=16), "object_storage")
    for scheme in ("http://x", "https://x"):
        adapter = shared.base_client.session.get_adapter(scheme)
        assert adapter.poolmanager.connection_pool_kw["maxsize"] == 16
        assert "Expect" not in sent_headers(adapter, body=b"small")
        assert "Expect" in sent_headers(adapter, body=bytes(2 << 20))


def sent_headers(adapter, body):
    """Return what would go over the wire, by way of a connection that is refused."""
    from oci._vendor import requests

    prepared = requests.Request(
        "PUT", "http://127.0.0.1:9/x", data=body, headers={"Expect": "100-continue"}
    ).prepare()
    with pytest.raises(requests.exceptions.ConnectionError):
        adapter.send(prepared)
    return prepared.headers


@pytest.mark.parametrize(
    "service",
    ["data_science", "data_science_runs", "object_storage", "logging_search", "secrets", "identity"],
)
def test_every_service_has_a_client_with_our_limits(access, service):
    made = client(access, service)
    assert made.base_client.endpoint.startswith(access.endpoint)
    assert made.base_client.timeout == (10.0, 60.0)
    assert isinstance(made.base_client.circuit_breaker_strategy, oci.circuit_breaker.NoCircuitBreakerStrategy)


def test_without_endpoint_the_region_decides(access):
    made = client(replace(access, endpoint=None, region="eu-frankfurt-1"), "data_science")
    assert made.base_client.endpoint == "https://datascience.eu-frankfurt-1.oci.oraclecloud.com/20190101"


def test_importing_the_module_loads_the_standard_library_only():
    program = (
        "import sys, airflow_provider_ocidist.oci_client.clients\n"
        "known = set(sys.stdlib_module_names) | {'airflow_provider_ocidist', '__main__'}\n"
        "print([name for name in sys.modules if name.split('.')[0] not in known])\n"
    )
    root = Path(clients.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert done.stdout.strip() == "[]"
