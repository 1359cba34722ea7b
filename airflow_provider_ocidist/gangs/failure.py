"""Failure: why a training failed, for a person or the next task. Pure; no Airflow."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.agent.diagnose.symptoms import symptom_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.gangs.diagnoses import node_of
from airflow_provider_ocidist.model.causes import MEANINGS
from airflow_provider_ocidist.model.masking import masked_text
from airflow_provider_ocidist.model.plain_text import plain_text
from airflow_provider_ocidist.model.run import RunRecord, RunStatus

LAST_LINES = 20
"""Most lines of a node's output in a failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What the task publishes when it fails; small enough for XCom."""

    cause: Cause
    message: str
    remedy: str
    rank: int | None = None
    """Rank of the failed node; None if the failure is that of all nodes, or of none."""
    node: str | None = None
    """Id of that node's run at the service."""
    exit_code: int | None = None
    """Exit code of the training on that node, negative for a signal; without an agent, that of its container."""
    last_lines: tuple[str, ...] = ()
    """Last lines of that node's output."""
    checkpoint_uri: str | None = None
    """URI that a retry resumes from; after a clear only with `checkpoints.resume_after_clear`."""

    @classmethod
    def of(cls, cause: Cause, message: str, record: RunRecord, status: RunStatus) -> Failure:
        """Return the failure of a gang."""
        node = node_of(record, status, message)
        report = node.report if node else None
        tail = (report.tail if report else None) or (node.tail if node else None) or ""
        return cls(
            cause=cause,
            message=plain_text(masked_text(message)),
            remedy=remedy_of(cause, message),
            rank=node.rank if node else None,
            node=node.run_id if node else None,
            exit_code=node.exit_code if node else None,
            last_lines=tuple(map(masked_text, plain_text(tail).splitlines()[-LAST_LINES:])),
            checkpoint_uri=status.checkpoint.uri if status.checkpoint else None,
        )

    @property
    def sentence(self) -> str:
        """One line for a person: where, what, and the remedy."""
        return f"{self.message.rstrip('.')}. Remedy: {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "cause": str(self.cause), "last_lines": list(self.last_lines)}


def remedy_of(cause: Cause, message: str) -> str:
    """Return the remedy: by the error's text if it is a known symptom, else by the cause."""
    return _known_remedy(cause, message) or MEANINGS[cause].remedy


def remedy_on_terminal(cause: Cause, message: str) -> str:
    """Return the remedy in the words of the command line, where no task retries."""
    return _known_remedy(cause, message) or MEANINGS[cause].on_terminal or MEANINGS[cause].remedy


def _known_remedy(cause: Cause, message: str) -> str | None:
    symptom = symptom_of(message)
    return symptom.remedy if symptom is not None and symptom.cause is cause else None
