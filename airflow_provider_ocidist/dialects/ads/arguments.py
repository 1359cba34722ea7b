"""Arguments and sources as ADS files write them."""

from __future__ import annotations

import shlex
from typing import Any

from airflow_provider_ocidist.dialects.base import Draft, Section
from airflow_provider_ocidist.job_schema import shown


def text(value: Any) -> Any:
    """Return numbers and booleans as the text that ADS makes of them; anything else is looked at later."""
    return str(value) if isinstance(value, int | float) else value


def words(draft: Draft, section: Section, key: str) -> list[Any] | None:
    """Return a list of arguments, or a text split as a shell would; None when there are none."""
    value = section.value.get(key)
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [text(item) for item in value]
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            draft.complain(section.at(key), f"cannot be split into arguments: {str(error).lower()}")
            return None
    draft.complain(section.at(key), f"must be a list or text, not {shown(value)}")
    return None


def folders(draft: Draft, section: Section, key: str) -> list[Any] | None:
    """Return a list of folders, or those of a text joined by colons."""
    value = section.value.get(key)
    if value is None or isinstance(value, list | tuple):
        return None if value is None else list(value)
    if isinstance(value, str):
        return [folder for folder in value.split(":") if folder]
    draft.complain(section.at(key), f"must be a list, or text joined by colons, not {shown(value)}")
    return None


def put_code(draft: Draft, git: Section, url_key: str) -> None:
    """Put a Git source, with what to check out of it and the secret that opens it."""
    url = git.value.get(url_key)
    ref = git.value.get("commit") or git.value.get("branch")
    draft.put("program.source", git.at(url_key), git_url(url, ref) if isinstance(url, str) else url)
    draft.copy(git, {"gitSecretId": "program.source_secret"})


def git_url(uri: str, ref: Any) -> str:
    """Return the one URL that says what to clone and what to check out."""
    known = uri.startswith(("git@", "git+", "ssh://", "git://"))
    return (uri if known else f"git+{uri}") + (f"#{ref}" if ref is not None else "")
