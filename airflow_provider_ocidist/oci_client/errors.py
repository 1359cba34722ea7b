"""What the OCI SDK and its HTTP library raise, as our errors: the cause, the remedy, whether to try again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.oci_client.request import RequestError


def oci_errors(doing: str) -> _OciErrors:
    """Turn what the OCI SDK and its HTTP library raise into one BackendError, or RunNotFound for a 404.

    The message is one line: the operation, the cause, the remedy. Errors of other origin pass through.
    """
    return _OciErrors(doing)


class _OciErrors:
    """Of one request. No generator: each request has two or three of these around it."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        mapped = _backend_error(error, self._doing) if isinstance(error, Exception) else None
        if mapped is not None:
            try:
                raise mapped from error
            finally:
                # Its traceback holds this frame: a cycle for each absent stop request, at every beat.
                del mapped


def _backend_error(error: Exception, doing: str) -> BackendError | None:
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "oci":
        return BackendError(f"{doing}: the OCI SDK is not installed (pip install oci)", cause=Cause.CONFIG)
    if not is_foreign(error):
        return None
    if hasattr(error, "status") and hasattr(error, "code"):
        return _service_error(error, doing)
    if never_heals(error):
        return BackendError(f"{doing}: {first_line(_innermost(error))}", cause=Cause.CONFIG)
    if is_unreachable(error):
        return BackendError(
            f"{doing}: cannot reach {_endpoint_of(error)} ({first_line(_innermost(error))}); "
            "check region, endpoint and network",
            retryable=True,
        )
    if type(error).__name__ in _CONFIG_ERRORS:
        return BackendError(f"{doing}: {first_line(error)}", cause=Cause.CONFIG)
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


def is_foreign(error: BaseException) -> bool:
    """Whether the SDK, or what it speaks HTTP with, raised this."""
    raised_by = {cls.__module__.split(".")[0] for cls in type(error).__mro__ if cls.__module__ != "builtins"}
    return bool(raised_by & set(_FOREIGN_MODULES)) or isinstance(error, (ConnectionError, RequestError))


def _service_error(error: Any, doing: str) -> BackendError:
    status, code, message = int(error.status), error.code, first_line(error.message or "")
    skew = _clock_skew(error.headers) if status == 401 else None
    cause, retryable, reason = _judge(status, code, message, skew)
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
"""Seconds by which a clock may differ: OCI refuses requests that are signed more than five minutes off."""


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


def never_heals(error: Any) -> bool:
    """Whether a certificate or an address is wrong, so that another attempt is of no use."""
    return _named(
        error, "SSLCertVerificationError", "CertificateError", "InvalidURL", "InvalidSchema", "MissingSchema"
    )


def is_unreachable(error: Any) -> bool:
    """Whether no connection came about: the host is unknown, refuses it, or does not answer in time."""
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
        return f"{_endpoint_of(error)} did not answer in time"
    reason = first_line(_innermost(error)) or type(error).__name__
    return f"the connection to {_endpoint_of(error)} broke ({reason})"


def _endpoint_of(error: BaseException) -> str:
    for item in _chain(error):
        url = getattr(getattr(item, "request", None), "url", None)
        if url:
            parts = urlsplit(url)
            return f"{parts.scheme}://{parts.netloc}"
    return "the service"


def first_line(value: object) -> str:
    """Return the first line of a text, cut after 300 characters."""
    return (str(value).strip().splitlines() or [""])[0][:300]
