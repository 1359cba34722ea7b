"""What the Kubernetes client raises, as our errors: the cause, the remedy, whether to try again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound

ROLE = "docs/kubernetes.md has the Role"
ANONYMOUS = "system:anonymous"
"""Name of a user without credentials, as whom a client asks whose exec plugin has failed: it only logs that."""
FOREIGN = ("kubernetes", "urllib3", "http", "ssl", "yaml")
"""Packages whose errors are mapped: the client, its HTTP library, the reader of a kubeconfig."""


@contextmanager
def kubernetes_errors(doing: str) -> Iterator[None]:
    """Turn what the client raises into one BackendError, or RunNotFound for an object that is not there.

    The message is one line: the operation, the cause, the remedy. Errors of other origin pass through.
    """
    try:
        yield
    except Exception as error:
        mapped = _mapped(error, doing)
        if mapped is None:
            raise
        raise mapped from error


def _mapped(error: Exception, doing: str) -> BackendError | None:
    if isinstance(error, ImportError):
        return BackendError(
            f"{doing}: the Kubernetes client is not installed: pip install 'airflow-provider-ocidist[kubernetes]'",
            cause=Cause.CONFIG,
        )
    origin = type(error).__module__.partition(".")[0]
    status = getattr(error, "status", None)
    if origin == "kubernetes" and isinstance(status, int) and status:
        return _answer(error, doing)
    if type(error).__name__ == "ConfigException" or origin == "yaml":
        return BackendError(f"{doing}: the kubeconfig cannot be used: {_line(error)}", cause=Cause.CONFIG)
    if origin in FOREIGN or isinstance(error, ConnectionError | TimeoutError):
        return _unanswered(error, doing)
    return None


def _unanswered(error: Exception, doing: str) -> BackendError:
    text = _line(error)
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verify failed" in text:
        return BackendError(
            f"{doing}: the API server's certificate is not trusted: {text}", cause=Cause.CONFIG
        )
    return BackendError(f"{doing}: the API server does not answer: {text}", retryable=True)


def _answer(error: Any, doing: str) -> BackendError:
    status, (reason, said) = int(error.status), said_in(error)
    cause, retryable, why = _judged(status, reason, said)
    kind = RunNotFound if status == 404 and reason == "NotFound" else BackendError
    label = f"{status} {reason}" if reason else str(status)
    return kind(
        f"{doing}: {why} ({label})", status_code=status, code=reason, retryable=retryable, cause=cause
    )


def said_in(error: Any) -> tuple[str | None, str]:
    """Return reason and message of an answer: those of its Status, or the text of one that has none."""
    text = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        value = json.loads(text)
        return value.get("reason"), str(value.get("message") or error.reason)
    except (ValueError, AttributeError):
        return None, _line(text) or str(error.reason)


def is_of_nobody(error: Any) -> bool:
    """Whether a request was refused since the server did not know whose it was: it had no credentials, or old ones."""
    status = getattr(error, "status", None)
    return status == 401 or (status == 403 and ANONYMOUS in said_in(error)[1])


def _judged(status: int, reason: str | None, said: str) -> tuple[Cause, bool, str]:
    """Return cause, whether a later request may succeed, and one line for a person."""
    if status == 401:
        return (
            Cause.CONFIG,
            False,
            f"the API server does not accept these credentials (expired token?): {said}",
        )
    if status == 403 and ANONYMOUS in said:
        return (
            Cause.CONFIG,
            False,
            f"no credentials were sent: see that the kubeconfig's exec plugin works here: {said}",
        )
    if status == 403 and "exceeded quota" in said:
        return Cause.QUOTA, True, said
    if status == 403 and "admission webhook" not in said:
        return Cause.CONFIG, False, f"{said}; {ROLE} that is needed"
    if status == 404 and reason is None:
        return Cause.CONFIG, False, "the API server does not serve this"
    if status in (408, 429):
        return Cause.SERVICE, True, f"the API server asks for fewer requests: {said}"
    if status >= 500:
        return Cause.SERVICE, True, f"the API server failed: {said}"
    if status == 410 or (status == 409 and reason == "Conflict"):
        return Cause.SERVICE, True, said
    return Cause.CONFIG, False, said


def _line(value: object) -> str:
    return (str(value).strip().splitlines() or [""])[0][:300]
