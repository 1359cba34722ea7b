"""How long a task waits after finding no machine, and when it asks again. Pure; no Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.model.pauses import doubling_pause

FIRST_PAUSE = 60.0
"""Seconds before the second request for machines; with less time left there is none."""
LONGEST_PAUSE = 1800.0
"""Most seconds between two requests for machines."""


def pause_between_requests(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: doubling from a minute to half an hour."""
    return doubling_pause(FIRST_PAUSE, LONGEST_PAUSE, failures)


@dataclass(frozen=True, slots=True)
class CapacitySearch:
    """The state of one try's search for machines."""

    give_up_at: float
    """Unix time of the last request, by this machine's clock."""
    failures: int = 0
    give_up_at_service: float | None = None
    """Time of the last request by the service's clock, while another process's `give_up_at` is of another clock."""

    @classmethod
    def kept(cls, search: Mapping[str, Any], now: float) -> Self:
        """Return the search that `after` or `handed_over` has saved, maybe on another machine or by an older one."""
        left = search.get("left")
        if left is not None:
            return cls(now + left, search["failures"])
        return cls(search["give_up_at"], search["failures"], search.get("give_up_at_service"))

    def after(self, pause: float, now: float) -> dict[str, Any]:
        """Return what to save of it over a pause: the seconds left, as another machine has another clock."""
        return {**self._saved(), "left": max(0.0, self.give_up_at - now - pause)}

    def handed_over(self, ahead: float) -> dict[str, Any]:
        """Return what to save of it while a gang is watched; `ahead`: seconds by which the service's clock is ahead."""
        there = self.give_up_at_service
        return {**self._saved(), "give_up_at_service": self.give_up_at + ahead if there is None else there}

    def here(self, ahead: float) -> Self:
        """Return the search by this machine's clock, once the service has answered; `ahead`: as in `handed_over`."""
        if self.give_up_at_service is None:
            return self
        return replace(self, give_up_at=self.give_up_at_service - ahead, give_up_at_service=None)

    def _saved(self) -> dict[str, Any]:
        return {"give_up_at": self.give_up_at, "failures": self.failures}

    def failed(self) -> Self:
        """Return the search after one more request that found no machine."""
        return replace(self, failures=self.failures + 1)

    def next_at(self, now: float) -> float | None:
        """Return when to ask again after a failure at `now`; None when it is time to give up."""
        left = self.give_up_at - now
        return None if left < FIRST_PAUSE else now + min(pause_between_requests(self.failures), left)


class AnotherCandidate(Exception):
    """There are no machines of this kind now, and the job names others. Not for users: the waiting task catches it."""


class NoCapacity(Exception):
    """There are no machines now, and the task has time to ask again. Not for users: the waiting task catches it."""

    def __init__(self, message: str, search: CapacitySearch, ask_at: float) -> None:
        super().__init__(message)
        self.search = search
        self.ask_at = ask_at
