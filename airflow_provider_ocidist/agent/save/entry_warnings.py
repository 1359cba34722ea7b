"""EntryWarnings: what in a checkpoint folder is not published, each warned of once."""

from __future__ import annotations

import logging
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import is_unplaced, names_in
from airflow_provider_ocidist.agent.save.proofs import remedy

logger = logging.getLogger(__name__)


class EntryWarnings:
    """Logs what a person can mend while the training runs."""

    def __init__(self, folder: Path, pattern: str | None) -> None:
        self._folder = folder
        self._pattern = pattern
        self._names: set[str] = set()
        """Names of all entries of the folder at the last look, which looked at each of them."""
        self._warned: set[object] = set()

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

    def warn_of_mixture(self, name: str, why: str) -> None:
        """Warn of an entry with files of two saves."""
        if ("mixed", name) not in self._warned:
            self._warned.add(("mixed", name))
            logger.warning("%s is not published yet: %s. Remedy: %s", name, why, remedy(name))

    def warn_of_error(self, error: Exception) -> None:
        """Log an unforeseen error, with its traceback."""
        if repr(error) not in self._warned:
            self._warned.add(repr(error))
            logger.error("unexpected error in the scan for checkpoints: it will be repeated", exc_info=error)
