"""Files of a web server: in concurrent ranges where it serves ranges, else in one stream that resumes."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError, Unopenable
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.locations import safe_name, shown
from airflow_provider_ocidist.storage.stores.base import (
    Buffer,
    Download,
    Entry,
    Origin,
    Store,
    Upload,
    not_the_promised_size,
)
from airflow_provider_ocidist.storage.stores.fsspec import FsspecStore, library_error

_ATTEMPTS = 5
_PIECE = 256 << 10
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_TIMEOUTS_S = {"connect": 10.0, "read": 60.0}
_LISTING_THREADS = 16
LOOK_AGAIN_AFTER = 3.0
"""Seconds until links that led nowhere are looked at again: the site may be just being deployed."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """A server's headers for one file."""

    url: str
    """Address after redirections, so that the next request need not go through them."""
    size: int | None
    ranges: bool
    validator: str | None
    """ETag or date of the file, which must not change while it is read."""
    modified: float | None


class HttpStore(Store):
    """Files below one web address, to be read; a listing is what the server's page links to."""

    def __init__(self, uri: str, query: str = "") -> None:
        self.uri = uri
        self._query = query
        self._known: dict[str, Remote] = {}
        self._pool = _pool_for(uri)

    def read(self, name: str) -> bytes:
        return b"".join(HttpDownload(self, name, self._probe(name), 0).all_pieces())

    def write(self, name: str, data: Buffer) -> str | None:  # noqa: ARG002 - contract
        raise self._read_only()

    def delete(self, name: str) -> None:  # noqa: ARG002 - contract
        raise self._read_only()

    def upload(self, name: str, size: int | None, part_size: int, origin: Origin | None = None) -> Upload:  # noqa: ARG002 - contract
        raise self._read_only()

    def _read_only(self) -> StorageError:
        return StorageError(
            f"{shown(self.uri)}: a web server can be read only; write to another place", uri=self.uri
        )

    def list(self, prefix: str = "") -> list[Entry]:
        pages = FsspecStore.connect(locations.parse(f"{self.uri}/"))
        names = [entry.name for entry in pages.list(prefix)]
        with concurrent.futures.ThreadPoolExecutor(_LISTING_THREADS, "listing") as pool:
            found = [*pool.map(self._linked, names)]
            gone = [name for name, entry in zip(names, found) if entry is None]
            if gone:
                time.sleep(LOOK_AGAIN_AFTER)
                late = dict(zip(gone, pool.map(self._linked, gone)))
                found = [entry or late[name] for name, entry in zip(names, found)]
        self.skipped = tuple(name for name, entry in zip(names, found) if entry is None)
        return [entry for entry in found if entry is not None]

    def _linked(self, name: str) -> Entry | None:
        """Return what a page links to; None for a link that leads nowhere."""
        # One answer may be wrong, as of one of several servers.
        for _ in range(2):
            with suppress(FileNotFoundError):
                return self.stat(name)
        return None

    def stat(self, name: str) -> Entry:
        found = self._known[name] = self._probe(name)
        return Entry(name=name, size=found.size, etag=found.validator, modified=found.modified)

    def download(self, entry: Entry, part_size: int) -> Download | None:
        found = self._known.get(entry.name) or self._probe(entry.name)
        if found.size is None or not (found.ranges or found.size <= part_size):
            return None
        return HttpDownload(self, entry.name, found, part_size)

    def chunks(self, entry: Entry, size: int) -> Iterator[bytes]:
        found = self._known.get(entry.name) or self._probe(entry.name)
        yield from _in_chunks(HttpDownload(self, entry.name, found, size).all_pieces(), size)

    def url_of(self, name: str) -> str:
        return f"{self.uri}/{safe_name(name)}{self._query}"

    def ask(self, url: str, headers: Mapping[str, str], place: str) -> Any:
        """Return an answer of any status with an unread body; retry transient failures."""
        import urllib3

        with http_errors(place):
            address, more = _without_user(url)
            retries = urllib3.Retry(
                total=_ATTEMPTS,
                connect=2,
                backoff_factor=0.2,
                status_forcelist=_PASSING,
                raise_on_status=False,
                respect_retry_after_header=False,
            )
            wanted = {
                "accept-encoding": "identity",
                "user-agent": "airflow-provider-ocidist",
                **more,
                **headers,
            }
            # Before urllib3 2.0 a body that ends early counts as whole without this option.
            return self._pool.request(
                "GET",
                address,
                headers=wanted,
                retries=retries,
                preload_content=False,
                enforce_content_length=True,
            )

    def _probe(self, name: str) -> Remote:
        """Request the first byte: the answer has size, version, and whether there are ranges."""
        url, place = self.url_of(name), self.uri_of(name)
        answer = self.ask(url, {"range": "bytes=0-0"}, place)
        try:
            _check(answer, place, {200, 206, 416})
            return _remote(answer, url)
        finally:
            # A server without ranges sends the whole file.
            answer.close() if answer.status == 200 else answer.drain_conn()


class HttpDownload(Download):
    """One file of a web server, all of the same version of it."""

    def __init__(self, store: HttpStore, name: str, remote: Remote, part_size: int) -> None:
        self.store = store
        self.name = name
        self.place = store.uri_of(name)
        self.remote = remote
        self.part_size = part_size

    def pieces(self, offset: int, length: int) -> Iterator[bytes]:
        if not self.remote.ranges:
            return self.all_pieces()
        return self._resumed(lambda got: self._range(offset + got, length - got))

    def all_pieces(self) -> Iterator[bytes]:
        """Yield all of it. Resume a broken stream; without ranges, by skipping what was read already."""
        if self.remote.ranges and self.remote.size is not None:
            yield from self.pieces(0, self.remote.size)
            return
        got = 0
        for piece in self._resumed(self._from_the_start):
            got += len(piece)
            yield piece
        if self.remote.size is not None and got != self.remote.size:
            raise not_the_promised_size(self.place, self.remote.size, got)

    def _resumed(self, read: Callable[[int], Iterator[bytes]]) -> Iterator[bytes]:
        """Yield what `read` yields from a position on; where it breaks off, go on from there."""
        got = failures = 0
        while True:
            before = got
            try:
                with http_errors(self.place):
                    for piece in read(got):
                        got += len(piece)
                        yield piece
                return
            except StorageError as error:
                failures = 1 if got > before else failures + 1
                if error.__cause__ is None or failures == _ATTEMPTS:
                    raise
            time.sleep(0.2 * failures)

    def _range(self, start: int, length: int) -> Iterator[bytes]:
        if length == 0:
            return
        wanted = {"range": f"bytes={start}-{start + length - 1}"}
        answer = self.store.ask(self.remote.url, wanted, self.place)
        if answer.status in (401, 403, 404, 410):
            # The address of a redirection may expire.
            answer.drain_conn()
            answer = self.store.ask(self.store.url_of(self.name), wanted, self.place)
        _check(answer, self.place, {206})
        self._check_same(answer)
        self._check_begins(answer, start)
        left = length
        for piece in _body(answer):
            left -= len(piece)
            if left < 0:
                break
            yield piece
        if left:
            raise not_the_promised_size(self.place, length, length - left)

    def _check_begins(self, answer: Any, start: int) -> None:
        """Raise StorageError for another range than that which was asked for, as a cache on the way may send it."""
        sent = answer.headers.get("content-range", "")
        if not sent.startswith(f"bytes {start}-"):
            answer.close()
            raise StorageError(
                f"{self.place}: byte {start} was asked for, and the answer has {sent or 'no range'}",
                uri=self.place,
                retryable=True,
            )

    def _from_the_start(self, passed: int) -> Iterator[bytes]:
        answer = self.store.ask(self.remote.url, {}, self.place)
        _check(answer, self.place, {200})
        self._check_same(answer)
        for piece in _body(answer):
            if len(piece) > passed:
                yield piece[passed:] if passed else piece
            passed = max(0, passed - len(piece))

    def _check_same(self, answer: Any) -> None:
        found = _remote(answer, self.remote.url)
        # A server may name the size in some answers only: `bytes 0-0/*`.
        has_other_size = None not in (found.size, self.remote.size) and found.size != self.remote.size
        if has_other_size or found.validator != self.remote.validator:
            answer.close()
            raise StorageError(f"{self.place} changed while it was read", uri=self.place)


@contextmanager
def http_errors(place: str) -> Iterator[None]:
    """Turn what the HTTP library raises into one StorageError."""
    import urllib3

    try:
        yield
    except urllib3.exceptions.MaxRetryError as error:
        raise library_error(place, error.reason or error, retryable=True) from error
    except urllib3.exceptions.HTTPError as error:
        raise library_error(place, error, retryable=True) from error
    except OSError as error:
        raise library_error(place, error) from error


def _check(answer: Any, place: str, expected: set[int]) -> None:
    if answer.status in expected:
        return
    answer.close()
    if answer.status in (404, 410):
        raise FileNotFoundError(place)
    remedies = {401: "it asks for credentials", 403: "it refuses", 416: "it changed while it was read"}
    remedy = remedies.get(answer.status, "it failed" if answer.status >= 500 else "it refuses the request")
    raise StorageError(
        f"{place}: {remedy} ({answer.status} {answer.reason})",
        uri=place,
        retryable=answer.status in _PASSING,
    )


def _remote(answer: Any, url: str) -> Remote:
    headers = answer.headers
    total = headers.get("content-range", "").rpartition("/")[2] if answer.status in (206, 416) else ""
    if answer.status == 200:
        # The length of an encoded body is not that of the file.
        total = "" if headers.get("content-encoding") else headers.get("content-length", "")
    etag, date = headers.get("etag"), headers.get("last-modified")
    return Remote(
        url=_final(answer.geturl() or url, url),
        size=int(total) if total.isdigit() else None,
        ranges=answer.status == 206,
        validator=etag or date,
        modified=_time(date),
    )


def _body(answer: Any) -> Iterator[bytes]:
    try:
        yield from answer.stream(_PIECE, decode_content=True)
    except GeneratorExit:
        answer.close()
        raise
    answer.release_conn()


def _in_chunks(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    held: list[bytes] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece)
        while count >= size:
            data = b"".join(held)
            yield data[:size]
            held, count = [data[size:]], count - size
    if count:
        yield b"".join(held)


def _pool_for(uri: str) -> Any:
    try:
        import urllib3
    except ImportError as error:
        raise Unopenable(
            f"{shown(uri)} needs the Python package urllib3, which this image lacks: add it, or keep the data in oci://",
            uri=uri,
        ) from error
    parts = urlsplit(uri)
    proxy = None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    options: dict[str, Any] = {
        "maxsize": 64,
        "timeout": urllib3.Timeout(**_TIMEOUTS_S),
        **({"ca_certs": bundle} if bundle else {}),
    }
    return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)


def _without_user(url: str) -> tuple[str, dict[str, str]]:
    """Return an address without user and password, and a header with them."""
    import urllib3

    parts = urlsplit(url)
    if parts.username is None:
        return url, {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return urlunsplit(bare), urllib3.make_headers(basic_auth=user)


def _final(found: str, asked: str) -> str:
    """Return the address that a redirection led to; one that was asked for keeps its user."""
    bare = _without_user(asked)[0]
    led_to = urljoin(bare, found)
    return asked if led_to == bare else led_to


def _time(date: str | None) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except ValueError:
        return None
