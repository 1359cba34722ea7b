"""Evidence: when repeated refusals of the service count as final. Pure: no I/O, no clock."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_ocidist.backports import Self, dataclass
from airflow_provider_ocidist.model.pauses import doubling_pause

REFUSALS_NEEDED = 5
"""Number of refusals of one kind in a row, or of changing kinds in all."""
REFUSED_FOR = 900.0
"""Seconds from the first of these refusals to the last."""
REFUSED_AT_ALL_FOR = 3600.0
"""Seconds without an answer, with refusals of changing kinds or a connection that cannot be read again."""
UNANSWERED_FOR = 86_400.0
"""Seconds without an answer, whether it was refused or not: the longest outage of the service that is waited out."""
LONGEST_PAUSE = 120.0
"""Seconds between two requests, after earlier ones were refused or not answered."""
ABSENT_ANSWERS = 4
"""Number of answers 404 for one run, each with an answered list that does not have it."""
ABSENT_FOR = 120.0
"""Seconds from the first of these answers to the last."""


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """The failed status requests of a gang since the last answer; its record carries them between processes.

    Each observer measures durations on its own clock between two requests, so that no clocks are compared.
    """

    questions: int = 0
    """Number of failed requests."""
    seconds: float = 0.0
    """Seconds from the first of them to the last."""
    refusal: str = ""
    """Kind of the last refusals, as `401`; empty: nothing has refused yet."""
    refusals: int = 0
    """Number of refusals of this kind in a row."""
    refused_for: float = 0.0
    """Seconds since the first refusal of this kind."""
    refused_in_all: int = 0
    """Number of refusals of any kind."""
    renewed: bool = False
    """Whether the credentials were read again since the first refusal."""

    def failed(self, seconds: float) -> Self:
        """Count a transient fault, `seconds` after the last request. It neither refuses nor clears anything."""
        aged = self.refused_for + seconds if self.refusals else 0.0
        return replace(self, questions=self.questions + 1, seconds=self.seconds + seconds, refused_for=aged)

    def refused(self, kind: str, seconds: float) -> Self:
        """Count a refusal, `seconds` after the last request. One of another kind begins a new row."""
        asked = replace(self.failed(seconds), refused_in_all=self.refused_in_all + 1)
        if kind == self.refusal:
            return replace(asked, refusals=self.refusals + 1)
        return replace(asked, refusal=kind, refusals=1, refused_for=0.0)

    def met(self, refusal: str | None, seconds: float) -> Self:
        """Count one failed request: a refusal of this kind; None: a fault that may pass."""
        return self.failed(seconds) if refusal is None else self.refused(refusal, seconds)

    def with_new_credentials(self) -> Self:
        """Record that the credentials were read again."""
        return replace(self, renewed=True) if self.refusals else self

    @property
    def is_refused(self) -> bool:
        return self.refusals > 0

    @property
    def is_conclusive(self) -> bool:
        """Whether further requests are of no use: the waiting process ends the gang, then gives up."""
        consistent = self.refusals >= REFUSALS_NEEDED and self.refused_for >= REFUSED_FOR and self.renewed
        # One refusal in an outage is a part of the outage.
        many = self.refused_in_all >= REFUSALS_NEEDED
        return consistent or (many and self.is_long) or self.seconds >= UNANSWERED_FOR

    @property
    def is_long(self) -> bool:
        """Whether it is enough to give up a gang that is being ended, or whose state the service refuses."""
        return self.seconds >= REFUSED_AT_ALL_FOR

    def pause(self, interval: float) -> float:
        """Return the seconds until the next request: longer each time, from `interval` to two minutes."""
        return doubling_pause(interval, max(interval, LONGEST_PAUSE), self.questions)


ANSWERED = Unanswered()


@dataclass(frozen=True)
class Absent:
    """A run for which the service has answered 404, again and again."""

    since: float
    """Time of the first of these answers, in seconds of one monotonic clock."""
    answers: int = 1

    def again(self) -> Self:
        return replace(self, answers=self.answers + 1)

    def is_gone(self, now: float) -> bool:
        """Return whether it counts as deleted at `now`."""
        return self.answers >= ABSENT_ANSWERS and now - self.since >= ABSENT_FOR
