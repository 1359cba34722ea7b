"""What is to be copied, and what must not be: names, patterns, trees that lie in one another."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores import Entry, Store, open_store


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Files of one store."""

    store: Store
    entries: Sequence[Entry]
    is_tree: bool
    """Whether the source is a folder; else it is the one file."""


def find(source: str, access: OciAccess | None) -> Selection:
    """Return what is at a place. Raises StorageError for nothing."""
    place = locations.parse(source)
    if not place.is_folder and place.name and not place.is_local_folder:
        parent = open_store(place.parent + place.query, access)
        with contextlib.suppress(FileNotFoundError):
            return Selection(store=parent, entries=[parent.stat(place.name)], is_tree=False)
    store = open_store(source, access)
    entries = store.list()
    if not entries and not place.is_local_folder:
        raise StorageError(f"there is nothing at {place.uri}", uri=place.uri)
    return Selection(store=store, entries=entries, is_tree=True)


def is_wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name, a folder that it lies in, or a single part of it fits one of the patterns."""
    parts = name.split("/")
    candidates = {*parts, *("/".join(parts[: count + 1]) for count in range(len(parts)))}
    return any(fnmatch.fnmatchcase(text, pattern.rstrip("/")) for pattern in patterns for text in candidates)


def refuse_overlap(found: Selection, target: str, rename: str | None) -> None:
    """Raise StorageError where the copy would write into its own source; `target` as `absolute` returns it."""
    source = absolute(found.store)
    if found.is_tree and f"{target}/".startswith(f"{source}/"):
        raise StorageError(f"{target} lies in {source}: a tree cannot be copied into itself", uri=target)
    written = {f"{target}/{rename or entry.name}" for entry in found.entries}
    for entry in found.entries:
        if (place := f"{source}/{entry.name}") in written:
            raise StorageError(
                f"{place} would be written over by this copy, of which it is a source", uri=place
            )


def absolute(store: Store) -> str:
    """Return what two stores share when they are the same place."""
    return (os.path.realpath(store.folder) if store.folder else store.uri).rstrip("/")
