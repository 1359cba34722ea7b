"""Watches: monitor a training while it runs; findings end the gang, or go into the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.peer_reports import read_others, read_report
from airflow_provider_ocidist.agent.join.silence import OWN_TROUBLE
from airflow_provider_ocidist.agent.monitor.hang import FirstStepWatch, HangWatch, StallTime
from airflow_provider_ocidist.agent.monitor.health import HealthWatch
from airflow_provider_ocidist.agent.monitor.idle import IdleWatch
from airflow_provider_ocidist.agent.monitor.peers import PeerWatch
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.stragglers import SlownessWatch, StragglerWatch
from airflow_provider_ocidist.agent.monitor.usage import INTERVAL, UsageMeter
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.job import Limits
from airflow_provider_ocidist.model.report import NodeReport, Phase, Slow, Usage

logger = logging.getLogger(__name__)

Look = Callable[[], object]

SAMPLES = 6
"""Number of samples of a machine's use within `limits.idle`."""


class Watches:
    """Watches for hangs, slow and lost nodes, faults of the machine, and a training that does not use it."""

    def __init__(
        self,
        config: AgentConfig,
        heartbeat: Heartbeat,
        meter: ProgressMeter,
        *,
        end_gang: Callable[[Stop], object],
    ) -> None:
        self.config = config
        self.heartbeat = heartbeat
        self.meter = meter
        self.main_rank = 0
        self.end_gang = end_gang
        self._threads: list[PeerWatch | UsageMeter | HealthWatch] = []
        self._looks: list[Look] = []
        """Functions among the heartbeat's watches that belong to this object."""
        self._health: HealthWatch | None = None
        self._slowness = SlownessWatch(heartbeat.report.rank, self._main_report, self._check_machine)
        self._asked = False
        """Whether a check of the machine was requested in this time without progress."""
        self._done_at: dict[int, float] = {}
        """Time at which this node first saw that another was done, by rank, on its own clock."""

    def start(self, reports: Sequence[NodeReport], main_rank: int, guard_pid: int, working_dir: Path) -> None:
        """Watch from now on; `reports` are those of the join."""
        self.main_rank = main_rank
        limits = self.config.limits
        if limits.hang_timeout is not None:
            hang = HangWatch(
                self.meter,
                limits.hang_timeout,
                others=self._others_moved,
                declare=self._hung,
                is_saving=partial(guard.awaits_writers, guard_pid),
            )
            self._looks += [self._ask_for_health, hang.look]
        self._looks.append(self._first_step_watch(limits).look)
        if self.config.nodes > 1:
            judges = self.heartbeat.report.rank == main_rank
            watch = StragglerWatch(self._all_reports, self._report_slow) if judges else self._slowness
            self._looks.append(watch.look)
        if limits.idle is not None:
            idle = IdleWatch(
                limits.idle, own=self._unused, others=self._others_unused, declare=self._not_used
            )
            self._looks.append(idle.look)
            # What was measured of the launch before says nothing of this one.
            self.heartbeat.update(usage=None)
        self.heartbeat.watches += self._looks
        self.meter.look_for_events_in(working_dir)
        own = self.heartbeat.report.rank
        addresses = {report.rank: report.address for report in reports if report.rank != own}
        self._health = HealthWatch([working_dir], addresses, self._report_health)
        self._threads = [
            self._health,
            UsageMeter(guard_pid, self._report_usage, self._gpu_at_work, self._usage_interval()),
            PeerWatch(self.heartbeat, reports, alone_after=limits.lost_timeout, declare=self._lost),
        ]
        for thread in self._threads:
            thread.start()

    def _first_step_watch(self, limits: Limits) -> FirstStepWatch:
        # Where the job turns off the search for hangs, no line about one is logged.
        return FirstStepWatch(
            self._own_talk,
            limits.first_step_timeout,
            limits.hang_timeout,
            others=self._others_moved,
            declare=self._hung,
            warn=lambda message: logger.warning("%s", message),
        )

    def _own_talk(self) -> StallTime:
        """Return what this node shows before its first step; the main node judges for all."""
        is_training = self.heartbeat.report.phase is Phase.TRAINING
        still = self.meter.still if is_training and self.heartbeat.report.rank == self.main_rank else 0.0
        return StallTime(idle=self.meter.idle, step=self.meter.step, still=still)

    def close(self) -> None:
        for look in self._looks:
            self.heartbeat.watches.remove(look)
        self._looks = []
        for thread in self._threads:
            thread.close()

    def _hung(self, message: str) -> None:
        """End the gang; an unhealthy machine is the cause rather than the program."""
        stuck = self._health.stuck() if self._health else ()
        own = replace(self.heartbeat.report, health=(*self.heartbeat.report.health, *stuck))
        sick = [report for report in [own, *self._others()] if report and report.health]
        found = "; ".join(f"node {report.rank}: {', '.join(report.health)}" for report in sick)
        if sick:
            message = f"{message}; a machine is unhealthy ({found})"
        self.end_gang(Stop(cause=Cause.NODE if sick else Cause.HANG, message=message, stacks=True))

    def _not_used(self, message: str) -> None:
        self.end_gang(Stop(cause=Cause.IDLE, message=message, stacks=True))

    def _usage_interval(self) -> float:
        limit = self.config.limits.idle
        return INTERVAL if limit is None else min(INTERVAL, limit / SAMPLES)

    def _unused(self) -> float | None:
        """Return for how long the training of this node has not used its machine; the main node judges for all."""
        report = self.heartbeat.report
        judges = report.rank == self.main_rank and report.phase is Phase.TRAINING
        return report.usage.idle if judges and report.usage else None

    def _others_unused(self) -> list[float | None]:
        """Return the same for the other nodes. One that fetches or saves is in use, whatever its processors do."""
        return [
            report.usage.idle if report and report.usage and report.phase is Phase.TRAINING else None
            for report in self._others()
        ]

    def _lost(self, message: str) -> None:
        # One that cannot write its own report is itself cut off.
        is_seen = time.monotonic() - self.heartbeat.written_at <= OWN_TROUBLE
        self.end_gang(Stop(cause=Cause.NODE, message=message, misses_node=is_seen))

    def _others(self) -> list[NodeReport | None]:
        # Read between two beats: an answer slower than a beat counts as unknown.
        return read_others(self.heartbeat.quick_store, self.heartbeat.report, self.config.nodes)

    def _all_reports(self) -> list[NodeReport]:
        return [report for report in [self.heartbeat.report, *self._others()] if report]

    def _others_moved(self) -> list[StallTime | None]:
        """Return for how long each other node has been still; the main node judges for all, the others once it is
        done. A node whose training has ended judges nobody: it may save what it has for longer than a hang takes.
        """
        if self.heartbeat.report.phase is not Phase.TRAINING:
            return [None]
        own = self.heartbeat.report.rank
        reports = self._others()
        done = {report.rank for report in reports if report and report.phase is Phase.DONE}
        if own != self.main_rank and self.main_rank not in done:
            return [None]
        return [self._stall_time(report) for report in reports]

    def _stall_time(self, report: NodeReport | None) -> StallTime | None:
        """Return for how long a node has shown no progress, or has been done; None when that is not known."""
        if report is None:
            return None
        if report.phase is Phase.SAVING:
            return StallTime(idle=0.0, by_steps=True)
        if report.phase is Phase.DONE:
            now = time.monotonic()
            return StallTime(idle=now - self._done_at.setdefault(report.rank, now))
        progress = report.progress
        if progress is None or progress.idle is None:
            return None
        return StallTime(
            idle=progress.idle,
            by_steps=progress.by_steps,
            longest_step=progress.longest_step,
            step=progress.step,
            still=progress.still or 0.0,
        )

    def _ask_for_health(self) -> None:
        """Check the machine before a hang is charged to the program."""
        timeout = self.config.limits.hang_timeout
        is_still = timeout is not None and self.meter.idle > timeout / 2
        if is_still and not self._asked:
            self._check_machine()
        self._asked = is_still

    def _check_machine(self) -> None:
        if self._health:
            self._health.ask()

    def _main_report(self) -> NodeReport | None:
        return read_report(self.heartbeat.quick_store, self.main_rank)

    def _report_health(self, findings: tuple[str, ...]) -> None:
        if findings and findings != self.heartbeat.report.health:
            logger.warning("this machine is unhealthy: %s", "; ".join(findings))
        # The main node waits for this before it warns of a slow node.
        self.heartbeat.update(health=findings, health_at=time.time(), now=self._slowness.is_slow)

    def _report_slow(self, slow: tuple[Slow, ...]) -> None:
        self.heartbeat.update(slow=slow, now=slow != self.heartbeat.report.slow)
        self._slowness.heed(slow)

    def _report_usage(self, usage: Usage) -> None:
        self.heartbeat.update(usage=usage)

    def _gpu_at_work(self) -> None:
        if self.meter.step is None:
            # Steps are better evidence of activity, where a program reports them.
            self.meter.touch()
