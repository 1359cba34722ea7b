"""Tokens: what a service account gets for its secret, and how long that is good for."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Mapping

from airflow_provider_ocidist.emulator.runai.refusals import unfamiliar
from airflow_provider_ocidist.emulator.runai_settings import Account

BEARER = "Bearer "


class Tokens:
    """Issues tokens in the form of a JWT, with `exp`; one from before `revoke` is good no longer."""

    def __init__(
        self, accounts: tuple[Account, ...], lifetime_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._accounts = {account.client_id: account for account in accounts}
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self.lifetime_s = lifetime_s

    def issue(self, client_id: str, client_secret: str) -> str | None:
        """Return a new token; None for an unknown account, or a wrong secret."""
        account = self._accounts.get(client_id)
        if account is None or not _is_same(account.client_secret, client_secret):
            return None
        now = self._clock()
        claims = {
            "sub": client_id,
            "iat": int(now),
            "exp": now + self.lifetime_s,
            "jti": secrets.token_hex(8),
        }
        text = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{text}.{self._signature(text)}"

    def account_of(self, authorization: str) -> Account:
        """Return whose token a request bears. Raises the refusal 401."""
        text, _, signature = authorization.removeprefix(BEARER).rpartition(".")
        if not authorization.startswith(BEARER) or not _is_same(signature, self._signature(text)):
            raise unfamiliar()
        claims = _decoded(text.partition(".")[2])
        if float(claims["exp"]) <= self._clock():
            raise unfamiliar()
        return self._accounts[str(claims["sub"])]

    def revoke(self) -> None:
        """Make every token that was issued so far worthless."""
        self._key = secrets.token_bytes(32)

    def _signature(self, text: str) -> str:
        return _base64(hmac.digest(self._key, text.encode(), hashlib.sha256))


def _is_same(one: str, other: str) -> bool:
    """Compare secrets, in a time that says nothing of them; those of clients may have any letters."""
    return hmac.compare_digest(one.encode(), other.encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _encoded(value: Mapping[str, object]) -> str:
    return _base64(json.dumps(value).encode())


def _decoded(text: str) -> dict[str, float | str]:
    value: dict[str, float | str] = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    return value
