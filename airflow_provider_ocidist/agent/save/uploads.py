"""Uploads: publishes each checkpoint that the program writes, once it is proved complete."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from airflow_provider_ocidist.agent.monitor.progress import Announced
from airflow_provider_ocidist.agent.save.carried import Carried, NewestInPlace, fetched_into
from airflow_provider_ocidist.agent.save.entry_ledger import Ledger, forget_aside
from airflow_provider_ocidist.agent.save.entry_warnings import EntryWarnings
from airflow_provider_ocidist.agent.save.far_writers import FarWriters
from airflow_provider_ocidist.agent.save.handover import Handover
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.judging import Judge, Verdict
from airflow_provider_ocidist.agent.save.layouts import none_elsewhere
from airflow_provider_ocidist.agent.save.meanwhile import meanwhile
from airflow_provider_ocidist.agent.save.newest_saves import NewestSaves
from airflow_provider_ocidist.agent.save.proofs import Moment, Proof, Unproved, remedy
from airflow_provider_ocidist.agent.save.publishing import Changed, Publisher, Whole
from airflow_provider_ocidist.agent.save.saving import (
    ABORT_WITHIN,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    SAVE_LIMIT,
    Movement,
    SaveDeadline,
    Undelivered,
    cause_of_failed_save,
    passes,
)
from airflow_provider_ocidist.agent.save.shard_collector import ShardCollector
from airflow_provider_ocidist.agent.save.upload_order import MOST_HELD, UploadOrder
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import (
    Cause,
    Fenced,
    IncompleteCheckpoint,
    OcidistError,
    Unpublishable,
)
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import LOWEST, Fence
from airflow_provider_ocidist.model.job import Checkpoints
from airflow_provider_ocidist.model.pauses import next_pause
from airflow_provider_ocidist.oci_client.credentials import OciAccess

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for checkpoints."""
SENT_LAST_AFTER = 2
"""Refusals of one checkpoint after which the others are sent before it: a single answer may be wrong."""
LONG_UPLOAD = 5.0
"""Seconds of sending after which a look comes before the next upload: a newer checkpoint may be complete."""
SOME_STEPS = 10
"""Steps, or a tenth of all, that a program may be further than it has reported: it reports every few steps."""


@dataclass(frozen=True, kw_only=True)
class ProgramState:
    """What the program reports of its training."""

    step: Callable[[], int | None] = lambda: None
    """Current step."""
    loss_at: Callable[[int], float | None] = lambda _step: None
    announced: Callable[[], Mapping[str, Announced]] = dict
    """Entries that the program has named as complete."""


class CheckpointUploader:
    """Scans the folder while the training runs, and publishes what is proved complete."""

    def __init__(
        self,
        folder: Path,
        checkpoints: Checkpoints,
        access: OciAccess,
        *,
        on_published: Callable[[CheckpointRef], object],
        on_arrived: Callable[[], object] = lambda: None,
        program: ProgramState | None = None,
        fence: Fence = LOWEST,
        shards: ShardCollector | None = None,
        sharing: Sequence[int] = (),
        fetched: Collection[str] = (),
        restarts: bool = False,
        carried: Carried | None = None,
        stopped: threading.Event | None = None,
    ) -> None:
        """`fence`: of this launch. `shards`: collects the parts of an entry that other nodes hold.

        `on_arrived` is called when all files of a checkpoint are in the store, and its manifest is not. `sharing`: the
        nodes that write to the same folder. `fetched`: the names of the entries that this attempt has fetched to
        resume from. `restarts`: whether the program may be launched again in this folder. `carried`: what the uploader
        of the launch before has left to this one. `stopped`: set by a request to end, which nothing here outwaits.
        """
        self.folder = folder
        self.checkpoints = checkpoints
        self.on_published = on_published
        self.program = program or ProgramState()
        self.shards = shards
        self._sharing = sharing
        self._far = self._far_writers()
        self.error: Exception | None = None
        """Error of the last upload; None if it succeeded."""
        # Before the program starts: it would resume from the newest name.
        # A full disk may have kept what is carried from the ledger.
        known = (*fetched, *(carried.names if carried else ()))
        self.ledger = _begun_ledger(folder, checkpoints, known, restarts=restarts, stopped=stopped)
        self._movement = Movement()
        self._taken_over = carried
        self._links = carried.links if carried else HeldLinks(folder, shards.holder if shards else "")
        self._publisher = Publisher(
            checkpoints,
            access,
            fence,
            loss_at=self.program.loss_at,
            shards=shards,
            arrived=on_arrived,
            links=self._links,
        )
        in_place = carried.in_place if carried else fetched_into(folder, checkpoints.pattern, fetched)
        self._handover = Handover(self._publisher, self._links, NewestInPlace(in_place), carried)
        self.judge = self._new_judge()
        self._waiting: dict[Path, Whole] = {}
        self._order = UploadOrder()
        self._newest_saves = NewestSaves()
        self._fenced = False
        """Whether a later attempt or launch saves to the same place."""
        self._lost: dict[Path, tuple[int, str]] = {}
        """Entries that cannot be published: the number of each save, and the reason."""
        self._refusals: Counter[Path] = Counter()
        """Count of the tries of each entry that have failed in a way that does not pass."""
        self._has_forgotten = False
        """Whether what is older than a checkpoint of this launch, and nothing has proved, is forgotten."""
        self._published = 0
        """Count of published checkpoints."""
        self._newest = 0
        """Number of the newest published save."""
        self._newest_of: dict[str, int] = {}
        """Number of the newest published save of each series."""
        self._warnings = EntryWarnings(folder, checkpoints.pattern)
        self._pause = FIRST_PAUSE
        self._try_again_at = 0.0
        self._looked_at = 0.0
        self._moment = self._end = Moment.RUNNING
        self._deadline = SaveDeadline(0.0)
        self._ended_at = 0.0
        """Time at which `finish` was called, on the clock `time.monotonic`."""
        self._program_ended = threading.Event()
        self._training_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def _far_writers(self) -> FarWriters | None:
        """Return what shows whether other nodes still write to the folder; None if none does."""
        if not (self.shards and self._sharing):
            return None
        shards = self.shards
        return FarWriters(shards.store, self._sharing, patient=self._is_patient, launch=shards.launch)

    def _new_judge(self) -> Judge:
        return Judge(
            self.folder,
            self.checkpoints.pattern,
            announced=self._announced,
            elsewhere=self.shards.may_be_elsewhere if self.shards else none_elsewhere,
            far=self._far.doubt if self._far else lambda _: None,
            begins=self._movement.further,
            step=self._current_step,
            before=self._handover.before,
        )

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._taken_over:
            for whole in self._taken_over.waiting:
                self._enqueue(whole)
            # Before the program starts: it may delete them.
            self._hold()
        else:
            self._links.remove_left_over()
        self.judge.renamed()
        if self.shards:
            self.shards.open()
        self._thread.start()

    def program_ended(self) -> None:
        """Judge no entry until `finish` has the program's end: a death also closes the files of half a save."""
        self._program_ended.set()

    def leave(
        self, deadline: SaveDeadline, agrees: Callable[[Carried], bool] | None = None
    ) -> Carried | None:
        """End after a cut-off, and leave what is not sent soon to the uploader of the next launch.

        None: all is sent, or has to be sent first, which `finish` does. `agrees`: whether the other nodes go on from
        that too; None: there are none.
        """
        self._handover.begin(agrees)
        self._begin_end(Moment.CUT_OFF, deadline)
        far = self._far_writers()
        # Until then nothing is cut off: what they have just written may be small.
        while far and self._thread.is_alive() and not (far.have_ended() or self._is_over):
            self._thread.join(LOOK_INTERVAL)
        return self._handover.decided(self._thread, lambda: self._is_over)

    @property
    def _is_over(self) -> bool:
        return self._deadline.is_over or self._stands_still()

    @property
    def owes_carried(self) -> bool:
        """Whether something still waits that the launch before has left to this one."""
        return any(map(self._handover.owes, [*self._waiting.values()]))

    def finish(self, moment: Moment, deadline: SaveDeadline) -> Undelivered | None:
        """Publish what is left; return why that failed, None if it succeeded."""
        self._begin_end(moment, deadline)
        while self._thread.is_alive() and not (deadline.is_over or self._stands_still()):
            self._thread.join(LOOK_INTERVAL)
        # A last error explains more than the timeout does.
        self._thread.join(LOOK_INTERVAL)
        if self.error:
            undelivered = Undelivered(self._why(self.error), cause_of_failed_save(self.error))
            self._abort()
            return undelivered
        if self._thread.is_alive() and not deadline.is_over:
            undelivered = Undelivered(self._movement.why(deadline.named), Cause.SERVICE)
            if moment is Moment.CUT_OFF:
                # The uploader of another launch may follow.
                self._abort()
            return undelivered
        if self._thread.is_alive():
            message = (
                f"checkpoints were still uploading to {self.checkpoints.uri} after {deadline.limit:.0f} s"
            )
            self._abort()
            return Undelivered(message, Cause.SERVICE)
        lost = [why for begun, why in sorted(self._lost.values()) if begun > self._newest]
        return Undelivered(lost[-1], Cause.DATA) if lost and self.checkpoints.required else None

    def _begin_end(self, moment: Moment, deadline: SaveDeadline) -> None:
        self._end, self._deadline = moment, deadline
        self._ended_at = time.monotonic()
        if self.shards:
            # Only a finished model is worth the wait for a node that is silent.
            patience = deadline if moment is Moment.EXITED else None
            self.shards.finish(patience, self._movement.further)
        self._movement.further()
        self._training_ended.set()

    def abandon(self) -> None:
        """Publish nothing from here on: the nodes are about to choose what another launch goes on from.

        An upload may have outlived `finish`. Returns when what was just being published is there.
        """
        self._publisher.abandon()

    def _abort(self) -> None:
        """Leave no upload open: the place bills for it, and no process completes it."""
        self._publisher.cancel()
        self._thread.join(ABORT_WITHIN)
        if self._thread.is_alive():
            # No later uploader may come to this disk.
            self._links.let_go(ABORT_WITHIN)

    def _stands_still(self) -> bool:
        return self._movement.still_for() > self._deadline.limit

    # In the thread

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # A thread that dies unseen would look like "the program wrote none".
            logger.exception("unexpected")
            self.error = error
        finally:
            self.judge.close()
            if not self._handover.left:
                self._links.keep(())
            if self.shards:
                self.shards.close()

    def _is_patient(self) -> bool:
        return self._end is Moment.EXITED and self._deadline.left > 0

    def _watch(self) -> None:
        while not self._training_ended.wait(LOOK_INTERVAL):
            self._look_and_upload()
        # Others write to the same folder until their programs have ended too.
        until = time.monotonic() + self._deadline.left / 2
        while self._far and not self._far.have_ended() and time.monotonic() < until:
            self._look_and_upload()
            time.sleep(LOOK_INTERVAL)
        self._moment = self._end
        self._pause, self._try_again_at = FIRST_PAUSE, 0.0
        self._note_what_is_gone()
        unproved = self._look()
        for verdict in unproved:
            self._not_published(verdict)
        if (self.error or self._publisher.is_cancelled) and self._leave_rest():
            return
        while not self._upload():
            if self._fenced or self._leave_rest():
                return
            # Otherwise it was cut off, and has to be sent first.
            if self.error and not self._deadline.again(self._why(self.error), self.error):
                return
        if self._handover.is_awaited:
            # It stays on this node, set aside: it must not hold up the launch.
            return
        deadline = self._deadline
        if self._end is Moment.CUT_OFF and deadline.left > SAVE_LIMIT:
            # Nothing goes on from these: another launch waits no longer for them than the end of a run does.
            deadline = SaveDeadline(SAVE_LIMIT)
        self._publisher.keep_aside([verdict.item.path for verdict in reversed(unproved)], deadline)

    def _look_and_upload(self) -> None:
        try:
            if self._may_look:
                self._look()
            if time.monotonic() >= self._try_again_at:
                self._upload()
        except Exception as error:
            # One odd entry must not stop the later uploads.
            self._warnings.warn_of_error(error)

    @property
    def _may_look(self) -> bool:
        """Whether a look shows the work of a program that lives, or has ended in a way that is known."""
        return self._training_ended.is_set() or not self._program_ended.is_set()

    def _observing(self) -> AbstractContextManager[None]:
        """Have the folder looked at while this thread sends a checkpoint."""
        if self._moment is not Moment.RUNNING:
            return nullcontext()
        return meanwhile(self._observe, every=LOOK_INTERVAL, until=self._training_ended, name="observer")

    def _observe(self) -> None:
        try:
            self._links.make_room()
            if self._may_look:
                self.judge.observe()
        except Exception as error:
            self._warnings.warn_of_error(error)

    def _look(self) -> list[Verdict]:
        """Queue what has become complete; return what is new and unproved."""
        self._looked_at = time.monotonic()
        self._warnings.warn_of_names()
        self._newest_saves.begin_look()
        verdicts = self.judge.look(self._moment)
        self._movement.further("")
        for verdict in verdicts:
            if isinstance(verdict.found, Proof):
                self._take(verdict, verdict.found)
            elif verdict.found.mixed and self._moment is Moment.RUNNING:
                self._warnings.warn_of_mixture(verdict.item.path.name, verdict.found.why)
        self._hold()
        return [verdict for verdict in verdicts if isinstance(verdict.found, Unproved)]

    def _take(self, verdict: Verdict, proof: Proof) -> None:
        item, begun = verdict.item, verdict.begun
        if self.ledger and not self._has_nodes_apart:
            self.ledger.add(item)
        if self._newest_saves.is_behind(item, begun):
            logger.info("%s is not published: a newer checkpoint was complete before it", item.path.name)
            return
        whole = Whole(item, proof, begun, self._step_of(verdict))
        self._enqueue(whole)
        if not self._keeps_old:
            # When uploads are slower than the program, older ones would be deleted as soon as they had arrived.
            for older in self._order.behind(self._waiting.values(), whole, self.checkpoints.keep):
                del self._waiting[older.item.path]

    def _enqueue(self, whole: Whole) -> None:
        item, begun = whole.item, whole.begun
        self._newest_saves.add(item, begun)
        self._handover.in_place.add(item, begun)
        # The newest goes to the end, also where the program has overwritten an entry that waits.
        self._waiting.pop(item.path, None)
        del self._refusals[item.path]
        self._waiting[item.path] = whole
        self._order.add(whole)

    def _hold(self) -> None:
        """Keep what is sent next readable whatever the program deletes; older ones may go."""
        held = self._held_next()
        first = {whole.item.path for whole in held}
        kept = [
            whole
            for whole in self._waiting.values()
            if whole.item.path not in first and self._stays_held(whole)
        ]
        self._links.keep(whole.item for whole in [*held, *kept[-MOST_HELD:]])

    def _held_next(self) -> Sequence[Whole]:
        """Return what is held, in the order of sending: what is refused again and again comes last there too."""
        refused = [whole for whole in self._waiting.values() if self._is_sent_last(whole)]
        others = [whole for whole in self._waiting.values() if not self._is_sent_last(whole)]
        parts = [self._order.held(part, in_turn=self._has_time) for part in (others, refused)]
        return [*parts[0], *parts[1]][:MOST_HELD]

    def _stays_held(self, whole: Whole) -> bool:
        """Whether a checkpoint stays held behind newer ones: the end of a launch has cut off its upload."""
        return (self._handover.is_open or self._handover.owes(whole)) and self._links.holds(whole.item)

    @property
    def _has_time(self) -> bool:
        """Whether a checkpoint may wait for one of another series; after the training, the newest comes first."""
        return not self._training_ended.is_set()

    @property
    def _has_nodes_apart(self) -> bool:
        """Whether other nodes have folders of their own: they cannot go on from what only this one has."""
        return self.shards is not None and bool(self.shards.apart)

    def _current_step(self) -> int | None:
        return self.program.step()

    def _step_of(self, verdict: Verdict) -> int | None:
        """Return an entry's step: from the program's announcement, its name, or the progress when it was written.

        Of a number without a word for a step, the progress shows whether it can be one.
        """
        announced = self.program.announced().get(verdict.item.path.name)
        if announced and announced.step is not None:
            return announced.step
        named, reached = verdict.item.step, verdict.step
        if named is None or (
            verdict.item.placed.is_plain and reached is not None and not _is_near(named, reached)
        ):
            return reached
        return named

    def _announced(self) -> dict[str, int]:
        return {name: announced.at_ns for name, announced in self.program.announced().items()}

    def _upload(self) -> bool:
        """Publish what waits, and delete what is not to be kept; return whether all that was tried succeeded."""
        before = self._published
        is_done = self._send_waiting()
        # Also where one cannot be sent: it may be tried again for as long as the training runs.
        if self._published != before and not (self._fenced or self._publisher.is_cancelled):
            self._publisher.retain()
        if is_done:
            self.error = None
        return is_done

    def _send_waiting(self) -> bool:
        """Publish what waits, the newest first: a restart needs it. Return whether all that was tried succeeded.

        While the training runs, what has taken long lets a look come before the next: a newer one may be complete.
        """
        in_order = self._order.of(self._waiting.values(), in_turn=self._has_time)
        # Otherwise one that can never be sent would keep all later ones from being sent.
        for whole in sorted(in_order, key=self._is_sent_last):
            if self._fenced:
                return False
            if self._is_too_old(whole):
                logger.info("%s is not sent: a newer checkpoint is published", whole.item.path.name)
                del self._waiting[whole.item.path]
                continue
            is_tried = self._try(whole)
            self._hold()
            if not is_tried:
                return False
            if self._is_time_to_look:
                break
        return True

    @property
    def _keeps_old(self) -> bool:
        """Whether another rule than the newest ones keeps checkpoints."""
        return self.checkpoints.keep_every is not None or self.checkpoints.keep_best is not None

    def _is_sent_last(self, whole: Whole) -> bool:
        return self._refusals[whole.item.path] >= SENT_LAST_AFTER

    def _is_too_old(self, whole: Whole) -> bool:
        """Whether one is left out for a newer one of its series: it is refused, or a launch or the end waits."""
        if whole.begun >= self._newest_of.get(self._order.series(whole), 0):
            return False
        is_late = self._moment is Moment.CUT_OFF and time.monotonic() - self._ended_at > SAVE_LIMIT
        return is_late or (self._is_sent_last(whole) and not self._keeps_old)

    @property
    def _is_time_to_look(self) -> bool:
        if self._moment is not Moment.RUNNING:
            return False
        return self._training_ended.is_set() or time.monotonic() - self._looked_at >= LONG_UPLOAD

    def _try(self, whole: Whole) -> bool:
        self._movement.further(str(whole.item.path))
        try:
            with self._observing():
                self._publisher.publish(whole, lambda published: self._succeeded(whole, published))
        except Fenced as error:
            self._fenced, self.error = True, error
            logger.error("%s", error)
            return False
        except Unpublishable as error:
            # The other checkpoints do not wait for it.
            self._give_up(whole, error)
        except Changed:
            # The next scan judges it again.
            self._drop(whole)
        except (OcidistError, OSError) as error:
            if self._publisher.is_there(whole):
                if not (passes(error) or self._publisher.is_cancelled or self._moment is Moment.CUT_OFF):
                    self._refusals[whole.item.path] += 1
                self._failed(error)
                return False
            # The program has deleted or replaced it.
            self._drop(whole)
        except Exception as error:
            # One odd entry must not stop the other uploads. It may pass, as when no thread can be started just now.
            logger.error("unexpected error in an upload", exc_info=error)
            if self._moment is Moment.RUNNING:
                self._failed(error)
            else:
                self._give_up(whole, error)
        return True

    def _succeeded(self, whole: Whole, reference: CheckpointRef) -> None:
        del self._waiting[whole.item.path]
        del self._refusals[whole.item.path]
        if self.ledger and self._has_nodes_apart:
            self.ledger.add(whole.item)
        if not self._has_forgotten and not self._handover.owes(whole):
            self._has_forgotten = True
            self._forget_unproved()
        self._published += 1
        self._newest = max(self._newest, whole.begun)
        series = self._order.series(whole)
        self._newest_of[series] = max(self._newest_of.get(series, 0), whole.begun)
        self._order.sent(whole, self._waiting.values())
        self.error, self._pause, self._try_again_at = None, FIRST_PAUSE, 0.0
        self._deadline.succeeded()
        logger.info("checkpoint of %s is published (%s): %s", reference.label, whole.proof.by, reference.uri)
        self.on_published(reference)

    def _give_up(self, whole: Whole, error: Exception) -> None:
        self._waiting.pop(whole.item.path, None)
        # Unless the program has deleted it meanwhile, as one that keeps only the last.
        if not whole.item.path.exists():
            self._warn_of_dropped(whole, f": {error}")
            return
        is_half = isinstance(error, IncompleteCheckpoint)
        fault = "is not whole and is not published" if is_half else "cannot be published"
        why = f"the checkpoint {whole.item.path.name} {fault}: {error}"
        self._lost[whole.item.path] = (whole.begun, why)
        logger.warning("%s", why)

    def _drop(self, whole: Whole) -> None:
        """Forget an entry that is no longer what was proved; a look judges what is there instead.

        Where the program has only deleted files of it, this is the look after an exit with 0.
        """
        del self._waiting[whole.item.path]
        self.judge.note_dropped(whole.item.path)
        self._warn_of_dropped(whole)

    def _note_what_is_gone(self) -> None:
        """Before the last look, note which checkpoints that wait are not what was proved: it judges what is left."""
        for whole in self._waiting.values():
            if not self._publisher.is_there(whole):
                self.judge.note_dropped(whole.item.path)

    def _warn_of_dropped(self, whole: Whole, why: str = "") -> None:
        if self._keeps_old or whole.begun > self._newest_of.get(self._order.series(whole), 0):
            self._warnings.warn_of_dropped(whole.item.path, why)

    def _failed(self, error: Exception) -> None:
        self.error = error
        if self._moment is Moment.RUNNING and not self._publisher.is_cancelled:
            logger.warning("%s; trying again in %.0f s", self._why(error), self._pause)
            self._try_again_at = time.monotonic() + self._pause
            self._pause = next_pause(self._pause, LONGEST_PAUSE)

    def _why(self, error: Exception) -> str:
        names = [whole.item.path.name for whole in self._waiting.values()]
        return f"the checkpoint {', '.join(names[-3:])} cannot be published: {error}"

    def _leave_rest(self) -> bool:
        """Leave what waits to the next launch, if that can go on from what is here; return whether it can."""
        if self._fenced:
            return False
        waiting = [*self._waiting.values()]
        is_left = self._handover.leaves(waiting, newest=self._newest, series_of=self._order.series_of)
        if is_left is not None:
            self.error = None
        return bool(is_left)

    # What is not published

    def _not_published(self, verdict: Verdict) -> None:
        assert isinstance(verdict.found, Unproved)
        name, found = verdict.item.path.name, verdict.found
        why = f"the checkpoint {name} is not published, for nothing proves that it is whole: {found.why}"
        if found.broken:
            why = f"the checkpoint {name} is not whole and is not published: {found.why}"
        logger.warning("%s. Remedy: %s", why, remedy(name))
        # A partial one is no loss once a later one is complete.
        if (
            self._moment is Moment.EXITED
            and verdict.item.signature.modified_ns > self._newest_saves.written_ns
        ):
            self._lost[verdict.item.path] = (verdict.begun, why)

    def _forget_unproved(self) -> None:
        self._publisher.forget_unproved()
        if self.ledger:
            forget_aside(self.folder)


def _is_near(number: int, reached: int) -> bool:
    """Whether a number in a name may be the step of a program that has reported this one: either may be late."""
    return reached / 2 <= number <= reached + max(SOME_STEPS, reached // 10)


def _begun_ledger(
    folder: Path,
    checkpoints: Checkpoints,
    fetched: Collection[str],
    *,
    restarts: bool,
    stopped: threading.Event | None,
) -> Ledger | None:
    """Return the record of which entries are whole; None where the folder does not outlive this launch."""
    # A relative folder is deleted with the node.
    lasts = restarts or Path(checkpoints.path).is_absolute()
    if not lasts:
        return None
    ledger = Ledger(folder, checkpoints.pattern, stopped)
    ledger.begin(fetched)
    return ledger
