"""Rules for single texts in a job: paths, places, arguments."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from airflow_provider_ocidist.errors import Problem, StorageError
from airflow_provider_ocidist.model.job import is_placeholder
from airflow_provider_ocidist.storage import locations

COMMON_SCHEMES = {"oci", "file", "s3", "gs", "http", "https"}
"""Schemes that are known without fsspec, whose import takes longer than the rest of a check."""


def arguments(path: str, words: Sequence[str]) -> Iterator[Problem]:
    for index, word in enumerate(words):
        if not can_be_argument(word):
            yield Problem(f"{path}.{index}", f"cannot be an argument of a program: {word!r}")


def can_be_argument(text: str) -> bool:
    """Return whether the system accepts the text: no NUL character, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def on_node(path: str, value: str) -> Iterator[Problem]:
    """Require an absolute path, or a relative one that stays inside its folder."""
    if not value.startswith("/"):
        yield from inside(path, value)
    elif ".." in value.split("/") or "\0" in value:
        yield Problem(path, f"must be a path without '..', not {value!r}")


def inside(path: str, value: str) -> Iterator[Problem]:
    """Require a relative path that stays inside its folder."""
    if is_placeholder(value):
        return
    if not value.strip() or "\0" in value:
        yield Problem(path, "must not be empty")
    elif value.startswith(("/", "~")) or "://" in value:
        yield Problem(path, f"must be a relative path, not {locations.shown(value)!r}")
    elif ".." in value.split("/"):
        yield Problem(path, f"must not leave its folder, as {value!r} does")


def location(path: str, uri: str) -> Iterator[Problem]:
    """Require a place that every node can reach by the same text."""
    if is_placeholder(uri) or uri.startswith(("/", "git@")):
        return
    scheme, separator, _ = uri.partition("://")
    if not separator:
        yield Problem(
            path, f"must be a URI, as oci://bucket@namespace/path, or an absolute path, not {uri!r}"
        )
        return
    scheme = scheme.rpartition("::")[2]
    if scheme.startswith("git+"):
        return
    if scheme not in COMMON_SCHEMES and scheme not in (known := _schemes()):
        near = difflib.get_close_matches(scheme, known, n=1)
        yield Problem(
            path, f"no library reads {scheme}://" + (f"; did you mean {near[0]}://?" if near else "")
        )
        return
    try:
        locations.parse(uri)
    except StorageError as error:
        yield Problem(path, str(error))


def _schemes() -> list[str]:
    from fsspec.registry import known_implementations

    return list(known_implementations)
