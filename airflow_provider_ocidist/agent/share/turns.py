"""Turns: from where a node takes its next piece, by what it knows of the other nodes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from airflow_provider_ocidist.backports import dataclass

WORTH_SHARING = 16 << 20
"""Fewest bytes that nodes share: less is there before they have found one another."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of one version of a file, as all nodes cut it."""

    id: str
    number: int
    """Number by which the nodes take turns at the store; neighbours have neighbouring numbers."""
    length: int
    """Length in bytes."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What another node has and reads, as it was last heard."""

    has: AbstractSet[str]
    reads: AbstractSet[str]
    """Pieces that it reads from the store now."""
    is_awaited: bool
    """Whether other nodes should wait for the pieces that it does not have yet."""


@dataclass(frozen=True, kw_only=True)
class PieceSource:
    """Source of a piece: a node to ask, or one to wait for; neither: this node reads it from the store."""

    ask: int | None = None
    """Rank of a node that has it."""
    wait_for: int | None = None
    """Rank of the node that reads it, or whose turn it is."""


def turn_of(piece: Piece, rank: int, views: Mapping[int, View]) -> PieceSource:
    """Return from where a node takes a piece; `views`: the other nodes that can be reached, by rank."""
    holders = sorted(other for other, view in views.items() if piece.id in view.has)
    if holders:
        return PieceSource(ask=holders[(piece.number + rank) % len(holders)])
    awaited = sorted(other for other, view in views.items() if view.is_awaited)
    readers = [other for other in awaited if piece.id in views[other].reads]
    if readers:
        return PieceSource(wait_for=readers[0])
    members = sorted([rank, *awaited])
    owner = members[piece.number % len(members)]
    return PieceSource() if owner == rank else PieceSource(wait_for=owner)
