"""Job files as commands name them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.errors import JobFileError, Problem


def read(file: str) -> str:
    from airflow_provider_ocidist import job_file

    try:
        return job_file.read(Path(file))
    except JobFileError as error:
        raise Unusable(f"{file}: {error.problems[0].message}") from error


def problem_line(file: str, problem: Problem) -> str:
    """Return a problem as compilers print them, so that editors and terminals find the line."""
    place = f"{file}:{problem.line}" if problem.line is not None else file
    return f"{place}: {replace(problem, line=None)}"
