"""Watches: monitor a training while it runs; findings end the gang, or go into the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.topology import read_others
from airflow_provider_ocidist.agent.monitor.hang import HangWatch
from airflow_provider_ocidist.agent.monitor.idle import IdleWatch
from airflow_provider_ocidist.agent.monitor.peers import PeerWatch
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.monitor.usage import INTERVAL, UsageMeter
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport, Phase, Usage

SAMPLES = 6
"""Of the use of a machine, within `limits.idle`."""


class Watches:
    """For hangs, for lost nodes, and for the training's use of its machine."""

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
        self._threads: list[PeerWatch | UsageMeter] = []
        self._looks: list[Callable[[], object]] = []
        """At every heartbeat."""
        self._done_at: dict[int, float] = {}
        """By rank: when this node first saw that another was done, on its own clock."""

    def start(self, reports: Sequence[NodeReport], main_rank: int, guard_pid: int, working_dir: Path) -> None:
        """Watch from now on; `reports` are those of the join."""
        self.main_rank = main_rank
        limits = self.config.limits
        if limits.hang_timeout is not None:
            hang = HangWatch(self.meter, limits.hang_timeout, others=self._others_moved, declare=self._hung)
            self._looks.append(hang.look)
        if limits.idle is not None:
            idle = IdleWatch(
                limits.idle, own=self._unused, others=self._others_unused, declare=self._not_used
            )
            self._looks.append(idle.look)
            # What was measured of the launch before says nothing of this one.
            self.heartbeat.update(usage=None)
        self.heartbeat.watches += self._looks
        self.meter.look_for_events_in(working_dir)
        self._threads = [
            UsageMeter(guard_pid, self._report_usage, self._gpu_at_work, self._usage_interval()),
            PeerWatch(self.heartbeat, reports, alone_after=limits.lost_timeout, declare=self._lost),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        for look in self._looks:
            self.heartbeat.watches.remove(look)
        self._looks.clear()
        for thread in self._threads:
            thread.close()

    def _hung(self, message: str) -> None:
        self.end_gang(Stop(cause=Cause.HANG, message=message, stacks=True))

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
        reports = read_others(self.heartbeat.hasty, self.heartbeat.report.rank, self.config.nodes)
        return [
            report.usage.idle if report and report.usage and report.phase is Phase.TRAINING else None
            for report in reports
        ]

    def _lost(self, message: str) -> None:
        self.end_gang(Stop(cause=Cause.NODE, message=message))

    def _others_moved(self) -> list[float | None]:
        """Return for how long each other node has been idle; the main node judges for all, the others once it is
        done. A node whose training has ended judges nobody: it may save what it has for longer than a hang takes.
        """
        if self.heartbeat.report.phase is not Phase.TRAINING:
            return [None]
        own = self.heartbeat.report.rank
        # Read between two beats: an answer slower than a beat counts as unknown.
        reports = read_others(self.heartbeat.hasty, own, self.config.nodes)
        done = {report.rank for report in reports if report and report.phase is Phase.DONE}
        if own != self.main_rank and self.main_rank not in done:
            return [None]
        return [self._idle(report) for report in reports]

    def _idle(self, report: NodeReport | None) -> float | None:
        """Return for how long a node has shown no progress, or has been done; None when that is not known."""
        if report is None:
            return None
        if report.phase is Phase.SAVING:
            return 0.0
        if report.phase is Phase.DONE:
            now = time.monotonic()
            return now - self._done_at.setdefault(report.rank, now)
        return report.progress.idle if report.progress else None

    def _report_usage(self, usage: Usage) -> None:
        self.heartbeat.update(usage=usage)

    def _gpu_at_work(self) -> None:
        if self.meter.progress.step is None:
            # Steps are better evidence of activity, where a program reports them.
            self.meter.touch()
