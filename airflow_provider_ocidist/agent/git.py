"""Git: fetches one commit of a repository; credentials reach git itself and its host, nobody and nothing else."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from airflow_provider_ocidist.agent import command, disk
from airflow_provider_ocidist.agent.config import CONFIG_VARIABLE
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import AgentError, Cause

logger = logging.getLogger(__name__)

GIT_URL = re.compile(
    r"(?P<url>(?:git\+|git@|ssh://|git://).*?|[a-z+]+://.*?\.git|/.*?\.git)(?:#(?P<ref>[^#]+)|@(?P<at>[^@#/:]+))?"
)
"""A ref follows `#`; or `@`, as pip has it, where it holds no slash (`git@host/path` names a user)."""
COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
REF = re.compile(r"(?![-./])(?!.*(?:\.\.|//|@\{|\.lock$|[/.]$))[^\x00-\x20\x7f~^:?*\[\\]+")
"""What `git check-ref-format` allows; `:` and `*` would make a refspec of it."""
PAUSES = (1.0, 3.0, 8.0)
"""Seconds before the network is tried again."""
TOKEN_USER = "x-access-token"  # noqa: S105 - a name
"""GitHub asks for this name beside a token, GitLab and Azure DevOps take any; others name one in the URL."""
HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" '
    '"$OCIDIST_GIT_USER" "$OCIDIST_GIT_TOKEN"; }; f'
)
"""A fixed text: the shell that git runs it with sees no other."""
STALLED_AFTER_S = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """What to fetch, and the credentials that stood in its URL."""

    url: str
    """Without a password."""
    ref: str | None = None
    """A branch, a tag or a commit; None: what the repository itself calls HEAD."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def is_web(self) -> bool:
        return self.url.startswith(("http://", "https://"))

    @property
    def is_ssh(self) -> bool:
        return self.url.startswith("ssh://") or bool(re.match(r"[^/:]+@[^/:]+:", self.url))

    @property
    def origin(self) -> str:
        """Scheme, host and port: whom the credentials are for."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


def parse(source: str) -> Repository | None:
    """Return the repository that a job's source names; None when it is no Git URL."""
    found = GIT_URL.fullmatch(source)
    if not found:
        return None
    url, ref = found["url"].removeprefix("git+"), found["ref"] or found["at"]
    if not url.startswith(("http://", "https://")):
        return Repository(url=url, ref=ref)
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    user, password = (unquote(text) if text else None for text in (parts.username, parts.password))
    return Repository(url=bare, ref=ref, user=user, password=password)


def clone(
    repository: Repository, folder: Path, secret: str | None, environ: Mapping[str, str], switch: StopSwitch
) -> str:
    """Fetch one commit and nothing of its history, with its submodules, into a new folder; return its id.

    `secret` is an SSH key, known hosts after it if they are to be pinned, or a token (`user:token` where the
    server asks for a name). Raises AgentError that tells what is wrong.
    """
    if repository.ref and not REF.fullmatch(repository.ref):
        raise AgentError(f"{repository.ref!r} is no branch, tag or commit", cause=Cause.CONFIG)
    if not shutil.which("git", path=environ.get("PATH", os.defpath)):
        raise AgentError(
            f"the code {repository.url} cannot be fetched: git is not installed on this node: "
            "choose an image that has it, or give the code as an archive or a folder",
            cause=Cause.CONFIG,
        )
    started = time.monotonic()
    with _credentials(repository, secret) as credentials:
        git = Git(repository, folder, _environment(environ, credentials), switch)
        git.fetch()
        git.fetch_submodules()
        commit = git.commit()
    logger.info("fetched %s at %s in %.1f s", repository.url, commit, time.monotonic() - started)
    return commit


class Git:
    """Git in one folder. Every method raises AgentError, or Stopped when the node is told to stop."""

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
        except _CannotGive:
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
        except _CannotGive:
            self._over_network(*update, submodules=True)

    def commit(self) -> str:
        return self._run("rev-parse", "HEAD").strip()

    def _over_network(self, *arguments: str, submodules: bool = False) -> str:
        """Run git, again if the network failed; raise _CannotGive when there may be another way."""
        environ = dict(self.environ)
        if submodules and not self.repository.url.startswith(("/", "file://")):
            # A repository from elsewhere has no business with files of this node.
            environ["GIT_ALLOW_PROTOCOL"] = "http:https:ssh:git"
        for pause in (*PAUSES, None):
            done = self._finished(*arguments, environ=environ)
            if done.exit_code == 0:
                return done.output
            failure = _failure(done.output, self.repository, self.folder)
            if not isinstance(failure, _NetworkFailed) or pause is None:
                raise failure
            logger.warning("%s; trying again in %.0f s", failure, pause)
            self.switch.pause(pause)
        raise AssertionError("unreachable")

    def _run(self, *arguments: str, inside: bool = True) -> str:
        done = self._finished(*arguments, inside=inside)
        if done.exit_code:
            raise _failure(done.output, self.repository, self.folder)
        return done.output

    def _finished(
        self, *arguments: str, inside: bool = True, environ: Mapping[str, str] | None = None
    ) -> command.Finished:
        place = ["-C", str(self.folder)] if inside else []
        return command.run(["git", *place, *arguments], environ or self.environ, self.switch)


class _NetworkFailed(AgentError):
    """What may pass."""


class _CannotGive(AgentError):
    """The server is there, and does not give this in this way."""


_ABSENT = re.compile(
    r"repository .*not found|does not appear to be a git repository|returned error: (?:404|410)"
    r"|project you were looking for could not be found|repository .*does not exist",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"could not read (?:username|password)|authentication failed|permission denied \(|access denied"
    r"|returned error: (?:401|403)|invalid username or|terminal prompts disabled|invalid format|error in libcrypto",
    re.IGNORECASE,
)
_UNKNOWN_HOST_KEY = re.compile(
    r"host key verification failed|remote host identification has changed", re.IGNORECASE
)
_NO_SUCH_REF = re.compile(
    r"couldn't find remote ref|not our ref|unadvertised object|does not support shallow|dumb http transport"
    r"|did not contain|reference is not a tree|unable to find current revision",
    re.IGNORECASE,
)
_NETWORK = re.compile(
    r"could not resolve|timed? ?out|connection (?:refused|reset|closed)|failed to connect|couldn't connect"
    r"|early eof|rpc failed|unexpected disconnect|hung up unexpectedly|network is unreachable|no route to host"
    r"|returned error: (?:408|425|429|5\d\d)|temporary failure|empty reply|operation too slow|kex_exchange",
    re.IGNORECASE,
)


def _failure(output: str, repository: Repository, folder: Path) -> AgentError:
    """Return what git's last words mean."""
    said = [line for line in output.splitlines() if line.strip()]
    telling = [
        line for line in said if re.match(r"fatal|error|remote:|ssh:|\S*denied|host key", line, re.IGNORECASE)
    ]
    first = _without_password((telling or said[-1:] or ["git gave no reason"])[0])
    subject = f"the code {repository.url} cannot be fetched"
    if any(text in output for text in disk.FULL_TEXTS):
        return disk.full_error(f"the code {repository.url}", folder)
    if _UNKNOWN_HOST_KEY.search(output):
        why = "the server's host key is not the one that is known here: correct the known hosts in the secret"
        return AgentError(f"{subject}: {why}", cause=Cause.CONFIG)
    if _REFUSED.search(output):
        why = "the server refuses us: correct program.source_secret (an SSH key without a passphrase, or a token)"
        return AgentError(f"{subject}: {why}; git says: {first}", cause=Cause.CONFIG)
    if _ABSENT.search(output):
        why = "there is no such repository, or it is private (then program.source_secret must name a secret)"
        return AgentError(f"{subject}: {why}; git says: {first}", cause=Cause.CONFIG)
    if _NO_SUCH_REF.search(output):
        return _CannotGive(f"{subject}: {first}", cause=Cause.CONFIG)
    if _NETWORK.search(output):
        return _NetworkFailed(f"{subject}: {first}", cause=Cause.DATA)
    return AgentError(f"{subject}: {first}", cause=Cause.DATA)


def _without_password(text: str) -> str:
    return re.sub(r"://[^/@\s]*@", "://", text)


def _environment(environ: Mapping[str, str], credentials: Credentials) -> dict[str, str]:
    """Return the node's environment for git: it asks nobody, shows no secrets, and waits for no stalled server."""
    hidden = ("GIT_TRACE", "GIT_CURL_VERBOSE", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_DIR", "GIT_WORK_TREE")
    inherited = {
        name: value
        for name, value in environ.items()
        if not name.startswith(hidden) and name != CONFIG_VARIABLE
    }
    return {
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o ConnectTimeout=20",
        **inherited,
        # Messages are told apart by their words.
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "http:https:ssh:git:file",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1000",
        "GIT_HTTP_LOW_SPEED_TIME": str(STALLED_AFTER_S),
        **_settings({"gc.auto": "0", "maintenance.auto": "false", **credentials.settings}, inherited),
        **credentials.variables,
    }


def _settings(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give git these settings, after those that it is given already."""
    first = int(environ.get("GIT_CONFIG_COUNT") or 0)
    made = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (name, value) in enumerate(settings.items(), first):
        made |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """How git is given what opens a repository: never in an argument, a URL or a file of the clone."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def _credentials(repository: Repository, secret: str | None) -> Iterator[Credentials]:
    if repository.is_web:
        yield _for_web(repository, secret)
    elif secret is None:
        yield Credentials()
    elif not repository.is_ssh:
        raise AgentError(
            f"program.source_secret opens https and SSH repositories, and {repository.url} is neither: leave it out",
            cause=Cause.CONFIG,
        )
    else:
        with _for_ssh(secret) as credentials:
            yield credentials


def _for_web(repository: Repository, secret: str | None) -> Credentials:
    """Have git ask a helper, for this host only: not for one that it redirects to, nor for those of submodules."""
    user, password = repository.user, repository.password
    if secret is not None:
        if "PRIVATE KEY" in secret:
            raise AgentError(
                f"program.source_secret holds an SSH key, and {repository.url} takes a token: "
                "give the repository as git@host:path, or another secret",
                cause=Cause.CONFIG,
            )
        named, colon, rest = secret.strip().partition(":")
        user, password = (named, rest) if colon else (user, secret.strip())
    if user is None and password is None:
        return Credentials()
    host = urlsplit(repository.url).hostname or ""
    if repository.url.startswith("http://") and not (host == "localhost" or host.startswith("127.")):
        raise AgentError(
            f"{repository.url} would be sent the credentials in the clear: use https://", cause=Cause.CONFIG
        )
    variables = {"OCIDIST_GIT_USER": user or TOKEN_USER, "OCIDIST_GIT_TOKEN": password or ""}
    if not all(value.isprintable() for value in variables.values()):
        raise AgentError("the token for the code holds line breaks or control characters", cause=Cause.CONFIG)
    # An empty helper forgets those that the node has.
    settings = {"credential.helper": "", f"credential.{repository.origin}.helper": HELPER}
    return Credentials(variables=variables, settings=settings)


@contextlib.contextmanager
def _for_ssh(secret: str) -> Iterator[Credentials]:
    """Keep the key in memory where there is such a folder, for its owner alone, and no longer than needed.

    Known hosts that follow the key in the secret are the only ones trusted. Without them, and without any on the
    node, a fresh node has nothing to compare with: it takes the key that a host shows first (`accept-new`).
    """
    end = re.search(r"-----END [A-Z0-9 ]*PRIVATE KEY-----", secret)
    if not end:
        raise AgentError(
            "program.source_secret holds no private key in PEM form, which an SSH repository needs: "
            "give another secret, or the repository as https://",
            cause=Cause.CONFIG,
        )
    key, hosts = secret[: end.end()].replace("\r", ""), secret[end.end() :].strip()
    with tempfile.TemporaryDirectory(prefix="ocidist-ssh-", dir=_memory()) as place:
        folder = Path(place)
        _write_private(folder / "key", f"{key}\n")
        _write_private(folder / "known_hosts", f"{hosts}\n" if hosts else "")
        known = f'"{folder}/known_hosts"' if hosts else f'"{folder}/known_hosts" ~/.ssh/known_hosts'
        settings = {
            "IdentityFile": f'"{folder}/key"',
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": "20",
            "ServerAliveInterval": "15",
            "StrictHostKeyChecking": "yes" if hosts else "accept-new",
            "UserKnownHostsFile": known,
        }
        _write_private(folder / "config", "".join(f"{name} {value}\n" for name, value in settings.items()))
        yield Credentials(variables={"GIT_SSH_COMMAND": f"ssh -F {shlex.quote(str(folder / 'config'))}"})


def _memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - the folder made there is private


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
