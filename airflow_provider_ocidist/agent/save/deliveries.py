"""Deliveries: every node uploads its shards of a checkpoint to one place; only the main node publishes it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from airflow_provider_ocidist.agent.join.topology import read_report
from airflow_provider_ocidist.agent.save.entries import (
    Candidate,
    Signature,
    Stamp,
    candidates,
    scan,
    signature,
)
from airflow_provider_ocidist.agent.save.formats import Says, read_file
from airflow_provider_ocidist.agent.save.layouts import has_all_parts, read_layout
from airflow_provider_ocidist.agent.save.open_files import inside, open_for_writing
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    SaveDeadline,
    Undelivered,
    passes,
)
from airflow_provider_ocidist.agent.save.shards import (
    METADATA,
    REMEDY,
    is_companion,
    is_shard,
    may_have_others,
    missing,
    needs_others,
    union,
)
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause, IncompleteCheckpoint, OcidistError, StorageError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.work_dir import SHARDS
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import ManifestFile
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
LAST_TRIES = 4
BOARD_FILE = "board.json"
LOOK_INTERVAL = 1.0
IDLE_INTERVAL = 10.0
"""Seconds between looks at the board on a node that has no shards."""
CLAIM_LIMIT = 120.0
"""Seconds in which a node must find its part of a checkpoint; the upload itself has no limit."""
QUIET = 10.0
"""Seconds without a change before a node uploads parts of which no list gives the number: ZeRO pauses between
files. Each file is also checked."""
GONE_AFTER = 60.0
"""Seconds without a heartbeat after which a node counts as ended."""


@dataclass(frozen=True, kw_only=True)
class ShardRequest:
    """The main node's request to the others: upload your files of this checkpoint."""

    number: int
    name: str
    """Of the entry in every node's own checkpoint folder."""
    uri: str
    """Where all nodes send their files."""
    ranks: tuple[int, ...]
    """The nodes that are to answer."""
    written: bool
    """Whether the format shows that every process on every node has written its files."""
    everywhere: bool
    """Whether every node must have some: ZeRO has parts on all, without a list of them."""
    leave_out: tuple[str, ...]
    """Files that the main node sends, and that are the same for all."""
    companions: bool = False
    """Whether only companions are requested, which the checkpoint does not require."""


@dataclass(frozen=True, kw_only=True)
class RequestBoard:
    """The main node's current request."""

    request: ShardRequest | None = None
    closed: bool = False
    """Whether there will be no further request."""


@dataclass(frozen=True, kw_only=True)
class ShardReply:
    """A node's answer to a request."""

    files: tuple[ManifestFile, ...] | None = None
    """The uploaded files; None: not all yet."""
    fault: str | None = None
    """Why it cannot be sent."""


# Which nodes share the folder


def show_folder(folder: Path, run_name: str, rank: int) -> None:
    """Create a mark in this node's checkpoint folder, until `nodes_apart` or `hide_folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _mark(folder, run_name, rank).touch()
    except OSError as error:
        logger.warning("the checkpoint folder %s cannot be written: %s", folder, error)


def nodes_apart(folder: Path, run_name: str, rank: int, nodes: int) -> tuple[int, ...]:
    """Return the ranks of the nodes that have a checkpoint folder of their own; remove the marks of all others."""
    others = [other for other in range(nodes) if other != rank]
    # Looked up by name: a network file system may return an old listing.
    apart = tuple(other for other in others if not _is_marked(folder, run_name, other))
    # Our own is removed last: a node that does not see it removes its own.
    for seen in [*(other for other in others if other not in apart), rank]:
        _unmark(folder, run_name, seen)
    return apart


def hide_folder(folder: Path, run_name: str, rank: int, main_rank: int) -> bool:
    """Return whether this node's folder is its own, and remove its mark then: the main node cannot see it."""
    is_own = not _is_marked(folder, run_name, main_rank)
    if is_own:
        _unmark(folder, run_name, rank)
    return is_own


def _mark(folder: Path, run_name: str, rank: int) -> Path:
    return folder / f".{run_name}-{rank}"


def _is_marked(folder: Path, run_name: str, rank: int) -> bool:
    return os.path.exists(_mark(folder, run_name, rank))  # noqa: PTH110 - Path.exists raises where it may not look


def _unmark(folder: Path, run_name: str, rank: int) -> None:
    with contextlib.suppress(OSError):
        _mark(folder, run_name, rank).unlink(missing_ok=True)


# On the main node


class ShardCollector:
    """Publishes checkpoints of which other nodes have shards."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        rank: int,
        apart: Sequence[int],
        access: OciAccess,
        *,
        pattern: str | None = None,
        launch: int = 0,
    ) -> None:
        """`store`: the run directory; `apart`: the nodes that have a checkpoint folder of their own.

        `launch`: the number of this launch of the program, from 0.
        """
        self.store = store
        self._place = _place_of(launch)
        self.rank = rank
        self.apart = tuple(apart)
        self.access = access
        self._own = OwnFiles(folder, pattern)
        self._requests: dict[tuple[Path, Signature], ShardRequest] = {}

    def open(self) -> None:
        """Release the other nodes at once where all share the folder: all files are here."""
        if not self.apart:
            self.close()

    def needs_others(self, path: Path) -> bool:
        """Whether other nodes have parts of this entry; False where all share the folder."""
        if not self.apart or not path.is_dir():
            return False
        return needs_others(self._own.names(path), _metadata(path))

    def may_be_elsewhere(self, name: str) -> bool:
        """Whether a file that is not here may be another node's part."""
        return bool(self.apart) and is_shard(name)

    def publish(
        self,
        item: Candidate,
        uri: str,
        *,
        loss: float | None,
        step: int | None = None,
        fence: Fence = LOWEST,
        sequence: int = 1,
        proof: str = "",
    ) -> CheckpointRef:
        """Have all nodes upload their files, then publish the checkpoint.

        Raises IncompleteCheckpoint when a part is missing for good, StorageError when a retry may help.
        """
        from airflow_provider_ocidist.storage.checkpoints import seal, send_part

        request = self._request_for(item, uri, step, fence, sequence)
        stale = self._own.stale(item.path)
        own = send_part(item.path, request.uri, leave_out=stale, access=self.access)
        files = union({self.rank: own, **self._await(request)})
        if signature(item.path) != item.signature:
            raise StorageError(f"{item.path} changed while the other nodes sent their parts")
        absent = missing([file.path for file in files], _metadata(item.path))
        if absent:
            raise IncompleteCheckpoint(f"no node has sent {_few(absent)}, which belong to it")
        together = read_layout(item.path, {file.path: Stamp(file.size, 0, 0) for file in files})
        if together.says is Says.BROKEN:
            raise IncompleteCheckpoint(f"of what the nodes have sent, {together.why}")
        return seal(
            request.uri,
            item.path.name,
            files,
            step=step,
            fence=fence,
            sequence=sequence,
            proof=f"{proof}; every node has sent its part",
            metrics=item.placed.metrics,
            loss=loss,
            access=self.access,
        )

    def close(self) -> None:
        """Release the other nodes: there will be no further request."""
        try:
            _write(self.store, f"{self._place}/{BOARD_FILE}", RequestBoard(closed=True))
        except (OcidistError, OSError) as error:
            logger.warning("the end of the checkpoints cannot be announced to the others: %s", error)

    def _request_for(
        self, item: Candidate, uri: str, step: int | None, fence: Fence, sequence: int
    ) -> ShardRequest:
        """Return the request for an entry; a retry repeats the first, so that no file is uploaded twice."""
        from airflow_provider_ocidist.storage.checkpoints import reserve

        request = self._requests.get((item.path, item.signature))
        if request is None:
            names, written = self._own.names(item.path), bool(_metadata(item.path))
            has_shards = any(may_have_others(name) for name in names)
            request = ShardRequest(
                number=len(self._requests) + 1,
                name=item.path.name,
                uri=reserve(
                    uri, item.path.name, step=step, fence=fence, sequence=sequence, access=self.access
                ),
                ranks=self.apart,
                written=written,
                everywhere=(
                    not written
                    and any(is_shard(name) for name in names)
                    and not has_all_parts(item.path, names)
                ),
                leave_out=tuple(sorted(name for name in names if not is_shard(name))),
                companions=not written and not has_shards,
            )
        _write(self.store, f"{self._place}/{BOARD_FILE}", RequestBoard(request=request))
        self._requests[item.path, item.signature] = request
        return request

    def _await(self, request: ShardRequest) -> dict[int, Sequence[ManifestFile]]:
        signs = PeerLiveness(self.store)
        found: dict[int, Sequence[ManifestFile]] = {}
        claim_until = time.monotonic() + CLAIM_LIMIT
        while True:
            for rank in set(request.ranks) - set(found):
                files = self._part_of(rank, request, signs, overdue=time.monotonic() > claim_until)
                if files is not None:
                    found[rank] = files
            if len(found) == len(request.ranks):
                return found
            time.sleep(LOOK_INTERVAL)

    def _part_of(
        self, rank: int, request: ShardRequest, signs: PeerLiveness, *, overdue: bool
    ) -> Sequence[ManifestFile] | None:
        # In this order: a node writes its part before it reports its end.
        gone = signs.ended(rank)
        part = _read(self.store, f"{self._place}/{_part_name(request, rank)}", ShardReply)
        if request.companions and ((part and part.fault) or (part is None and overdue) or (gone and part)):
            logger.warning("node %d has not sent its companions of %s", rank, request.name)
            return ()
        if part and part.fault:
            raise IncompleteCheckpoint(f"node {rank} cannot send its part: {part.fault}")
        if part and part.files is not None:
            return part.files
        if gone and part is None and not request.everywhere:
            return ()  # it had no files; the metadata would name them
        if gone and part:
            raise IncompleteCheckpoint(f"node {rank} has ended before it had sent its part")
        if gone or (part is None and overdue):
            when = "at its end" if gone else f"after {CLAIM_LIMIT:.0f} s"
            raise IncompleteCheckpoint(f"node {rank} had no part of it {when}; {REMEDY}")
        return None


# On the other nodes


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
    ) -> None:
        """`store`: the run directory; `pattern`: of the names of checkpoints, where the job has one.

        `launch`: the number of this launch of the program, from 0.
        """
        self.folder = folder
        self._place = _place_of(launch)
        self.pattern = pattern
        self.store = store
        self.rank = rank
        self.main_rank = main_rank
        self.access = access
        self._own = OwnFiles(folder, pattern)
        self._seen: dict[Path, Signature] = {}
        self._changed_at: dict[Path, float] = {}
        self._has_shards = False
        self._claimed: set[int] = set()
        self._answered: set[int] = set()
        self._tries = 0
        self._pause = FIRST_PAUSE
        self._look_again_at = time.monotonic() + IDLE_INTERVAL
        self._training_ended = threading.Event()
        self._moment = Moment.RUNNING
        self._deadline = SaveDeadline(0.0)
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self, moment: Moment, deadline: SaveDeadline) -> Undelivered | None:
        """Answer the main node's last requests; return why that failed, if it did.

        A node without shards does not wait.
        """
        self._moment, self._deadline = moment, deadline
        self._training_ended.set()
        while self._thread.is_alive() and not deadline.is_over:
            self._thread.join(LOOK_INTERVAL)
        if self._thread.is_alive():
            message = "shards of this node were still uploading when the time to save was over"
            return Undelivered(message, Cause.SERVICE)
        return None

    def _run(self) -> None:
        try:
            if self._watch():
                return
            self._look()
            self._serve_to_the_end()
        except Exception:
            # The main node reports the missing part.
            logger.exception("unexpected")

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
        signs = PeerLiveness(self.store)
        self._look_again_at, self._tries, self._pause = 0.0, 0, FIRST_PAUSE
        while self._has_shards and not signs.ended(self.main_rank):
            if time.monotonic() >= self._look_again_at:
                board = self._board()
                if board.closed:
                    return
                self._answer(board.request)
            time.sleep(LOOK_INTERVAL)

    def _look(self) -> None:
        """Record the entries, and when each last changed."""
        found = {item.path: item.signature for item in candidates(self.folder, self.pattern)}
        changed = [path for path in found if self._seen.get(path) != found[path]]
        self._changed_at |= dict.fromkeys(changed, time.monotonic())
        self._seen = found
        if not self._has_shards and any(
            is_shard(name) or is_companion(name) for path in changed for name in self._own.names(path)
        ):
            self._has_shards = True
            self._look_again_at = 0.0

    def _board(self) -> RequestBoard:
        self._look_again_at = time.monotonic() + (0.0 if self._has_shards else IDLE_INTERVAL)
        try:
            return _read(self.store, f"{self._place}/{BOARD_FILE}", RequestBoard) or RequestBoard()
        except (OcidistError, OSError) as error:
            logger.debug("the main node's board cannot be read: %s", error)
            return RequestBoard()

    def _answer(self, request: ShardRequest | None) -> None:
        if request is None or self.rank not in request.ranks or request.number in self._answered:
            return
        try:
            part = self._part_of(request)
            if part:
                self._reply(request, part)
                self._answered.add(request.number)
                self._tries, self._pause = 0, FIRST_PAUSE
        except (OcidistError, OSError) as error:
            self._failed(request, error)

    def _part_of(self, request: ShardRequest) -> ShardReply | None:
        """Return the answer to a request; None while there is none yet."""
        path = self.folder / request.name
        if not any(_is_asked_for(name, request) for name in self._own.names(path)):
            return self._nothing(request)
        if request.number not in self._claimed:
            self._reply(request, ShardReply())
            self._claimed.add(request.number)
        if not self._training_ended.is_set() and not self._is_at_rest(path, request):
            return None
        fault = self._fault(path, request)
        if fault is None:
            return ShardReply(files=self._send(path, request))
        return ShardReply(fault=fault) if self._training_ended.is_set() else None

    def _fault(self, path: Path, request: ShardRequest) -> str | None:
        """Return why a part is not proved complete, None when it is."""
        running = self._moment is Moment.RUNNING
        written = inside(path, open_for_writing()) if running else ()
        if written:
            return f"{written[0]} is still open for writing"
        for name in self._wanted(path, request):
            reading = read_file(path / name)
            if reading.says is Says.BROKEN and not (reading.is_doubtful and self._moment is Moment.EXITED):
                return f"its processes have not written all of {name}: {reading.why}"
            if reading.says is Says.NOTHING and self._moment is Moment.CUT_OFF and not request.written:
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
        if request.number in self._claimed:
            return ShardReply(fault=f"the program has deleted {request.name} there")
        if not request.everywhere:
            return ShardReply(files=())
        return (
            ShardReply(fault=f"the program has not written {request.name} there; {REMEDY}")
            if self._training_ended.is_set()
            else None
        )

    def _send(self, path: Path, request: ShardRequest) -> tuple[ManifestFile, ...]:
        from airflow_provider_ocidist.storage.checkpoints import send_part

        before = signature(path)
        leave_out = self._left_out(path, request)
        files = send_part(path, request.uri, leave_out=leave_out, access=self.access)
        if signature(path) != before:
            raise StorageError(f"{path} changed while it was read", uri=str(path))
        logger.info("sent %d files of %s", len(files), request.name)
        return files

    def _failed(self, request: ShardRequest, error: Exception) -> None:
        logger.warning(
            "the shards of %s cannot be sent: %s; trying again in %.0f s", request.name, error, self._pause
        )
        self._look_again_at = time.monotonic() + min(
            self._pause, 5.0 if self._training_ended.is_set() else 60.0
        )
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        self._tries += 1
        is_hopeless = self._deadline.left <= 0 or (self._tries >= LAST_TRIES and not passes(error))
        if self._training_ended.is_set() and is_hopeless:
            self._answered.add(request.number)
            with contextlib.suppress(OcidistError, OSError):
                self._reply(request, ShardReply(fault=str(error)))

    def _reply(self, request: ShardRequest, part: ShardReply) -> None:
        _write(self.store, f"{self._place}/{_part_name(request, self.rank)}", part)


class OwnFiles:
    """Which files of an entry this node's processes have written, not fetched to resume from."""

    def __init__(self, folder: Path, pattern: str | None = None) -> None:
        self._before = {item.path: _stamps(item.path) for item in candidates(folder, pattern)}

    def names(self, path: Path) -> set[str]:
        return set(_stamps(path)) - self.stale(path)

    def stale(self, path: Path) -> set[str]:
        """Return the files from before the start that other nodes may have rewritten."""
        before, now = self._before.get(path, {}), _stamps(path)
        of_one_process = {name for name in now if is_shard(name) or is_companion(name)}
        return {name for name in of_one_process if before.get(name) == now[name]}


class PeerLiveness:
    """Whether other nodes can still answer, by their heartbeats."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._heard: dict[int, tuple[float, float]] = {}
        """By rank: the last heartbeat, and when it was new to us."""

    def ended(self, rank: int) -> bool:
        report = read_report(self.store, rank)
        if report is None:
            # No report can be read: the store may be out of reach.
            self._heard.pop(rank, None)
            return False
        return report.phase is Phase.DONE or self._is_silent(report)

    def _is_silent(self, report: NodeReport) -> bool:
        now = time.monotonic()
        beat, since = self._heard.get(report.rank, (None, now))
        if beat != report.heartbeat_at:
            since = now
        self._heard[report.rank] = (report.heartbeat_at, since)
        return now - since > GONE_AFTER


def _is_asked_for(name: str, request: ShardRequest) -> bool:
    return request.written or is_shard(name) or (request.companions and is_companion(name))


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of each file in a folder."""
    found = {}
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            if file.is_file():
                status = file.stat()
                found[file.relative_to(path).as_posix()] = (status.st_size, status.st_mtime_ns)
    return found


def _metadata(path: Path) -> dict[str, bytes]:
    found = {}
    for file in path.rglob(METADATA):
        # The program may be deleting it.
        with contextlib.suppress(OSError):
            found[file.relative_to(path).as_posix()] = file.read_bytes()
    return found


def _part_name(request: ShardRequest, rank: int) -> str:
    return f"{request.number}/{rank}.json"


def _place_of(launch: int) -> str:
    """Return where the nodes of one launch exchange requests and replies: those of another mean nothing to it."""
    return f"{SHARDS}/launch-{launch}" if launch else SHARDS


def _write(store: Store, name: str, value: RequestBoard | ShardReply) -> None:
    store.write(name, json.dumps(codec.encode(value)).encode())


def _read(store: Store, name: str, kind: type[T]) -> T | None:
    """Return what was written there, None where nothing was. Raises StorageError when it cannot be read now."""
    try:
        return codec.read(kind, store.read(name))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StorageError(f"{store.uri_of(name)} cannot be read: {error}") from error


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
