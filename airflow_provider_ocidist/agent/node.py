"""Node: one node's part in one run, from the agent's start to its exit code."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from airflow_provider_ocidist.agent.diagnose import outcome
from airflow_provider_ocidist.agent.diagnose.diagnosis import tail_of
from airflow_provider_ocidist.agent.diagnose.outcome import Outcome
from airflow_provider_ocidist.agent.drill import Drill, drill_of
from airflow_provider_ocidist.agent.join.gathering import (
    LateNodes,
    SucceededBefore,
    await_others_end,
    await_others_saved,
)
from airflow_provider_ocidist.agent.join.peer_reports import read_others
from airflow_provider_ocidist.agent.monitor.node_hours import counted_in
from airflow_provider_ocidist.agent.prepare.code import require_same
from airflow_provider_ocidist.agent.prepare.inputs import fetch_inputs
from airflow_provider_ocidist.agent.prepare.mounts import check_mounts
from airflow_provider_ocidist.agent.prepare.workspace import Workspace
from airflow_provider_ocidist.agent.save import outputs
from airflow_provider_ocidist.agent.save.saving import SAVE_LIMIT
from airflow_provider_ocidist.agent.stages.admission import Admission
from airflow_provider_ocidist.agent.stages.checkpoint_folder import CheckpointFolder, Uploader
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.gang_end import GangEnd
from airflow_provider_ocidist.agent.stages.meeting import meet_others, take_place
from airflow_provider_ocidist.agent.stages.preparation import exchange_of, fetch_program
from airflow_provider_ocidist.agent.stages.program_launch import ProgramLaunch
from airflow_provider_ocidist.agent.stages.repair import (
    is_overtaken,
    repair_within,
    store_missing,
)
from airflow_provider_ocidist.agent.stages.results import Results
from airflow_provider_ocidist.agent.stages.run_watches import RunWatches
from airflow_provider_ocidist.agent.stages.taking_over import take_over
from airflow_provider_ocidist.agent.stopping import Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.interruptible import interruptible
from airflow_provider_ocidist.agent.train.launch import check_tools, load_launcher
from airflow_provider_ocidist.agent.train.supervise import Ended
from airflow_provider_ocidist.errors import AgentError, Cause, DifferentCheckpoints
from airflow_provider_ocidist.launchers.base import Launcher
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.drill import When
from airflow_provider_ocidist.model.pauses import SAVED_WITHIN
from airflow_provider_ocidist.model.report import NodeReport, Phase

logger = logging.getLogger("ocidist")

REPLACED_LATE = 60.0
"""Seconds beyond its limits for which nodes wait for the replacement of a lost one: the waiting process, which creates
it, looks only every few seconds, and gives up first."""
SEEN_LATE = 2.0
"""Seconds before the exit in which Kubernetes records a container's end; a pod without that is deleted with its log."""


def patience_of(config: AgentConfig) -> float:
    """Return for how many seconds nodes wait for the replacement of a lost one; 0 if none is replaced."""
    if not config.replaces:
        return 0.0
    # The waiting side may use one time thrice: until a silent node has ended, until the service takes the request, and
    # until the machine is there. The other it may use twice: until a node counts as silent, and for the new one's
    # first report.
    limits = config.limits
    return 3 * limits.replaced_within + 2 * limits.lost_timeout + REPLACED_LATE


class NodeAgent:
    """One node's part in one run, stage by stage."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch) -> None:
        self.config = config
        self.switch = switch
        self.context = NodeContext(config, environ, switch)
        self.heartbeat = self.context.heartbeat
        self.gang_end = GangEnd(self.context)
        self.run_watches = RunWatches(self.context, end_gang=self.gang_end.declare)
        self.heartbeat.watches.append(Admission(self.context, self.gang_end.admit).look)
        self.exchange = exchange_of(self.context)
        self.checkpoints = CheckpointFolder(self.context, self.exchange)
        self.results = Results(self.context, self.checkpoints)
        self.launch: ProgramLaunch | None = None
        """Launch that runs, or ran last; None before the first."""
        self.drill: Drill | None = None
        self._restored_for: int | None = None
        """Number of the launch for which this node has what it takes part with; None before it is prepared."""

    def run(self) -> int:
        """Run all stages; the report records the outcome in any case."""
        self.heartbeat.prepare()
        try:
            take_over(self.context)
            self.heartbeat.start()
            ended = self._go()
        except Stopped as stopped:
            ended = outcome.stopped(stopped.stop)
        except AgentError as error:
            ended = self._failed_ourselves(error.cause, str(error))
        except Exception as error:
            logger.exception("unexpected error in the agent")
            ended = self._failed_ourselves(Cause.SERVICE, f"{type(error).__name__}: {error}")
        return self._report(ended)

    def _go(self) -> Outcome:
        """Prepare this node once, and launch the training as often as the nodes agree on."""
        context = self.context
        self.run_watches.count_predecessors()
        self.drill = drill_of(context.environ, self.config, self.heartbeat, context.meter, context.access)
        if self.drill:
            self.checkpoints.on_arrived = partial(self.drill.reached, When.UPLOADING)
            self.checkpoints.on_restore = partial(self.drill.reached, When.RESTORING)
            self.checkpoints.on_damaged = self.drill.met_damage
        launcher = load_launcher(self.config.launcher)
        workspace = interruptible(self._prepare, self.switch)
        check_tools(launcher, self.config.launcher, self.config.nodes, workspace.overlay)
        while not self.heartbeat.prepared(self._restored_for):
            # Another launch was asked for while this node restored.
            interruptible(lambda: self._restore(workspace), self.switch)
        try:
            return self._launches(launcher, workspace)
        finally:
            self.results.save_rest(workspace)

    def _launches(self, launcher: Launcher, workspace: Workspace) -> Outcome:
        result = self._one_launch(launcher, workspace)
        while result.restarts:
            try:
                self._begin_again(workspace, result)
            except SucceededBefore as error:
                return self._not_again(workspace, result, error)
            except Stopped as stopped:
                if not stopped.stop.restarts:
                    raise
                # A node was lost before all were back.
                result = outcome.stopped(stopped.stop)
                continue
            result = self._one_launch(launcher, workspace)
        return result

    def _prepare(self) -> Workspace:
        """Bring everything that the training needs to this node."""
        self.heartbeat.update(phase=Phase.FETCHING, now=True)
        check_mounts(self.config.mounts, self.context.environ)
        self.run_watches.count_earlier_attempts()
        if self.context.rank == 0:
            outputs.abort_left_behind(self.config, self.context.access)
        self.results.resolve_outputs()
        workspace = fetch_program(self.context)
        self.context.activity.enter()
        limit = self.config.limits.join_timeout
        access, exchange = self.context.access, self.exchange
        fetch_inputs(self.config.inputs, workspace.working_dir, access, self.switch, limit, exchange)
        self._restore(workspace)
        if self.exchange:
            self.exchange.has_read()
        return workspace

    def _restore(self, workspace: Workspace) -> None:
        """Fetch the checkpoint to resume from; the replacement of a lost node first waits for the others' uploads."""
        launch = self.heartbeat.launch
        if self.context.is_member:
            if launch:
                self._await_others_before()
            self.checkpoints.restore(workspace)
        self._restored_for = launch

    def _await_others_before(self) -> None:
        try:
            self._await_others_saved()
        except SucceededBefore as error:
            raise AgentError(f"this node came too late to train: {error}", cause=Cause.NODE) from error

    def _one_launch(self, launcher: Launcher, workspace: Workspace) -> Outcome:
        try:
            return self._train(launcher, workspace)
        except Stopped as stopped:
            if not stopped.stop.restarts:
                if DifferentCheckpoints.BEGINS in stopped.stop.message:
                    # Another node has noticed it first.
                    self._repair_at_the_end(workspace)
                raise
            # Another node has failed before this one's program was launched.
            return outcome.stopped(stopped.stop)
        except LateNodes as error:
            if not (self.config.replaces and self.heartbeat.launch):
                raise
            return self.gang_end.without(error)
        except DifferentCheckpoints as error:
            # All nodes fetch again: one may have seen a newer checkpoint than another.
            result = self.gang_end.not_together(error)
            if not result.restarts:
                self._repair_at_the_end(workspace)
            return result

    def _train(self, launcher: Launcher, workspace: Workspace) -> Outcome:
        """Join the other nodes, train with them, and save; return how that ended."""
        reports = meet_others(self.context, launcher)
        self.checkpoints.require_one()
        # All nodes have all inputs now, and the program may change them.
        self._stop_sharing()
        self.run_watches.note_spent(counted_in(reports[0], self.config.price))
        placement = take_place(self.context, launcher, reports)
        self.checkpoints.compare(workspace)
        if self.context.rank != 0 and workspace.commit:
            interruptible(lambda: self._require_same(workspace.commit), self.switch)
        self.switch.check()
        uploader = self.checkpoints.start_uploader(workspace)
        self.launch = ProgramLaunch(
            self.context, launcher, workspace, placement, end_gang=self.gang_end.declare
        )
        training = self.launch.start(reports)
        self.run_watches.launched()
        if self.drill:
            self.drill.folder = self.checkpoints.path(workspace)
        began = time.monotonic()
        ended = training.wait(self.switch, self.config.limits.stop_grace)
        self.checkpoints.program_ended()
        self.run_watches.launch_ended()
        self.heartbeat.update(trained_for=round(time.monotonic() - began, 1))
        if not (ended.stop or ended.exit_code):
            logs_in = launcher.logs_in(self.config.launcher, self.config.nodes)
            ended = self.gang_end.agreed(ended, follows=logs_in and self.context.rank != 0)
        if ended.stop or ended.exit_code:
            return self._not_succeeded(self.launch, ended, workspace, uploader)
        self.results.save(workspace, uploader)
        return outcome.success(tail_of(self.launch.output.end))

    def _require_same(self, commit: str | None) -> None:
        store = self.heartbeat.store
        self.context.with_retries(lambda: require_same(commit, store))

    def _not_succeeded(
        self, launch: ProgramLaunch, ended: Ended, workspace: Workspace, uploader: Uploader | None
    ) -> Outcome:
        result = self.gang_end.outcome_of(launch, ended)
        self.results.save_after_failure(
            workspace, uploader, ended.stop, is_last=not result.restarts, restarts=result.restarts
        )
        return result

    def _begin_again(self, workspace: Workspace, ended: Outcome) -> None:
        """Go back to the newest whole checkpoint, for another launch on the same machines."""
        logger.warning(
            "launch %d of the training ended: %s; launching it again", len(ended.restarts), ended.message
        )
        if self.launch:
            self.launch.watches.close()
        self.results.save_before(workspace, len(ended.restarts))
        differed = ended.restarts[-1].message.startswith(DifferentCheckpoints.BEGINS)
        if self.context.is_member and not self.checkpoints.goes_on_from_here:
            self._repair_stored(workspace, len(ended.restarts), differed=differed)
        # Otherwise the hours of training would count as a fetch that makes no progress.
        self.context.activity.enter()
        # In one report: who reads that this node goes back reads from what.
        self.heartbeat.update(
            restarts=ended.restarts,
            phase=Phase.FETCHING,
            slow=(),
            stack_positions=None,
            leaves=False,
            offers=self.checkpoints.offer_for(len(ended.restarts)),
            holds=self.checkpoints.agreement.answer_for(len(ended.restarts)),
        )
        self.switch.rearm(len(ended.restarts))
        self.context.meter.begin_again(self.config.limits.hang_timeout)
        # The steps of the launch before are none of this one's.
        self.heartbeat.update(progress=self.context.meter.progress, now=True)
        if self.context.is_member:
            self.checkpoints.go_back(workspace, self._await_others_saved(), differed=differed)

    def _repair_stored(self, workspace: Workspace, launch: int, *, differed: bool) -> None:
        """Repair what is stored, before the others look: they wait until this node reports that it goes back.

        The main node does not wait for it to know what this node finds in the folder, if it is common to all.
        """
        self.switch.rearm(launch)

        def repair(cancel: threading.Event) -> None:
            store_missing(self.context, self.checkpoints.path(workspace), cancel)
            if differed:
                self.checkpoints.store_again(workspace, self._read_others(), cancel)

        # In all: the others wait for it.
        repair_within(
            repair,
            in_all=self.config.limits.join_timeout,
            switch=self.switch,
            overtaken=self._is_overtaken,
            needless=partial(self.checkpoints.agreement.answer_beforehand, launch),
        )

    def _repair_at_the_end(self, workspace: Workspace) -> None:
        """Repair what is stored, as no launch follows: the whole copies on these machines go with them."""
        if not self.context.is_member or self.switch.is_lost:
            return
        self.heartbeat.update(phase=Phase.SAVING, now=True)
        repair_within(
            lambda cancel: self.checkpoints.store_again(workspace, self._read_others(), cancel),
            in_all=SAVED_WITHIN,
            switch=self.switch,
            grace=self.config.limits.stop_grace,
            overtaken=self._is_overtaken,
        )

    def _is_overtaken(self) -> bool:
        return is_overtaken(self.context)

    def _read_others(self) -> list[NodeReport | None]:
        return read_others(self.heartbeat.store, self.heartbeat.report, self.config.nodes)

    def _await_others_saved(self) -> list[NodeReport]:
        config = self.config
        return await_others_saved(
            self.heartbeat,
            nodes=config.nodes,
            timeout=config.limits.join_timeout,
            patience=patience_of(config),
            on_look=self.context.activity.enter,
            on_reports=self.checkpoints.agreement.answer,
        )

    def _stop_sharing(self) -> None:
        if self.exchange:
            self.exchange.close()

    def _not_again(self, workspace: Workspace, failed: Outcome, why: Exception) -> Outcome:
        """End with the failure for which the training was to be launched again."""
        self.heartbeat.update(restarts=failed.restarts[:-1])
        self.results.save_after_failure(workspace, None, None, is_last=True)
        return replace(failed, restarts=(), message=f"{failed.message}; not launched again: {why}")

    def _failed_ourselves(self, cause: Cause, message: str) -> Outcome:
        self.gang_end.ask_others(cause, message)
        tail = tail_of(self.launch.output.end) if self.launch else ""
        return outcome.own_fault(cause, message, tail or None)

    def _report(self, ended: Outcome) -> int:
        context = self.context
        if ended.message:
            logger.error("%s", outcome.ending_line(context.rank, self.config.nodes, ended))
        if self.launch:
            self.launch.watches.close()
        context.meter.close()
        self._stop_sharing()
        self.run_watches.note_recovery()
        self.heartbeat.finish(
            phase=Phase.DONE,
            exit_code=ended.exit_code,
            cause=ended.cause,
            message=ended.message and context.masked(ended.message),
            tail=ended.tail and context.masked(ended.tail),
            progress=context.meter.progress,
        )
        self._await_others_end(ended.code)
        return ended.code

    def _await_others_end(self, code: int) -> None:
        """Wait if this node's exit would end nodes that are still saving."""
        config, signalled = self.config, self.switch.signalled
        first = config.ends_others and self.context.rank == 0
        if first or (code and (config.one_run or config.ends_others)):
            await_others_end(self.heartbeat.store, self.context.rank, config.nodes, SAVE_LIMIT, signalled)
            if config.ends_others:
                signalled.wait(SEEN_LATE)
