"""The fence: a launch's place among all launches of all attempts of one task."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.backports import dataclass

_HIGHEST = 2**31 - 1
"""Greatest number of an attempt; Airflow keeps the numbers of tries in 32 bits."""


@dataclass(frozen=True, kw_only=True, order=True)
class Fence:
    """An attempt among all attempts of one task, or a launch of it; a later one is greater."""

    generation: int = 0
    attempt: int = 0
    """Number of the attempt, from 1; 0 for what an earlier version, which knew no fences, has published."""
    launch: int = 0
    """Number of the launch, from 0. It fences a place only: what is published is of its attempt."""

    @property
    def is_possible(self) -> bool:
        """Whether these may be numbers of an attempt and a launch."""
        return all(0 <= number <= _HIGHEST for number in (self.generation, self.attempt, self.launch))

    @property
    def of_attempt(self) -> Fence:
        """The fence of the attempt, as what it publishes has it."""
        return replace(self, launch=0)


LOWEST = Fence()
