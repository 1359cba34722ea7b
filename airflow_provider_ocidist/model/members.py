"""Members: the nodes of a gang that take part in a launch of the training. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_ocidist.model.report import Restart


def members_of(restarts: Sequence[Restart], nodes: int) -> tuple[int, ...]:
    """Return the ranks, in order, that take part in the launch after these restarts, of a gang of so many nodes."""
    return (restarts[-1].members if restarts else ()) or tuple(range(nodes))


def others_of(own: int, restarts: Sequence[Restart], nodes: int) -> tuple[int, ...]:
    """Return the ranks, in order, of the other members after these restarts, of a gang of so many nodes."""
    return tuple(rank for rank in members_of(restarts, nodes) if rank != own)


def in_words(members: Sequence[int]) -> str:
    """Return the members for a message: `node 0`, `nodes 0, 1`."""
    return f"node{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"
