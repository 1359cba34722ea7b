"""Folder marks: by them the nodes find out which of them share the checkpoint folder."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)


def show_folder(folder: Path, run_name: str, rank: int) -> None:
    """Create a mark in this node's checkpoint folder, until `nodes_apart` or `hide_folder`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _mark(folder, run_name, rank).touch()
    except OSError as error:
        logger.warning("the checkpoint folder %s cannot be written: %s", folder, error)


def nodes_apart(folder: Path, run_name: str, rank: int, others: Sequence[int]) -> tuple[int, ...]:
    """Return which of the others have a checkpoint folder of their own; remove the marks of the rest."""
    # Looked up by name: a network file system may return an old listing.
    apart = tuple(other for other in others if not _is_marked(folder, run_name, other))
    # Our own is removed last: a node that does not see it removes its own.
    for seen in [*(other for other in others if other not in apart), rank]:
        _unmark(folder, run_name, seen)
    return apart


def hide_folder(folder: Path, run_name: str, rank: int, main_rank: int) -> None:
    """Remove this node's mark where the main node cannot see it."""
    # The main node's mark may be gone because it has looked already: only `nodes_apart` decides which folders differ.
    if not _is_marked(folder, run_name, main_rank):
        _unmark(folder, run_name, rank)


def _mark(folder: Path, run_name: str, rank: int) -> Path:
    return folder / f".{run_name}-{rank}"


def _is_marked(folder: Path, run_name: str, rank: int) -> bool:
    return os.path.exists(_mark(folder, run_name, rank))  # noqa: PTH110 - Path.exists raises where it may not look


def _unmark(folder: Path, run_name: str, rank: int) -> None:
    with contextlib.suppress(OSError):
        _mark(folder, run_name, rank).unlink(missing_ok=True)
