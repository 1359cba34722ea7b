"""Shard uploader: on the other nodes, sends this node's parts of each checkpoint that the main node asks for."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.join.peer_reports import PeerLiveness, read_report
from airflow_provider_ocidist.agent.save import disk_room
from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, candidates, scan, signature
from airflow_provider_ocidist.agent.save.formats import FormatResult, read_file
from airflow_provider_ocidist.agent.save.held_links import HeldLinks, holder_of
from airflow_provider_ocidist.agent.save.meanwhile import meanwhile
from airflow_provider_ocidist.agent.save.open_files import open_files_in, open_for_writing
from airflow_provider_ocidist.agent.save.own_files import OwnFiles
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import (
    ABORT_WITHIN,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Movement,
    SaveDeadline,
    Undelivered,
)
from airflow_provider_ocidist.agent.save.shard_exchange import (
    RequestBoard,
    ShardExchange,
    ShardReply,
    ShardRequest,
)
from airflow_provider_ocidist.agent.save.shards import REMEDY, is_companion, is_of_a_process, is_shard
from airflow_provider_ocidist.errors import Cause, OcidistError, StorageError
from airflow_provider_ocidist.model.pauses import next_pause
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import Placed
from airflow_provider_ocidist.storage.checkpoints import ManifestFile
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the folders; what has not changed for so long is at rest if its writing has ended."""
IDLE_INTERVAL = 10.0
"""Seconds between looks at the board on a node that has no shards, or has sent all of them."""
LONGEST_LAST_PAUSE = 5.0
"""Longest seconds before the next try once the training has ended: the main node waits for the part."""
QUIET = 10.0
"""Seconds without a change after which a node uploads parts whose number no list gives: ZeRO pauses between files. Each
file is also checked."""


class ShardUploader:
    """Sends this node's shards of each checkpoint that the main node asks for."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        rank: int,
        main_rank: int,
        access: OciAccess,
        *,
        pattern: str | None = None,
        launch: int = 0,
        on_arrived: Callable[[], object] = lambda: None,
    ) -> None:
        """`store`: the run directory; `pattern`: of the names of checkpoints, where the job has one.

        `launch`: the number of this launch of the program, from 0. `on_arrived` is called when a part is in the store,
        and the main node has not been informed.
        """
        self.folder = folder
        self.pattern = pattern
        self.store = store
        self._exchange = ShardExchange(store, launch)
        self._launch = launch
        self.rank = rank
        self.main_rank = main_rank
        self.access = access
        self._on_arrived = on_arrived
        self._own = OwnFiles(folder, pattern)
        self._there: list[Candidate] = []
        """Result of the last look."""
        self._seen: dict[Path, Signature] = {}
        self._changed_at: dict[Path, float] = {}
        self._has_shards = False
        self._unasked: set[Path] = set()
        """Entries of which this node has parts that the main node has not had since they were changed."""
        self._warned: set[str] = set()
        """Series of entries of which a warning has named files that are not sent."""
        self._links = HeldLinks(folder, holder_of(store, launch, rank))
        self._part: tuple[int, Candidate] | None = None
        """Part of this node that is being sent, after the number of its request."""
        self._acknowledged: set[int] = set()
        self._answered: set[int] = set()
        self._pause = FIRST_PAUSE
        self._look_again_at = time.monotonic() + IDLE_INTERVAL
        self._training_ended = threading.Event()
        self._moment = Moment.RUNNING
        self._deadline = SaveDeadline(0.0)
        self._amid_training = 0, SaveDeadline(math.inf)
        """Number of the last request that failed amid the training, and how long it may go on to fail."""
        self._movement = Movement()
        self._cancel = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)

    def start(self) -> None:
        # No main node may come to this disk, nor a node that sends a part.
        self._links.remove_left_over()
        self._thread.start()

    def finish(self, moment: Moment, deadline: SaveDeadline) -> Undelivered | None:
        """Answer the main node's last requests; return why that failed, if it did.

        A node without shards does not wait.
        """
        self._moment, self._deadline = moment, deadline
        self._movement.further()
        self._training_ended.set()
        while self._thread.is_alive() and not (deadline.is_over or self._stands_still()):
            self._thread.join(LOOK_INTERVAL)
        if self._thread.is_alive() and not deadline.is_over:
            undelivered = Undelivered(self._movement.why(deadline.named), Cause.SERVICE)
            self._cancel.set()
            return undelivered
        if self._thread.is_alive():
            message = "shards of this node were still uploading when the time to save was over"
            self._cancel.set()
            self._thread.join(ABORT_WITHIN)
            if self._thread.is_alive():
                self._links.let_go(ABORT_WITHIN)
            return Undelivered(message, Cause.SERVICE)
        return None

    def _stands_still(self) -> bool:
        return self._movement.still_for() > self._deadline.limit

    def _run(self) -> None:
        try:
            if self._watch():
                return
            self._look()
            self._serve_to_the_end()
        except Exception:
            # The main node reports the missing part.
            logger.exception("unexpected error while this node sends its parts")
        finally:
            self._let_go()

    def _watch(self) -> bool:
        """Answer requests while the training runs; return whether the main node has closed the board."""
        while not self._training_ended.wait(LOOK_INTERVAL):
            self._look()
            if time.monotonic() >= self._look_again_at:
                board = self._board()
                if board.closed:
                    return True
                self._answer(board.request)
        return False

    def _serve_to_the_end(self) -> None:
        peers = PeerLiveness(self.store, patient=self._is_patient, launch=self._launch)
        self._look_again_at, self._pause = 0.0, FIRST_PAUSE
        while self._has_shards and not peers.ended(self.main_rank):
            if time.monotonic() >= self._look_again_at:
                board = self._board()
                if board.closed:
                    return
                self._answer(board.request)
            time.sleep(LOOK_INTERVAL)

    def _is_patient(self) -> bool:
        return self._moment is Moment.EXITED and self._deadline.left > 0

    def _look(self) -> None:
        """Record the entries, and when each last changed."""
        there = self._there = candidates(self.folder, self.pattern, self._there)
        found = {item.path: item.signature for item in there}
        changed = [path for path in found if self._seen.get(path) != found[path]]
        self._changed_at |= dict.fromkeys(changed, time.monotonic())
        self._seen = found
        own = {path: self._own.names(path) for path in changed}
        with_parts = {path for path in changed if any(map(_is_part, own[path]))}
        self._unasked = (self._unasked | with_parts) & found.keys()
        if with_parts:
            self._has_shards = True
            self._look_again_at = 0.0
        for item in there:
            if item.path in own and item.placed.series not in self._warned:
                self._warn_of_what_is_not_sent(item, sorted(own[item.path]))

    def _warn_of_what_is_not_sent(self, item: Candidate, names: Sequence[str]) -> None:
        """Warn once of files that only this node has, by their names, and that no layout makes parts."""
        own = next((name for name in (item.path.name, *names) if is_of_a_process(name)), None)
        main = read_report(self.store, self.main_rank) if own else None
        if main is not None and self.rank in (main.apart or ()):
            self._warned.add(item.placed.series)
            logger.warning(
                "%s of %s is not published: it is on this node alone, and its name is that of no known layout in "
                "parts; %s",
                own,
                item.path.name,
                REMEDY,
            )

    def _board(self) -> RequestBoard:
        may_be_asked = self._unasked or (self._has_shards and self._training_ended.is_set())
        self._look_again_at = time.monotonic() + (0.0 if may_be_asked else IDLE_INTERVAL)
        try:
            board = self._exchange.board()
        except (OcidistError, OSError) as error:
            logger.debug("the main node's board cannot be read: %s", error)
            return RequestBoard()
        # An outage is no progress: whether the main node still waits for this one is not known then.
        self._movement.further("")
        return board

    def _answer(self, request: ShardRequest | None) -> None:
        if request is None or self.rank not in request.ranks or request.number in self._answered:
            return
        if self._part and self._part[0] != request.number:
            # The main node has given that checkpoint up.
            self._let_go()
        try:
            part = self._part_of(request)
            if part is None:
                self._look_again_at = 0.0
                return
            self._exchange.reply(request, self.rank, part)
            self._answered.add(request.number)
            self._let_go()
            self._unasked.discard(self.folder / request.name)
            self._pause = FIRST_PAUSE
            self._deadline.succeeded()
        except (OcidistError, OSError) as error:
            self._failed(request, error)

    def _part_of(self, request: ShardRequest) -> ShardReply | None:
        """Return the answer to a request; None while there is none yet."""
        path = self.folder / request.name
        self._movement.further(str(path))
        if self._part and self._part[0] == request.number and self._links.holds(self._part[1]):
            # The program may have deleted it since.
            return ShardReply(files=self._send(self._part[1], request))
        if not any(_is_asked_for(name, request) for name in self._own.names(path)):
            return self._nothing(request)
        if request.number not in self._acknowledged:
            self._exchange.reply(request, self.rank, ShardReply())
            self._acknowledged.add(request.number)
        if not self._training_ended.is_set() and not self._is_at_rest(path, request):
            return None
        fault = self._fault(path, request)
        if fault is None:
            return ShardReply(files=self._send(self._part_in(path, request), request))
        return ShardReply(fault=fault) if self._training_ended.is_set() else None

    def _fault(self, path: Path, request: ShardRequest) -> str | None:
        """Return why a part is not proved complete, None when it is."""
        running = self._moment is Moment.RUNNING
        written = open_files_in(path, open_for_writing()) if running else ()
        if written:
            return f"{written[0]} is still open for writing"
        for name in self._wanted(path, request):
            reading = read_file(path / name)
            if reading.says is FormatResult.BROKEN and not (
                reading.is_doubtful and self._moment is Moment.EXITED
            ):
                return f"its processes have not written all of {name}: {reading.why}"
            if (
                reading.says is FormatResult.NOTHING
                and self._moment is Moment.CUT_OFF
                and not request.written
            ):
                return f"its processes were ended, and nothing shows that they had written all of {name}"
        return None

    def _wanted(self, path: Path, request: ShardRequest) -> list[str]:
        leave_out = self._left_out(path, request)
        return [name for name in scan(path) if name not in leave_out]

    def _left_out(self, path: Path, request: ShardRequest) -> set[str]:
        """Return what this node does not send."""
        others = {name for name in scan(path) if not is_companion(name)} if request.companions else set()
        return self._own.stale(path) | set(request.leave_out) | others

    def _is_at_rest(self, path: Path, request: ShardRequest) -> bool:
        since = self._changed_at.get(path, time.monotonic())
        return time.monotonic() - since >= (LOOK_INTERVAL if request.written else QUIET)

    def _nothing(self, request: ShardRequest) -> ShardReply | None:
        if request.number in self._acknowledged:
            return ShardReply(fault=f"the program has deleted {request.name} there")
        if not request.everywhere:
            return ShardReply(files=())
        return (
            ShardReply(fault=f"the program has not written {request.name} there; {REMEDY}")
            if self._training_ended.is_set()
            else None
        )

    def _part_in(self, path: Path, request: ShardRequest) -> Candidate:
        """Return what this node sends of an entry, and hold it: the program may delete it meanwhile."""
        wanted = set(self._wanted(path, request))
        files = Signature(tuple(item for item in sorted(scan(path).items()) if item[0] in wanted))
        part = Candidate(path, Placed(series=path.name), files, files.modified_ns)
        self._links.keep([part])
        self._part = request.number, part
        return part

    def _send(self, part: Candidate, request: ShardRequest) -> tuple[ManifestFile, ...]:
        from airflow_provider_ocidist.storage.checkpoints import send_part

        path = self._links.source(part)
        before = signature(path)
        leave_out = self._left_out(path, request)
        with meanwhile(
            self._links.make_room, every=disk_room.LOOK_INTERVAL, until=self._training_ended, name="room"
        ):
            files = send_part(path, request.uri, leave_out=leave_out, cancel=self._cancel, access=self.access)
        self._on_arrived()
        if signature(path) != before or not _has(path, part):
            self._let_go()
            raise StorageError(f"{part.path} changed while it was read", uri=str(part.path))
        logger.info("sent %d files of %s", len(files), request.name)
        return files

    def _let_go(self) -> None:
        self._links.keep(())
        self._part = None

    def _failed(self, request: ShardRequest, error: Exception) -> None:
        """Try again later; once the training has ended, as long as the main node does with its own part.

        Amid the training as long as the error may pass: until then the main node publishes no other checkpoint.
        """
        is_last = self._training_ended.is_set()
        if self._amid_training[0] != request.number:
            self._amid_training = request.number, SaveDeadline(math.inf)
        if not (self._deadline if is_last else self._amid_training[1]).allows_another(error):
            logger.warning("the shards of %s cannot be sent: %s", request.name, error)
            self._answered.add(request.number)
            self._let_go()
            self._unasked.discard(self.folder / request.name)
            with contextlib.suppress(OcidistError, OSError):
                self._exchange.reply(request, self.rank, ShardReply(fault=str(error)))
            return
        pause = min(self._pause, LONGEST_LAST_PAUSE) if is_last else self._pause
        logger.warning(
            "the shards of %s cannot be sent: %s; trying again in %.0f s", request.name, error, pause
        )
        self._look_again_at = time.monotonic() + pause
        self._pause = next_pause(self._pause, LONGEST_PAUSE)


def _has(path: Path, part: Candidate) -> bool:
    """Whether an entry, or links to it, has these files unchanged."""
    found = scan(path)
    return all(found.get(name) == stamp for name, stamp in part.files.items())


def _is_part(name: str) -> bool:
    return is_shard(name) or is_companion(name)


def _is_asked_for(name: str, request: ShardRequest) -> bool:
    return request.written or is_shard(name) or (request.companions and is_companion(name))
