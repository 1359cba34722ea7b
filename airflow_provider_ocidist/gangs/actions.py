"""Actions: what can be decided about a gang. Data; `decisions` chooses, the waiting process acts."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run import Ending


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do yet."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """End all nodes; record why."""

    ending: Ending
    of_the_rest: bool = False
    """Whether all nodes that took part have ended, none of them with a failure."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of the nodes of a gang that trains on."""


@dataclass(frozen=True, slots=True)
class GiveUpSilent(NodeChange):
    """Ask the other nodes to wait for new ones in the places of silent nodes, which may still take part."""

    failures: tuple[Restart, ...]
    """Reasons why they are lost, each with the rank."""
    launch: int | None = None
    """Last launch, from 0, in which they took part when that was decided; None: not known."""


@dataclass(frozen=True, slots=True)
class EndSilent(NodeChange):
    """End nodes that take no part, and that the service reports as alive; a later look replaces them."""

    failures: tuple[Restart, ...]
    """Reasons why they are lost, each with the rank."""


@dataclass(frozen=True, slots=True)
class Replace(NodeChange):
    """Create a node in the place of each lost one; the others wait for it."""

    failures: tuple[Restart, ...]
    """Reasons why they are lost, each with the rank."""
    launch: int | None = None
    """Last launch, from 0, in which they took part when that was decided; None: not known."""
    over: int | None = None
    """Launch, from 0, that others have ended: they begin another only where that is agreed already; None: none has."""


@dataclass(frozen=True, slots=True)
class GoOnWithout(NodeChange):
    """Let the other nodes launch the training again without those for which no machine has come."""

    change: Restart
    """Reason, with the ranks that train on."""


@dataclass(frozen=True, slots=True)
class Succeed:
    """Every node succeeded, and the promised checkpoint and outputs exist."""

    warning: str | None = None
    """Doubt about the success, for the log."""


@dataclass(frozen=True, slots=True)
class Fail:
    """All nodes have ended, and the gang has failed."""

    cause: Cause
    message: str


Action = Wait | Cancel | NodeChange | Succeed | Fail
