"""P16c: from SIGKILL of a training process to the first new step, beside a retry of Airflow's task."""

from __future__ import annotations

from functools import cached_property

from airflow_provider_ocidist.model.drill import FaultKind
from benchmarks.comparison import Comparison, Interval, Samples
from benchmarks.recovery import TARGET_S, seconds_to_recover


class RetryRecovery(Comparison):
    name = "P16c"
    title = "SIGKILL of a process of two nodes, until the first new step, by restarts inside the task"
    peer_name = (
        "Airflow's retry: the gang ends and another is created (measured), and retry_delay's default (added)"
    )
    unit = "s"
    target = "30 times faster"
    pairs = 5

    def ours(self) -> float:
        return seconds_to_recover(FaultKind.KILL_RANK, {})

    def peer(self) -> float:
        without = {"restarts.program": 0, "restarts.node": 0, "restarts.hang": 0}
        return seconds_to_recover(FaultKind.KILL_RANK, without, tries=2) + self._retry_delay

    @cached_property
    def _retry_delay(self) -> float:
        """The seconds that Airflow itself waits before a retry, unless it is asked to wait for longer or less."""
        from airflow.configuration import conf

        return float(conf.getint("core", "default_task_retry_delay"))

    def met(self, samples: Samples) -> bool:
        return Interval.of(samples.ours).high <= TARGET_S and samples.ratio.low >= 30


ROW = RetryRecovery()
