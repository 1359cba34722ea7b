"""Refusal: which machines a service had none of, remembered for a while for every task. Pure."""

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

    def after(self, older: Refusal | None) -> Refusal:
        """Return what is remembered of two refusals: an older one of fewer machines holds for more tasks."""
        if older is not None and older.nodes < self.nodes and older.holds(self.nodes, self.at):
            return older
        return self


def refusal_file(backend: str, machine: Mapping[str, str]) -> str:
    """Return the file of the refusal of these machines: the same for every task that asks for them."""
    text = json.dumps([backend, dict(machine)], sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
