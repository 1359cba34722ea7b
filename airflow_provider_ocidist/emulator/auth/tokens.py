"""Tokens that carry a session key: issued to nodes and sessions, checked on each request."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256

from airflow_provider_ocidist.emulator.errors import not_authenticated


def issue(
    issuer: RSAPrivateKey, session: RSAPublicKey, claims: Mapping[str, Any], *, lifetime_s: float
) -> str:
    """Return a JWT, signed by the issuer, that binds `claims` to the session key for `lifetime_s`."""
    now = int(time.time())
    body = {"iss": "ocidist-emulator", "jti": uuid.uuid4().hex, "iat": now, "exp": int(now + lifetime_s)}
    payload = {**body, **claims, "jwk": json.dumps(jwk(session))}
    signed = f"{_encode_json({'alg': 'RS256', 'typ': 'JWT'})}.{_encode_json(payload)}"
    return f"{signed}.{encode(issuer.sign(signed.encode(), PKCS1v15(), SHA256()))}"


def read(issuer: RSAPublicKey, token: str) -> dict[str, Any]:
    """Return the claims of a token that the issuer signed; does not look at its expiry. Raises 401."""
    try:
        signed, _, signature = token.rpartition(".")
        issuer.verify(decode(signature), signed.encode(), PKCS1v15(), SHA256())
        claims = json.loads(decode(signed.split(".")[1]))
    except (ValueError, IndexError, InvalidSignature) as error:
        raise not_authenticated("the token was not issued here") from error
    return dict(claims)


def jwk(key: RSAPublicKey) -> dict[str, str]:
    numbers = key.public_numbers()
    return {"kty": "RSA", "kid": "ignored", "n": _encode_number(numbers.n), "e": _encode_number(numbers.e)}


def public_key_of(claims: Mapping[str, Any]) -> RSAPublicKey:
    """Return the session key that a token is bound to."""
    fields = json.loads(claims["jwk"])
    modulus, exponent = (int.from_bytes(decode(fields[name]), "big") for name in ("n", "e"))
    return RSAPublicNumbers(exponent, modulus).public_key()


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _encode_json(value: Mapping[str, Any]) -> str:
    return encode(json.dumps(value, separators=(",", ":")).encode())


def _encode_number(number: int) -> str:
    return encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))
