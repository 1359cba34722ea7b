"""`ocidist check`: all errors in job files."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from airflow_provider_ocidist.cli.completion import complete_with, yaml_files
from airflow_provider_ocidist.cli.connection import add_connection
from airflow_provider_ocidist.cli.files import WrongFile, add_overrides, load, problem_line, problems_of
from airflow_provider_ocidist.cli.plan import first_plan
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    UNUSABLE,
    WRONG,
    Unusable,
    add_json,
    counted,
    last_output,
    print_json,
    say,
)
from airflow_provider_ocidist.errors import Problem


def add_check(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument("files", nargs="+", metavar="FILE", help="path or URI of a job file")
    complete_with(files, yaml_files)
    add_overrides(parser)
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """The result for one file."""

    file: str
    problems: tuple[Problem, ...] = ()
    unusable: str | None = None
    summary: str = ""

    @property
    def exit_code(self) -> int:
        return UNUSABLE if self.unusable else WRONG if self.problems else FINE


def run(options: argparse.Namespace) -> int:
    verdicts = [_verdict(file, options) for file in options.files]
    with last_output():
        if options.json:
            print_json([_verdict_json(verdict) for verdict in verdicts])
        else:
            for verdict in verdicts:
                _print_verdict(verdict)
    return max(verdict.exit_code for verdict in verdicts)


def _verdict(file: str, options: argparse.Namespace) -> _Verdict:
    from airflow_provider_ocidist.job_file.parsing import place_shown

    place = place_shown(file)
    try:
        job = load(file, options, templates=True)
        with problems_of(place):
            first_plan(job, {})
    except Unusable as error:
        return _Verdict(place, unusable=str(error))
    except WrongFile as error:
        return _Verdict(place, problems=error.problems)
    nodes = counted(job.nodes, "node")
    return _Verdict(place, summary=f"{job.name}: {nodes}, {job.launcher.kind}, on {job.backend.kind}")


def _verdict_json(verdict: _Verdict) -> dict[str, Any]:
    problems = [{"path": item.path, "message": item.message, "line": item.line} for item in verdict.problems]
    return {
        "file": verdict.file,
        "ok": verdict.exit_code == FINE,
        "problems": problems,
        "error": verdict.unusable,
    }


def _print_verdict(verdict: _Verdict) -> None:
    if verdict.unusable:
        say(f"ocidist: {verdict.unusable}", "red", stderr=True)
    elif verdict.problems:
        for problem in verdict.problems:
            say(problem_line(verdict.file, problem), "red")
    else:
        say(f"{verdict.file}: ok ({verdict.summary})", "green")
