"""Results: what this node publishes after the training: the last checkpoints, and its outputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.save import outputs
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT, SaveDeadline, Undelivered
from airflow_provider_ocidist.agent.save.uploads import CheckpointUploader
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder, Uploader
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.report import Phase, Restart, Sending
from airflow_provider_ocidist.storage.copying.in_flight import InFlight

logger = logging.getLogger("ocidist")


class Results:
    """Saves all that the job requires after a success, and what can be saved in time after a failure."""

    def __init__(self, context: NodeContext, checkpoints: CheckpointFolder) -> None:
        self.context = context
        self.checkpoints = checkpoints
        self.outputs = context.config.outputs
        self._in_flight = InFlight(self._report_sending)

    def resolve_outputs(self) -> None:
        """Fill in the variables in the outputs' URIs. Raises AgentError for an unknown one."""
        self.outputs = outputs.with_uris(self.outputs, self.context.environ)
        if self.context.is_main:
            outputs.warn_beforehand(self.outputs)

    def save(self, workspace: Workspace, uploader: Uploader | None) -> None:
        """Save a successful training's results. Raises AgentError where a required one is missing."""
        context, limits = self.context, self.context.config.limits
        context.heartbeat.update(phase=Phase.SAVING, writing=None, now=True)
        deadline = SaveDeadline(limits.save_timeout, context.switch, grace=limits.stop_grace)
        if uploader:
            undelivered = uploader.finish(Moment.EXITED, deadline)
            if undelivered:
                raise AgentError(undelivered.message, cause=undelivered.cause)
            if context.is_main:
                self.checkpoints.require_checkpoint(workspace)
        context.heartbeat.update(outputs=self._copied(workspace, deadline))

    def _copied(self, workspace: Workspace, deadline: SaveDeadline) -> tuple[str, ...]:
        context = self.context
        with deadline.cancelling() as over:
            try:
                return outputs.copy_outputs(
                    self._copies(workspace),
                    context.access,
                    over,
                    deadline=deadline,
                    in_flight=self._in_flight,
                )
            except AgentError:
                if over.is_set():
                    # The stop request is the reason, and no fault of this node.
                    context.switch.check()
                raise

    def save_after_failure(
        self,
        workspace: Workspace,
        uploader: Uploader | None,
        stop: Stop | None,
        *,
        is_last: bool,
        restarts: Sequence[Restart] = (),
    ) -> None:
        """Save what a launch has left; `is_last`: whether no other follows, so that outputs are copied too.

        `restarts`: with that of the launch that follows.
        """
        context = self.context
        is_stopped = is_last and stop is not None and stop.cause is None
        # In one report: by the phase alone, the others would take this node for one that has succeeded.
        context.heartbeat.update(phase=Phase.SAVING, stopped=is_stopped, now=True)
        limit = self._limit_at_the_end(stop if is_last else None)
        deadline = self._at_the_end(uploader, stop) if is_last else self._before_another_launch()
        if context.switch.is_lost:
            # The others have gone back to what was published before.
            deadline = SaveDeadline(0.0)
            self.checkpoints.abandon_uploads()
        goes_on = not (is_last or context.switch.is_lost)
        leave = self.checkpoints.leave_to_next_launch
        if uploader and not (goes_on and leave(uploader, deadline, restarts)):
            _log(uploader.finish(Moment.CUT_OFF, deadline))
        if is_last and not context.switch.is_lost:
            self._copy_within(limit, workspace)
        else:
            # Before this node says that it has saved: all nodes then look for the newest.
            self.checkpoints.abandon_uploads()

    def save_before(self, workspace: Workspace, launch: int) -> None:
        """Save what was left to a launch that did not begin, before the one of this number goes back to what is stored.

        Not all of its nodes need have what was left.
        """
        if not self.checkpoints.owes_before(launch):
            return
        uploader = self.checkpoints.sender_of_rest(workspace)
        if uploader:
            _log(uploader.finish(Moment.CUT_OFF, self._before_another_launch()))
        self.checkpoints.abandon_uploads()
        self.checkpoints.rest_is_sent()

    def save_rest(self, workspace: Workspace) -> None:
        """Save what was left to a launch that did not begin, as the run ends before it. Raises nothing."""
        try:
            self._save_rest(workspace)
        except Exception as error:
            # The run reports what ended it, not this.
            logger.error("what was left to the next launch cannot be uploaded: %s", error, exc_info=error)

    def _save_rest(self, workspace: Workspace) -> None:
        uploader = None if self.context.switch.is_lost else self.checkpoints.sender_of_rest(workspace)
        if uploader:
            self.context.heartbeat.update(phase=Phase.SAVING, now=True)
            deadline = self._at_the_end(uploader, self.context.switch.stop)
            _log(uploader.finish(moment=Moment.CUT_OFF, deadline=deadline))

    def _at_the_end(self, uploader: Uploader | None, stop: Stop | None) -> SaveDeadline:
        """Return the deadline of a run that fails; what was to be sent beside a launch has that of before one."""
        is_asked = stop is not None and stop.cause in (None, Cause.ABANDONED)
        if isinstance(uploader, CheckpointUploader) and uploader.owes_carried and not is_asked:
            return self._before_another_launch()
        return SaveDeadline(self._limit_at_the_end(stop))

    def _limit_at_the_end(self, stop: Stop | None) -> float:
        in_a_hurry = stop is not None and stop.cause is None and stop.hurried
        return self.context.config.limits.stop_grace if in_a_hurry else SAVE_LIMIT

    def _before_another_launch(self) -> SaveDeadline:
        """Return the deadline of what another launch is to go on from: no machine goes away, and what is not sent is
        lost to it.
        """
        limits = self.context.config.limits
        return SaveDeadline(
            limits.join_timeout,
            self.context.switch,
            grace=limits.stop_grace,
            from_failure=True,
            named="limits.join_timeout",
        )

    def _copy_within(self, limit: float, workspace: Workspace) -> None:
        too_late = threading.Event()
        timer = threading.Timer(limit, too_late.set)
        timer.start()
        try:
            chosen = self._copies(workspace, failed_run=self.context.config.run_name)
            outputs.copy_outputs(chosen, self.context.access, too_late, in_flight=self._in_flight)
        except AgentError as error:
            logger.error("%s", error)
        finally:
            timer.cancel()

    def _report_sending(self, sending: tuple[Sending, ...]) -> None:
        # At once where one was begun: who is killed reports nothing any more.
        self.context.heartbeat.update(sending=sending, now=bool(sending))

    def _copies(self, workspace: Workspace, failed_run: str | None = None) -> list[outputs.OutputCopy]:
        return outputs.planned_copies(
            self.outputs,
            workspace.working_dir,
            rank=self.context.rank,
            is_main=self.context.is_main,
            nodes=self.context.config.nodes,
            failed_run=failed_run,
        )


def _log(undelivered: Undelivered | None) -> None:
    if undelivered:
        logger.error("%s", undelivered.message)
