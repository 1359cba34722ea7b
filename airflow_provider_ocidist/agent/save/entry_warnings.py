"""EntryWarnings: what in a checkpoint folder is not published, each warned of once."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Collection
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import (
    is_unplaced,
    may_be_meant,
    names_in,
    place_in,
    weights_in,
)
from airflow_provider_ocidist.agent.save.formats import is_unfinished
from airflow_provider_ocidist.agent.save.held_links import REMEDY
from airflow_provider_ocidist.agent.save.proofs import remedy
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.storage.checkpoint_names import OTHER_FOLDERS

logger = logging.getLogger(__name__)


DROPPED_INTERVAL = 600.0
"""Least seconds between two warnings of checkpoints that were changed or deleted before they were sent."""


class EntryWarnings:
    """Logs what a person can mend while the training runs."""

    def __init__(self, folder: Path, pattern: str | None) -> None:
        self._folder = folder
        self._pattern = pattern
        self._names: set[str] = set()
        """Names of all entries of the folder at the last look, which looked at each of them."""
        self._has_checkpoints = False
        """Whether an entry with the name of a checkpoint has been seen."""
        self._warned: set[object] = set()
        self._dropped = 0
        """Count of those that were changed or deleted before they were sent, since the last warning of that."""
        self._dropped_next_at = 0.0

    def warn_of_names(self) -> None:
        """Warn of new entries whose names are not those of checkpoints."""
        try:
            names = set(names_in(self._folder))
        except OSError:
            return
        new, self._names = names - self._names, names
        for name in sorted(new):
            if name not in self._warned and is_unplaced(name, self._pattern):
                self._warned.add(name)
                logger.warning(
                    "%s in the checkpoint folder is not published: its name is not that of a checkpoint; "
                    "set checkpoints.pattern to match it",
                    name,
                )
        self._warn_of_what_lies_in_other_folders(names)
        self._warn_where_none_is_a_checkpoint(names)

    def _warn_of_what_lies_in_other_folders(self, names: Collection[str]) -> None:
        for name in sorted(OTHER_FOLDERS.intersection(names)):
            if name in self._warned or place_in(self._folder, name, self._pattern):
                continue
            if weights := weights_in(self._folder, name):
                self._warned.add(name)
                logger.warning(
                    "%s in the checkpoint folder is not published, though it contains %s: its name is not that of a "
                    "checkpoint; save beside it, or set checkpoints.pattern to match it",
                    name,
                    os.path.relpath(weights, self._folder / name),
                )

    def _warn_where_none_is_a_checkpoint(self, names: Collection[str]) -> None:
        """Warn of what is usual beside checkpoints, unless there are some, or one is still being written."""
        self._has_checkpoints = self._has_checkpoints or any(
            place_in(self._folder, name, self._pattern) for name in names
        )
        if self._has_checkpoints or any(map(is_unfinished, names)):
            return
        meant = sorted(
            name for name in names if name not in self._warned and may_be_meant(name, self._pattern)
        )
        if meant:
            self._warned.update(meant)
            logger.warning(
                "%s in the checkpoint folder: not published, and no entry there has the name of a checkpoint yet; "
                "if it is a checkpoint, set checkpoints.pattern to match it",
                names_text(meant),
            )

    def warn_of_mixture(self, name: str, why: str) -> None:
        """Warn of an entry with files of two saves."""
        if ("mixed", name) not in self._warned:
            self._warned.add(("mixed", name))
            logger.warning("%s is not published yet: %s. Remedy: %s", name, why, remedy(name))

    def warn_of_dropped(self, path: Path, why: str = "") -> None:
        """Warn of a checkpoint that was changed or deleted before all of it was sent; `why`: what else is known."""
        self._dropped += 1
        if time.monotonic() < self._dropped_next_at:
            return
        before = f" ({self._dropped - 1} more like it since the last warning)" if self._dropped > 1 else ""
        self._dropped, self._dropped_next_at = 0, time.monotonic() + DROPPED_INTERVAL
        if path.exists():
            logger.warning(
                "the program wrote to %s before all of it was sent, so that it is not published as it was%s%s. Remedy: "
                "let the program write each checkpoint to another name and rename it to its own, or %s",
                path.name,
                before,
                why,
                REMEDY,
            )
        else:
            logger.warning(
                "the program deleted %s before all of it was sent: a restart cannot go on from it%s%s. Remedy: %s",
                path.name,
                before,
                why,
                REMEDY,
            )

    def warn_of_error(self, error: Exception) -> None:
        """Log an unforeseen error, with its traceback."""
        if repr(error) not in self._warned:
            self._warned.add(repr(error))
            logger.error("unexpected error in the scan for checkpoints: it will be repeated", exc_info=error)
