"""HangEvidence: what a node saves about a training that hangs, before it ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.diagnose import flight_records, stacks
from airflow_provider_ocidist.agent.diagnose.stacks import ProcessStack
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.report import StackPosition
from airflow_provider_ocidist.model.work_dir import flight_record_of, stacks_of

logger = logging.getLogger(__name__)

Write = Callable[[str, bytes], object]
"""Function that writes a file into the run directory. Raises OcidistError or OSError."""
LINES = 64
"""Most processes whose line is logged: one node has up to eight ranks, each with its loaders."""


class HangEvidence:
    """Asks the processes of one node for their stacks, and saves the answers in the run directory."""

    def __init__(self, folder: Path, rank: int, write: Write, mask: Callable[[str], str]) -> None:
        """`folder`: the node's own, for what the processes write; `mask` hides secrets."""
        self.rank = rank
        self.write = write
        self.mask = mask
        self.stack_file = folder / "stacks"
        """Beginning of the names of the files into which processes answer."""
        self.records = folder / "flight"
        self.records.mkdir(exist_ok=True)

    def environment(self) -> Mapping[str, str]:
        """Return the variables with which the processes of the training can answer."""
        return {
            "OCIDIST_STACK_FILE": str(self.stack_file),
            "OCIDIST_STACK_SIGNAL": str(int(stacks.STACK_SIGNAL)),
            "OCIDIST_FLIGHT_RECORDS": str(self.records),
        }

    def begin(self) -> None:
        """Delete what an earlier launch has left."""
        answers = self.stack_file.parent.glob(f"{self.stack_file.name}.*")
        for path in [*answers, *self.records.iterdir()]:
            path.unlink(missing_ok=True)

    def keep(self, guard_pid: int, launch: int, search: str | None) -> tuple[StackPosition, ...]:
        """Save stacks and flight records of a hang; return its ranks' stack positions. `search`: the program's PATH."""
        taken = stacks.take(guard_pid, self.stack_file, search)
        logger.error("the training hangs:\n%s", "\n".join(stack.line for stack in taken[:LINES]))
        if not self._write(stacks_of(launch, self.rank), self.mask(stacks.as_text(taken)).encode()):
            _log_whole(taken)
        flight_records.ask_for(self.records)
        self.keep_records(launch)
        return stacks.stack_positions(taken)

    def keep_records(self, launch: int) -> None:
        """Save the flight records that are there: torch writes them also when a collective has timed out."""
        for rank, record in flight_records.records_in(self.records).items():
            found = flight_records.stuck_collective(record)
            if found:
                logger.error("rank %d, by its flight record: %s", rank, found)
            self._write(flight_record_of(launch, rank), record.read_bytes())

    def _write(self, name: str, content: bytes) -> bool:
        try:
            self.write(name, content)
        except (OcidistError, OSError) as error:
            logger.warning("%s cannot be kept in the run directory: %s", name, error)
            return False
        logger.info("kept in the run directory: %s", name)
        return True


def _log_whole(taken: Sequence[ProcessStack]) -> None:
    for stack in taken:
        if stack.text:
            logger.error("%s", stack.text)
