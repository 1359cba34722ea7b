"""SensorWait: what one try of a sensor looks at, and the refusals that it keeps for its next process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from airflow_provider_ocidist.model import kept_evidence
from airflow_provider_ocidist.model.kept_evidence import Kept


class SensorWait(ABC):
    """One wait: for a run, or for a checkpoint."""

    awaited: str
    """Sentence that says what has not happened by the time-out."""

    @abstractmethod
    def trigger(self) -> Any:
        """Return the trigger that waits in the triggerer."""

    @abstractmethod
    def begin(self, kept: Kept) -> None:
        """Prepare the first look of this process after the refusals that earlier ones met; later calls do nothing."""

    @abstractmethod
    def look(self) -> Any:
        """Look once, and return what `result_of` understands. Raises Airflow's exceptions."""

    @property
    @abstractmethod
    def kept(self) -> Kept:
        """The refusals so far."""

    @abstractmethod
    def result_of(self, found: Any) -> dict[str, Any] | None:
        """Return the result of the wait; None: it goes on. Raises AirflowFailException where it is in vain."""

    def poke(self, notes: Any, try_number: int) -> dict[str, Any] | None:
        """Look once. `notes`: Airflow's task state store, if each look runs in a process of its own."""
        subject = f"try {try_number}: {self.awaited}"
        before = kept_evidence.NOTHING if notes is None else kept_evidence.read(notes, subject)
        self.begin(before)
        found = self.look()
        if notes is not None and self.kept != before:
            kept_evidence.write(notes, subject, self.kept)
        return self.result_of(found)
