"""Publisher: uploads whole checkpoints, unless they were written to or the next launch has begun meanwhile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.save.entries import Candidate, scan, signature
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.proofs import Proof
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT, SaveDeadline
from airflow_provider_ocidist.agent.save.shard_collector import ShardCollector
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Fenced, OcidistError, StorageError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.job import Checkpoints
from airflow_provider_ocidist.oci_client.credentials import OciAccess

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.checkpoints import SaveFacts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Whole:
    """A checkpoint to publish."""

    item: Candidate
    proof: Proof
    begun: int
    """Number of the save, from 1, in the order in which the program has begun its saves; a late proof makes no save
    newer."""
    step: int | None

    @property
    def series(self) -> str:
        return self.item.placed.series

    @property
    def is_unchanged(self) -> bool:
        """Whether the program has left it as it was when it was proved."""
        try:
            return signature(self.item.path) == self.item.signature
        except OSError:
            return False


class Changed(StorageError):
    """The program has written to the entry, or deleted it where nothing holds it."""


class Publisher:
    """Writes to the place of one attempt's checkpoints."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        access: OciAccess,
        fence: Fence,
        *,
        loss_at: Callable[[int], float | None],
        shards: ShardCollector | None = None,
        arrived: Callable[[], object] = lambda: None,
        links: HeldLinks | None = None,
    ) -> None:
        """`fence`: of this launch. `shards`: collects the parts of an entry that other nodes hold. `arrived` is
        called when all files of a checkpoint are in the store, and its manifest is not. `links`: what is held to be
        sent.
        """
        assert checkpoints.uri is not None
        self._checkpoints = checkpoints
        self._uri = checkpoints.uri
        self._access = access
        self._fence = fence
        self._loss_at = loss_at
        self._shards = shards
        self._arrived = arrived
        self._links = links
        self._first_sequence: int | None = None
        """Sequence number of this process's first checkpoint; None until looked up."""
        self._offers = threading.Condition()
        self._is_offering = False
        """Whether a checkpoint whose files have all arrived is just being published."""
        self._abandoned = False
        self._has_retained = False
        self._cancel = threading.Event()

    def publish(self, whole: Whole, then: Callable[[CheckpointRef], object]) -> None:
        """Publish a checkpoint, and call `then` with it before another launch may choose what it goes on from.

        Raises Changed where it is not what was proved, Fenced where the next launch is chosen or a later attempt saves
        to the same place, and other errors.
        """
        self._refuse_if_abandoned(whole)
        self._require_unchanged(whole)
        try:
            then(self._sent(whole))
        finally:
            with self._offers:
                self._is_offering = False
                self._offers.notify_all()

    def is_there(self, whole: Whole) -> bool:
        """Whether a checkpoint can still be sent as it was proved.

        What the program deletes or replaces is there all the same while it is held. What it adds to a save after its
        proof, or writes into one of its files, belongs to the checkpoint, and what was proved is not all of it.
        """
        if not self._is_held(whole):
            return whole.is_unchanged
        try:
            is_intact = signature(self._source(whole)) == whole.item.signature
        except OSError:
            return False
        return is_intact and not _goes_on(whole.item)

    def _is_held(self, whole: Whole) -> bool:
        return self._links is not None and self._links.holds(whole.item)

    def _source(self, whole: Whole) -> Path:
        """Return where it is read from."""
        return self._links.source(whole.item) if self._links else whole.item.path

    def abandon(self) -> None:
        """Publish nothing from here on. Returns once a checkpoint that is just being published is complete."""
        with self._offers:
            self._abandoned = True
            self._offers.wait_for(lambda: not self._is_offering, SAVE_LIMIT)

    def cancel(self) -> None:
        """Abort what is being sent, and send nothing from here on."""
        self._cancel.set()

    def go_on(self) -> None:
        """Send again after `cancel`. Nothing may be under way."""
        self._cancel.clear()

    @property
    def is_cancelled(self) -> bool:
        return self._cancel.is_set()

    def _sent(self, whole: Whole) -> CheckpointRef:
        from airflow_provider_ocidist.storage.checkpoints import publish

        item, save = replace(whole.item, path=self._source(whole)), self._save_of(whole)

        def confirm() -> None:
            self._begin_offer(whole)

        if self._shards and self._shards.needs_others(item.path):
            return self._shards.publish(item, self._uri, save, confirm=confirm, cancel=self._cancel)
        return publish(item.path, self._uri, save, confirm=confirm, cancel=self._cancel, access=self._access)

    def _save_of(self, whole: Whole) -> SaveFacts:
        from airflow_provider_ocidist.storage.checkpoints import SaveFacts, next_sequence

        if self._first_sequence is None:
            self._first_sequence = next_sequence(self._uri, self._fence, self._access)
        return SaveFacts(
            step=whole.step,
            loss=None if whole.step is None else self._loss_at(whole.step),
            metrics=whole.item.placed.metrics,
            fence=self._fence,
            sequence=self._first_sequence + whole.begun - 1,
            proof=whole.proof.by,
        )

    def _begin_offer(self, whole: Whole) -> None:
        self._arrived()
        self._require_unchanged(whole)
        with self._offers:
            self._refuse_if_abandoned(whole)
            self._is_offering = True

    def _refuse_if_abandoned(self, whole: Whole) -> None:
        if self._abandoned:
            name = whole.item.path.name
            raise Fenced(f"{name} is not published: the training is launched again from before it")

    def _require_unchanged(self, whole: Whole) -> None:
        if not self.is_there(whole):
            path = whole.item.path
            raise Changed(f"{path} changed while it was read", uri=str(path))

    def retain(self) -> None:
        """Delete the checkpoints that are not to be kept, and once the uploads that earlier attempts have left open.

        Raises nothing.
        """
        from airflow_provider_ocidist.storage.open_uploads import abort_left_behind
        from airflow_provider_ocidist.storage.retention import Retention, retain

        try:
            retain(self._uri, Retention.of(self._checkpoints), fence=self._fence, access=self._access)
        except (OcidistError, OSError) as error:
            logger.warning("old checkpoints cannot be deleted: %s", error)
            return
        if not self._has_retained:
            self._has_retained = True
            # The folder may not have been fenced before the training: the store did not answer then.
            # Another node may just be keeping something aside.
            abort_left_behind(self._uri, self._fence, self._access, aside=False)

    def keep_aside(self, unproved: Sequence[Path], deadline: SaveDeadline) -> None:
        """Copy entries that nothing proves to a place beside the checkpoints, the newest first."""
        from airflow_provider_ocidist.agent.save.unproved_copies import keep_aside

        if not self._abandoned:
            keep_aside(unproved[: self._checkpoints.keep], self._uri, self._access, deadline)

    def forget_unproved(self) -> None:
        """Delete the copies of entries that nothing proved, once a checkpoint is published."""
        from airflow_provider_ocidist.agent.save.unproved_copies import forget

        forget(self._uri, self._access)


def _goes_on(item: Candidate) -> bool:
    """Whether the program goes on with a save that was proved: a name with a number stands for one save alone.

    Where it deletes the entry, or has replaced all of it, that save is over.
    """
    try:
        now = scan(item.path)
    except OSError:
        return False
    same = [name for name, stamp in now.items() if item.files.get(name) == stamp]
    return item.placed.number is not None and 0 < len(same) < len(now)
