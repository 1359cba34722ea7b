"""OCI clients: each with our limits, and how failures are retried. Imports `oci` late."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Literal

from airflow_provider_ocidist.model.pauses import doubling_pause
from airflow_provider_ocidist.oci_client import rest
from airflow_provider_ocidist.oci_client.credentials import OciAccess, credentials
from airflow_provider_ocidist.oci_client.errors import is_unreachable, never_heals, oci_errors
from airflow_provider_ocidist.oci_client.request import CONFLICTS, Caller, Signer, endpoint_of

Service = Literal[
    "data_science",
    "data_science_runs",
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
    "data_science_runs": ("airflow_provider_ocidist.oci_client.job_runs", "JobRunsClient"),
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
_RETRY_TOTAL_S = 180.0
"""Seconds after the first attempt from which on there is no further one; for urgent requests `_URGENT_TOTAL_S`."""
_RETRY_WAIT_S = 8.0
"""Longest seconds between two attempts, unless the service asks for more."""
_RETRY_AFTER_LIMIT_S = 60.0
"""Longest seconds of a `Retry-After` that are waited."""
_URGENT_TIMEOUT_S = 5.0
_URGENT_TOTAL_S = 4.0
_URGENT_WAIT_S = 1.0
"""Longest seconds between two attempts of an urgent request, despite `Retry-After`: its caller tries again."""
_UNREACHABLE_ATTEMPTS = 3
"""Number of attempts after a refused connection or an unknown host, which seldom pass, while a person may wait."""
_EXPECT_FROM_BYTES = 1 << 20
"""Bytes of a body from which on `Expect: 100-continue` is sent: it saves a large body, and costs a small one a round
trip."""


def client(access: OciAccess, service: Service) -> Any:
    """Return a new SDK client of this service, safe to share between threads, not between processes.

    It has no circuit breaker. The SDK's is by default shared by all clients of the process; one of our own
    would stay as long as the process, and ten failures among thirty threads would stop them all for 30 s.
    Raises BackendError with cause CONFIG when the credentials cannot be loaded.
    """
    with oci_errors(f"connecting to OCI {service.replace('_', ' ')}"):
        if access.auth == "resource_principal" and service in rest.CLIENTS and not _has_sdk():
            return _client_without_sdk(access, service)
        # It logs to every task log that a breaker is enabled, which is untrue for our clients.
        logging.getLogger("oci.circuit_breaker").setLevel(logging.WARNING)
        import oci

        config, signer = credentials(access)
        module, name = _CLIENTS[service]
        made = getattr(importlib.import_module(module), name)(
            config,
            signer=signer,
            retry_strategy=_retry_strategy(access.max_attempts, service, urgent=access.urgent),
            circuit_breaker_strategy=oci.circuit_breaker.NoCircuitBreakerStrategy(),
            timeout=_timeouts(access),
            **({"service_endpoint": access.endpoint.rstrip("/")} if access.endpoint else {}),
        )
        adapter = _adapter(access.pool_size)
        for scheme in ("https://", "http://"):
            made.base_client.session.mount(scheme, adapter)
        return made


def _timeouts(access: OciAccess) -> tuple[float, float]:
    """Return how long a request waits for a connection and for an answer, in seconds."""
    read = min(access.read_timeout, _URGENT_TIMEOUT_S) if access.urgent else access.read_timeout
    return min(_CONNECT_TIMEOUT_S, read), read


def _has_sdk() -> bool:
    return importlib.util.find_spec("oci") is not None


def _client_without_sdk(access: OciAccess, service: Service) -> rest.RestClient:
    """Return the client of nodes whose image has no SDK, for the rendezvous and for saving."""
    endpoint = access.endpoint or endpoint_of(service, os.environ, access.region)
    signer = Signer.of_resource(os.environ)
    return rest.CLIENTS[service](Caller(signer, endpoint, access.max_attempts, access.read_timeout))


def namespace(access: OciAccess) -> str:
    """Return the Object Storage namespace of the tenancy."""
    with oci_errors("looking up the Object Storage namespace"):
        return str(client(access, "object_storage").get_namespace().data)


def _retry_strategy(max_attempts: int, service: Service, *, urgent: bool = False) -> Any:
    """Return a strategy with back-off and jitter, bounded in attempts and time, that heeds `Retry-After`."""
    from oci.retry import retry_checkers

    checker, strategy = _retry_kinds()
    conflicts = {} if service.startswith("data_science") else {409: list(CONFLICTS)}
    checkers = [
        retry_checkers.LimitBasedRetryChecker(max_attempts=max_attempts),
        retry_checkers.TotalTimeExceededRetryChecker(
            time_limit_seconds=_URGENT_TOTAL_S if urgent else _RETRY_TOTAL_S
        ),
        checker(service_error_retry_config={429: [], **conflicts}),
    ]
    return strategy(
        urgent=urgent,
        base_sleep_time_seconds=0.1,
        exponent_growth_factor=2,
        max_wait_between_calls_seconds=_RETRY_WAIT_S,
        checker_container=retry_checkers.RetryCheckerContainer(checkers),
        decorrelated_jitter=0.1,
    )


@functools.cache
def _retry_kinds() -> tuple[Any, Any]:
    """Return what decides on another attempt, and what waits before it; made once, for the SDK is imported late."""
    from oci.retry import retry, retry_checkers

    class Checker(retry_checkers.TimeoutConnectionAndServiceErrorRetryChecker):
        def should_retry(self, exception: Any = None, response: Any = None, **state: Any) -> bool:
            if never_heals(exception):
                return False
            if is_unreachable(exception) and state.get("current_attempt", 0) >= _UNREACHABLE_ATTEMPTS:
                return False
            return bool(super().should_retry(exception, response, **state))

    class Strategy(retry.ExponentialBackOffWithDecorrelatedJitterRetryStrategy):
        def __init__(self, *, urgent: bool, **details: Any) -> None:
            super().__init__(**details)
            self._urgent = urgent

        def do_sleep(self, attempt: int, exception: Any) -> None:
            asked = _retry_after(exception)
            if self._urgent:
                pause = asked or doubling_pause(0.1, _URGENT_WAIT_S, attempt + 1)
                time.sleep(min(pause, _URGENT_WAIT_S))
            elif asked:
                time.sleep(asked)
            else:
                super().do_sleep(attempt, exception)

    return Checker, Strategy


def _retry_after(error: Any) -> float:
    """Return how many seconds the service asks us to wait, at most a minute; 0 when it does not ask."""
    headers = getattr(error, "headers", None) or {}
    try:
        return min(max(float(headers.get("retry-after") or 0), 0.0), _RETRY_AFTER_LIMIT_S)
    except ValueError:
        return 0.0


def _adapter(pool_size: int) -> Any:
    """Return the SDK's transport with a larger pool; the SDK itself mounts it for https only."""
    from oci.base_client import OCIHTTPAdapter

    class Adapter(OCIHTTPAdapter):
        def send(self, request: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                isinstance(request.body, (bytes, str, type(None)))
                and len(request.body or b"") < _EXPECT_FROM_BYTES
            ):
                # The SDK waits up to 3 s for the answer; the variable that stops it acts on all clients.
                request.headers.pop("Expect", None)
            return super().send(request, *args, **kwargs)

    return Adapter(pool_connections=4, pool_maxsize=pool_size)
