"""Request signatures (draft-cavage-http-signatures-08): who sent this, and did it arrive as it was sent."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from airflow_provider_ocidist.emulator.auth import tokens
from airflow_provider_ocidist.emulator.errors import not_authenticated
from airflow_provider_ocidist.emulator.wire import Principal

MAX_SKEW_S = 300
TARGET_HEADERS = frozenset({"(request-target)"})
BASE_HEADERS = TARGET_HEADERS | {"host"}
BODY_HEADERS = frozenset({"content-length", "content-type", "x-content-sha256"})
MAX_CACHED_TOKENS = 4096
FIELD = re.compile(r'(?:^|,)\s*(\w+)="([^"]*)"')
"""Field of the Authorization header. It begins at a comma: looked for everywhere, it would take hours in a long
word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    """A key that may sign, and for whom."""

    key: RSAPublicKey
    principal: Principal
    expires_at: float = float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuthorizationHeader:
    """The Authorization header, taken apart."""

    key_id: str
    headers: tuple[str, ...]
    value: bytes


class Verifier:
    """Checks signatures by API keys (`tenancy/user/fingerprint`) and by tokens of one issuer (`ST$...`)."""

    def __init__(self, issuer: RSAPublicKey, find_api_key: Callable[[str], Credential]) -> None:
        """`find_api_key` returns the key of a keyId, or raises 401."""
        self._issuer = issuer
        self._find_api_key = find_api_key
        self._tokens: dict[str, Credential] = {}

    def verify(self, method: str, target: str, headers: Mapping[str, str], *, body_signed: bool) -> Principal:
        """Return the signer. Raises 401. `body_signed`: the headers that guard the body must be signed."""
        signature = parse(headers.get("authorization", ""))
        check_headers(signature, BASE_HEADERS | (BODY_HEADERS if body_signed else frozenset()))
        check_date(signature, headers)
        credential = self._credential(signature.key_id)
        if credential.expires_at < time.time():
            raise not_authenticated(f"the token expired at {formatdate(credential.expires_at, usegmt=True)}")
        check_signature(signature, credential.key, f"{method.lower()} {target}", headers)
        return credential.principal

    def _credential(self, key_id: str) -> Credential:
        if key_id.startswith("ST$"):
            return self._token_credential(key_id.removeprefix("ST$"))
        return self._find_api_key(key_id)

    def _token_credential(self, token: str) -> Credential:
        credential = self._tokens.get(token)
        if credential is None:
            credential = _credential_of(tokens.read(self._issuer, token))
            if len(self._tokens) >= MAX_CACHED_TOKENS:
                self._tokens.clear()
            self._tokens[token] = credential
        return credential


def _credential_of(claims: Mapping[str, Any]) -> Credential:
    principal = Principal(id=claims["sub"], tenancy_id=claims["tenant"])
    return Credential(key=tokens.public_key_of(claims), principal=principal, expires_at=claims["exp"])


def parse(authorization: str) -> AuthorizationHeader:
    """Take an Authorization header apart. Raises 401 when it is not an OCI signature."""
    scheme, _, rest = authorization.partition(" ")
    fields = dict(FIELD.findall(rest))
    if scheme.lower() != "signature" or fields.get("algorithm") != "rsa-sha256":
        raise not_authenticated("there is no rsa-sha256 signature")
    try:
        value = base64.b64decode(fields["signature"], validate=True)
        # Each once: the signed text has each header's value as often as it is named.
        names = tuple(dict.fromkeys(fields["headers"].lower().split()))
        return AuthorizationHeader(key_id=fields["keyId"], headers=names, value=value)
    except (KeyError, ValueError) as error:
        raise not_authenticated("the Authorization header is incomplete") from error


def check_headers(signature: AuthorizationHeader, required: frozenset[str]) -> None:
    """Raise 401 unless a date and all that is required are signed."""
    signed = set(signature.headers)
    absent = required - signed
    if not signed & {"date", "x-date"}:
        absent |= {"date"}
    if absent:
        raise not_authenticated(f"not signed: {', '.join(sorted(absent))}")


def check_date(signature: AuthorizationHeader, headers: Mapping[str, str]) -> None:
    name = "x-date" if "x-date" in signature.headers else "date"
    text = headers.get(name, "")
    try:
        skew = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError, OverflowError) as error:
        raise not_authenticated(f"the {name} header {text!r} is not a date") from error
    if abs(skew) > MAX_SKEW_S:
        side = "ahead of" if skew > 0 else "behind"
        raise not_authenticated(
            f"the client's clock is {abs(skew):.0f} s {side} the server's, {MAX_SKEW_S} s are allowed"
        )


def check_signature(
    signature: AuthorizationHeader, key: RSAPublicKey, request_target: str, headers: Mapping[str, str]
) -> None:
    text = signing_string(signature.headers, request_target, headers)
    try:
        key.verify(signature.value, text.encode("latin-1"), PKCS1v15(), SHA256())
    except InvalidSignature as error:
        raise not_authenticated(
            "the signature does not fit: another private key than the keyId's signed it, or the method, path,"
            f" query or a signed header is not what was signed; the server saw {request_target!r}"
        ) from error


def signing_string(names: tuple[str, ...], request_target: str, headers: Mapping[str, str]) -> str:
    """Return the text that is signed: one `name: value` per line, in the order that the client chose."""
    values = {"(request-target)": request_target}
    try:
        return "\n".join(f"{name}: {values.get(name) or headers[name]}" for name in names)
    except KeyError as error:
        raise not_authenticated(f"signed header {error} was not sent") from error


def check_body(body: bytes, expected: str) -> None:
    """Raise 401 unless the body has the signed hash."""
    _compare(hashlib.sha256(body).digest(), expected)


async def checked(chunks: AsyncIterator[bytes], expected: str) -> AsyncIterator[bytes]:
    """Yield the chunks; raise 401 at their end unless they have the signed hash."""
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
        yield chunk
    _compare(digest.digest(), expected)


def _compare(digest: bytes, expected: str) -> None:
    if base64.b64encode(digest).decode() != expected:
        raise not_authenticated("the body does not have the signed x-content-sha256")
