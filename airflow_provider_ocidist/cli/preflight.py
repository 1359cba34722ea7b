"""`ocidist preflight`: what would stop a job at the service, and how to fix it."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from airflow_provider_ocidist.backends.capabilities import ChecksBeforehand, Finding, Mark
from airflow_provider_ocidist.backends.local.plans import KIND as LOCAL
from airflow_provider_ocidist.cli.connection import absence_of, add_connection, backend_of
from airflow_provider_ocidist.cli.files import add_file, load, problems_of
from airflow_provider_ocidist.cli.terminal import FINE, WRONG, add_json, counted, last_output, print_json, say

if TYPE_CHECKING:
    from airflow_provider_ocidist.backends.base import Backend
    from airflow_provider_ocidist.gangs.candidates import Candidates
    from airflow_provider_ocidist.model.git_source import Repository
    from airflow_provider_ocidist.model.job import TrainingJob
    from airflow_provider_ocidist.model.run import RunKey

GIT_PATIENCE = 20.0
"""Seconds within which the Git server must answer."""
STYLES = {Mark.PASS: "green", Mark.WARN: "yellow", Mark.FAIL: "red"}


def add_preflight(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    add_connection(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    job = load(options.file, options)
    backend = backend_of(options, job.backend.kind)
    with problems_of(options.file, absence_of(options, job.backend.kind)):
        findings = [*_source(job), *_script(job), *_outputs(job), *_places(backend, job)]
    with last_output():
        if options.json:
            print_json([asdict(finding) for finding in findings])
        else:
            _print(findings)
    return WRONG if any(finding.mark is Mark.FAIL for finding in findings) else FINE


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        say(f"{finding.mark:<4}  {finding.subject:<{width}}  {finding.message}", STYLES[finding.mark])
        if finding.fix is not None:
            say(f"{'':<4}  {'':<{width}}  -> {finding.fix}")
    failed = sum(finding.mark is Mark.FAIL for finding in findings)
    warned = sum(finding.mark is Mark.WARN for finding in findings)
    say(f"{counted(len(findings), 'check')}: {failed} failed, {warned} with a warning", "bold")


def _places(backend: Backend, job: TrainingJob) -> list[Finding]:
    """Return the findings of each choice of a job: of a candidate, those that the section itself does not have."""
    from airflow_provider_ocidist.gangs.candidates import Candidates

    candidates = Candidates(backend, job, logging.getLogger(__name__))
    # Raises for a job that `run` would refuse, also where the backend checks nothing beforehand.
    candidates.plan(_key(job), 0)
    findings = _place(backend, job)
    of_section = frozenset(findings)
    for number in range(1, len(job.choices)):
        found = _of_candidate(candidates, job, number)
        own = [each for each in found if each.mark is Mark.FAIL or each not in of_section]
        own = own or [Finding.passed("place", "no other findings than those of the section itself")]
        findings += [replace(each, subject=f"candidate {number}: {each.subject}") for each in own]
    return findings


def _key(job: TrainingJob) -> RunKey:
    from airflow_provider_ocidist.model.run import RunKey

    return RunKey(dag_id=job.name, run_id="run", task_id="task")


def _of_candidate(candidates: Candidates, job: TrainingJob, number: int) -> list[Finding]:
    from airflow_provider_ocidist.errors import BackendError, JobFileError

    try:
        # It names problems by the candidate's own path.
        candidates.plan(_key(job), number)
        return _place(candidates.backend_of(number), job.at_choice(number))
    except JobFileError as error:
        fix = "correct it in the candidate, or in its connection"
        return [Finding.failed("job", f"{each.path} {each.message}", fix) for each in error.problems]
    except BackendError as error:
        return [Finding.failed("connection", str(error), "try again, or correct the candidate's connection")]


def _place(backend: Backend, job: TrainingJob) -> list[Finding]:
    if isinstance(backend, ChecksBeforehand):
        return backend.preflight(job)
    what = f"backend {backend.kind!r} {ChecksBeforehand.cannot}"
    return [Finding.warned("place", what, "see `ocidist plan`")]


def _source(job: TrainingJob) -> list[Finding]:
    """Return whether code in Git can be fetched; only the nodes can open a private repository."""
    from airflow_provider_ocidist.model.git_source import parse

    repository = parse(job.program.source or "")
    if repository is None:
        return []
    if job.program.source_secret is not None or repository.password is not None:
        what = f"{repository.url} is private: it was not tried, as only the nodes have its secret"
        return [Finding.warned("git", what, "try `git ls-remote` yourself")]
    if shutil.which("git") is None:
        what = "git is not installed here, so the source was not tried"
        return [Finding.warned("git", what, "install git")]
    return [_remote(repository)]


def _script(job: TrainingJob) -> list[Finding]:
    """Return whether the Python here can compile the script, where that lies here as a file."""
    from airflow_provider_ocidist.job_file.rules.code import script_file

    file = script_file(job)
    if file is None or file.suffix != ".py":
        return []
    here = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    try:
        with warnings.catch_warnings():
            # What only may be wrong stops no job.
            warnings.simplefilter("ignore")
            compile(file.read_bytes(), job.program.script, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        what = f"{job.program.script} is no program for {here}{line}: {reason}"
        return [
            Finding.warned("script", what, "correct it, unless the nodes have a newer Python that takes it")
        ]
    return [Finding.passed("script", f"{here} compiles {job.program.script}")]


def _outputs(job: TrainingJob) -> list[Finding]:
    """Return the links in the folders for outputs, where these are of this machine: a node says it late."""
    from airflow_provider_ocidist.agent.save.outputs import linked_folders

    if job.backend.kind != LOCAL:
        return []
    fix = "name the folder that it leads to as the place of an output of its own"
    return [
        Finding.warned("outputs", f"{link} is a link: files that would lie behind it are not copied", fix)
        for link in dict.fromkeys(link for output in job.outputs for link in linked_folders(output.uri))
    ]


def _remote(repository: Repository) -> Finding:
    quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    try:
        done = subprocess.run(
            ["git", "ls-remote", "--", repository.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_PATIENCE,
            env=quiet,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        what = f"{repository.url}: no answer within {GIT_PATIENCE:.0f} s"
        return Finding.failed("git", what, "check the address and the network")
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"])[-1]
        fix = "correct program.source; a private one needs program.source_secret"
        return Finding.failed("git", f"{repository.url}: {said}", fix)
    return ref_finding(repository, done.stdout)


def ref_finding(repository: Repository, listing: str) -> Finding:
    """Return whether what `git ls-remote` has printed holds the wanted branch, tag or commit."""
    from airflow_provider_ocidist.model.git_source import COMMIT

    refs = {name: commit for commit, _, name in (line.partition("\t") for line in listing.splitlines())}
    wanted = repository.ref or "HEAD"
    for name in (wanted, f"refs/heads/{wanted}", f"refs/tags/{wanted}"):
        if name in refs:
            return Finding.passed("git", f"{repository.url}: {wanted} is {refs[name][:12]}")
    if COMMIT.fullmatch(wanted):
        if any(commit.startswith(wanted.lower()) for commit in refs.values()):
            return Finding.passed("git", f"{repository.url}: {wanted} is there")
        what = f"{repository.url}: commit {wanted} is the head of no branch"
        return Finding.warned("git", what, "it may be an older one; only a run can confirm it")
    what = f"{repository.url} has no branch or tag {wanted}"
    return Finding.failed("git", what, "correct what follows # or @ in program.source")
