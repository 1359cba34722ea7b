"""Federation: an instance shows its certificate and gets a token for a session key of its own."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key
from starlette.responses import Response

from airflow_provider_ocidist.emulator.auth import signatures, tokens
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import invalid, missing, not_authenticated
from airflow_provider_ocidist.emulator.instances import Instance
from airflow_provider_ocidist.emulator.wire import Call, Route, answer

TOKEN_LIFETIME_S = 20 * 60
KEY_IDS = {"fed-x509": SHA1(), "fed-x509-sha256": SHA256()}  # noqa: S303 - as every SDK sends it


class Federation:
    """Exchanges certificates for tokens. Its callers sign with the certificate's key, and not the host."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._installation = context.installation

    def routes(self) -> list[Route]:
        return [Route("POST", "/v1/x509", self.exchange, signed=False)]

    async def exchange(self, call: Call) -> Response:
        details = await call.json()
        certificate = _certificate(details)
        session = _public_key(details)
        instance = self._installation.instances.recognise(certificate)
        if self._context.options.verify_signatures:
            await _check_request(call, certificate, instance)
        claims = _claims(instance)
        token = tokens.issue(self._installation.issuer, session, claims, lifetime_s=TOKEN_LIFETIME_S)
        return answer({"token": token})


def _claims(instance: Instance) -> dict[str, str]:
    return {
        "sub": instance.id,
        "tenant": instance.tenancy_id,
        "ptype": "instance",
        "opc-instance": instance.id,
        "opc-tenant": instance.tenancy_id,
        "opc-compartment": instance.compartment_id,
    }


async def _check_request(call: Call, certificate: x509.Certificate, instance: Instance) -> None:
    signature = signatures.parse(call.headers.get("authorization", ""))
    signatures.check_headers(signature, signatures.TARGET_HEADERS | signatures.BODY_HEADERS)
    signatures.check_date(signature, call.headers)
    _check_key_id(signature.key_id, certificate, instance)
    key = certificate.public_key()
    assert isinstance(key, RSAPublicKey)
    signatures.check_signature(signature, key, f"post {call.raw_path}", call.headers)
    signatures.check_body(await call.body(), call.headers["x-content-sha256"])


def _check_key_id(key_id: str, certificate: x509.Certificate, instance: Instance) -> None:
    tenancy_id, _, rest = key_id.partition("/")
    kind, _, fingerprint = rest.partition("/")
    algorithm = KEY_IDS.get(kind)
    if tenancy_id != instance.tenancy_id or algorithm is None:
        raise not_authenticated(f"the keyId {key_id!r} is not <tenancy>/fed-x509/<fingerprint>")
    expected = certificate.fingerprint(algorithm).hex(":")
    if fingerprint.lower() != expected:
        raise not_authenticated("the keyId names another certificate than the one sent")


def _certificate(details: Mapping[str, Any]) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(_der(details, "certificate"))
    except ValueError as error:
        raise invalid(f"certificate cannot be read: {error}.") from error


def _public_key(details: Mapping[str, Any]) -> RSAPublicKey:
    try:
        key = load_der_public_key(_der(details, "publicKey"))
    except ValueError as error:
        raise invalid(f"publicKey cannot be read: {error}.") from error
    if not isinstance(key, RSAPublicKey):
        raise invalid("publicKey must be an RSA key.")
    return key


def _der(details: Mapping[str, Any], name: str) -> bytes:
    """Return what was sent: PEM without its first and last line."""
    value = details.get(name)
    if not value or not isinstance(value, str):
        raise missing(name)
    return base64.b64decode(value)
