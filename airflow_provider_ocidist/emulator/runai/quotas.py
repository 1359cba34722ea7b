"""Quotas: which workload of a project may run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    reason: str | None
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """A pool of nodes; None: it has room for everything."""

    gpus: float | None = None


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


def pool_of(
    wanted: Sequence[str], pools: Mapping[str, Pool], gpus: Fraction, used: Mapping[str, Fraction]
) -> str | Held:
    """Return the first pool in the order of preference that has room, or why a workload has to wait for one.

    The sentence of a full pool is the scheduler's; that of one which is not there is a guess.
    """
    known = [name for name in wanted if name in pools]
    for name in known:
        capacity = pools[name].gpus
        if capacity is None or used.get(name, 0) + gpus <= capacity:
            return name
    if known:
        return Held(None, "Not enough resources in the requested nodepool")
    return Held(None, f"There is no nodepool {', '.join(wanted)}")


def _text(number: float | Fraction) -> str:
    return f"{float(number):g}"
