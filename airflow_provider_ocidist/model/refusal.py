"""Refusal, KnownRefusals: which machines a service had none of, for every task, for a while. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.causes import MEANINGS

NO_MACHINE = tuple(cause for cause, row in MEANINGS.items() if row.no_machine)
"""Causes after which another candidate may have a machine."""
REMEMBERED = 600.0
"""Seconds for which a refusal is remembered: each request for what is not there costs a gang minutes of waiting."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One request that a service could not fulfil."""

    cause: Cause
    message: str
    """Message of the service."""
    at: float
    """Unix time, by the service's clock where it has one."""
    nodes: int
    """Number of machines in the refused request."""

    def age(self, now: float) -> float:
        """Return its age at a Unix time, in seconds; 0 where it is from the future."""
        return max(0.0, now - self.at)

    def holds(self, nodes: int, now: float) -> bool:
        """Whether so many machines are not requested again now; fewer may be free."""
        # `abs`: where the clock was set back since, a refusal from the future must not hold until its time has come.
        return nodes >= self.nodes and abs(now - self.at) < REMEMBERED


@dataclass(frozen=True, kw_only=True)
class KnownRefusals:
    """The refusals of machines of one kind that hold for some number of them, by that number."""

    refusals: tuple[Refusal, ...] = ()

    def after(self, refusal: Refusal, now: float) -> KnownRefusals:
        """Return what is remembered after one more: of which none is of fewer machines, or as many, and later.

        `now`: Unix time by the clock of the refusals; one of them may be heard of late.
        """
        known = [each for each in (*self.refusals, refusal) if each.holds(each.nodes, now)]
        latest = {each.nodes: each for each in sorted(known, key=lambda each: each.at)}
        kept: list[Refusal] = []
        for _, each in sorted(latest.items()):
            if not any(of_fewer.at >= each.at for of_fewer in kept):
                kept.append(each)
        return KnownRefusals(refusals=tuple(kept))

    def of(self, nodes: int) -> Refusal | None:
        """Return the latest refusal of so many machines, or of fewer, of whatever age; None: there was none."""
        found = [each for each in self.refusals if each.nodes <= nodes]
        return max(found, key=lambda each: each.at, default=None)


def refusal_file(backend: str, machine: Mapping[str, str]) -> str:
    """Return the file of the refusal of these machines: the same for every task that asks for them."""
    text = json.dumps([backend, dict(machine)], sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
