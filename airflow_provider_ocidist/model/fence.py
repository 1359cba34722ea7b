"""The fence: an attempt's place among all attempts of one task."""

from __future__ import annotations

from airflow_provider_ocidist.backports import dataclass

_HIGHEST = 2**31 - 1
"""Greatest number of an attempt; Airflow keeps the numbers of tries in 32 bits."""


@dataclass(frozen=True, kw_only=True, order=True)
class Fence:
    """An attempt among all attempts of one task; a later one is greater."""

    generation: int = 0
    attempt: int = 0
    """Number of the attempt, from 1; 0 for what an earlier version, which knew no fences, has published."""

    @property
    def is_possible(self) -> bool:
        """Whether these may be numbers of an attempt."""
        return 0 <= self.generation <= _HIGHEST and 0 <= self.attempt <= _HIGHEST


LOWEST = Fence()
