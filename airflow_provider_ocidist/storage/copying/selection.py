"""What to copy, and what not: names, patterns, trees that overlap."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.local_files import local_errors, refuse_links_above
from airflow_provider_ocidist.storage.stores.opening import Stores

_WILD = re.compile(r"[*?\[]")
_SAME_SCHEME = {"s3a": "s3", "gcs": "gs", "abfss": "abfs"}
"""Scheme that each alias stands for."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Files of one store."""

    store: Store
    entries: Sequence[Entry]
    is_tree: bool
    """Whether the source is a folder; else it is the one file."""
    pattern: tuple[str, ...] = ()
    """Pattern of the names in the store, part by part, if the source was written as a pattern."""

    @property
    def uri(self) -> str:
        return locations.join(self.store.uri, *self.pattern)


def find(source: str, stores: Stores) -> Selection:
    """Return the files at a place, or those that match its pattern. Raises StorageError for none.

    A name with `*`, `?` or `[` in it is a pattern only where there is nothing of that very name.
    """
    place = locations.parse(source)
    if not place.is_folder and place.name and not place.is_local_folder:
        parent = stores.open(place.parent + place.query).as_source()
        with contextlib.suppress(FileNotFoundError):
            return Selection(store=parent, entries=[parent.stat(place.name)], is_tree=False)
    store = stores.open(source).as_source()
    entries = store.list()
    if not entries and not place.is_local_folder:
        return _matching(place, stores)
    return Selection(store=store, entries=entries, is_tree=True)


def _matching(place: locations.Location, stores: Stores) -> Selection:
    base, pattern = _split(place.uri)
    if not pattern or place.is_web:
        raise StorageError(f"there is nothing at {locations.shown(place.uri)}", uri=place.uri)
    store = stores.open(base).as_source()
    entries = [entry for entry in store.list(_WILD.split(pattern[0])[0]) if fits(entry.name, pattern)]
    if not entries:
        raise StorageError(
            f"nothing at {locations.shown(store.uri)} matches {'/'.join(pattern)}", uri=place.uri
        )
    return Selection(store=store, entries=entries, is_tree=True, pattern=pattern)


def _split(uri: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that a pattern begins in, and the pattern's parts; no parts where it is none."""
    scheme, separator, path = uri.rpartition("://")
    parts = path.split("/")
    # What comes before the first slash of a URI is a bucket or a server.
    names = parts[1:] if separator else parts
    plain = next((index for index, part in enumerate(names) if _WILD.search(part)), len(names))
    folder = "/".join(parts[: len(parts) - len(names) + plain])
    return f"{scheme}{separator}{folder or ('' if uri.startswith('/') else '.')}/", tuple(names[plain:])


def fits(name: str, pattern: Sequence[str]) -> bool:
    """Return whether a name, or a folder above it, matches part by part; `**` matches any number of folders."""
    parts = name.split("/")
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(fits("/".join(parts[skip:]), pattern[1:]) for skip in range(len(parts)))
    if not fnmatch.fnmatchcase(parts[0], pattern[0]):
        return False
    return len(pattern) == 1 or (len(parts) > 1 and fits("/".join(parts[1:]), pattern[1:]))


def is_wanted(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether the name, a folder above it, or a single part of it matches one of the patterns."""
    parts = name.split("/")
    candidates = {*parts, *("/".join(parts[: count + 1]) for count in range(len(parts)))}
    return any(fnmatch.fnmatchcase(text, pattern.rstrip("/")) for pattern in patterns for text in candidates)


def refuse_overlap(found: Selection, target: str, rename: str | None) -> None:
    """Raise StorageError where the copy would write into its own source; `target` as `absolute` returns it."""
    source = absolute(found.store)
    if found.is_tree and is_below(target, source) and not _is_beside(found, target, source):
        places = f"{locations.shown(target)} lies in {locations.shown(source)}"
        raise StorageError(f"{places}: a tree cannot be copied into itself", uri=target)
    written = {f"{target}/{rename or entry.name}" for entry in found.entries}
    for entry in found.entries:
        read = [f"{source}/{name}" for name in (entry.name, entry.behind) if name]
        if place := next((each for each in read if each in written), None):
            raise StorageError(
                f"{locations.shown(place)} would be written over by this copy, of which it is a source",
                uri=place,
            )


def refuse_links(names: Iterable[str], store: Store) -> None:
    """Raise StorageError, before anything is copied, where a file would be written behind a link of the target."""
    if store.folder is None:
        return
    # One name of each folder is enough.
    for name in sorted({name.rpartition("/")[0]: name for name in names}.values()):
        with local_errors(store.folder):
            refuse_links_above(store.folder, name)


def refuse_loss(found: Selection, target: str) -> None:
    """Raise StorageError where `delete_extra` would delete the source; `target` as `absolute` returns it."""
    source = absolute(found.store)
    if is_below(source, target):
        raise StorageError(
            f"delete_extra would delete the source {locations.shown(source)}, which lies in the target "
            f"{locations.shown(target)}: "
            "give them folders of their own, or copy without delete_extra",
            uri=target,
        )


def is_below(place: str, folder: str) -> bool:
    """Whether a place lies in a folder, or is it; both as `absolute` returns them."""
    return f"{place}/".startswith(f"{folder}/")


def _is_beside(found: Selection, target: str, source: str) -> bool:
    """Whether what is written in the source's own folder does not fit the pattern that is read there."""
    below = f"{target}/".removeprefix(f"{source}/")
    if not found.pattern or any(fits(below + entry.name, found.pattern) for entry in found.entries):
        return False
    # A link that fits may lead to the target.
    return found.store.folder is None or not any(
        is_below(os.path.realpath(f"{source}/{folder}"), target)
        for folder in {entry.name.rpartition("/")[0] for entry in found.entries} - {""}
    )


def absolute(store: Store) -> str:
    """Return what two stores share when they are the same place."""
    if store.folder:
        return os.path.realpath(store.folder).rstrip("/")
    scheme, _, path = store.uri.partition("://")
    return f"{_SAME_SCHEME.get(scheme, scheme)}://{path.lstrip('/')}".rstrip("/")
