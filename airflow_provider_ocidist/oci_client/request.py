"""One signed request to OCI, by the standard library alone.

It imports nothing of ours: its source travels to nodes whose image has neither this package nor the SDK.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 60.0
LONGEST_PAUSE_S = 8.0
PASSING = (408, 429, 500, 502, 503, 504)
"""Statuses of refusals that may pass at a later attempt."""
CONFLICTS = ("IncorrectState", "LockConflict", "ConcurrentObjectUpdate")
"""Codes of status 409 that may pass at a later attempt."""
SHA256_INFO = bytes.fromhex("3031300d060960864801650304020105000420")
"""Bytes before a SHA-256 digest in a signature (RFC 8017, section 9.2, note 1)."""
DOMAINS = {"oc2": "oraclegovcloud.com", "oc3": "oraclegovcloud.com", "oc4": "oraclegovcloud.uk"}
DOMAINS |= {"oc1": "oraclecloud.com", "oc19": "oraclecloud.eu"}
"""Domain of each realm that does not follow the rule (`oci.regions_definitions.REALMS`)."""
ENDPOINTS = {
    "object_storage": "https://objectstorage.{region}.{domain}",
    "secrets": "https://secrets.vaults.{region}.oci.{domain}",
}
"""Hosts of the services, as the SDK's clients have them."""


class RequestError(Exception):
    """A request that was not answered, or could not be made."""

    passes = True
    """Whether a later attempt may succeed."""

    def __init__(self, message: str, url: str = "") -> None:
        super().__init__(message)
        self.url = url

    @property
    def request(self) -> RequestError:
        """The error itself, since the SDK's errors have a `request` with the address."""
        return self


class Unconfigured(RequestError):
    """Something that every request needs is missing on the node."""

    passes = False


class ErrorAnswer(RequestError):
    """An answer that is no success; what the SDK calls a ServiceError."""

    def __init__(self, url: str, status: int, headers: Mapping[str, str], text: bytes) -> None:
        self.status, self.headers = status, headers
        self.request_id = headers.get("opc-request-id")
        try:
            said = json.loads(text)
            self.code, self.message = said["code"], str(said["message"])
        except (ValueError, KeyError, TypeError):
            self.code, self.message = None, text.decode(errors="replace")
        super().__init__(f"{status} {self.code or ''}: {self.message}", url)
        self.passes = self.status in PASSING or (self.status == 409 and self.code in CONFLICTS)


class PrivateKey:
    """An RSA key from an unencrypted PEM file, PKCS#1 or PKCS#8."""

    def __init__(self, pem: str) -> None:
        block = re.search(r"-----BEGIN (RSA )?PRIVATE KEY-----([^-]+)-----END", pem)
        if block is None or ":" in block[2]:
            raise Unconfigured("the private key is encrypted, or none in PEM form: only the SDK reads it")
        content = _parts(_parts(base64.b64decode(block[2]))[0])
        numbers = content if block[1] else _parts(_parts(content[2])[0])
        values = [int.from_bytes(number, "big") for number in numbers]
        self.modulus, self.p, self.q, self.dp, self.dq, self.inverse = (
            values[1],
            *values[4:9],
        )

    def sign(self, text: bytes) -> bytes:
        """Return the signature, RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017, section 8.2)."""
        size = (self.modulus.bit_length() + 7) // 8
        info = SHA256_INFO + hashlib.sha256(text).digest()
        padded = b"\0\1" + b"\xff" * (size - len(info) - 3) + b"\0" + info
        number = int.from_bytes(padded, "big")
        one, two = pow(number, self.dp, self.p), pow(number, self.dq, self.q)
        return (two + self.inverse * (one - two) % self.p * self.q).to_bytes(size, "big")


def _parts(der: bytes) -> list[bytes]:
    """Return the contents of the elements that follow one another in DER."""
    found, at = [], 0
    while at < len(der):
        length, at = der[at + 1], at + 2
        if length > 127:
            digits = length - 128
            length, at = int.from_bytes(der[at : at + digits], "big"), at + digits
        found.append(der[at : at + length])
        at += length
    return found


class Signer:
    """The identity of this node: an id and a key, read again when the service no longer accepts them."""

    def __init__(self, read: Callable[[], tuple[str, str]]) -> None:
        self._read = read
        self.refresh()

    @classmethod
    def of_resource(cls, environ: Mapping[str, str]) -> Signer:
        """Return this node's resource principal, version 2.2. Raises RequestError when it has none."""
        version = environ.get("OCI_RESOURCE_PRINCIPAL_VERSION")
        if version != "2.2":
            raise Unconfigured(
                f"OCI_RESOURCE_PRINCIPAL_VERSION is {version!r}: without the SDK it must be 2.2"
            )

        def read() -> tuple[str, str]:
            token = _text_of(environ, "OCI_RESOURCE_PRINCIPAL_RPST")
            return f"ST${token.strip()}", _text_of(environ, "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM")

        return cls(read)

    def refresh(self) -> None:
        key_id, pem = self._read()
        self.key_id, self.key = key_id, PrivateKey(pem)

    def sign(self, method: str, url: str, headers: Mapping[str, str], body: Any = None) -> dict[str, str]:
        """Return the headers with a signature. With a body its digest is signed; objects go without."""
        from email.utils import formatdate

        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        signed = {"date": formatdate(usegmt=True), "(request-target)": f"{method.lower()} {target}"}
        signed["host"] = parts.netloc
        if body is not None:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            signed |= {"content-length": str(len(body)), "content-type": "application/json"}
            signed["x-content-sha256"] = digest
        text = "\n".join(f"{name}: {value}" for name, value in signed.items())
        signature = base64.b64encode(self.key.sign(text.encode())).decode()
        del signed["(request-target)"]
        names = "date (request-target) host" + (
            " content-length content-type x-content-sha256" if body is not None else ""
        )
        authorization = (
            f'Signature algorithm="rsa-sha256",headers="{names}",keyId="{self.key_id}",'
            f'signature="{signature}",version="1"'
        )
        return {**headers, **signed, "authorization": authorization}


def _text_of(environ: Mapping[str, str], name: str) -> str:
    """Return a variable's value, or the content of the file that it names."""
    value = environ.get(name, "")
    if not value.startswith("/"):
        return value
    return Path(value).read_text()


class Caller:
    """Sends requests to one place, signed, and again where that may help."""

    def __init__(self, signer: Signer, endpoint: str, attempts: int = 8, timeout: float = TIMEOUT_S) -> None:
        """`timeout`: seconds that a request waits for its answer, and for each piece of it."""
        import ssl
        from urllib import request

        self.signer, self.endpoint = signer, endpoint.rstrip("/")
        self.attempts, self.timeout = attempts, timeout
        trusted = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
        context = ssl.create_default_context(cafile=trusted)
        self._opener = request.build_opener(request.HTTPSHandler(context=context))

    def __call__(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        is_content: bool = False,
        whole: bool = False,
    ) -> Any:
        """Return the answer, its body unread; with `whole`, its headers and its body. Raises RequestError.

        `is_content`: the body that is sent is an object's.
        """
        attempt, refreshed = 1, False
        while True:
            try:
                return self._send(method, self.endpoint + path, headers or {}, body, is_content, whole)
            except RequestError as error:
                if isinstance(error, ErrorAnswer) and error.status == 401 and not refreshed:
                    refreshed = True
                    self.signer.refresh()
                    continue
                if attempt == self.attempts or not error.passes:
                    raise
            time.sleep(random.uniform(0.5, 1) * min(LONGEST_PAUSE_S, 0.2 * 2**attempt))
            attempt += 1

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Any, is_content: bool, whole: bool
    ) -> Any:
        from http.client import HTTPException
        from urllib import request
        from urllib.error import HTTPError

        signed = self.signer.sign(method, url, headers, None if is_content else body)
        if is_content:
            signed["content-type"] = "application/octet-stream"
            signed["content-length"] = str(len(body))
        asked = request.Request(url, data=body, headers=signed, method=method)  # noqa: S310 - a service's endpoint
        try:
            answer = self._opener.open(asked, timeout=self.timeout)
            if not whole:
                return answer
            with answer:
                return answer.headers, answer.read()
        except HTTPError as error:
            answered = {name.lower(): value for name, value in error.headers.items()}
            raise ErrorAnswer(url, error.code, answered, _rest_of(error)) from None
        except (OSError, HTTPException) as error:
            raise RequestError(str(getattr(error, "reason", error)), url) from error


def _rest_of(answer: Any) -> bytes:
    """Return the body of a refusal, as far as it arrives."""
    from http.client import HTTPException

    try:
        content: bytes = answer.read()
    except (OSError, HTTPException):
        return b""
    return content


def endpoint_of(service: str, environ: Mapping[str, str], region: str | None = None) -> str:
    """Return the address of a service in a region; None: in this node's. Raises Unconfigured when that is in none."""
    region = region or environ.get("OCI_RESOURCE_PRINCIPAL_REGION", "")
    if "-" not in region:
        raise Unconfigured(f"OCI_RESOURCE_PRINCIPAL_REGION is {region!r}, not a region as us-ashburn-1")
    realm = (environ.get("TENANCY_OCID", "").split(".") + [""] * 3)[2] or "oc1"
    domain = DOMAINS.get(realm, f"oraclecloud{realm[2:]}.com")
    return ENDPOINTS[service].format(region=region, domain=domain)


def quoted(text: str) -> str:
    """Return a part of a path as a URL has it."""
    made = quote(text, safe="")
    return made.replace(".", "%2E") if made in (".", "..") else made


def read_object(
    uri: str, environ: Mapping[str, str], endpoint: str | None = None, region: str | None = None
) -> bytes:
    """Return the content of `oci://bucket@namespace/name`, as this node's resource principal."""
    place, _, name = uri.removeprefix("oci://").partition("/")
    bucket, _, namespace = place.partition("@")
    caller = Caller(Signer.of_resource(environ), endpoint or endpoint_of("object_storage", environ, region))
    namespace = namespace or json.loads(caller("GET", "/n/", whole=True)[1])
    path = f"/n/{quoted(namespace)}/b/{quoted(bucket)}/o/{quoted(name)}"
    content: bytes = caller("GET", path, whole=True)[1]
    return content
