"""AttemptIndex: which attempts of a task there have been and where, in the work directory, where no list is stale."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from airflow_provider_ocidist.errors import BackendError, Cause, StorageError, service_error_in
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.attempts import Attempt, End, Place
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.model.work_dir import ATTEMPTS_FOLDER, end_of, order_in, record_file
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.conditional_writes import change
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.work_dir.parallel import in_parallel
from airflow_provider_ocidist.work_dir.run_dir_stores import RunDirStores, unusable

Kind = TypeVar("Kind")
NOT_FOUND_PAUSES = (0.5, 1.5)
"""Seconds before each further request for a list that was answered 404, as one answer may be wrong."""


class AttemptIndex:
    """The records of one work directory.

    One file for each: concurrent writers do not overwrite each other. A second file with an attempt's end spares
    later tries to read either.
    """

    def __init__(self, run_dirs: RunDirStores, work_dir: str) -> None:
        self._run_dirs = run_dirs
        self._work_dir = work_dir

    def read(self, key: RunKey) -> list[Attempt]:
        """Return the attempts of a task that may live, and the newest of all, oldest first.

        In one request, and one or two for each of them. Raises BackendError when they cannot be read.
        """
        with _reading():
            store, prefix = self._folder(key)
            names = _names(store, prefix)
            begun = {name: order for name in names if (order := order_in(name))}
            last = max(begun.values(), default=None)
            wanted = [name for name, age in begun.items() if end_of(name) not in names or age == last]
            records = in_parallel(lambda name: _attempt(store, prefix, name, names), wanted)
        return sorted(records, key=lambda attempt: attempt.order)

    def unknown(self, key: RunKey, known: Iterable[Attempt]) -> list[Attempt]:
        """Return the attempts of a task that are open and not among those known, oldest first.

        In one request where there are none. Raises BackendError when they cannot be read.
        """
        with _reading():
            store, prefix = self._folder(key)
            names = _names(store, prefix)
            old = {_name(attempt.key, attempt.place) for attempt in known}
            new = [name for name in names - old if order_in(name) and end_of(name) not in names]
            records = in_parallel(lambda name: _attempt(store, prefix, name, names), new)
        return sorted(records, key=lambda attempt: attempt.order)

    def ends(self, key: RunKey) -> list[End]:
        """Return how the attempts of a task's generation have ended, oldest first.

        In one request, and one for each of them. Raises BackendError when they cannot be read.
        """
        with _reading():
            store, prefix = self._folder(key)
            names = _names(store, prefix)
            ended = {name: order for name in names if (order := order_in(name)) and end_of(name) in names}
            wanted = [
                name for name in sorted(ended, key=ended.__getitem__) if ended[name][0] == key.generation
            ]
            return in_parallel(lambda name: _decoded(End, store, prefix + end_of(name)), wanted)

    def write(self, attempt: Attempt) -> None:
        """Record an attempt, or what is known of it now. Raises BackendError."""
        self._write(attempt.key, _name(attempt.key, attempt.place), attempt)

    def complete(self, attempt: Attempt) -> None:
        """Record what was created of an attempt, unless another try, or more of it, is recorded by now.

        Raises BackendError.
        """
        with _writing():
            store, prefix = self._folder(attempt.key)
            name = prefix + _name(attempt.key, attempt.place)

            def content(exists: bool) -> bytes | None:
                known = _decoded(Attempt, store, name) if exists else None
                if known is not None and (known.ref is not None or known.tries != attempt.tries):
                    return None
                return json.dumps(codec.encode(attempt)).encode()

            change(store, name, content)

    def end(self, key: RunKey, place: Place, end: End) -> None:
        """Record that nothing of an attempt lives any more. Raises BackendError."""
        self._write(key, end_of(_name(key, place)), end)

    def forget(self, attempt: Attempt) -> None:
        """Remove the record of an attempt of which nothing was created. Raises BackendError."""
        with _writing():
            store, prefix = self._folder(attempt.key)
            store.delete(prefix + _name(attempt.key, attempt.place))

    def _write(self, key: RunKey, name: str, value: Attempt | End) -> None:
        with _writing():
            store, prefix = self._folder(key)
            store.write(prefix + name, json.dumps(codec.encode(value)).encode())

    def _folder(self, key: RunKey) -> tuple[Store, str]:
        return self._run_dirs.below(self._work_dir, f"{ATTEMPTS_FOLDER}/{key.task_digest}")


def _names(store: Store, prefix: str) -> set[str]:
    for pause in NOT_FOUND_PAUSES:
        try:
            return _listed(store, prefix)
        except StorageError as error:
            if not _is_not_found(error):
                raise
            time.sleep(pause)
    try:
        return _listed(store, prefix)
    except StorageError as error:
        if not _is_not_found(error):
            raise
        # Never the same as no records: a second gang would be created beside one that lives.
        raise BackendError(
            f"work_dir cannot be used, reading which attempts of this task there have been: {error}; "
            "create its bucket, or name another work_dir",
            status_code=404,
            cause=Cause.CONFIG,
        ) from error


def _listed(store: Store, prefix: str) -> set[str]:
    return {entry.name.removeprefix(prefix) for entry in store.list(prefix)}


def _is_not_found(error: StorageError) -> bool:
    refused = service_error_in(error)
    return refused is not None and refused.status_code == 404


def _attempt(store: Store, prefix: str, name: str, names: Container[str]) -> Attempt:
    attempt = _decoded(Attempt, store, prefix + name)
    end = end_of(name)
    return replace(attempt, end=_decoded(End, store, prefix + end)) if end in names else attempt


def _decoded(cls: type[Kind], store: Store, name: str) -> Kind:
    try:
        return codec.read(cls, store.read(name))
    except (ValueError, TypeError, LookupError) as error:
        raise BackendError(
            f"{store.uri_of(name)} is not a record of an attempt: make sure that its run has ended, then remove it",
            cause=Cause.CONFIG,
        ) from error


def work_dir_of(run_dir: str) -> str:
    """Return the work directory that holds a run directory."""
    return locations.parse(run_dir).parent.rstrip("/")


def _name(key: RunKey, place: Place) -> str:
    return record_file(key.generation, key.attempt, place.digest)


@contextmanager
def _reading() -> Iterator[None]:
    """Turn errors of the store into a retryable BackendError: a record that cannot be read may name a live gang."""
    try:
        yield
    except (StorageError, OSError) as error:
        raise BackendError(
            f"work_dir cannot be used, reading which attempts of this task there have been: {error}",
            retryable=True,
        ) from error


@contextmanager
def _writing() -> Iterator[None]:
    """Turn errors of the store into a BackendError, which counts as one after an acceptance."""
    try:
        yield
    except (StorageError, OSError) as error:
        refused = unusable(error, "recording the attempt")
        # The list of the records was answered before.
        refused.after_acceptance = True
        raise refused from error
