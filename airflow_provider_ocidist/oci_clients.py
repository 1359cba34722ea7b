"""OCI clients: who we are, where the service is, and how failures are retried. Imports `oci` late."""

from __future__ import annotations

import configparser
import importlib
import importlib.util
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow_provider_ocidist import oci_rest
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.oci_request import Caller, RequestError, Signer, endpoint_of

AuthKind = Literal["config_file", "api_key", "session_token", "instance_principal", "resource_principal"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OciAccess:
    """Credentials and place. Secrets stay out of `repr`."""

    auth: AuthKind = "config_file"
    config_file: str | None = None
    profile: str = "DEFAULT"
    tenancy: str | None = None
    user: str | None = None
    fingerprint: str | None = None
    key_content: str | None = field(default=None, repr=False)
    pass_phrase: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None
    """Service endpoint for every client, as `http://127.0.0.1:8080`; None: the region's own."""
    max_attempts: int = 8
    """Of each request, with exponential back-off and jitter: from 0.2 s to 8 s, 20 s in all."""
    pool_size: int = 32
    """Connections kept open; also how many transfers one client serves at a time."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], endpoint: str | None = None) -> OciAccess:
        """Return what a node has: its resource principal, or else the usual OCI config file."""
        auth: AuthKind = (
            "resource_principal" if "OCI_RESOURCE_PRINCIPAL_VERSION" in environ else "config_file"
        )
        return cls(
            auth=auth,
            config_file=environ.get("OCI_CLI_CONFIG_FILE") or environ.get("OCI_CONFIG_FILE"),
            profile=environ.get("OCI_CLI_PROFILE", "DEFAULT"),
            endpoint=endpoint,
        )


SECRETS = {"private_key_content": "key_content", "passphrase": "pass_phrase"}
"""Airflow masks secrets by the names of their fields, and does not know the SDK's own names."""


def fields_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a connection's extra, under the names that backends and storage use."""
    return {SECRETS.get(name, name): value for name, value in extra.items() if value not in (None, "")}


def access_of(fields: Mapping[str, Any]) -> OciAccess:
    """Return the credentials and place among the fields of a connection."""
    known = OciAccess.__dataclass_fields__
    return OciAccess(**{name: value for name, value in fields.items() if name in known})


Service = Literal[
    "data_science",
    "object_storage",
    "logging",
    "logging_search",
    "secrets",
    "identity",
    "network",
    "limits",
    "search",
]

_CLIENTS: Mapping[Service, tuple[str, str]] = {
    "data_science": ("oci.data_science", "DataScienceClient"),
    "object_storage": ("oci.object_storage", "ObjectStorageClient"),
    "logging": ("oci.logging", "LoggingManagementClient"),
    "logging_search": ("oci.loggingsearch", "LogSearchClient"),
    "secrets": ("oci.secrets", "SecretsClient"),
    "identity": ("oci.identity", "IdentityClient"),
    "network": ("oci.core", "VirtualNetworkClient"),
    "limits": ("oci.limits", "LimitsClient"),
    "search": ("oci.resource_search", "ResourceSearchClient"),
}

_CONNECT_TIMEOUT_S = 10.0
_READ_TIMEOUT_S = 60.0
_RETRY_TOTAL_S = 180.0
_RETRY_WAIT_S = 8.0
"""Longest pause between two attempts, unless the service asks for more."""
_RETRY_AFTER_LIMIT_S = 60.0
_UNREACHABLE_ATTEMPTS = 3
"""A refused connection or an unknown host is seldom a passing fault, and a person may be waiting."""
_EXPECT_FROM_BYTES = 1 << 20
"""`Expect: 100-continue` saves a large body that would be refused, and costs a small one a round trip."""


def client(access: OciAccess, service: Service) -> Any:
    """Return a new SDK client of this service, safe to share between threads, not between processes.

    It has no circuit breaker. The SDK's is by default shared by all clients of the process; one of our own
    would stay as long as the process, and ten failures among thirty threads would stop them all for 30 s.
    Raises BackendError with cause CONFIG when the credentials cannot be loaded.
    """
    with oci_errors(f"connecting to OCI {service.replace('_', ' ')}"):
        if access.auth == "resource_principal" and service in oci_rest.CLIENTS and not _has_sdk():
            return _client_without_sdk(access, service)
        # It tells every task log that a breaker is enabled, which is not even true of our clients.
        logging.getLogger("oci.circuit_breaker").setLevel(logging.WARNING)
        import oci

        config, signer = credentials(access)
        module, name = _CLIENTS[service]
        made = getattr(importlib.import_module(module), name)(
            config,
            signer=signer,
            retry_strategy=_retry_strategy(access.max_attempts, service),
            circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
            timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S),
            **({"service_endpoint": access.endpoint.rstrip("/")} if access.endpoint else {}),
        )
        adapter = _adapter(access.pool_size)
        for scheme in ("https://", "http://"):
            made.base_client.session.mount(scheme, adapter)
        return made


def _has_sdk() -> bool:
    return importlib.util.find_spec("oci") is not None


def _client_without_sdk(access: OciAccess, service: Service) -> oci_rest.Client:
    """Return what lets a node whose image has no SDK meet the others, and save, all the same."""
    endpoint = access.endpoint or endpoint_of(service, os.environ)
    return oci_rest.CLIENTS[service](Caller(Signer.of_resource(os.environ), endpoint, access.max_attempts))


def namespace(access: OciAccess) -> str:
    """Return the Object Storage namespace of the tenancy."""
    with oci_errors("looking up the Object Storage namespace"):
        return str(client(access, "object_storage").get_namespace().data)


def credentials(access: OciAccess) -> tuple[dict[str, Any], Any]:
    """Return the SDK's configuration and signer. Raises BackendError that says what is missing."""
    if access.endpoint and not re.match(r"https?://[^/\s]+", access.endpoint):
        raise BackendError(
            f"endpoint is {access.endpoint!r}; it must be a URL as http://127.0.0.1:8080", cause=Cause.CONFIG
        )
    if access.auth not in _SIGNERS:
        known = ", ".join(_SIGNERS)
        raise BackendError(f"auth is {access.auth!r}; it must be one of {known}", cause=Cause.CONFIG)
    try:
        config, signer = _SIGNERS[access.auth](access)
    except BackendError:
        raise
    except Exception as error:
        if _is_foreign(error) or isinstance(error, OSError | ValueError | KeyError | configparser.Error):
            raise BackendError(
                f"no usable OCI credentials: {_credential_fault(access, error)}", cause=Cause.CONFIG
            ) from error
        raise
    region = access.region or config.get("region") or getattr(signer, "region", None)
    if access.endpoint:
        # The SDK insists on a region even where the endpoint says it all.
        region = region or "us-ashburn-1"
    return {**config, "region": region}, signer


def _from_config_file(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    config = dict(oci.config.from_file(access.config_file or oci.config.DEFAULT_LOCATION, access.profile))
    if config.get("security_token_file"):
        return _from_session_token(access)
    if access.region:
        config["region"] = access.region
    if access.pass_phrase:
        config["pass_phrase"] = access.pass_phrase
    return config, _api_key_signer(_with_region(config, access))


def _from_api_key(access: OciAccess) -> tuple[dict[str, Any], Any]:
    given = {
        "tenancy": access.tenancy,
        "user": access.user,
        "fingerprint": access.fingerprint,
        "key_content": access.key_content,
        "pass_phrase": access.pass_phrase,
        "region": access.region,
    }
    config = {key: value for key, value in given.items() if value}
    return config, _api_key_signer(_with_region(config, access))


def _with_region(config: dict[str, Any], access: OciAccess) -> dict[str, Any]:
    return {"region": "us-ashburn-1", **config} if access.endpoint else config


def _api_key_signer(config: dict[str, Any]) -> Any:
    import oci

    oci.config.validate_config(config)
    return oci.signer.Signer(
        tenancy=config["tenancy"],
        user=config["user"],
        fingerprint=config["fingerprint"],
        private_key_file_location=config.get("key_file"),
        pass_phrase=config.get("pass_phrase"),
        private_key_content=config.get("key_content"),
    )


def _from_session_token(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    config = dict(oci.config.from_file(access.config_file or oci.config.DEFAULT_LOCATION, access.profile))
    if not config.get("security_token_file"):
        raise ValueError(f"profile {access.profile} names no security_token_file")
    token = Path(config["security_token_file"]).expanduser().read_text().strip()
    key = oci.signer.load_private_key_from_file(
        config["key_file"], access.pass_phrase or config.get("pass_phrase")
    )
    return config, oci.auth.signers.SecurityTokenSigner(token, key)


def _from_instance_principal(access: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    options: dict[str, Any] = {
        # The SDK's own would keep a machine that has no metadata service waiting for minutes.
        "retry_strategy": oci.retry.RetryStrategyBuilder(max_attempts=2).get_retry_strategy(),
        "federation_client_circuit_breaker_strategy": oci.circuit_breaker.NoCircuitBreakerStrategy(),
    }
    if access.endpoint and "OCI_METADATA_BASE_URL" in os.environ:
        # Both are overridden only where somebody else plays OCI; then the token service is played there, too.
        options["federation_endpoint"] = f"{access.endpoint.rstrip('/')}/v1/x509"
    return {}, oci.auth.signers.InstancePrincipalsSecurityTokenSigner(**options)


def _from_resource_principal(_: OciAccess) -> tuple[dict[str, Any], Any]:
    import oci

    return {}, oci.auth.signers.get_resource_principals_signer()


_SIGNERS: Mapping[AuthKind, Callable[[OciAccess], tuple[dict[str, Any], Any]]] = {
    "config_file": _from_config_file,
    "api_key": _from_api_key,
    "session_token": _from_session_token,
    "instance_principal": _from_instance_principal,
    "resource_principal": _from_resource_principal,
}


def _credential_fault(access: OciAccess, error: Exception) -> str:
    """Say what is wrong with the credentials, and what to do about it."""
    found = _first_line(error)
    place = f"{access.config_file or '~/.oci/config'}, profile {access.profile}"
    if access.auth in ("config_file", "session_token"):
        make = "oci session authenticate" if access.auth == "session_token" else "oci setup config"
        return f"{place}: {found} (make one with `{make}`, or name another file or profile)"
    if access.auth == "api_key":
        return f"the API key as given: {found} (needs tenancy, user, fingerprint, region, key in PEM form)"
    kind = access.auth.replace("_", " ")
    return f"this machine has no {kind}: {found} (only OCI's own machines have one; elsewhere use an API key)"


def _retry_strategy(max_attempts: int, service: Service) -> Any:
    """Return a strategy with back-off and jitter, bounded in attempts and time, that heeds `Retry-After`."""
    from oci.retry import retry, retry_checkers

    class Checker(retry_checkers.TimeoutConnectionAndServiceErrorRetryChecker):  # type: ignore[misc]
        def should_retry(self, exception: Any = None, response: Any = None, **state: Any) -> bool:
            if _never_heals(exception):
                return False
            if _is_unreachable(exception) and state.get("current_attempt", 0) >= _UNREACHABLE_ATTEMPTS:
                return False
            return bool(super().should_retry(exception, response, **state))

    class Strategy(retry.ExponentialBackOffWithDecorrelatedJitterRetryStrategy):  # type: ignore[misc]
        def do_sleep(self, attempt: int, exception: Any) -> None:
            asked = _retry_after(exception)
            if asked:
                time.sleep(asked)
            else:
                super().do_sleep(attempt, exception)

    conflicts = (
        {}
        if service == "data_science"
        else {409: ["IncorrectState", "LockConflict", "ConcurrentObjectUpdate"]}
    )
    checkers = [
        retry_checkers.LimitBasedRetryChecker(max_attempts=max(1, max_attempts)),
        retry_checkers.TotalTimeExceededRetryChecker(time_limit_seconds=_RETRY_TOTAL_S),
        Checker(service_error_retry_config={429: [], **conflicts}),
    ]
    return Strategy(
        base_sleep_time_seconds=0.1,
        exponent_growth_factor=2,
        max_wait_between_calls_seconds=_RETRY_WAIT_S,
        checker_container=retry_checkers.RetryCheckerContainer(checkers),
        decorrelated_jitter=0.1,
    )


def _retry_after(error: Any) -> float:
    """Return how many seconds the service asks us to wait, at most a minute; 0 when it does not say."""
    headers = getattr(error, "headers", None) or {}
    try:
        return min(max(float(headers.get("retry-after") or 0), 0.0), _RETRY_AFTER_LIMIT_S)
    except ValueError:
        return 0.0


def _adapter(pool_size: int) -> Any:
    """Return the SDK's transport with a larger pool; the SDK itself mounts it for https only."""
    from oci.base_client import OCIHTTPAdapter

    class Adapter(OCIHTTPAdapter):  # type: ignore[misc]
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(request.body, bytes | str | None) and len(request.body or b"") < _EXPECT_FROM_BYTES:
                # The SDK waits up to 3 s for the answer; the variable that stops it acts on all clients.
                request.headers.pop("Expect", None)
            return super().send(request, *args, **kwargs)

    return Adapter(pool_connections=4, pool_maxsize=pool_size)


@contextmanager
def oci_errors(doing: str) -> Iterator[None]:
    """Turn what the OCI SDK and its HTTP library raise into one BackendError, or RunNotFound for a 404.

    The message is one line: what we were doing, the cause, the remedy. Errors of other origin pass through.
    """
    try:
        yield
    except Exception as error:
        mapped = _backend_error(error, doing)
        if mapped is None:
            raise
        raise mapped from error


def _backend_error(error: Exception, doing: str) -> BackendError | None:
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "oci":
        return BackendError(f"{doing}: the OCI SDK is not installed (pip install oci)", cause=Cause.CONFIG)
    if not _is_foreign(error):
        return None
    if hasattr(error, "status") and hasattr(error, "code"):
        return _service_error(error, doing)
    if _never_heals(error):
        return BackendError(f"{doing}: {_first_line(_innermost(error))}", cause=Cause.CONFIG)
    if _is_unreachable(error):
        return BackendError(
            f"{doing}: cannot reach {_endpoint_of(error)} ({_first_line(_innermost(error))}); "
            "check region, endpoint and network",
            retryable=True,
        )
    if type(error).__name__ in _CONFIG_ERRORS:
        return BackendError(f"{doing}: {_first_line(error)}", cause=Cause.CONFIG)
    return BackendError(f"{doing}: {_transport_fault(error)}", retryable=True)


_CONFIG_ERRORS = {
    "ClientError",
    "ConfigFileNotFound",
    "InvalidConfig",
    "InvalidDeveloperToolConfiguration",
    "InvalidResourcePrincipalArguments",
    "InvalidPrivateKey",
    "MissingPrivateKeyPassphrase",
    "InvalidKeyFilePath",
    "ProfileNotFound",
    "Unconfigured",
    "WaitUntilNotSupported",
    "MissingEndpointForNonRegionalServiceClientError",
}

_FOREIGN_MODULES = ("oci", "requests", "urllib3", "circuitbreaker", "http")


def _is_foreign(error: BaseException) -> bool:
    """Whether the SDK, or what it speaks HTTP with, raised this."""
    raised_by = {cls.__module__.split(".")[0] for cls in type(error).__mro__ if cls.__module__ != "builtins"}
    return bool(raised_by & set(_FOREIGN_MODULES)) or isinstance(error, ConnectionError | RequestError)


def _service_error(error: Any, doing: str) -> BackendError:
    status, code, message = int(error.status), error.code, _first_line(error.message or "")
    cause, retryable, reason = _judge(status, code, message, _clock_skew(error.headers))
    kind = RunNotFound if status == 404 else BackendError
    label = f"{status} {code}" if code else str(status)
    request_id = error.request_id
    return kind(
        f"{doing}: {reason} ({label}{', opc-request-id ' + request_id if request_id else ''})",
        status_code=status,
        code=code,
        request_id=request_id,
        retryable=retryable,
        cause=cause,
    )


def _judge(status: int, code: str | None, message: str, skew: float | None) -> tuple[Cause, bool, str]:
    """Return cause, whether a later attempt may succeed, and one line for a person."""
    said = message or "the service gave no reason"
    if "out of host capacity" in message.lower() or code == "OutOfHostCapacity":
        return Cause.CAPACITY, True, said
    if code in ("LimitExceeded", "QuotaExceeded"):
        return Cause.QUOTA, True, said
    if status == 401:
        return Cause.CONFIG, False, _why_unauthenticated(said, skew)
    if status == 404:
        return (
            Cause.CONFIG,
            False,
            f"not found, or these credentials may not see it (OCI answers 404 for both): {said}",
        )
    if status == 429:
        return Cause.SERVICE, True, f"the service asks for fewer requests: {said}"
    if status == 409:
        return (
            Cause.SERVICE,
            code in ("IncorrectState", "Conflict", "LockConflict", "ConcurrentObjectUpdate"),
            said,
        )
    if status >= 500:
        return Cause.SERVICE, status != 501, f"the service failed: {said}"
    return Cause.CONFIG, False, said


def _why_unauthenticated(said: str, skew: float | None) -> str:
    if skew is not None and abs(skew) > _SKEW_ALLOWED_S:
        direction = "ahead of" if skew > 0 else "behind"
        return f"this machine's clock is {abs(skew):.0f} s {direction} the service's: {said}"
    return f"the service does not accept these credentials (wrong or deleted key, expired token): {said}"


_SKEW_ALLOWED_S = 240.0
"""OCI refuses requests that are signed more than five minutes off."""


def _clock_skew(headers: Any) -> float | None:
    """Return by how many seconds this machine's clock is ahead of the service's, from the answer's Date."""
    from email.utils import parsedate_to_datetime  # 20 ms, and agents import this module early

    try:
        return time.time() - parsedate_to_datetime((headers or {})["date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those inside it, wrapped by argument, `reason` or context."""
    seen: set[int] = set()
    waiting: list[Any] = [error]
    while waiting:
        item = waiting.pop(0)
        if isinstance(item, BaseException) and id(item) not in seen:
            seen.add(id(item))
            yield item
            waiting += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]


def _innermost(error: BaseException) -> BaseException:
    return [*_chain(error)][-1]


def _named(error: Any, *names: str) -> bool:
    return isinstance(error, BaseException) and any(type(item).__name__ in names for item in _chain(error))


def _never_heals(error: Any) -> bool:
    return _named(
        error, "SSLCertVerificationError", "CertificateError", "InvalidURL", "InvalidSchema", "MissingSchema"
    )


def _is_unreachable(error: Any) -> bool:
    return _named(
        error,
        "NewConnectionError",
        "NameResolutionError",
        "ConnectTimeout",
        "ConnectTimeoutError",
        "gaierror",
    )


def _transport_fault(error: Exception) -> str:
    if _named(error, "CircuitBreakerError"):
        return "the service failed too often, so the client paused its requests"
    if _named(error, "ReadTimeout", "ReadTimeoutError", "Timeout"):
        return f"{_endpoint_of(error)} did not answer within {_READ_TIMEOUT_S:.0f} s"
    reason = _first_line(_innermost(error)) or type(error).__name__
    return f"the connection to {_endpoint_of(error)} broke ({reason})"


def _endpoint_of(error: BaseException) -> str:
    for item in _chain(error):
        url = getattr(getattr(item, "request", None), "url", None)
        if url:
            parts = urlsplit(url)
            return f"{parts.scheme}://{parts.netloc}"
    return "the service"


def _first_line(value: object) -> str:
    return (str(value).strip().splitlines() or [""])[0][:300]
