"""Checksums: of bodies as they arrive, as clients state them, and of objects made of parts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from airflow_provider_ocidist.emulator.bodies import Digest, Received
from airflow_provider_ocidist.emulator.errors import ApiError, invalid

ALGORITHMS = ("crc32c", "sha256", "sha384")
"""Checksums that a client may ask for beside MD5, in lower case as in the names of the headers."""
CRC32C_POLYNOMIAL = 0x82F63B78
Matrix = tuple[int, ...]
"""Linear map of 32 bits: the image of each bit."""


def algorithm(headers: Mapping[str, str]) -> str | None:
    """Return what opc-checksum-algorithm asks for. Raises 400 when it is unknown."""
    asked = headers.get("opc-checksum-algorithm")
    if asked is None:
        return None
    if asked.lower() not in ALGORITHMS:
        raise invalid(f"opc-checksum-algorithm must be CRC32C, SHA256 or SHA384, not '{asked}'.")
    return asked.lower()


def wanted(headers: Mapping[str, str], *, also: str | None = None) -> dict[str, Digest]:
    """Return the digests to compute, because the client sent or asked for them, or because of `also`."""
    asked = algorithm(headers)
    return {
        name: _digest(name)
        for name in ALGORITHMS
        if name in (asked, also) or f"opc-content-{name}" in headers
    }


def _digest(name: str) -> Digest:
    if name != "crc32c":
        return hashlib.new(name)
    try:
        from crc32c import CRC32CHash
    except ImportError as error:
        raise invalid("CRC32C needs the Python package crc32c beside the emulator.") from error
    digest: Digest = CRC32CHash()
    return digest


def check(headers: Mapping[str, str], received: Received) -> None:
    """Raise 400 when the body does not match the client's checksums."""
    _compare("Content-MD5", "MD5", headers.get("content-md5"), received.md5)
    for name, value in received.digests.items():
        header = f"opc-content-{name}"
        _compare(header, name.upper(), headers.get(header), value)


def _compare(header: str, name: str, stated: str | None, computed: str) -> None:
    if stated not in (None, computed):
        raise ApiError(
            400,
            f"UnmatchedContent{name}",
            f"The computed {name} of the request body ({computed}) does not match the {header} header"
            f" ({stated})",
        )


def headers_of(digests: Mapping[str, str]) -> dict[str, str]:
    return {f"opc-content-{name}": value for name, value in digests.items()}


def of_parts(
    md5s: Sequence[str], digests: Sequence[Mapping[str, str]], sizes: Sequence[int]
) -> dict[str, str]:
    """Return the headers of an object made of parts: the CRC32C of all its bytes, and digests of digests."""
    sums = {"opc-multipart-md5": _digest_of_digests("md5", md5s)}
    for name in ALGORITHMS:
        values = [each[name] for each in digests if name in each]
        if not values or len(values) < len(digests):
            continue
        if name == "crc32c":
            sums["opc-content-crc32c"] = combined_crc32c(zip(values, sizes, strict=True))
        else:
            sums[f"opc-multipart-{name}"] = _digest_of_digests(name, values)
    return sums


def _digest_of_digests(name: str, values: Sequence[str]) -> str:
    joined = b"".join(map(base64.b64decode, values))
    digest = hashlib.new(name, joined, usedforsecurity=False).digest()
    return f"{base64.b64encode(digest).decode()}-{len(values)}"


def combined_crc32c(parts: Iterable[tuple[str, int]]) -> str:
    """Return the CRC32C of bytes from those of their pieces, in base64 each, and the pieces' sizes."""
    crc = 0
    for value, size in parts:
        crc = _apply(_zeros(size), crc) ^ int.from_bytes(base64.b64decode(value), "big")
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


@lru_cache(maxsize=64)
def _zeros(count: int) -> Matrix:
    """Return what so many zero bytes after some data do to its CRC. Parts are of few different sizes."""
    result: Matrix = tuple(1 << bit for bit in range(32))
    power: Matrix = (CRC32C_POLYNOMIAL, *(1 << bit for bit in range(31)))
    bits = count * 8
    while bits:
        if bits & 1:
            result = tuple(_apply(power, column) for column in result)
        power = tuple(_apply(power, column) for column in power)
        bits >>= 1
    return result


def _apply(matrix: Matrix, bits: int) -> int:
    found = 0
    for column in matrix:
        if bits & 1:
            found ^= column
        bits >>= 1
    return found
