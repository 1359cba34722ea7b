"""Peer: another node that shares what it reads, as this node sees it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator

from airflow_provider_ocidist.agent.share.server import DIGEST, LONGEST_WAIT, NEWS, PIECES
from airflow_provider_ocidist.agent.share.shelf import News
from airflow_provider_ocidist.agent.share.turns import Piece, View
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.storage.copying.memory import gathered
from airflow_provider_ocidist.storage.stores.base import Buffer

SILENCE = 3.0
"""Seconds without a byte after which another node is not asked any more."""
SLOWEST = 256 << 10
"""Bytes a second that another node has to send: else it is asked no more, as one that is silent."""
_READ = 256 << 10

FAULTS = (OSError, http.client.HTTPException, ValueError)
"""Errors of a request to another node, whatever that one does wrong."""


class NotThere(Exception):
    """The other node has no such piece any more."""


@dataclass(frozen=True, kw_only=True)
class SharingPlace:
    """Where a node shares what it reads; in the run directory, which only nodes and owners of the run can read."""

    address: str = ""
    """Address of the node; empty where it gives nothing."""
    port: int = 0
    token: str = ""


class Peer:
    """One other node: what it has, and whether it is worth asking."""

    def __init__(self, rank: int, at: SharingPlace) -> None:
        self.rank = rank
        self.at = at
        self.is_gone = not at.address
        self.is_awaited = True
        self.heard = threading.Event()
        """Event that is set once its first news are known, or it is gone."""
        self._has: set[str] = set()
        self._reads: set[str] = set()
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        if self.is_gone:
            self.heard.set()

    @property
    def view(self) -> View:
        return View(has=self._has, reads=self._reads, is_awaited=self.is_awaited)

    def follow(self, on_news: Callable[[Collection[str]], object], closing: threading.Event) -> None:
        """Read the node's news until `closing`. Raises the errors in FAULTS."""
        connection = self._connect(LONGEST_WAIT + SILENCE)
        known = 0
        try:
            while not closing.is_set():
                news = json.loads(self._body_of(connection, f"{NEWS}{known}"))
                known += len(news)
                self._learn(news)
                self.heard.set()
                on_news({piece for _, piece in news})
                # Many small files have news all the time: some at once.
                closing.wait(0.02 if news else 0)
        finally:
            connection.close()

    def fetch(self, piece: Piece) -> Buffer:
        """Return a piece, whole and as the other node has received it. Raises NotThere, and the errors in FAULTS."""
        kept = self._kept()
        if kept is not None:
            # The other node may have closed it since.
            with contextlib.suppress(ConnectionError, http.client.BadStatusLine):
                return self._fetch(piece, kept)
        return self._fetch(piece, self._connect(SILENCE))

    def _fetch(self, piece: Piece, connection: http.client.HTTPConnection) -> Buffer:
        try:
            answer = self._ask(connection, f"{PIECES}{piece.id}")
            if answer.status == http.client.NOT_FOUND:
                self._has.discard(piece.id)
                raise NotThere(piece.id)
            digest = new_digest()
            data = gathered(_digested(answer, piece.length, digest), piece.length)
            if len(data) != piece.length or digest.hexdigest() != answer.headers[DIGEST]:
                raise ValueError(f"its piece {piece.id} is not what it says")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        return data

    def _kept(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def close(self) -> None:
        while (kept := self._kept()) is not None:
            kept.close()

    def _learn(self, news: Collection[tuple[str, str]]) -> None:
        for word, piece in news:
            if word == News.RESTS:
                self.is_awaited = False
            if word == News.READS:
                self._reads.add(piece)
                continue
            self._reads.discard(piece)
            if word == News.HAS:
                self._has.add(piece)

    def _body_of(self, connection: http.client.HTTPConnection, path: str) -> bytes:
        answer = self._ask(connection, path)
        body = answer.read()
        if answer.status != http.client.OK:
            raise ValueError(f"it answers {answer.status}")
        return body

    def _ask(self, connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers={"authorization": f"Bearer {self.at.token}"})
        return connection.getresponse()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.at.address, self.at.port, timeout=timeout)


def new_digest() -> hashlib.blake2b:
    """Return the digest with which nodes check what they give one another."""
    return hashlib.blake2b(digest_size=16)


def _digested(answer: http.client.HTTPResponse, length: int, digest: hashlib.blake2b) -> Iterator[bytes]:
    if answer.status != http.client.OK or answer.length != length:
        raise ValueError(f"it answers {answer.status} with {answer.length} bytes, where {length} were wanted")
    deadline, left = time.monotonic() + SILENCE + length / SLOWEST, length
    while read := answer.read(_READ):
        digest.update(read)
        yield read
        left -= len(read)
        if left and time.monotonic() > deadline:
            raise ValueError(f"it sends fewer than {SLOWEST} bytes a second")
