"""Run watches: what may end a run in any stage: budget, lease, a download without progress."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_ocidist.agent.join.lease import LeaseWatch
from airflow_provider_ocidist.agent.join.peer_reports import read_reports
from airflow_provider_ocidist.agent.monitor.node_hours import BudgetWatch, spent_before
from airflow_provider_ocidist.agent.monitor.recovery import RecoveryClock
from airflow_provider_ocidist.agent.prepare.code import fetch_errors
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.budget import Spent, budget_of
from airflow_provider_ocidist.model.report import Phase


class RunWatches:
    """Looks at each beat; the watches of the training itself are in `monitor.watches`."""

    def __init__(self, context: NodeContext, *, end_gang: Callable[[Stop], object]) -> None:
        self.context = context
        self.end_gang = end_gang
        self._budget = self._budget_watch()
        self._recovery = RecoveryClock()
        watches = context.heartbeat.watches
        watches.append(self._report_progress)
        # Both begin with the agent: fetching terabytes costs as much as training on them.
        if self._budget:
            watches.append(self._budget.look)
        lease = context.config.limits.lease
        if lease:
            watches.append(LeaseWatch(lease, context.heartbeat.read_lease, declare=self._abandoned).look)

    def count_earlier_attempts(self) -> None:
        """Count on node 0 what the task's earlier attempts have used; its report shows it to the others."""
        context = self.context
        if context.rank == 0 and context.config.attempt > 1:
            context.with_retries(self._count_earlier_attempts)

    def count_predecessors(self) -> None:
        """Count what the lost nodes of this rank have used."""
        if self._budget is not None:
            self._budget.predecessors = self.context.heartbeat.report.predecessors

    def note_spent(self, before: Spent | None) -> None:
        """Take over what earlier attempts have used; None where that was not counted."""
        if before is None:
            return
        self.context.heartbeat.update(spent_before=before.node_seconds, cost_before=before.cost)
        if self._budget is not None:
            self._budget.before = before

    def launched(self) -> None:
        """Measure how long this launch takes to its first step, where it is not the first launch."""
        if self.context.heartbeat.launch:
            self._recovery.launched(self.context.heartbeat.launch)

    def launch_ended(self) -> None:
        """Begin to measure how long the training takes to its first new step."""
        self.note_recovery()
        self._recovery.ended()

    def note_recovery(self) -> None:
        """Report how long the training took to its first new step, once it has one."""
        heartbeat = self.context.heartbeat
        recovery = self._recovery.look(self.context.meter.first_step_at())
        if recovery:
            heartbeat.update(recoveries=(*heartbeat.report.recoveries, recovery))

    def _count_earlier_attempts(self) -> None:
        config = self.context.config
        with fetch_errors("the run directories of earlier attempts", self.context.folder):
            spent = spent_before(config.run_dir, config.attempt, self.context.access, config.price)
        self.note_spent(spent)

    def _budget_watch(self) -> BudgetWatch | None:
        context, config = self.context, self.context.config
        budget = budget_of(config.limits, config.price)
        if budget is None:
            return None
        # Also those that take no part cost money.
        others = [rank for rank in range(config.nodes) if rank != context.rank]
        return BudgetWatch(
            budget,
            config.price,
            config.nodes,
            others=lambda: read_reports(context.heartbeat.quick_store, others),
            declare=lambda message: self.end_gang(Stop(cause=Cause.BUDGET, message=message)),
        )

    def _abandoned(self, message: str) -> None:
        checkpoint = self.context.heartbeat.report.checkpoint
        rest = f": ended; a retry resumes from {checkpoint.label} or later" if checkpoint else ": ended"
        self.end_gang(Stop(cause=Cause.ABANDONED, message=message + rest))

    def _report_progress(self) -> None:
        context = self.context
        # Before the report is changed: each look at it after a change makes a new one.
        phase = context.heartbeat.report.phase
        context.meter.read()
        context.heartbeat.update(progress=context.meter.progress)
        self.note_recovery()
        if phase in (Phase.STARTING, Phase.FETCHING):
            context.heartbeat.update(moved=context.activity.look())
            self._require_activity()

    def _require_activity(self) -> None:
        """End the gang when this node's fetching makes no progress.

        With several nodes, the others' join limit comes first.
        """
        config = self.context.config
        limit = config.limits.join_timeout * (1 if config.nodes == 1 else 2)
        still = self.context.activity.still_for()
        if still > limit and self.context.switch.stop is None:
            message = (
                f"the download of code, packages, data or checkpoint made no progress for {still:.0f} s "
                "(limits.join_timeout); the log lines above name what was being downloaded"
            )
            self.end_gang(Stop(cause=Cause.NODE, message=message))
