"""Candidates: which of a job's choices of machines is asked for now. No Airflow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_ocidist.backends.base import Backend
from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.backends.connections import beside
from airflow_provider_ocidist.errors import BackendError, Cause, JobFileError, Problem
from airflow_provider_ocidist.gangs.task_log import TaskLog
from airflow_provider_ocidist.model.job import TrainingJob
from airflow_provider_ocidist.model.masking import masked
from airflow_provider_ocidist.model.refusal import NO_MACHINE, Refusal
from airflow_provider_ocidist.model.run import Plan, RunKey


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice to ask for, and the choices before it that are skipped."""

    number: int
    skipped: tuple[int, ...] = ()
    is_free: bool = True
    """Whether the choice was not refused lately; where all were, it is the one with the oldest refusal."""


def choose(nodes: int, refused: Sequence[Refusal | None], now: float) -> Choice:
    """Return the first choice that was not refused lately. `refused`: the newest refusal of each."""
    skipped: list[int] = []
    for number, refusal in enumerate(refused):
        if refusal is None or not refusal.holds(nodes, now):
            return Choice(number, tuple(skipped))
        skipped.append(number)
    oldest = min(skipped, key=lambda number: _at(refused[number]))
    return Choice(oldest, is_free=False)


def _at(refusal: Refusal | None) -> float:
    return -math.inf if refusal is None else refusal.at


def label(change: Mapping[str, Any]) -> str:
    """Return what a candidate changes, for people: `shape VM.GPU.A10.2, ocpus 4`; empty for the section as it is."""
    # The text is logged, published as XCom and shown on the page.
    return ", ".join(f"{name} {_shown(value)}" for name, value in masked(change).items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def labels(job: TrainingJob) -> list[str]:
    """Return the text for each choice of a job; none if it has one only."""
    if not job.backend.candidates:
        return []
    return ["as the job says", *map(label, job.backend.candidates)]


class Candidates:
    """The choices of one job on one backend, and what is known of their refusals."""

    def __init__(self, backend: Backend, job: TrainingJob, log: TaskLog, plans: Iterable[Plan] = ()) -> None:
        """`plans`: plans that the backend has already made of this job, in the order of its choices."""
        self._plans = {(plan.key, number): plan for number, plan in enumerate(plans)}
        self._backend = backend
        self._job = job
        self._log = log
        self._own: dict[int, Refusal] = {}
        """Refusals that this process has met, since the work directory may not be writable."""

    @property
    def several(self) -> bool:
        """Whether the job names more than one choice."""
        return len(self._job.choices) > 1

    def number_of(self, text: str) -> int | None:
        """Return the choice with this text; None if the job no longer has it."""
        found = [number for number, change in enumerate(self._job.choices) if label(change) == text]
        return found[0] if found else None

    def plan(self, key: RunKey, number: int = 0) -> Plan:
        """Return the plan of one choice, made once.

        Raises JobFileError, which names the candidate; BackendError where its connection cannot be had now.
        """
        if (key, number) not in self._plans:
            job = self._job.at_choice(number)
            try:
                plan = self.backend_of(number).plan(job, key)
            except JobFileError as error:
                raise _in_candidate(error, number) if number else error from None
            self._plans[key, number] = replace(plan, candidate=label(self._job.choices[number]))
        return self._plans[key, number]

    def backend_of(self, number: int) -> Backend:
        """Return the backend of a choice's connection.

        Raises JobFileError where there is none that can be used, and BackendError where that may pass.
        """
        conn_id = self._job.at_choice(number).backend.conn_id
        try:
            return beside(self._backend, conn_id)
        except BackendError as error:
            if error.retryable:
                raise BackendError(
                    f"{_path_of(number)}.conn_id: {error}", retryable=True, cause=error.cause
                ) from error
            raise JobFileError([Problem("backend.conn_id", str(error))], self._job.name) from error

    def plans(self, key: RunKey) -> list[Plan]:
        """Return the plans of all choices, in order. Raises JobFileError, which names the candidate."""
        return [self.plan(key, number) for number in range(len(self._job.choices))]

    def chosen(self, key: RunKey) -> int:
        """Return the choice to ask for now, and log which are skipped. Raises JobFileError for any of them."""
        if not self.several:
            return 0
        refused, now = self._refused(key), now_at(self._backend)
        choice = choose(self._job.nodes, refused, now)
        for number in choice.skipped:
            self._log.info("skipped: %s", self._why(number, refused[number], now))
        if not choice.is_free:
            self._log.info("every candidate was refused lately; asking for the one with the oldest refusal")
        if choice.number:
            self._log.info(
                "asking for candidate %d of %d: %s",
                choice.number,
                len(self._job.choices) - 1,
                label(self._job.choices[choice.number]),
            )
        return choice.number

    def refuse(
        self, key: RunKey, candidate: str, cause: Cause, message: str, at: float | None = None
    ) -> bool:
        """Record that a candidate was refused; return whether the job has one that was not.

        `at`: Unix time of the refusal, by the service's clock; None: now.
        """
        number = self.number_of(candidate)
        if cause not in NO_MACHINE or number is None:
            return False
        now = now_at(self._backend)
        refusal = Refusal(cause=cause, message=message, at=now if at is None else at, nodes=self._job.nodes)
        self._own[number] = refusal
        self._backend.directories.refusals.note(self.plan(key, number), refusal, now)
        return self.several and choose(self._job.nodes, self._refused(key), now).is_free

    def lacks_capacity(self, key: RunKey) -> bool:
        """Whether a choice was refused lately for want of capacity: it may have machines later."""
        now = now_at(self._backend)
        return any(
            refusal is not None and refusal.cause is Cause.CAPACITY and refusal.holds(self._job.nodes, now)
            for refusal in self._refused(key)
        )

    def _refused(self, key: RunKey) -> list[Refusal | None]:
        plans = self.plans(key)
        found = self._backend.directories.refusals.of(plans)
        return [max((found[number], self._own.get(number)), key=_at) for number in range(len(plans))]

    def _why(self, number: int, refusal: Refusal | None, now: float) -> str:
        assert refusal is not None
        minutes = refusal.age(now) / 60
        what = labels(self._job)[number]
        return f"{what}, refused {minutes:.0f} min ago ({refusal.cause}: {refusal.message})"


def _path_of(number: int) -> str:
    return f"backend.candidates.{number - 1}" if number else "backend"


def _in_candidate(error: JobFileError, number: int) -> JobFileError:
    """Return the error with the paths of the candidate, from 0 in the job file."""
    place = _path_of(number)
    problems = [
        Problem(place + problem.path.removeprefix("backend"), problem.message, problem.line)
        if problem.path.startswith("backend")
        else problem
        for problem in error.problems
    ]
    return JobFileError(problems, error.source)
