"""Credentials: passes a repository's credentials only to git and its host."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from urllib.parse import urlsplit

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.git_source import Repository

TOKEN_USER = "x-access-token"  # noqa: S105 - a name
"""User name beside a token: GitHub asks for this one, GitLab and Azure DevOps take any; others name one in the URL."""
HELPER = (
    '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" '
    '"$OCIDIST_GIT_USER" "$OCIDIST_GIT_TOKEN"; }; f'
)
"""Program that gives git its credentials; a fixed text, since git's shell gets no other input."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """How git gets a repository's credentials: never in an argument, a URL or a file of the clone."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def credentials_for(repository: Repository, secret: str | None) -> Iterator[Credentials]:
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
                f"program.source_secret contains an SSH key, but {repository.url} needs a token: "
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
        raise AgentError(
            "the token for the code contains line breaks or control characters", cause=Cause.CONFIG
        )
    # An empty helper resets the node's own.
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
            "program.source_secret contains no private key in PEM form, which an SSH repository needs: "
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
