"""What the operator's object says of a whole gang."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_ocidist.backports import StrEnum
from airflow_provider_ocidist.errors import Cause


class GangState(StrEnum):
    """What the operator's object says of a whole gang."""

    NEW = "NEW"
    """The operator has reported nothing yet."""
    SUSPENDED = "SUSPENDED"
    ACTIVE = "ACTIVE"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ENDING = "ENDING"
    """The object is being deleted."""
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class Gang:
    """An operator's object, read by the rules of its kind."""

    state: GangState
    details: str = ""
    """Sentence for a person."""
    cause: Cause | None = None
    queued: bool = False
    """Whether a queue, and no person, has suspended it."""

    @property
    def awaits(self) -> Cause | None:
        """The cause why a gang has not begun, if it is suspended."""
        if self.state is not GangState.SUSPENDED:
            return None
        return Cause.CAPACITY if self.queued else Cause.CANCELED

    @property
    def ended_by(self) -> Cause:
        """The cause why the nodes of a suspended gang have ended after they had begun."""
        return Cause.PREEMPTED if self.queued else Cause.CANCELED
