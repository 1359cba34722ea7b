"""Next launch: whether the training is launched again after a failure, and what the new restart says of it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.agent.join.peer_reports import furthest_step, read_others, steps_behind
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.train.restarts import is_crash_loop, why_no_launch, why_not_allowed
from airflow_provider_ocidist.errors import Cause, OcidistError
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.job import Restarts
from airflow_provider_ocidist.model.report import EarlierGangs, NodeReport, Restart
from airflow_provider_ocidist.model.work_dir import EARLIER_FILE

logger = logging.getLogger("ocidist")


class NextLaunch:
    """Decides whether another launch follows, by what this node and the reports of the others know."""

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.config = context.config
        self.heartbeat = context.heartbeat

    def restarts_after(
        self,
        cause: Cause,
        message: str,
        rank: int | None = None,
        lost: tuple[int, ...] = (),
        *,
        killed: bool = False,
        hang: bool = False,
    ) -> tuple[tuple[Restart, ...], str | None]:
        """Return the restarts with the new one, or none and the reason; no reason if the job allows no restarts.

        `lost`: the ranks of nodes that have not come to a meeting.
        """
        budgets, before = self.config.restarts, self.heartbeat.report.restarts
        if budgets == Restarts():
            return (), None
        others = read_others(self.heartbeat.store, self.heartbeat.report, self.config.nodes)
        known = [report.checkpoint for report in (self.heartbeat.report, *others) if report]
        newest = _newest_of([*known, self.context.goes_on_from])
        step, behind = self._reached(others, newest)
        failure = Restart(
            cause=cause,
            message=self.context.masked(message),
            rank=self.context.rank if rank is None else rank,
            step=step,
            behind=behind,
            checkpoint=(newest.digest or newest.uri) if newest else None,
            members=before[-1].members if before else (),
            lost=lost,
            killed=killed,
            hang=hang,
        )
        comparable = _losses_of(lost, before) if lost else [*self._of_earlier_gangs(), *before]
        if is_crash_loop(comparable, failure):
            self.heartbeat.update(crash_loop=True)
        why_not = why_no_launch(budgets, comparable, failure, before) or self.ended_before(others)
        return ((), f"not launched again: {why_not}") if why_not else ((*before, failure), None)

    def has_budget(self, cause: Cause) -> bool:
        """Whether another launch may follow a failure, as far as that is known without the others' reports."""
        before = self.heartbeat.report.restarts
        return why_not_allowed(self.config.restarts, before, Restart(cause=cause, message="")) is None

    def ended_before(self, others: Sequence[NodeReport | None]) -> str | None:
        """Return why the others cannot launch again: one has succeeded, and saves its results."""
        for report in others:
            if (
                report
                and report.program_has_ended
                and len(report.restarts) == self.heartbeat.launch
                and not (self.config.replaces and report.was_stopped)
            ):
                return f"node {report.rank} has ended already"
        return None

    def _of_earlier_gangs(self) -> tuple[Restart, ...]:
        """Return what the program has failed with in earlier gangs of this try; none where that cannot be read."""
        try:
            return EarlierGangs.from_json(self.heartbeat.store.read(EARLIER_FILE)).restarts
        except FileNotFoundError:
            return ()
        except (OcidistError, OSError, ValueError, TypeError) as error:
            logger.warning("what has ended launches of the gangs before this one cannot be read: %s", error)
            return ()

    def _reached(
        self, others: Sequence[NodeReport | None], newest: CheckpointRef | None
    ) -> tuple[int | None, int]:
        """Return the step that this launch has reached, and how many may lie between it and the failure.

        `newest`: the newest checkpoint of all nodes.
        """
        meter, launch = self.context.meter, self.heartbeat.launch
        own = meter.step_now()
        if own is not None:
            return own, 0
        # Many programs report their steps on one node only.
        furthest = furthest_step(others, launch)
        if furthest is not None:
            return furthest, steps_behind(others, launch)
        # A program that was launched goes on from there, and fails before the next step that it would report.
        if newest is None or newest.step is None or not self.heartbeat.report.was_launched:
            return None, 0
        return newest.step, meter.steps_apart - 1


def _losses_of(ranks: Sequence[int], before: Sequence[Restart]) -> list[Restart]:
    """Return the earlier losses of nodes of these ranks: the failures to compare with that of nodes that have not come.

    Such a node has begun no launch: what has ended one before, as the loss of another machine, is not its own failure.
    """
    return [each for each in before if not {*ranks}.isdisjoint(each.lost or (each.rank,))]


def _newest_of(checkpoints: Iterable[CheckpointRef | None]) -> CheckpointRef | None:
    """Return the newest; of equally new ones the first."""
    return max(filter(None, checkpoints), key=lambda checkpoint: checkpoint.order, default=None)
