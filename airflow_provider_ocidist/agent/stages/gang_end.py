"""Gang end: a node that fails, or finds a fault, ends its gang, or only this launch where another is allowed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_ocidist.agent.diagnose import outcome
from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure, diagnose, tail_of
from airflow_provider_ocidist.agent.diagnose.outcome import Outcome
from airflow_provider_ocidist.agent.diagnose.stacks import odd_ones, two_positions
from airflow_provider_ocidist.agent.join.gathering import LateNodes
from airflow_provider_ocidist.agent.join.peer_reports import (
    PeerLiveness,
    awaits_admission,
    read_others,
    read_report,
    read_reports,
)
from airflow_provider_ocidist.agent.join.silence import LOST_AFTER
from airflow_provider_ocidist.agent.join.stop_requests import stop_in_words
from airflow_provider_ocidist.agent.join.store_wait import StoreWait
from airflow_provider_ocidist.agent.monitor.peers import silent_nodes
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.next_launch import NextLaunch
from airflow_provider_ocidist.agent.stages.program_launch import ProgramLaunch
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.agent.train.supervise import Ended
from airflow_provider_ocidist.errors import AgentError, Cause, OcidistError
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.members import in_words
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest

logger = logging.getLogger("ocidist")

EXPLANATION_LIMIT = 5.0
"""Seconds to wait for the first failed node's report, before this node's own error is the cause."""


class GangEnd:
    """Asks all nodes to end; they agree in the run directory on whether the training is launched again."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.config = context.config
        self.heartbeat = context.heartbeat
        self._store_wait = StoreWait(context.heartbeat)
        self._next_launch = NextLaunch(context)
        self._agreeing = threading.Lock()
        """Lock of the decision whether this launch ends the run, or another launch follows."""

    def declare(self, stop: Stop) -> None:
        """End the run for a fault that this node has found; after a hang only this launch, where another is allowed."""
        assert stop.cause is not None
        cause, message = stop.cause, stop.message
        # A hang on an unhealthy machine is charged to the budget for hangs if there is none for node faults.
        charged = Cause.HANG if cause is Cause.NODE and not self.config.restarts.node else cause
        goes_on = stop.stacks or (stop.misses_node and self.config.replaces)
        hangs = stop.stacks and cause in (Cause.HANG, Cause.NODE)
        restarts, why_not = (
            self._next_launch.restarts_after(charged, message, hang=hangs) if goes_on else ((), None)
        )
        message = f"{message}; {why_not}" if why_not else message
        asked = self.ask_others(cause, message, restarts, hang=stop.stacks)
        self.context.switch.ask(replace(stop, message=message, restarts=asked))

    def admit(self, ranks: Sequence[int]) -> None:
        """Have the training launched again with nodes that wait to take part, unless it ends anyway.

        A program may succeed in this moment. Its node reports that, and then looks whether this one admits; this one
        reports that it does, and then looks whether a node has ended. So at least one of them finds the other. So it
        is with a late node that leaves.
        """
        with self._agreeing:
            try:
                if self.heartbeat.write(admits=True):
                    self._admit(ranks)
            finally:
                self.heartbeat.update(admits=False, now=True)

    def _admit(self, ranks: Sequence[int]) -> None:
        ranks, others = self._still_waiting(ranks), self._others()
        # Looked at last: reading the others' reports may take a while.
        goes_on = self.context.switch.stop is None and self.heartbeat.report.phase is Phase.TRAINING
        if not ranks or None in others or self._next_launch.ended_before(others) or not goes_on:
            return
        before = self.heartbeat.report.restarts
        members = tuple(sorted({self.context.rank, *self.context.others, *ranks}))
        message = f"{in_words(ranks)} came late; the training goes on with {in_words(members)}"
        step = self.context.meter.step_now()
        # No failure: it is charged to no budget.
        change = Restart(cause=Cause.CAPACITY, message=message, step=step, members=members)
        asked = self.ask_others(Cause.CAPACITY, message, (*before, change))
        if asked:
            self.context.switch.ask(Stop(message=message, restarts=asked))

    def _still_waiting(self, ranks: Sequence[int]) -> list[int]:
        """Return which of these late nodes wait to take part."""
        reports = read_reports(self.heartbeat.store, ranks)
        return [each.rank for each in reports if each and awaits_admission(each, self.heartbeat.launch)]

    def agreed(self, ended: Ended, *, follows: bool) -> Ended:
        """Return how a launch that has succeeded here ends: another node may just have asked for another launch.

        `follows`: whether the first node decides, since an exit with 0 says nothing here.
        """
        if self.config.restarts == Restarts() or self.config.nodes == 1:
            return ended
        if follows:
            self._await_first()
        with self._agreeing:
            # The phase is written before the questions: a node that fails from now on reads that this one has ended.
            # With it that all is written: who publishes what it has saved may look for the last time then.
            is_written = self.heartbeat.write(phase=Phase.SAVING, writing=None)
            if self.config.min_nodes is not None and not self.context.is_main:
                self._await_admission(is_written=is_written)
            self._heed_another_launch(is_written=is_written)
        stop = self.context.switch.stop
        return replace(ended, stop=stop) if stop and (stop.restarts or stop.is_lost) else ended

    def _heed_another_launch(self, *, is_written: bool) -> None:
        """Heed a request for another launch; without one this success stands: what comes while it is saved is too late.

        `is_written`: whether the others can read that this node has ended. Otherwise, or while the store is out, a
        request may be there that this node reads at a later beat.
        """
        try:
            request = self.heartbeat.load_stop_request()
        except (OcidistError, OSError, ValueError, TypeError) as error:
            logger.warning("whether another launch is asked for cannot be read: %s", error)
            return
        if request and request.restarts:
            self.heartbeat.heed(request)
        if is_written:
            self.context.switch.take_part_in_no_other()

    def outcome_of(self, launch: ProgramLaunch, ended: Ended) -> Outcome:
        """Return how a launch without success ended; ask the others to end where it failed by itself."""
        process, output = launch.first_failure(ended), launch.last_output(ended)
        if ended.stop:
            exit_code = process.exit_code if process else ended.exit_code
            return outcome.stopped(self._with_odd_ones(ended.stop), exit_code, tail_of(output))
        launch.hang_evidence.keep_records(self.heartbeat.launch)
        return self._failed(diagnose(ended.exit_code, output, process, ended.oom_killed))

    def not_together(self, error: AgentError) -> Outcome:
        """Return how a launch ended that no node began; all nodes find the same fault, and the first one asks."""
        failed = outcome.own_fault(error.cause, self.context.masked(str(error)), None)
        return self._asked(failed, self.context.rank, may_restart=True)

    def without(self, error: LateNodes) -> Outcome:
        """Return how a launch ended to which some nodes did not come: they are lost, and others may take their places.

        One that lives finds itself named, and ends; so the service reports its end, and its rank is free.
        """
        failed = outcome.own_fault(error.cause, self.context.masked(str(error)), None)
        return self._asked(failed, error.ranks[0], may_restart=True, lost=error.ranks)

    def ask_others(
        self,
        cause: Cause,
        message: str,
        restarts: tuple[Restart, ...] = (),
        *,
        hang: bool = False,
        patient: bool = False,
    ) -> tuple[Restart, ...]:
        """Ask all nodes to end; return the restarts, as all see them, where the training goes on with this node.

        `patient`: whether to go on asking for another launch while the store does not take the request.
        """
        if self.config.nodes == 1:
            return restarts
        if not self.context.is_member or self.context.switch.is_lost:
            # The others train without this node.
            return ()
        request = StopRequest(
            cause=cause,
            message=self.context.masked(message),
            rank=self.context.rank,
            restarts=restarts,
            hang=hang,
        )
        if restarts and patient:
            counts = self._store_wait.ask_all_to_stop(request, self.config.limits.join_timeout)
        else:
            counts = self.heartbeat.ask_all_to_stop(request)
        return counts.restarts_of(self.context.rank, self.heartbeat.launch) if counts else ()

    def _with_odd_ones(self, stop: Stop) -> Stop:
        """Return the reason with the ranks whose stacks differ from the others', if the training hung."""
        if not (stop.stacks and self.context.is_main):
            return stop
        reports = [self.heartbeat.report, *self._others()]
        stands = [each for report in reports if report for each in report.stack_positions or ()]
        is_complete = all(report and report.stack_positions is not None for report in reports)
        found = (two_positions(stands) if is_complete else None) or odd_ones(stands)
        if found:
            logger.error("%s", found)
        return replace(stop, message=f"{stop.message}; {found}") if found else stop

    def _failed(self, failure: NodeFailure) -> Outcome:
        silent: list[int] = []
        if failure.consequence and self.config.nodes > 1:
            # The others may still wait for what the store swallowed in its outage.
            limit = LOST_AFTER if self._await_store() else EXPLANATION_LIMIT
            before = self._others()
            explanation = self._explanation(limit)
            if explanation:
                restarts = explanation.restarts_of(self.context.rank, self.heartbeat.launch)
                return outcome.consequence(failure, stop_in_words(explanation), restarts)
            silent = silent_nodes(before, self._others())
        result = outcome.failure(failure, silent)
        # The budget for machines is kept for them: this one lives. A process that was killed once may be killed again.
        is_killed = failure.killed and not silent
        # A node that is silent will not come to another launch, unless another takes its place.
        return self._asked(
            result,
            silent[0] if silent else self.context.rank,
            may_restart=self.config.replaces or not silent,
            charged=Cause.USER if is_killed and self.config.restarts.program > 0 else None,
            killed=is_killed,
        )

    def _asked(
        self,
        failed: Outcome,
        rank: int,
        *,
        may_restart: bool,
        charged: Cause | None = None,
        lost: tuple[int, ...] = (),
        killed: bool = False,
    ) -> Outcome:
        """Ask the other nodes to end; return the outcome, with the restarts where the training is launched again.

        `rank`: of the node that has failed, or is lost. `charged`: the cause whose budget pays for the launch; None:
        that of the failure. `lost`: the ranks of nodes that are to end, if they still run. `killed`: whether a process
        was killed from outside.
        """
        cause, message = failed.cause or Cause.USER, failed.message or "the training failed"
        if may_restart and self._next_launch.has_budget(charged or cause):
            self._await_store()
        restarts, why_not = (
            self._next_launch.restarts_after(charged or cause, message, rank, lost, killed=killed)
            if may_restart
            else ((), None)
        )
        if why_not:
            failed, message = replace(failed, message=f"{message}; {why_not}"), f"{message}; {why_not}"
        asked = self.ask_others(cause, message, restarts, patient=True)
        if restarts and not asked and self._store_wait.is_away:
            why_not = "not launched again: the store does not answer"
            failed = replace(failed, message=f"{message}; {why_not}")
        return replace(failed, restarts=asked)

    def _await_store(self) -> bool:
        """Wait while the store is away, without which the nodes agree on no launch; return whether it was."""
        config, context = self.config, self.context
        asks = config.nodes > 1 and context.is_member and not context.switch.is_lost
        if not asks or config.restarts == Restarts():
            return False
        return self._store_wait.until_it_answers(config.limits.join_timeout)

    def _await_admission(self, *, is_written: bool) -> None:
        """Wait while the main node admits late nodes, or until it is gone: it may ask for another launch."""
        main, switch = self.context.main_rank, self.context.switch
        liveness, deadline = (
            PeerLiveness(self.heartbeat.store),
            time.monotonic() + self.config.limits.join_timeout,
        )
        while switch.stop is None and not liveness.ended(main) and time.monotonic() < deadline:
            is_written = is_written or self.heartbeat.write()
            report = read_report(self.heartbeat.store, main)
            if (
                is_written
                and report
                and not (report.admits and len(report.restarts) == self.heartbeat.launch)
            ):
                return
            switch.event.wait(0.25)

    def _await_first(self) -> None:
        """Wait until the first node's part of this launch has ended, or it is gone, or there is a reason to end."""
        liveness, switch = PeerLiveness(self.heartbeat.store), self.context.switch
        while switch.stop is None and not liveness.ended(0):
            first = read_report(self.heartbeat.store, 0)
            if first and first.phase is Phase.SAVING and len(first.restarts) == self.heartbeat.launch:
                return
            switch.event.wait(0.25)

    def _explanation(self, limit: float) -> StopRequest | None:
        """Return the first failed node's stop request, if it arrives within `limit` seconds."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            request = self.heartbeat.read_stop_request()
            if request:
                return request
            time.sleep(0.25)
        return None

    def _others(self) -> list[NodeReport | None]:
        return read_others(self.heartbeat.store, self.heartbeat.report, self.config.nodes)
