"""One request of the fuzzer: at any door, mostly well-formed, with something wrong somewhere."""

from __future__ import annotations

import base64
import hashlib
import random
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from functools import lru_cache
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256

from airflow_provider_ocidist.backports import UTC
from airflow_provider_ocidist.emulator import body_models
from airflow_provider_ocidist.emulator.wire import page_token
from tests.emulator.fuzz import rule_bodies, values
from tests.emulator.fuzz.api import Door, Request, request

QUERY_NAMES = (
    *(
        "limit",
        "page",
        "compartmentId",
        "sortBy",
        "sortOrder",
        "lifecycleState",
        "displayName",
        "id",
        "name",
        "fields",
    ),
    *(
        "prefix",
        "start",
        "end",
        "startAfter",
        "delimiter",
        "uploadId",
        "uploadPartNum",
        "versionId",
        "tags",
        "stage",
    ),
    *(
        "secretName",
        "vaultId",
        "subnetId",
        "after",
        "before",
        "last",
        "search",
        "errors",
        "run",
        "method",
        "path",
        "host",
    ),
    *(
        "availabilityDomain",
        "compartmentIdInSubtree",
        "deleteRelatedJobRuns",
        "objectNamePrefix",
        "status",
        "vnicId",
    ),
)
HEADER_NAMES = (
    *(
        "if-match",
        "if-none-match",
        "range",
        "content-md5",
        "opc-request-id",
        "opc-retry-token",
        "content-type",
        "expect",
    ),
    *(
        "opc-meta-a",
        "opc-meta-",
        "opc-multipart",
        "opc-checksum-algorithm",
        "opc-content-crc32c",
        "content-encoding",
    ),
    *(
        "content-disposition",
        "cache-control",
        "storage-tier",
        "origin",
        "sec-fetch-site",
        "sec-fetch-mode",
        "host",
    ),
    *(
        "x-content-sha256",
        "accept",
        "cookie",
        "x-forwarded-for",
        "opc-sse-customer-key",
        "metadata-flavor",
        "upgrade",
    ),
)
PLACES = ([1, -5], [0, 10**30], [10**17, 10**17 + 9, None], ["a", "b"], [[], {}], "\U0010ffff")
"""In lists, as their tokens hold them."""
VERBS = ("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "TRACE", "PROPFIND")
TEXT_MODEL = {
    "POST /20190909/search": "searchQuery",
    "POST /20180409/resources": "query",
    "POST /20180401/metrics/actions/summarizeMetricsData": "query",
}
QUERIES = (
    *(
        "search \"{compartment}\" | where source = '*a' | sort by datetime asc",
        "query all resources where displayName = 'a'",
    ),
    *(
        'loss[1m]{{a = "b"}}.mean()',
        'search "a/b/c" | where (',
        "loss[1m]{{" + 'a=~"*a*a*a*a*a*",' * 5 + "}}.max()",
    ),
)


@dataclass(slots=True)
class Known:
    """What exists: identifiers that requests may name."""

    namespace: str
    bucket: str
    ids: list[str]
    key_id: str
    key: RSAPrivateKey = field(repr=False)


def request_of(doors: Sequence[Door], known: Known, dice: random.Random) -> Request:
    """Return a request to any door."""
    if dice.random() < 0.02:
        return _to_the_proxy(dice)
    door = dice.choice(doors)
    method = door.method if dice.random() < 0.97 else dice.choice(VERBS)
    path = _path(door, known, dice)
    query = _query(known, dice)
    target = f"{path}?{query}" if query else path
    body = _body(door, known, dice) if method in ("POST", "PUT", "PATCH") or dice.random() < 0.02 else b""
    headers = _headers(known, dice)
    chunked = dice.random() < 0.1
    if door.signed and dice.random() < 0.97:
        headers += signed_headers(method, target, body, known)
    elif dice.random() < 0.3:
        headers += [("authorization", _no_signature(known, dice))]
    return request(method, target, headers, body, dice, chunked=chunked)


def _path(door: Door, known: Known, dice: random.Random) -> str:
    wrong = dice.random() < 0.15

    def filled(match: re.Match[str]) -> str:
        if wrong and dice.random() < 0.7:
            return _quoted(values.text(dice), dice) or "x"
        name = match[1].rstrip(".")
        if name in ("namespace", "namespaceName"):
            return known.namespace
        if name in ("bucket", "bucketName"):
            return known.bucket
        if name.startswith("name"):
            return quote(dice.choice(("o", "a/b", "a/../b", "a//b", "\N{ROCKET}", "a" * 900, "sub", "sub/x")))
        return quote(dice.choice((*known.ids, uuid.UUID(int=dice.getrandbits(128)).hex)), safe="")

    path = re.sub(r"\{(\w+(?:\.\.\.)?)\}", filled, door.template)
    if dice.random() < 0.02:
        path += dice.choice(("/", "//", "/..", "/%2e%2e/%2e%2e", "%00", "%", "%ff", ";x", "#a"))
    return path


def _quoted(text: str, dice: random.Random) -> str:
    """Return a part of a path: quoted, quoted twice, or hardly at all."""
    raw = text.encode("utf-8", "surrogatepass")
    if dice.random() < 0.3:
        return re.sub(r"[\s\x00-\x20\x7f]", "_", raw.decode("latin-1"))
    once = quote(raw, safe="")
    return quote(once) if dice.random() < 0.1 else once


def _query(known: Known, dice: random.Random) -> str:
    chosen: list[tuple[str, bytes]] = []
    if dice.random() < 0.7:
        chosen.append(("compartmentId", dice.choice(known.ids).encode()))
    for _ in range(dice.choice((0, 0, 1, 2, 4))):
        value = dice.choice(known.ids) if dice.random() < 0.2 else values.text(dice)
        if dice.random() < 0.05:
            value = base64.urlsafe_b64encode(values.text(dice).encode("utf-8", "surrogatepass")).decode()
        name = dice.choice(QUERY_NAMES)
        if name in ("page", "after", "before") and dice.random() < 0.5:
            value = page_token(dice.choice(PLACES))
        chosen.append((name, value.encode("utf-8", "surrogatepass")))
    if dice.random() < 0.01:
        chosen *= 500
    return urlencode(chosen)


def _headers(known: Known, dice: random.Random) -> list[tuple[str, str]]:
    found = [("host", "127.0.0.1"), ("connection", "close")]
    for _ in range(dice.choice((0, 0, 0, 1, 2, 5))):
        name = dice.choice(HEADER_NAMES)
        if name == "expect":
            continue  # the answer would be two answers
        value = values.text(dice).encode("utf-8", "surrogatepass").decode("latin-1")
        found.append((name, re.sub(r"[\r\n\0]", " ", value)))
    if dice.random() < 0.005:
        found += [(f"x-{number}", "a") for number in range(dice.choice((200, 2_000, 30_000)))]
    return found


def _body(door: Door, known: Known, dice: random.Random) -> bytes:
    rule = rule_bodies.body(door, dice)
    if rule is not None and dice.random() < 0.9:
        return values.json_bytes(rule, dice)
    model = values.MODELS["bodies"].get(body_models.operation(door.method, door.template))
    if model is None and dice.random() < 0.5:
        return dice.choice(
            (b"", b"{}", b"x", b"\0" * 100, dice.randbytes(dice.randrange(2_000)), b"x" * 200_000)
        )
    body = (
        values.random_body(model, dice)
        if model
        else dict.fromkeys(dice.sample(QUERY_NAMES, 3), dice.choice(values.WRONG[:-1]))
    )
    for name in (
        "compartmentId",
        "projectId",
        "jobId",
        "tenancyId",
        "vaultId",
        "keyId",
        "logGroupId",
        "subnetId",
    ):
        if name in body and dice.random() < 0.8:
            body[name] = dice.choice(known.ids)
    text = TEXT_MODEL.get(f"{door.method} {door.template}")
    if text and dice.random() < 0.7:
        body[text] = values.spoilt(
            dice.choice(QUERIES).format(compartment=known.ids[0]).encode(), dice
        ).decode("latin-1")
    return values.json_bytes(body, dice)


def signed_headers(method: str, target: str, body: bytes, known: Known) -> list[tuple[str, str]]:
    """Return the headers by which a client of OCI says who it is."""
    date = format_datetime(datetime.now(UTC), usegmt=True)
    found = [("date", date)]
    names = ["date", "(request-target)", "host"]
    lines = [f"date: {date}", f"(request-target): {method.lower()} {target}", "host: 127.0.0.1"]
    if method in ("POST", "PUT", "PATCH"):
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        more = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("x-content-sha256", digest),
        ]
        found += [pair for pair in more if pair[0] != "content-length"]
        names += [name for name, _ in more]
        lines += [f"{name}: {value}" for name, value in more]
    signature = base64.b64encode(
        _signature(known.key, "\n".join(lines).encode("latin-1", "replace"))
    ).decode()
    keys = (
        f'keyId="{known.key_id}",algorithm="rsa-sha256",headers="{" ".join(names)}",signature="{signature}"'
    )
    return [*found, ("authorization", f'Signature version="1",{keys}')]


@lru_cache(maxsize=100)
def _signature(key: RSAPrivateKey, text: bytes) -> bytes:
    return key.sign(text, PKCS1v15(), SHA256())


def _no_signature(known: Known, dice: random.Random) -> str:
    names = " ".join(
        dice.choices(
            ("date", "host", "(request-target)", "x", "content-length"), k=dice.choice((1, 3, 2_000))
        )
    )
    keys = f'keyId="{known.key_id}",algorithm="rsa-sha256",headers="{names}",signature="YQ=="'
    forms = (
        f"Signature {keys}",
        values.spoilt(f"Signature {keys}".encode(), dice).decode("latin-1"),
        f"Signature {'a' * dice.choice((10, 60_000, 200_000))}",
        f'Signature keyId="ST${values.text(dice)}",algorithm="rsa-sha256",headers="date",signature="YQ=="',
        f"Bearer {values.text(dice)}",
    )
    return re.sub(r"[\r\n\0]", " ", dice.choice(forms).encode("utf-8", "surrogatepass").decode("latin-1"))


def _to_the_proxy(dice: random.Random) -> Request:
    host = dice.choice(
        (
            "example.com:443",
            "a.oraclecloud.com:443",
            f"{dice.getrandbits(32):x}.oraclecloud.com:443",
            f"{values.text(dice)}:1",
            "[::1]:80",
            "x:99999",
            "x",
        )
    )
    raw = f"{dice.choice(('CONNECT', 'GET'))} {host} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode(
        "utf-8", "surrogatepass"
    )
    sent = values.spoilt(raw, dice) if dice.random() < 0.5 else raw
    return Request("CONNECT", host, sent, framed=False, to="proxy_url")
