"""MD5 as Object Storage writes it: of a whole, or of the digests of its parts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage.stores.base import Buffer, Checksum


def md5_of(pieces: Iterable[Buffer]) -> bytes:
    running = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        running.update(piece)
    return running.digest()


def in_text(digests: Sequence[bytes], *, whole: bool) -> str:
    """Return the digest of a whole, or what OCI calls `opc-multipart-md5`: that of the parts' digests."""
    if whole:
        return base64.b64encode(digests[0]).decode()
    return f"{base64.b64encode(md5_of(digests)).decode()}-{len(digests)}"


def check_digests(place: str, expected: Checksum, digests: Sequence[bytes]) -> None:
    """Raise StorageError unless the digests, of the whole or of every part in order, are those expected."""
    if in_text(digests, whole=expected.part_size is None) != expected.value:
        raise StorageError(f"{place}: the checksum of what arrived is wrong", uri=place)
