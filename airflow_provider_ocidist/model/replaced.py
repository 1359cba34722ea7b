"""Replaced: what is recorded of lost nodes where the platform itself makes others in their places."""

from __future__ import annotations

import json

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.report import Restart


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """The lost nodes of a gang, oldest first. What the platform has made in their places waits until it reads that."""

    replaced: tuple[Restart, ...] = ()
    """Reasons why they were lost, each with its rank."""
    lost_runs: tuple[str, ...] = ()
    """Ids of their runs, in the same order."""
    lost_seconds: float = 0.0
    """Seconds that they have run, all together."""

    def incarnation(self, rank: int) -> int:
        """Return how many nodes of a rank were lost."""
        return sum(each.rank == rank for each in self.replaced)

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Replaced:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.read(cls, text)
