"""Quotas: which workload of a project may run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """The GPUs of a project; None: without a bound."""

    gpus: float | None = None
    """GPUs that the project deserves: workloads that cannot be preempted stay within them."""
    limit: float | None = None
    """GPUs that the project never exceeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """What a workload asks for, or has."""

    gpus: Fraction
    preemptible: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Why a workload waits."""

    reason: str
    message: str


def held(project: str, quota: Quota, demand: Demand, running: Iterable[Demand]) -> Held | None:
    """Return why a workload has to wait; None: it may run. The sentences are the scheduler's (KAI)."""
    running = list(running)
    fixed = sum((each.gpus for each in running if not each.preemptible), Fraction(0))
    used = sum((each.gpus for each in running), Fraction(0))
    if quota.limit is not None and used + demand.gpus > quota.limit:
        return Held(
            "OverLimit",
            f"{project} quota has reached the allowable limit of GPUs. Limit is {_text(quota.limit)} GPUs, currently "
            f"{_text(used)} GPUs allocated and workload requested {_text(demand.gpus)} GPUs",
        )
    if not demand.preemptible and quota.gpus is not None and fixed + demand.gpus > quota.gpus:
        return Held(
            "NonPreemptibleOverQuota",
            f"Non-preemptible workload is over quota. Workload requested {_text(demand.gpus)} GPUs, but {project} "
            f"quota is {_text(quota.gpus)} GPUs, while {_text(fixed)} GPUs are already allocated for non-preemptible "
            "pods. Use a preemptible workload to go over quota",
        )
    return None


def _text(number: float | Fraction) -> str:
    return f"{float(number):g}"
