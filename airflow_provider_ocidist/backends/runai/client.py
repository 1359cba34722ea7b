"""Client: the requests to a control plane of Run:ai, with a token that is renewed in time, and its errors as ours."""

from __future__ import annotations

import base64
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.backends.service_clock import ServiceClock
from airflow_provider_ocidist.errors import BackendError, Cause, RunNotFound
from airflow_provider_ocidist.model.pauses import doubling_pause

log = logging.getLogger(__name__)

CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 30.0
"""Seconds for a connection, and for each piece of an answer."""
MAX_ATTEMPTS = 6
"""Most times that a request is sent, with exponential back-off and jitter: 20 s in all, as for OCI."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 8.0
"""Most seconds before the first repetition of a request, and before any later one."""
MARGIN = 60.0
"""Seconds before its end in which a token is renewed; of a short-lived one, a tenth of its life."""
RENEWED_AGAIN = 10.0
"""Seconds after which a renewal that has failed is tried again, while the token is good."""
URGENT_TIMEOUT = 2.0
"""Seconds for a connection, and for an answer, of a cancel: a killed task has five in all."""
URGENT_ATTEMPTS, URGENT_PAUSE = 2, 0.2
"""Most times that a cancel is sent, and seconds between them, whatever `Retry-After` says: its caller tries again."""
PAGE = 500
"""Most items that a list returns at a time."""
BUSY = (429, 500, 502, 503, 504)
"""Statuses after which a request is sent again."""


class Busy(BackendError):
    """The control plane cannot answer now; `retry_after`: in how many seconds it asks to be asked again."""

    def __init__(self, message: str, status_code: int, retry_after: float) -> None:
        super().__init__(message, status_code=status_code, retryable=True)
        self.retry_after = retry_after


class Garbled(BackendError):
    """An answer is not that of a control plane, as one of a proxy."""


@dataclass(frozen=True, slots=True)
class Token:
    """The token of an account; times by this machine's monotonic clock."""

    text: str
    renew_at: float
    ends_at: float


class Client:
    """Asks one control plane as one service account. Safe to share between threads."""

    def __init__(
        self,
        fields: Fields,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        *,
        urgent: bool = False,
        service_clock: ServiceClock | None = None,
    ) -> None:
        """`urgent`: for cancels, which wait seconds at most. `service_clock` is set by the answers."""
        self._fields = fields
        self._urgent = urgent
        self._clock = clock
        self._service_clock = service_clock or ServiceClock()
        self._sleep = sleep
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._http = httpx.Client(
            base_url=fields.address,
            verify=_verification(fields.verify),
            timeout=httpx.Timeout(URGENT_TIMEOUT)
            if urgent
            else httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            follow_redirects=False,
            event_hooks={"response": [self._hear]},
        )

    def close(self) -> None:
        self._http.close()

    def ready(self) -> None:
        """Get a token, for a request that must not wait for one. Raises BackendError."""
        self._current_token()

    def get(self, path: str, doing: str, **params: Any) -> Any:
        return self.call("GET", path, doing, params=params)

    def pages(self, path: str, name: str, doing: str, **params: Any) -> Iterator[Mapping[str, Any]]:
        """Yield the items of a list, whichever pages they are on."""
        offset: int | None = 0
        while offset is not None:
            answer = self.get(path, doing, offset=offset, limit=PAGE, **params)
            yield from answer.get(name) or ()
            following = answer.get("next")
            # A list that does not go on names no offset, or none beyond this one.
            offset = following if isinstance(following, int) and following > offset else None

    def call(
        self, method: str, path: str, doing: str, *, attempts: int = MAX_ATTEMPTS, **options: Any
    ) -> Any:
        """Return what a request is answered, after retries where the service is busy. Raises BackendError.

        `attempts`: 1 for what must not be repeated unseen.
        """
        attempts = min(attempts, URGENT_ATTEMPTS) if self._urgent else attempts
        for attempt in range(1, attempts + 1):
            try:
                return self._ask(method, path, doing, options)
            except BackendError as error:
                pause = _pause(error, attempt)
                if attempt == attempts or pause is None:
                    raise
                self._sleep(min(pause, URGENT_PAUSE) if self._urgent else pause)
        raise AssertionError("unreachable")

    def _ask(self, method: str, path: str, doing: str, options: Mapping[str, Any]) -> Any:
        token = self._current_token()
        answer = self._send(method, path, doing, token, options)
        if answer.status_code == 401:
            # Revoked, or issued by a key that was exchanged since: once that is no failure.
            self._drop(token)
            answer = self._send(method, path, doing, self._current_token(), options)
        return _content(answer, doing)

    def _send(
        self, method: str, path: str, doing: str, token: Token, options: Mapping[str, Any]
    ) -> httpx.Response:
        with _transport_errors(doing, str(self._http.base_url)):
            headers = {"authorization": f"Bearer {token.text}"}
            return self._http.request(method, path, headers=headers, **options)

    def _hear(self, answer: httpx.Response) -> None:
        # An error may be that of a proxy on the way, whose clock nobody vouches for.
        if answer.is_success:
            self._service_clock.take(answer)

    # tokens

    def _current_token(self) -> Token:
        with self._lock:
            if self._token is None:
                self._token = self._new_token()
            elif self._clock() >= self._token.renew_at:
                self._token = self._renewed(self._token)
            return self._token

    def _renewed(self, token: Token) -> Token:
        """Return a new token; while there is none to be had, the old one, as long as it is good."""
        try:
            return self._new_token()
        except BackendError as error:
            if not error.retryable or self._clock() >= token.ends_at:
                raise
            log.info("%s; the token before is still good", error)
            return replace(token, renew_at=min(self._clock() + RENEWED_AGAIN, token.ends_at))

    def _drop(self, token: Token) -> None:
        """Forget a token that was refused, unless another thread has renewed it already."""
        with self._lock:
            # By its text: one that could not be renewed just now is another object.
            if self._token is not None and self._token.text == token.text:
                self._token = None

    def _new_token(self) -> Token:
        """Return a new token, by the endpoint of today or, where there is none, that of before."""
        doing = "asking Run:ai for a token"
        client, secret = self._fields.client_id, self._fields.client_secret
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret}
        asked_at = self._clock()
        with _transport_errors(doing, str(self._http.base_url)):
            answer = self._http.post("/api/v2/token", data=form)
            if answer.status_code == 404:
                body = {"grantType": "client_credentials", "clientID": client, "clientSecret": secret}
                answer = self._http.post("/api/v1/token", json=body)
        if answer.status_code in (400, 401, 403):
            raise BackendError(
                f"{doing}: the control plane refuses the client id or the secret ({answer.status_code}): see that the "
                "service account exists there, and renew its secret in the connection",
                status_code=answer.status_code,
                cause=Cause.CONFIG,
            )
        content = _content(answer, doing)
        text = content.get("access_token") or content.get("accessToken")
        if not text:
            raise BackendError(f"{doing}: the answer contains no token", retryable=True)
        lives = _lifetime(str(text), content.get("expires_in") or content.get("expiresIn"))
        return Token(str(text), asked_at + lives - min(MARGIN, lives / 10), asked_at + lives)


def _lifetime(token: str, said: Any) -> float:
    """Return for how many seconds a token is good: as the answer says, or the token itself."""
    if isinstance(said, int | float) and said > 0:
        return float(said)
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return max(float(claims["exp"]) - time.time(), 0.0)
    except (IndexError, ValueError, TypeError, LookupError):
        return MARGIN


def _verification(verify: bool | str) -> Any:
    if not isinstance(verify, str):
        return verify
    import ssl

    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise BackendError(
            f"the connection's verify names no bundle of authorities: {verify}: {error}", cause=Cause.CONFIG
        ) from error


def _content(answer: httpx.Response, doing: str) -> Any:
    """Return the JSON of an answer. Raises BackendError for a refusal."""
    if answer.is_success:
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise Garbled(f"{doing}: the answer is not JSON: is this a control plane of Run:ai?") from error
    raise error_of(answer.status_code, answer.text, doing, answer.headers.get("retry-after"))


def error_of(status: int, text: str, doing: str, retry_after: str | None = None) -> BackendError:
    """Return the error for an answer that is none, with what to do."""
    message, issues = _said(text)
    whole = f"{doing}: {status}: {'; '.join([message, *issues])}"
    if status == 404:
        return RunNotFound(whole, status_code=404)
    if status in BUSY:
        return Busy(whole, status, float(retry_after) if retry_after and retry_after.isdecimal() else 0.0)
    remedy = REMEDIES.get(status, "")
    return BackendError(f"{whole}{remedy}", status_code=status, cause=Cause.CONFIG)


REMEDIES = {
    401: "; the token was refused twice: see that the service account still exists",
    403: "; give the service account an access rule for the project, with a role that may create and delete workloads",
}


def _said(text: str) -> tuple[str, Sequence[str]]:
    """Return the message of a refusal, and which rules of a policy it breaks."""
    try:
        body = json.loads(text)
    except ValueError:
        return text.strip().partition("\n")[0][:300] or "no reason is given", ()
    if not isinstance(body, dict):
        return "no reason is given", ()
    issues = [f"{item.get('field')}: {item.get('details')}" for item in body.get("complianceIssues") or ()]
    message = (
        body.get("message") or body.get("error_description") or body.get("error") or "no reason is given"
    )
    details = body.get("details")
    return str(message), [*([str(details)] if details else []), *issues]


@contextmanager
def _transport_errors(doing: str, address: str) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise BackendError(
                f"{doing}: the certificate of {address} is not trusted: name its authority in the connection's verify",
                cause=Cause.CONFIG,
            ) from error
        raise BackendError(
            f"{doing}: cannot reach {address} ({str(error) or type(error).__name__}); check host and network",
            retryable=True,
        ) from error
    except (httpx.InvalidURL, UnicodeError) as error:
        raise BackendError(f"{doing}: {address} is not an address: {error}", cause=Cause.CONFIG) from error


def _pause(error: BackendError, attempt: int) -> float | None:
    """Return how long to wait before the next attempt, in seconds; None where it is of no use."""
    if not error.retryable:
        return None
    most = doubling_pause(FIRST_PAUSE, LONGEST_PAUSE, attempt)
    asked = error.retry_after if isinstance(error, Busy) else 0.0
    return max(min(asked, LONGEST_PAUSE), random.uniform(most / 2, most))
