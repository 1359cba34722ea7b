"""Repository: what a job's source names, where it is Git."""

from __future__ import annotations

import re
from dataclasses import field
from urllib.parse import unquote, urlsplit

from airflow_provider_ocidist.backports import dataclass

GIT_URL = re.compile(
    r"(?P<url>(?:git\+|git@|ssh://|git://).*?|[a-z+]+://.*?\.git|/.*?\.git)(?:#(?P<ref>[^#]+)|@(?P<at>[^@#/:]+))?"
)
"""Separators before a ref: `#`; or `@`, as in pip, before a name without a slash (`git@host/path` names a user)."""
COMMIT = re.compile(r"[0-9a-fA-F]{7,64}")
REF = re.compile(r"(?![-./])(?!.*(?:\.\.|//|@\{|\.lock$|[/.]$))[^\x00-\x20\x7f~^:?*\[\\]+")
"""Refs that `git check-ref-format` allows; with `:` or `*` they would be refspecs."""


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What to fetch, and the credentials that stood in its URL."""

    url: str
    """Address without a password."""
    ref: str | None = None
    """Branch, tag or commit; None: the repository's HEAD."""
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
