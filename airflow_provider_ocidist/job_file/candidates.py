"""The candidates of a job: each is checked as the section that it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from airflow_provider_ocidist.errors import Problem
from airflow_provider_ocidist.job_file import schema
from airflow_provider_ocidist.job_file.rules import rules_of_the_place
from airflow_provider_ocidist.kinds import DEFAULT_BACKEND
from airflow_provider_ocidist.model.job import BackendOptions, TrainingJob

PLACE = "backend.candidates"
THE_SAME_EVERYWHERE = ("kind", "candidates")
"""Keys that no candidate may change: its gang is watched, ended and read as the others are."""
HOMES_OF_OTHERS = (DEFAULT_BACKEND, "pytorchjob", "trainjob")
"""Kinds of backends whose candidates may name another connection."""
MOST_CANDIDATES = 20
"""Most candidates, since each is planned, and looked up, before a gang is created."""


def checked(
    options: type[BackendOptions],
    backend: Mapping[str, Any],
    homes: Mapping[str, str],
    *,
    templates: bool,
) -> tuple[tuple[Mapping[str, Any], ...], list[Problem]]:
    """Return the candidates of a section with values of the declared types, and the problems of each."""
    given = backend.get("candidates") or ()
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        return (), []
    section = {name: value for name, value in backend.items() if name != "candidates"}
    found: list[Mapping[str, Any]] = []
    problems: list[Problem] = []
    for number, change in enumerate(given):
        wrong = [*_changes(change, number, section["kind"]), *_too_many(number)]
        if wrong:
            found.append({})
        else:
            merged, faults = schema.check(
                options, {**section, **change}, at="backend", homes=homes, templates=templates
            )
            wrong = [problem for problem in (_moved(each, number, change) for each in faults) if problem]
            known = {item.name for item in fields(options)}
            found.append({name: getattr(merged, name) for name in change if name in known})
        problems += wrong
    return tuple(found), problems


def of_section(options: BackendOptions) -> Iterator[Problem]:
    """Report what only a candidate may say."""
    if options.conn_id is not None:
        why = (
            "is for candidates only: the section itself is for the connection of the task (the operator's conn_id, "
            "--conn-id of ocidist)"
        )
        yield Problem("backend.conn_id", why)


def _changes(change: Mapping[str, Any], number: int, kind: Any) -> Iterator[Problem]:
    if not change:
        yield Problem(f"{PLACE}.{number}", "is empty: it would ask for the same machines again")
    for name in THE_SAME_EVERYWHERE:
        if name in change:
            yield Problem(f"{PLACE}.{number}.{name}", "is the same for all candidates: leave it out")
    if "conn_id" in change and kind not in HOMES_OF_OTHERS:
        known = ", ".join(HOMES_OF_OTHERS)
        why = f"is not supported by backend {kind!r}: only gangs of {known} may be at another connection"
        yield Problem(f"{PLACE}.{number}.conn_id", why)


def _too_many(number: int) -> Iterator[Problem]:
    if number == MOST_CANDIDATES:
        yield Problem(f"{PLACE}.{number}", f"is one too many: {MOST_CANDIDATES} are allowed")


def _moved(problem: Problem, number: int, change: Mapping[str, Any]) -> Problem | None:
    """Return the problem at the candidate's own path; None for one of the section itself, which is reported there."""
    _, _, rest = problem.path.partition(".")
    return replace(problem, path=f"{PLACE}.{number}.{rest}") if rest.partition(".")[0] in change else None


def rules_of_each(job: TrainingJob, of_job: Sequence[Problem]) -> list[Problem]:
    """Return the problems that candidates add to those of the job itself. `of_job`: what `rules` found in it."""
    known = {(problem.path, problem.message) for problem in of_job}
    found: list[Problem] = []
    for number, change in enumerate(job.backend.candidates):
        if not change:
            continue
        broken = rules_of_the_place(job.at_choice(number + 1))
        own = [problem for problem in broken if (problem.path, problem.message) not in known]
        found += [_moved(problem, number, change) or _of_all(problem, number) for problem in own]
    return [*found, *_repeated(job)]


def _of_all(problem: Problem, number: int) -> Problem:
    """Return a problem that only the candidate and the rest of the job have together."""
    return replace(problem, path=f"{PLACE}.{number}", message=f"with it, {problem.path} {problem.message}")


def _repeated(job: TrainingJob) -> Iterator[Problem]:
    seen = [job.at_choice(0).backend]
    for number, change in enumerate(job.backend.candidates):
        options = job.at_choice(number + 1).backend
        if change and options in seen:
            yield Problem(f"{PLACE}.{number}", "asks for the same machines as one before it")
        seen.append(options)
