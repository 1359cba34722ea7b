"""Shard collector: on the main node, publishes checkpoints of which other nodes have parts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.agent.join.peer_reports import PeerLiveness
from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, Stamp, signature
from airflow_provider_ocidist.agent.save.formats import FormatResult
from airflow_provider_ocidist.agent.save.held_links import holder_of
from airflow_provider_ocidist.agent.save.layouts import has_all_parts, read_layout
from airflow_provider_ocidist.agent.save.own_files import OwnFiles
from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.agent.save.shard_exchange import ShardExchange, ShardRequest
from airflow_provider_ocidist.agent.save.shards import (
    REMEDY,
    is_companion,
    is_shard,
    may_have_others,
    missing,
    needs_others,
    union,
)
from airflow_provider_ocidist.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    OcidistError,
    StorageError,
    Unpublishable,
)
from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import ManifestFile, SaveFacts
from airflow_provider_ocidist.storage.stores.base import Store

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for the parts of the other nodes."""
ACKNOWLEDGE_LIMIT = 120.0
"""Seconds within which a node must acknowledge a request, having found its part; the upload itself has no limit."""


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
        self._exchange = ShardExchange(store, launch)
        self.launch = launch
        self.rank = rank
        self.holder = holder_of(store, launch, rank)
        """Name of this node where several nodes may hold links."""
        self.apart = tuple(apart)
        self.access = access
        self._own = OwnFiles(folder, pattern)
        self._requests: dict[tuple[str, Signature], ShardRequest] = {}
        self._asked = 0
        """Requests so far, whatever became of them."""
        self._deadline: SaveDeadline | None = None
        self._further: Callable[[], object] = lambda: None

    def finish(self, deadline: SaveDeadline | None, further: Callable[[], object] = lambda: None) -> None:
        """Wait for silent nodes from now on until then: the training has succeeded, and they may hold their parts.

        `deadline` None: it has failed, and no silent node is waited for.

        `further` is called while others are waited for, which may take as long as they need to send.
        """
        self._deadline, self._further = deadline, further

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
        return bool(self.apart) and (is_shard(name) or is_companion(name))

    def publish(
        self,
        item: Candidate,
        uri: str,
        save: SaveFacts,
        *,
        confirm: Callable[[], object] = lambda: None,
        cancel: threading.Event | None = None,
    ) -> CheckpointRef:
        """Have all nodes upload their files, then publish the checkpoint, unless `confirm` raises.

        `cancel`: once it is set, what this node sends is aborted.

        Raises IncompleteCheckpoint when a part is missing for good, StorageError when a retry may help.
        """
        from airflow_provider_ocidist.storage.checkpoints import seal, send_part

        request = self._request_for(item, uri, save)
        stale = self._own.stale(item.path)
        own = send_part(item.path, request.uri, leave_out=stale, cancel=cancel, access=self.access)
        files = union({self.rank: own, **self._await(request)})
        if signature(item.path) != item.signature:
            raise StorageError(f"{item.path} changed while the other nodes sent their parts")
        absent = missing([file.path for file in files], _metadata(item.path))
        if absent:
            raise IncompleteCheckpoint(f"no node has sent {names_text(absent)}, which belong to it")
        together = read_layout(item.path, {file.path: Stamp(file.size, 0, 0) for file in files})
        if together.says is FormatResult.BROKEN:
            raise IncompleteCheckpoint(f"of what the nodes have sent, {together.why}")
        confirm()
        try:
            proved = replace(save, proof=f"{save.proof}; every node has sent its part")
            return seal(request.uri, item.path.name, files, proved, self.access)
        except Unpublishable:
            raise
        except CheckpointError:
            # A file is gone from the store: the others send again for another request only.
            del self._requests[item.path.name, item.signature]
            raise

    def close(self) -> None:
        """Release the other nodes: there will be no further request."""
        try:
            self._exchange.close()
        except (OcidistError, OSError) as error:
            logger.warning("the end of the checkpoints cannot be announced to the others: %s", error)

    def _request_for(self, item: Candidate, uri: str, save: SaveFacts) -> ShardRequest:
        """Return the request for an entry; a retry repeats the first, so that no file is uploaded twice."""
        from airflow_provider_ocidist.storage.checkpoints import reserve

        request = self._requests.get((item.path.name, item.signature))
        if request is None:
            names, written = self._own.names(item.path), bool(_metadata(item.path))
            has_shards = any(may_have_others(name) for name in names)
            request = ShardRequest(
                number=self._asked + 1,
                name=item.path.name,
                uri=reserve(uri, item.path.name, save, self.access),
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
            self._asked += 1
        self._exchange.ask(request)
        self._requests[item.path.name, item.signature] = request
        return request

    def _await(self, request: ShardRequest) -> dict[int, Sequence[ManifestFile]]:
        peers = PeerLiveness(self.store, patient=self._is_patient, launch=self.launch)
        found: dict[int, Sequence[ManifestFile]] = {}
        acknowledge_until = dict.fromkeys(request.ranks, time.monotonic() + ACKNOWLEDGE_LIMIT)
        while True:
            for rank in set(request.ranks) - set(found):
                if peers.is_waited_for(rank):
                    # A silent node cannot acknowledge either.
                    acknowledge_until[rank] = time.monotonic() + ACKNOWLEDGE_LIMIT
                files = self._part_of(
                    rank, request, peers, overdue=time.monotonic() > acknowledge_until[rank]
                )
                if files is not None:
                    found[rank] = files
            if len(found) == len(request.ranks):
                return found
            self._further()
            time.sleep(LOOK_INTERVAL)

    def _is_patient(self) -> bool:
        return self._deadline is not None and self._deadline.left > 0

    def _part_of(
        self, rank: int, request: ShardRequest, peers: PeerLiveness, *, overdue: bool
    ) -> Sequence[ManifestFile] | None:
        # In this order: a node writes its part before it reports its end.
        gone = peers.ended(rank)
        part = self._exchange.reply_of(rank, request)
        if part and part.files is not None:
            return part.files
        if request.companions and ((part and part.fault) or (part is None and overdue) or (gone and part)):
            logger.warning(
                "node %d has not sent its random generator states (rng_state_*) of %s", rank, request.name
            )
            return ()
        if part and part.fault:
            raise IncompleteCheckpoint(f"node {rank} cannot send its part: {part.fault}")
        if gone and part is None and not request.everywhere:
            return ()  # it had no files; the metadata would name them
        if gone and part:
            raise IncompleteCheckpoint(f"node {rank} has ended before it had sent its part")
        if gone or (part is None and overdue):
            when = "before its end" if gone else f"within {ACKNOWLEDGE_LIMIT:.0f} s"
            raise IncompleteCheckpoint(f"node {rank} sent no shard of it {when}; {REMEDY}")
        return None


def _metadata(path: Path) -> dict[str, bytes]:
    found = {}
    for file in path.rglob(dcp.METADATA):
        # The program may be deleting it.
        with contextlib.suppress(OSError):
            found[file.relative_to(path).as_posix()] = file.read_bytes()
    return found
