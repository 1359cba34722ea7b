"""Destination: a copy's target, how it appears there, and what an interrupted copy has left there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.copying.engine import is_interruption
from airflow_provider_ocidist.storage.copying.open_file import Copied
from airflow_provider_ocidist.storage.copying.selection import Selection, absolute, refuse_overlap
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.journal import Journal, cache_folder, places_digest, this_boot
from airflow_provider_ocidist.storage.stores.local import LocalStore
from airflow_provider_ocidist.storage.stores.local_files import local_errors, refuse_links_above
from airflow_provider_ocidist.storage.stores.opening import Stores


@dataclass(frozen=True, kw_only=True)
class Destination:
    """A store to write to, and the journal of a tree that goes there."""

    store: Store
    rename: str | None = None
    """Name that a single file gets."""
    journal: Journal | None = None
    is_staged: bool = False
    """Whether the store is invisible until the end."""

    def arrived(self, wanted: Sequence[Entry]) -> set[str]:
        """Return the names of files that an interrupted copy has copied, and that have not changed since."""
        if self.journal is None or not self.journal.records:
            return set()
        noted = {name: (source, target) for name, source, target in self.journal.records}
        there = {entry.name: entry.etag for entry in self.store.list() if entry.behind is None}
        if self.is_staged:
            for name in there.keys() - {entry.name for entry in wanted}:
                self.store.delete(name)
        return {
            entry.name
            for entry in wanted
            if entry.etag and noted.get(entry.name) == (entry.etag, there.get(entry.name))
        }

    def note(self, entry: Entry, copied: Copied) -> None:
        if self.journal and entry.etag and copied.etag:
            self.journal.add([entry.name, entry.etag, copied.etag])


class Landing(NamedTuple):
    """The place where files will lie."""

    store: Store
    rename: str | None
    """Name that a single file gets."""


@contextmanager
def destination(landed: Landing, found: Selection, *, resume: bool) -> Iterator[Destination]:
    """Yield where to write; what is new there appears at the end, or not at all after an error."""
    store, rename = landed
    if rename is not None:
        yield Destination(store=store, rename=rename)
    elif store.folder and not os.path.lexists(store.folder):
        with _staged(store.folder, found.uri, resume=resume) as made:
            yield made
    else:
        with _journaled(_journal_of(store, found.uri) if resume else None) as journal:
            yield Destination(store=store, journal=journal)


def landing(target: str, found: Selection, stores: Stores) -> Landing:
    """Return where the files of a source will lie at a target.

    Raises StorageError where the copy would write into its own source, or a tree onto a file.
    """
    place = locations.parse(target)
    if found.is_tree:
        store, rename = stores.open(target), None
        if store.folder and store.folder.exists() and not store.folder.is_dir():
            raise StorageError(
                f"{target} is a file, and the source is a folder: name a folder as the target", uri=target
            )
    else:
        into = place.is_folder or not place.name or place.is_local_folder
        store = stores.open(target if into else place.parent)
        rename = found.entries[0].name if into else place.name
    refuse_overlap(found, absolute(store), rename)
    return Landing(store, rename)


def _journal_of(store: Store, source: str) -> Journal | None:
    key = places_digest(source, store.uri)
    if store.folder:
        return Journal.open(
            store.folder / locations.unfinished_name("journal", key), _subject(source, store.folder)
        )
    return Journal.open(cache_folder() / f"tree-{key}", {"from": source, "to": store.uri})


def _subject(source: str, target: Path) -> Mapping[str, str]:
    # After a restart it is unknown which files had reached the disk.
    return {"from": source, "to": str(target), "boot": this_boot()}


@contextmanager
def _journaled(journal: Journal | None) -> Iterator[Journal | None]:
    try:
        yield journal
    except BaseException as error:
        if journal:
            journal.close() if is_interruption(error) else journal.remove()
        raise
    if journal:
        journal.remove()


@contextmanager
def _staged(final: Path, source: str, *, resume: bool) -> Iterator[Destination]:
    """Yield a new folder beside the final one; rename it at the end, or remove it after an error."""
    key = places_digest(source, str(final))
    beside = final.with_name(locations.unfinished_name(f"{final.name[:32]}.journal", key))
    with local_errors(final):
        final.parent.mkdir(parents=True, exist_ok=True)
    with _journaled(Journal.open(beside, _subject(source, final)) if resume else None) as journal:
        staging = final.with_name(locations.unfinished_name(final.name, key if journal else None))
        try:
            with local_errors(final):
                if journal and not journal.records:
                    shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir(exist_ok=bool(journal))
            yield Destination(store=LocalStore(staging), journal=journal, is_staged=True)
            with local_errors(final):
                if journal and journal.records:
                    _remove_unfinished(staging)
                _move_into_place(staging, final)
        except BaseException as error:
            if not (journal and is_interruption(error)):
                shutil.rmtree(staging, ignore_errors=True)
            raise


def _remove_unfinished(staging: Path) -> None:
    """Remove partial files that have left the source since the copy was interrupted."""
    for path in staging.rglob(".*.part"):
        if locations.is_partial_file(path.name):
            path.unlink(missing_ok=True)


def _move_into_place(staging: Path, final: Path) -> None:
    try:
        staging.rename(final)
    except OSError:
        # Another process has created the folder meanwhile: move file by file.
        if not final.is_dir():
            raise
        for entry in LocalStore(staging).list():
            refuse_links_above(final, entry.name)
            (final / entry.name).parent.mkdir(parents=True, exist_ok=True)
            (staging / entry.name).replace(final / entry.name)
        shutil.rmtree(staging, ignore_errors=True)
