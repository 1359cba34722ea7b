"""Arguments, folders, counts and sources as ADS files write them."""

from __future__ import annotations

import shlex
from typing import Any

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.schema import value_shown


def text(value: Any) -> Any:
    """Return numbers and booleans as ADS converts them to text; anything else is checked later."""
    return str(value) if isinstance(value, int | float) else value


def put_words(draft: Draft, ours: str, section: Section, key: str) -> None:
    """Put a list of arguments, if any."""
    found = words(draft, section, key)
    if found is not None:
        draft.put(ours, section.at(key), found)


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
    draft.complain(section.at(key), f"must be a list or text, not {value_shown(value)}")
    return None


def put_python_path(draft: Draft, section: Section) -> None:
    """Put a list of folders, or those of a text joined by colons."""
    value, path = section.value.get("pythonPath"), section.at("pythonPath")
    if isinstance(value, str):
        draft.put("program.python_path", path, [folder for folder in value.split(":") if folder])
    elif isinstance(value, list | tuple):
        draft.put("program.python_path", path, list(value))
    elif value is not None:
        draft.complain(path, f"must be a list, or text joined by colons, not {value_shown(value)}")


def replicas(draft: Draft, section: Section, least: int) -> tuple[str, int]:
    """Return the spelling by which a section sets its nodes, and their number; one by default."""
    if {"replica", "replicas"} <= section.value.keys():
        draft.complain(section.at("replica"), "says the same as 'replicas': remove one of them")
    key = "replica" if "replica" in section.value and "replicas" not in section.value else "replicas"
    return key, draft.whole_number(section, key, least, default=1)


def put_code(draft: Draft, git: Section, url_key: str) -> None:
    """Put a Git source, with the revision to check out and the secret for access."""
    url = git.value.get(url_key)
    ref = git.value.get("commit") or git.value.get("branch")
    draft.put("program.source", git.at(url_key), git_url(url, ref) if isinstance(url, str) else url)
    draft.copy(git, {"gitSecretId": "program.source_secret"})


def git_url(uri: str, ref: Any) -> str:
    """Return the one URL of the repository and the revision to check out."""
    known = uri.startswith(("git@", "git+", "ssh://", "git://"))
    return (uri if known else f"git+{uri}") + (f"#{ref}" if ref is not None else "")
