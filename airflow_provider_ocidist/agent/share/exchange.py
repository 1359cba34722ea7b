"""Exchange: the nodes of a gang find one another, and each takes what another has instead of reading it again.

Nothing depends on it. A node that cannot be reached, is silent or gives wrong bytes is asked no more, and the store is
read in its place; one that is slower than the store is not waited for.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_ocidist.agent.share.patience import Patience
from airflow_provider_ocidist.agent.share.peer import FAULTS, NotThere, Peer, SharingPlace
from airflow_provider_ocidist.agent.share.server import PieceServer
from airflow_provider_ocidist.agent.share.shelf import FilePlace, HeldPiece, Shelf
from airflow_provider_ocidist.agent.share.turns import Piece, View, turn_of
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.work_dir import SHARING_FOLDER, rank_of, sharing_of
from airflow_provider_ocidist.storage.copying.memory import Memory
from airflow_provider_ocidist.storage.stores.base import Buffer, Store

logger = logging.getLogger(__name__)

GROUP = 16
"""Number of nodes that share: each follows all others of its group."""
MEETING = 10.0
"""Seconds to wait for the other nodes. Only nodes that are early wait: the last one finds all the others there."""
FIRST_NEWS = 3.0
"""Seconds to wait for the first news of those that are there."""
LOOK, LONGEST_LOOK = 0.1, 2.0
"""Seconds between two looks for other nodes."""
ROOM = 64 << 20
"""Bytes that may be in memory of what other nodes send."""


class Exchange:
    """One node's part in the exchange; it begins with the first thing that is shared."""

    def __init__(
        self,
        rank: int,
        nodes: int,
        folder: Store,
        address: Callable[[], str | None],
        members: Callable[[], Collection[int]] | None = None,
    ) -> None:
        """`folder`: the run directory; `address`: returns where others reach this node, None if not known.

        `members` returns the ranks that take part in the next launch, as far as this node knows: the gang may go on
        without some. None: all.
        """
        first = rank - rank % GROUP
        self.rank = rank
        self.others = frozenset(range(first, min(first + GROUP, nodes))) - {rank}
        """Ranks of the nodes to share with."""
        self.shelf = Shelf()
        self._folder = folder
        self._address = address
        self._members = members
        self._server: PieceServer | None = None
        self._peers: Mapping[int, Peer] = {}
        self._patience = Patience()
        self._room = Memory(ROOM)
        self._arrivals: dict[str, threading.Event] = {}
        """Event for each piece that is waited for: there are news of it."""
        self._is_complete = threading.Event()
        self._has_read = threading.Event()
        self._begun = False
        self._beginning = threading.Lock()

    def begin(self, cancel: threading.Event) -> None:
        """Open this node's shelf to the others, and wait a little for theirs; once."""
        with self._beginning:
            if self._begun:
                return
            self._begun = True
            self._announce()
            threading.Thread(target=self._discover, name="sharing", daemon=True).start()
            deadline = time.monotonic() + MEETING
            while not self._is_complete.wait(LOOK) and time.monotonic() < deadline and not cancel.is_set():
                continue
            deadline = time.monotonic() + FIRST_NEWS
            for peer in self._peers.values():
                peer.heard.wait(max(0.0, deadline - time.monotonic()))

    def has_read(self) -> None:
        """Follow the others no more: this node has all. They may still take from it."""
        self._has_read.set()
        self.shelf.rests()

    def close(self) -> None:
        """Give nothing more: all nodes have all, or this one ends."""
        self.has_read()
        if self._server:
            self._server.close()
            self._server = None
        for peer in self._peers.values():
            peer.close()

    @contextmanager
    def borrowed(
        self, piece: Piece, is_right: Callable[[Buffer], bool], cancel: threading.Event
    ) -> Iterator[Buffer | None]:
        """Yield a piece from another node, once one has it; None: this node is to read it from the store."""
        data = self._borrowed(piece, is_right, cancel)
        try:
            yield data
        finally:
            if data is not None:
                self._room.give(piece.length)

    @contextmanager
    def reading(self, piece: Piece) -> Iterator[None]:
        """Announce that this node reads a piece from the store, and if that fails, that it is another node's turn."""
        self.shelf.reads(piece.id)
        try:
            with self._patience.own_read(piece.length):
                yield
        except BaseException:
            self.shelf.drops(piece.id)
            raise

    def has(self, piece: Piece, place: FilePlace, offset: int, digest: str) -> None:
        """Give a piece, which lies in a file of this machine, to all that ask."""
        self.shelf.has(piece.id, HeldPiece(place=place, offset=offset, length=piece.length, digest=digest))

    # finding the others

    def _announce(self) -> None:
        at = SharingPlace()
        address = self._address()
        if address:
            try:
                self._server = PieceServer(address, self.shelf)
                at = SharingPlace(address=address, port=self._server.port, token=self._server.token)
            except OSError as error:
                logger.info("other nodes cannot read from this one at %s: %s", address, error)
        try:
            self._folder.write(sharing_of(self.rank), json.dumps(codec.encode(at)).encode())
        except (OcidistError, OSError) as error:
            logger.info("other nodes cannot be given what this one reads: %s", error)

    def _discover(self) -> None:
        pause = LOOK
        while not self._has_read.is_set():
            self._look()
            if self._awaited() <= self._peers.keys():
                self._is_complete.set()
            if self.others <= self._peers.keys():
                return
            self._has_read.wait(pause)
            pause = min(LONGEST_LOOK, pause * 1.2)

    def _awaited(self) -> frozenset[int]:
        return self.others if self._members is None else self.others & frozenset(self._members())

    def _look(self) -> None:
        try:
            names = {entry.name for entry in self._folder.list(f"{SHARING_FOLDER}/")}
            found = {rank_of(name) for name in names} & (self.others - self._peers.keys())
            for rank in sorted(rank for rank in found if rank is not None):
                at = codec.read(SharingPlace, self._folder.read(sharing_of(rank)))
                self._add(Peer(rank, at))
        except (OcidistError, OSError, ValueError, TypeError) as error:
            logger.debug("the other nodes cannot be found now: %s", error)

    def _add(self, peer: Peer) -> None:
        self._peers = {**self._peers, peer.rank: peer}
        if not peer.is_gone:
            threading.Thread(target=self._follow, args=(peer,), name=f"peer-{peer.rank}", daemon=True).start()

    def _follow(self, peer: Peer) -> None:
        try:
            peer.follow(self._wake, self._has_read)
        except FAULTS as error:
            self._give_up(peer, error)

    # taking pieces

    def _borrowed(
        self, piece: Piece, is_right: Callable[[Buffer], bool], cancel: threading.Event
    ) -> Buffer | None:
        waited: dict[int, float] = {}
        news = self._arrivals[piece.id] = threading.Event()
        try:
            while not cancel.is_set():
                news.clear()
                turn = turn_of(piece, self.rank, self._views())
                if turn.ask is not None:
                    data = self._asked(self._peers[turn.ask], piece, is_right, cancel)
                    if data is not None:
                        for rank in waited:
                            self._patience.was_given(rank, piece.length)
                        return data
                elif turn.wait_for is None:
                    return None
                else:
                    rank = turn.wait_for
                    waited[rank] = waited.get(rank, 0.0) + self._wait_for(rank, news)
                    self._judge(rank, waited[rank], piece.length)
            return None
        finally:
            self._arrivals.pop(piece.id, None)

    def _wait_for(self, rank: int, news: threading.Event) -> float:
        """Wait a moment for news of a piece; return for how long."""
        began = time.monotonic()
        with self._patience.waiting(rank):
            news.wait(LOOK)
        return time.monotonic() - began

    def _judge(self, rank: int, waited: float, length: int) -> None:
        peer = self._peers[rank]
        if peer.is_awaited and not peer.is_gone and self._patience.is_over(rank, waited, length):
            peer.is_awaited = False
            logger.info("node %d reads more slowly than this one: it is not waited for any more", rank)

    def _views(self) -> dict[int, View]:
        return {rank: peer.view for rank, peer in self._peers.items() if not peer.is_gone}

    def _asked(
        self, peer: Peer, piece: Piece, is_right: Callable[[Buffer], bool], cancel: threading.Event
    ) -> Buffer | None:
        """Return a piece from another node; its room in memory is the caller's then."""
        while not self._room.take(piece.length, LOOK):
            if cancel.is_set():
                return None
        data: Buffer | None = None
        try:
            data = peer.fetch(piece)
            if not is_right(data):
                data = None
                raise ValueError("its bytes are not those in the store")
        except NotThere:
            pass
        except FAULTS as error:
            self._give_up(peer, error)
        finally:
            if data is None:
                self._room.give(piece.length)
        return data

    def _give_up(self, peer: Peer, error: Exception) -> None:
        if not peer.is_gone and not self._has_read.is_set():
            logger.info(
                "node %d is not read from any more: %s", peer.rank, str(error) or type(error).__name__
            )
        peer.is_gone = True
        peer.heard.set()
        self._wake(tuple(self._arrivals))

    def _wake(self, pieces: Collection[str]) -> None:
        for piece in pieces:
            waiting = self._arrivals.get(piece)
            if waiting:
                waiting.set()
