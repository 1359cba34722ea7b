"""Git: fetches one commit of a repository."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.prepare import command
from airflow_provider_ocidist.agent.prepare.git.credentials import Credentials, credentials_for
from airflow_provider_ocidist.agent.prepare.git.failures import CannotGive, NetworkFailed, git_error
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.agent_config import CONFIG_VARIABLE
from airflow_provider_ocidist.model.git_source import COMMIT, REF, Repository

logger = logging.getLogger(__name__)

PAUSES = (1.0, 3.0, 8.0)
"""Seconds before each further try over the network."""
STALLED_AFTER_S = 60


def clone(
    repository: Repository, folder: Path, secret: str | None, environ: Mapping[str, str], switch: StopSwitch
) -> str:
    """Fetch one commit and nothing of its history, with its submodules, into a new folder; return its id.

    `secret` is an SSH key, known hosts after it if they are to be pinned, or a token (`user:token` where the
    server asks for a name). Raises AgentError that says what is wrong.
    """
    if repository.ref and not REF.fullmatch(repository.ref):
        raise AgentError(f"{repository.ref!r} is not a branch, tag or commit", cause=Cause.CONFIG)
    if not shutil.which("git", path=environ.get("PATH", os.defpath)):
        raise AgentError(
            f"the code {repository.url} cannot be fetched: git is not installed on this node: "
            "choose an image that has it, or give the code as an archive or a folder",
            cause=Cause.CONFIG,
        )
    started = time.monotonic()
    with credentials_for(repository, secret) as credentials:
        git = Git(repository, folder, _environment(environ, credentials), switch)
        git.fetch()
        git.fetch_submodules()
        commit = git.commit()
    logger.info("fetched %s at %s in %.1f s", repository.url, commit, time.monotonic() - started)
    return commit


class Git:
    """Git in one folder. Every method raises AgentError, or Stopped when the node is to stop."""

    def __init__(
        self, repository: Repository, folder: Path, environ: Mapping[str, str], switch: StopSwitch
    ) -> None:
        self.repository = repository
        self.folder = folder
        self.environ = environ
        self.switch = switch

    def fetch(self) -> None:
        url, ref = self.repository.url, self.repository.ref
        self._run("init", "--quiet", str(self.folder), inside=False)
        # Submodules with relative URLs ask for it.
        self._run("remote", "add", "--", "origin", url)
        try:
            self._over_network("fetch", "--quiet", "--no-tags", "--depth=1", "origin", ref or "HEAD")
            wanted = "FETCH_HEAD"
        except CannotGive:
            wanted = self._fetch_all(ref)
        self._run("checkout", "--quiet", "--detach", wanted)

    def _fetch_all(self, ref: str | None) -> str:
        """Fetch everything, where the server gives no single commit; return what to check out."""
        if ref and not COMMIT.fullmatch(ref):
            self._require_branch_or_tag(ref)
        head = [] if ref else ["+HEAD:refs/ocidist/head"]
        everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        self._over_network("fetch", "--quiet", "origin", *everything, *head)
        for name in [f"refs/remotes/origin/{ref}", f"refs/tags/{ref}", ref] if ref else ["refs/ocidist/head"]:
            question = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
            answer = self._finished(*question)
            if answer.exit_code == 0:
                return answer.output.strip()
        raise self._no_such_ref()

    def _require_branch_or_tag(self, ref: str) -> None:
        listed = self._over_network("ls-remote", "--quiet", "origin", f"refs/heads/{ref}", f"refs/tags/{ref}")
        if not listed.strip():
            raise self._no_such_ref()

    def _no_such_ref(self) -> AgentError:
        return AgentError(
            f"the repository {self.repository.url} has no branch, tag or commit {self.repository.ref or 'HEAD'!r}: "
            "correct program.source",
            cause=Cause.CONFIG,
        )

    def fetch_submodules(self) -> None:
        if not (self.folder / ".gitmodules").is_file():
            return
        update = ("submodule", "--quiet", "update", "--init", "--recursive")
        try:
            self._over_network(*update, "--depth=1", submodules=True)
        except CannotGive:
            self._over_network(*update, submodules=True)

    def commit(self) -> str:
        return self._run("rev-parse", "HEAD").strip()

    def _over_network(self, *arguments: str, submodules: bool = False) -> str:
        """Run git, again if the network failed; raise CannotGive when there may be another way."""
        environ = dict(self.environ)
        if submodules and not self.repository.url.startswith(("/", "file://")):
            # A remote repository must not read files of this node.
            environ["GIT_ALLOW_PROTOCOL"] = "http:https:ssh:git"
        for pause in (*PAUSES, None):
            done = self._finished(*arguments, environ=environ)
            if done.exit_code == 0:
                return done.output
            failure = git_error(done.output, self.repository, self.folder)
            if not isinstance(failure, NetworkFailed) or pause is None:
                raise failure
            logger.warning("%s; trying again in %.0f s", failure, pause)
            self.switch.pause(pause)
        raise AssertionError("unreachable")

    def _run(self, *arguments: str, inside: bool = True) -> str:
        done = self._finished(*arguments, inside=inside)
        if done.exit_code:
            raise git_error(done.output, self.repository, self.folder)
        return done.output

    def _finished(
        self, *arguments: str, inside: bool = True, environ: Mapping[str, str] | None = None
    ) -> command.Finished:
        place = ["-C", str(self.folder)] if inside else []
        return command.run(["git", *place, *arguments], environ or self.environ, self.switch)


def _environment(environ: Mapping[str, str], credentials: Credentials) -> dict[str, str]:
    """Return the node's environment for git: no prompts, no secrets in traces, no waiting for a stalled server."""
    hidden = ("GIT_TRACE", "GIT_CURL_VERBOSE", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_DIR", "GIT_WORK_TREE")
    inherited = {
        name: value
        for name, value in environ.items()
        if not name.startswith(hidden) and name != CONFIG_VARIABLE
    }
    return {
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
        **inherited,
        # Messages are matched by their words.
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "http:https:ssh:git:file",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": str(STALLED_AFTER_S),
        **_settings({"gc.auto": "0", "maintenance.auto": "false", **credentials.settings}, inherited),
        **credentials.variables,
    }


def _settings(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that add these settings to those that git has already."""
    first = int(environ.get("GIT_CONFIG_COUNT") or 0)
    made = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (name, value) in enumerate(settings.items(), first):
        made |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return made
