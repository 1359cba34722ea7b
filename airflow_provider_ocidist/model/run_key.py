"""The key of a gang, from which all its names derive, and the try of its task that asks for it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import field

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import codec


@dataclass(frozen=True, kw_only=True)
class RunKey:
    """The key of a gang: one task of one DAG run, with the numbers of its generation and its attempt.

    The same key never creates twice: every name, tag and retry token is derived from it.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    generation: int = 0
    """Number that grows when the task is cleared (Airflow's `max_tries`); a retry keeps it."""
    attempt: int = 1
    """Number that grows when a gang of this generation has ended without success and another is wanted."""

    @property
    def task_digest(self) -> str:
        """The name of the task, whatever its generation and attempt: 16 hexadecimal digits."""
        return _digest(self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def task_name(self) -> str:
        """Readable, unique for each task and generation: the folder of its checkpoints."""
        return f"{self.stem}{self.generation}"

    @property
    def stem(self) -> str:
        """What `task_name` begins with in every generation; the generation follows."""
        return f"{_slug(self.dag_id)[:40]}-{_slug(self.task_id)[:40]}-{self.task_digest}-g"

    @staticmethod
    def stem_in(task_name: str) -> tuple[str, int] | None:
        """Return stem and generation of a `task_name`; None: it is none."""
        before, mark, generation = task_name.rpartition("-g")
        return (before + mark, int(generation)) if before and generation.isdecimal() else None

    @property
    def name(self) -> str:
        """Readable, unique for each attempt: the display name of the job, the run directory, the rendezvous id."""
        return f"{self.task_name}-a{self.attempt}"

    @staticmethod
    def attempt_in(name: str) -> int | None:
        """Return the attempt of a `name`; None: it is none."""
        before, _, attempt = name.rpartition("-a")
        return int(attempt) if before and attempt.isdecimal() else None

    def token(self, *parts: object) -> str:
        """Return the idempotency token of one request of this attempt."""
        return f"ocidist-{_digest(self.name, *parts, length=40)}"


def _digest(*parts: object, length: int = 16) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:length]


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-") or "x"


@dataclass(frozen=True, kw_only=True)
class Tries:
    """Which try of its task asks for a gang, in Airflow's numbers."""

    try_number: int = field(metadata=codec.key("number"))
    """Number of the try, from 1; it grows with every retry and every clear."""
    max_tries: int
    retries: int | None = None
    """Retries that the task has at present; None: not known."""

    @property
    def cleared_after(self) -> int | None:
        """After how many tries the task was cleared last, 0 for never; None where the numbers do not show it.

        Exact unless `retries` was edited since and the task was not cleared.
        """
        if self.retries is None:
            return None
        after = self.max_tries - self.retries
        return after if 0 <= after < self.try_number else None
