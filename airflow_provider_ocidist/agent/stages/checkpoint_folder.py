"""Checkpoint folder: where the program resumes from and writes to; restored before, uploaded from during a launch."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Union

from airflow_provider_ocidist.agent.join.fencing import fence_checkpoints, fence_checkpoints_within
from airflow_provider_ocidist.agent.join.peer_reports import is_first_with_newest, read_report
from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.save.carried import Carried
from airflow_provider_ocidist.agent.save.checkpoints import (
    Brought,
    Fetching,
    checkpoint_folder,
    resume,
    resume_after_clear,
    start_from,
)
from airflow_provider_ocidist.agent.save.entries import candidates
from airflow_provider_ocidist.agent.save.entry_ledger import (
    UNREAD,
    Stamps,
    discard,
    set_aside,
    stamps_of,
)
from airflow_provider_ocidist.agent.save.far_writers import written_entries
from airflow_provider_ocidist.agent.save.folder_marks import hide_folder, nodes_apart, show_folder
from airflow_provider_ocidist.agent.save.held_links import holder_of
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.agent.save.saving import ABORT_WITHIN, SaveDeadline
from airflow_provider_ocidist.agent.save.shard_collector import ShardCollector
from airflow_provider_ocidist.agent.save.shard_uploader import ShardUploader
from airflow_provider_ocidist.agent.save.uploads import CheckpointUploader, ProgramState
from airflow_provider_ocidist.agent.stages.agreement import Agreement, has_same_nodes
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.train.interruptible import interruptible
from airflow_provider_ocidist.errors import (
    AgentError,
    Cause,
    CheckpointsDamaged,
    OcidistError,
    StoreUnavailable,
)
from airflow_provider_ocidist.model.amounts import names_text, size_text
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.job import Checkpoints, Restarts
from airflow_provider_ocidist.model.report import ALL_DAMAGED, NodeReport, Offer, Restart

if TYPE_CHECKING:
    from airflow_provider_ocidist.agent.share.exchange import Exchange
    from airflow_provider_ocidist.agent.share.shared_restore import SharedRestore

logger = logging.getLogger("ocidist")

Uploader = Union[CheckpointUploader, ShardUploader]

FENCE_WITHIN = 3.0
"""Seconds that a launch which goes on from the disk waits for the store to say whether a later attempt saves there."""


class CheckpointFolder:
    """The checkpoint folder of this node, which other nodes may share."""

    def __init__(self, context: NodeContext, exchange: Exchange | None = None) -> None:
        """`exchange`: with the other nodes, until the first launch."""
        self.context = context
        self.settings = context.config.checkpoints
        self._exchange = exchange
        self._folder: Path | None = None
        """Path of the folder, once the program is launched."""
        self._uploader: Uploader | None = None
        self._is_over = False
        """Whether the program has ended."""
        self._is_alone = False
        """Whether this node was the main node of the last launch, with a folder that no other node shares."""
        self._before: Mapping[str, Stamps] | None = None
        """Entries that were there before the first launch; None before that is known."""
        self.on_arrived: Callable[[], object] = lambda: None
        """Function that is called when this node's files of a checkpoint are in the store, and its manifest is not."""
        self.on_restore: Callable[[], object] = lambda: None
        """Function that is called before this node looks for the checkpoint to resume from."""
        self._carried: Carried | None = None
        """Checkpoints that the last launch has left to be sent beside the next, until that has ended."""
        self._carried_for = 0
        """Number of the launch to which it is left."""
        self._sends_carried = False
        """Whether an uploader sends it."""
        self.agreement = Agreement(context, lambda: self._folder)
        self._fetched: Brought = {}
        """Entries that the last restore has fetched."""
        self._all_damaged: CheckpointsDamaged | None = None
        """Error of the last restore, where other nodes may have what this one lacks."""
        self.on_damaged: Callable[[Collection[str]], object] = lambda _: None
        """Function that is called with the URIs of checkpoints that this node has found to be damaged."""

    def path(self, workspace: Workspace) -> Path:
        """Return the path of the folder, also for a job without checkpoints."""
        return checkpoint_folder(self.settings, workspace.working_dir)

    def restore(
        self, workspace: Workspace, *, reuse: bool = True, stopped: threading.Event | None = None
    ) -> None:
        """Fetch the checkpoint to resume from, for as long as the store may need.

        `reuse`: whether what lies on this node need not be read again. Once `stopped` is set, by default at the next
        stop request, this restore changes nothing any more, though one of its requests may be answered much later.
        """
        checkpoints, folder = self.settings, self.path(workspace)
        if checkpoints is None:
            return
        stopped = self.context.switch.until_stopped() if stopped is None else stopped
        # Of this restore alone: another node, or what read for an earlier launch, may be at fault.
        damaged: set[str] = set()
        if self._before is None:
            self._before = self.context.with_retries(lambda: _entries_there(folder, checkpoints.pattern))
        self.on_restore()
        self.context.goes_on_from = None
        launch = self.context.heartbeat.launch
        try:
            self.context.with_retries(
                lambda: self._restore(folder, checkpoints, launch, stopped, damaged, reuse=reuse)
            )
        finally:
            if damaged:
                self.on_damaged(damaged)

    def require_one(self) -> None:
        """Raise CheckpointsDamaged where all are: no other node has one either, since all go on from the same."""
        if self._all_damaged:
            raise self._all_damaged

    def store_again(
        self, workspace: Workspace, others: Iterable[NodeReport | None], cancel: threading.Event | None = None
    ) -> None:
        """Repair what is stored of the newest checkpoint with which the nodes have met, if this one is to do it.

        They would have gone on from different content: what is stored may be damaged, and whole on some nodes. Once
        `cancel` is set, what is being sent is aborted.
        """
        if not is_first_with_newest(self.context.heartbeat.report, others):
            return
        from airflow_provider_ocidist.storage.repairs import store_again

        folder, access = self.path(workspace), self.context.access
        for uri in [reference.uri for reference in self._fetched.values() if reference]:
            try:
                is_stored = store_again(uri, folder, access, cancel=cancel)
            except (OcidistError, OSError) as error:
                logger.warning("%s cannot be stored again: %s", uri, error)
                continue
            if is_stored:
                logger.info(
                    "%s is stored again, as it is on this node: not all nodes would go on from it", uri
                )

    def go_back(self, workspace: Workspace, others: Iterable[NodeReport], *, differed: bool = False) -> None:
        """Fetch the newest whole checkpoint again, for another launch; `others`: the other nodes' reports.

        `differed`: the nodes would not have gone on from the same content. Then all read what is stored, whatever they
        have.
        """
        if self.settings is None:
            return
        others = [*others]
        if self._carried:
            self._go_on_from_here(self._carried)
            return
        if (offer := self.agreement.chosen_by_main(others)) is not None:
            self.on_restore()
            self._go_on_from_common(offer)
            return
        folder, pattern = self.path(workspace), self.settings.pattern
        is_own, fetched_before = self._is_own(others), set(self._fetched)
        # Here, not in the thread that may be left behind: it is then of this launch.
        stopped = self.context.switch.until_stopped()
        saved = {item.path.name: item.signature.modified_ns for item in candidates(folder, pattern)}
        interruptible(
            lambda: self.restore(workspace, reuse=not differed, stopped=stopped), self.context.switch
        )
        if differed:
            left = fetched_before - set(self._fetched)
            set_aside(folder, left)
        if is_own:
            # Afterwards: its parts of what is restored need not be fetched.
            discard(folder, pattern, fetched=self._fetched, before=self._before)
        elif self.context.is_main and self.context.heartbeat.report.apart:
            set_aside(folder, self._newer(folder, saved))

    def compare(self, workspace: Workspace) -> None:
        """Find out which nodes share the folder; all have put their marks into theirs by now."""
        context, folder = self.context, self.path(workspace)
        run_name = context.config.run_name
        if self.settings is None or self.settings.uri is None or context.config.nodes == 1:
            return
        if context.is_main:
            apart = nodes_apart(folder, run_name, context.rank, context.others)
            context.heartbeat.update(apart=apart)
            # The only node of a launch can find nobody in its folder: one on a mount may be shared all the same.
            lasts = Path(self.settings.path).is_absolute()
            self._is_alone = set(context.others) <= set(apart) and not (lasts and not apart)
            return
        hide_folder(folder, run_name, context.rank, context.main_rank)
        if self._is_alone:
            # Another node is the main one now: this one has parts only, as in `go_back`, and no uploader judges them.
            self._is_alone = False
            discard(folder, self.settings.pattern, fetched=self._fetched, before=self._before)

    def start_uploader(self, workspace: Workspace) -> Uploader | None:
        """Return the uploader of the folder; None if the job's checkpoints have no target."""
        if self.settings is None or self.settings.uri is None:
            return None
        folder = self._folder = self.path(workspace)
        self._is_over = False
        uploader: Uploader
        if self.context.is_main:
            uploader = self._main_uploader(folder, self.settings)
        else:
            uploader = self._shard_uploader(folder, self.settings)
            if self._report_writing not in self.context.heartbeat.watches:
                self.context.heartbeat.watches.append(self._report_writing)
        uploader.start()
        self._uploader, self._sends_carried = uploader, self._carried is not None
        return uploader

    @property
    def goes_on_from_here(self) -> bool:
        """Whether the next launch goes on from what lies in the folder, whatever is stored."""
        return self._carried is not None

    def leave_to_next_launch(
        self, uploader: Uploader, deadline: SaveDeadline, restarts: Sequence[Restart] = ()
    ) -> bool:
        """Leave what is not sent yet to the next launch; return whether that goes on from what is in the folder.

        Only where all other nodes find it there too: in the store they could not. What is carried is sent in any case,
        by the next launch or by `sender_of_rest`. Nothing is left in a folder that may be another attempt's too, unless
        the store says that this one is the latest. `restarts`: with that of the next launch.
        """
        if not isinstance(uploader, CheckpointUploader):
            return False
        launch, is_alone = len(restarts) or self.context.heartbeat.launch + 1, self.context.config.nodes == 1
        if not is_alone and not self._is_common_to_all(restarts):
            return False
        if is_alone and self._may_be_common and not self._is_known_to_be_latest():
            return False
        agrees = None if is_alone else partial(self._all_find, launch=launch)
        self._carried, self._sends_carried = uploader.leave(deadline, agrees), False
        self._carried_for = launch
        return self.goes_on_from_here

    def offer_for(self, launch: int) -> Offer | None:
        """Return this node's offer to the others, if the launch of this number goes on from it."""
        # The wait for the answers may have been given up here.
        return self.agreement.chosen_for(launch) if self._carried is not None else None

    def owes_before(self, launch: int) -> bool:
        """Whether something was left to a launch that did not begin, and is sent before the one of this number."""
        return self._carried is not None and self._carried_for != launch

    def rest_is_sent(self) -> None:
        """Go back to what is stored from here on."""
        self._carried = None

    def sender_of_rest(self, workspace: Workspace) -> Uploader | None:
        """Return the uploader of what was left to a launch that did not begin; None where nothing was."""
        if self._carried is None:
            return None
        return self._uploader if self._sends_carried else self.start_uploader(workspace)

    def program_ended(self) -> None:
        """Count open files as half written, until it is known how the program has ended."""
        self._is_over = True
        self._carried = None
        if isinstance(self._uploader, CheckpointUploader):
            self._uploader.program_ended()

    def abandon_uploads(self) -> None:
        """Publish nothing more of this launch: another one follows."""
        if isinstance(self._uploader, CheckpointUploader):
            self._uploader.abandon()

    def require_checkpoint(self, workspace: Workspace) -> None:
        """Raise AgentError where the job requires a checkpoint and none was published."""
        checkpoints, report = self.settings, self.context.heartbeat.report
        if checkpoints is None or not checkpoints.required or report.checkpoint is not None:
            return
        folder = self.path(workspace)
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        unusable = [name for name in names if not name.startswith(".")]
        if unusable:
            raise AgentError(
                f"the training succeeded but wrote no checkpoint into {str(folder)!r}: set checkpoints.pattern to "
                f"a pattern that matches its checkpoints; it has {names_text(unusable)}",
                cause=Cause.USER,
            )
        raise AgentError(
            f"the training succeeded but wrote no checkpoint into {str(folder)!r}: the folder is empty or missing",
            cause=Cause.USER,
        )

    def _is_common_to_all(self, restarts: Sequence[Restart]) -> bool:
        """Whether all nodes of the next launch have taken part in the last, and have this folder."""
        context = self.context
        before = context.heartbeat.restarts
        is_shared = bool(context.others) and context.heartbeat.report.apart == ()
        return is_shared and bool(restarts) and has_same_nodes(before, restarts, context.config.nodes)

    def _all_find(self, carried: Carried, launch: int) -> bool:
        """Whether all nodes find what waits in the folder, so that the launch of this number may go on from it."""
        context = self.context
        if not self._is_known_to_be_latest():
            return False
        # The other nodes of that launch delete the links of those before.
        holder = holder_of(context.heartbeat.store, launch, context.rank)
        return carried.links.hand_over(holder) and self.agreement.reached(
            carried, self._reference_of(carried.newest), launch
        )

    def _is_known_to_be_latest(self) -> bool:
        """Whether the store says so. The next launch asks it again, and raises its error."""
        context = self.context
        try:
            return fence_checkpoints_within(FENCE_WITHIN, context.config, context.fence, context.access)
        except AgentError:
            return False

    def _go_on_from_here(self, carried: Carried) -> None:
        context = self.context
        try:
            # Otherwise an attempt that is overtaken would train on, and clear up the later one's folder.
            fence_checkpoints_within(FENCE_WITHIN, context.config, context.fence, context.access)
        except AgentError:
            self._carried = None
            carried.links.let_go(ABORT_WITHIN)
            raise
        self.on_restore()
        if (offer := self.offer_for(context.heartbeat.launch)) is not None:
            self._go_on_from_common(offer)
        # What was fetched before may have been overwritten since: only what is known to be whole is offered.
        self._fetched, self._all_damaged = {}, None
        names = [whole.item.path.name for whole in carried.waiting]
        context.goes_on_from = self._reference_of(carried.newest)
        logger.info(
            "the next launch goes on from what is on this node; %s will be sent beside the training",
            names_text(names),
        )

    def _go_on_from_common(self, offer: Offer) -> None:
        """Go on from what all nodes have found in the folder that they share."""
        context, folder = self.context, self._folder
        assert folder is not None
        self._fetched, self._all_damaged = {}, None
        context.goes_on_from = offer.checkpoint
        # As it is now: the nodes compare it once more when they meet.
        context.heartbeat.update(starts_from=self.agreement.found(offer))
        show_folder(folder, context.config.run_name, context.rank)
        if not context.is_main:
            logger.info("the next launch goes on from what is in the folder: %s", names_text(offer.names))

    def _reference_of(self, whole: Whole) -> CheckpointRef:
        """Return what stands for a checkpoint that is not stored yet: newer than all that is, and only on this node."""
        fence, known = self.context.config.fence, self.context.heartbeat.report.checkpoint
        before = known.sequence if known and known.fence == fence else 0
        return CheckpointRef(
            uri=str(whole.item.path),
            step=whole.step,
            fence=fence,
            sequence=before + whole.begun,
            digest=hashlib.sha256(repr(whole.item.signature).encode()).hexdigest(),
        )

    def _newer(self, folder: Path, saved: Mapping[str, int]) -> list[str]:
        """Return the entries that were saved after what is restored; `saved`: when each was, before that was."""
        assert self.settings is not None
        restored = max((saved[name] for name in self._fetched if name in saved), default=0)
        before, now = self._before or {}, _entries_there(folder, self.settings.pattern)
        stays = {
            *self._fetched,
            *(name for name, stamps in now.items() if before.get(name) in (UNREAD, stamps)),
        }
        return [name for name, at in saved.items() if at > restored and name not in stays]

    @property
    def _may_be_common(self) -> bool:
        """Whether the folder may be one for several nodes, as on a mount."""
        return self.settings is not None and Path(self.settings.path).is_absolute()

    def _is_own(self, others: Iterable[NodeReport]) -> bool:
        """Whether the main node has found that it cannot see this node's folder."""
        context = self.context
        main = next((report for report in others if report.rank == context.main_rank), None)
        if main is None:
            # It is lost, and the others go on without it: its last report is still there.
            main = read_report(context.heartbeat.store, context.main_rank)
        return main is not None and context.rank in (main.apart or ())

    def _restore(
        self,
        folder: Path,
        checkpoints: Checkpoints,
        launch: int,
        stopped: threading.Event,
        damaged: set[str],
        *,
        reuse: bool,
    ) -> None:
        """`launch`: the number of that which is to go on; a node that prepares may take part in a later one by now."""
        context, config, heartbeat = self.context, self.context.config, self.context.heartbeat
        if stopped.is_set():
            raise AgentError("this restore was left behind", cause=Cause.SERVICE)
        if context.rank < min(context.others, default=config.nodes):
            fence_checkpoints(config, context.fence, context.access)
        shared = self._shared()
        how = Fetching(
            folder,
            context.access,
            context.switch,
            damaged=damaged,
            through=shared,
            reuse=reuse,
            on_read=context.activity.has_read,
            cancel=stopped,
        )
        found, all_damaged, content = None, None, ""
        try:
            found = self._resumed(checkpoints, how)
        except CheckpointsDamaged as error:
            if config.nodes == 1:
                raise
            logger.warning("%s", error)
            all_damaged, content = error, ALL_DAMAGED
        else:
            # Of another run's checkpoint only the content is reported.
            content = content_of(found, how.brought) if found else start_from(checkpoints, how)
        if stopped.is_set() or launch != heartbeat.launch:
            return
        self._fetched, self._all_damaged = how.brought, all_damaged
        heartbeat.update(checkpoint=found or heartbeat.report.checkpoint, starts_from=content)
        if shared and shared.borrowed:
            logger.info("%s of the checkpoint came from other nodes", size_text(shared.borrowed))
        if config.nodes > 1 and checkpoints.uri:
            show_folder(folder, config.run_name, context.rank)

    def _resumed(self, checkpoints: Checkpoints, how: Fetching) -> CheckpointRef | None:
        config = self.context.config
        launched_before = config.fence if self.context.heartbeat.launch else None
        found = resume(checkpoints, how, launched_before=launched_before)
        return found or resume_after_clear(config, how)

    def _shared(self) -> SharedRestore | None:
        """Return how this node reads a checkpoint together with the others, which only the first launch does."""
        context = self.context
        if self._exchange is None or context.heartbeat.launch or self._may_be_common:
            return None
        from airflow_provider_ocidist.agent.share.shared_restore import SharedRestore

        return SharedRestore(self._exchange, context.switch.event, number=len(context.config.inputs))

    def _shard_uploader(self, folder: Path, checkpoints: Checkpoints) -> ShardUploader:
        context = self.context
        return ShardUploader(
            folder,
            context.heartbeat.store,
            context.rank,
            context.main_rank,
            context.access,
            pattern=checkpoints.pattern,
            launch=context.heartbeat.launch,
            on_arrived=self.on_arrived,
        )

    def _main_uploader(self, folder: Path, checkpoints: Checkpoints) -> CheckpointUploader:
        context, meter = self.context, self.context.meter
        apart = context.heartbeat.report.apart or ()
        shards = ShardCollector(
            folder,
            context.heartbeat.store,
            context.rank,
            apart,
            context.access,
            pattern=checkpoints.pattern,
            launch=context.heartbeat.launch,
        )
        return CheckpointUploader(
            folder,
            checkpoints,
            context.access,
            on_arrived=self.on_arrived,
            fence=context.fence,
            program=ProgramState(step=lambda: meter.step, loss_at=meter.loss_at, announced=meter.announced),
            on_published=self._report_published,
            shards=shards if context.config.nodes > 1 else None,
            sharing=[rank for rank in context.others if rank not in apart],
            fetched=self._fetched,
            restarts=context.config.restarts != Restarts(),
            carried=self._carried,
            stopped=context.switch.until_stopped(),
        )

    def _report_writing(self) -> None:
        """Report what this node's processes write to in the folder that the main node publishes from."""
        assert self._folder is not None
        # What it had open when it was cut off stays in the report.
        if not self._is_over:
            self.context.heartbeat.update(writing=written_entries(self._folder))

    def _report_published(self, reference: CheckpointRef) -> None:
        self.context.meter.touch()
        known = self.context.heartbeat.report.checkpoint
        if known is None or reference.order >= known.order:
            self.context.heartbeat.update(checkpoint=reference, now=True)


def content_of(found: CheckpointRef, brought: Brought) -> str:
    """Return what two nodes compare: a checkpoint, and the companions that were fetched with it."""
    digests = sorted(each.digest or each.uri for each in brought.values() if each)
    if len(digests) < 2:
        return found.digest or found.uri
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _entries_there(folder: Path, pattern: str | None) -> dict[str, Stamps]:
    """Return the entries of a folder; what was not seen might be deleted as a half. Raises AgentError."""
    try:
        return stamps_of(folder, pattern)
    except (NotADirectoryError, PermissionError) as error:
        raise AgentError(f"the checkpoint folder cannot be used: {error}", cause=Cause.CONFIG) from error
    except OSError as error:
        raise StoreUnavailable(f"the checkpoint folder cannot be read: {error}") from error
