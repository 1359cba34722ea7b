"""The text of a job file, from this machine or from any URI."""

from __future__ import annotations

import codecs
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.errors import JobFileError, Problem, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_ocidist.oci_client.credentials import OciAccess

MAX_CHARACTERS = 1_000_000
"""Most characters of a job file, which is written by hand; a longer text is some other file."""
MAX_BYTES = 4 * MAX_CHARACTERS
_PIECE = 256 << 10
TOO_LONG = f"is longer than {MAX_CHARACTERS} characters"

IN_ZIP = (
    "is in the zip file {}, and job files are not read from there: name it by a URI, or write the job as a mapping "
    "in the DAG file"
)


def is_uri(place: str | Path) -> bool:
    """Return whether a job file is not in a folder of this machine."""
    return "://" in str(place)


def read(place: str | Path, *, access: OciAccess | None = None) -> str:
    """Return the text of a job file at a local path, or at any URI that fsspec knows.

    `access` opens `oci://`; None: the credentials of this machine. Raises JobFileError if there is no such text, and
    StorageError if its place cannot be reached, or refuses, which may pass.
    """
    try:
        data = b"".join(_within_limit(_fetched(str(place), access) if is_uri(place) else _local(Path(place))))
        text = codecs.decode(data, "utf-8-sig")
    except FileNotFoundError as error:
        raise _unreadable(place, "cannot be read: No such file or directory") from error
    except NotADirectoryError as error:
        archive = next((each for each in Path(place).parents if zipfile.is_zipfile(each)), None)
        why = IN_ZIP.format(archive) if archive else f"cannot be read: {error.strerror}"
        raise _unreadable(place, why) from error
    except OSError as error:
        raise _unreadable(place, f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _unreadable(place, "is not text in UTF-8") from error
    except _TooLong as error:
        raise _unreadable(place, TOO_LONG) from error
    if len(text) > MAX_CHARACTERS:
        raise _unreadable(place, TOO_LONG)
    if text.lstrip()[:9].lower().startswith(("<!doctype", "<html")):
        raise _unreadable(place, "is a web page, no job file: use the address of the bare file")
    return text


def place_shown(place: str | Path) -> str:
    """Return a place for messages: without user, password, token and query, which may be secrets."""
    from airflow_provider_ocidist.storage import locations

    return locations.shown(str(place))


def base_of(place: str | Path) -> str:
    """Return the base of relative paths in a job file: a local folder, or a URI that ends in `/`."""
    if not is_uri(place):
        return os.path.dirname(place) or "."  # noqa: PTH120 (a path of text, as URIs are)
    from airflow_provider_ocidist.storage import locations

    location = locations.parse(str(place))
    # A query opens one file only, so relative paths cannot be resolved.
    return "" if location.query else location.parent


class _TooLong(Exception):
    pass


def _within_limit(pieces: Iterable[bytes]) -> Iterable[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if total > MAX_BYTES:
            raise _TooLong
        yield piece


def _local(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _fetched(uri: str, access: OciAccess | None) -> Iterable[bytes]:
    from airflow_provider_ocidist.storage import locations
    from airflow_provider_ocidist.storage.stores.opening import open_store

    location = locations.parse(uri)
    if not location.name or location.is_folder:
        raise StorageError("it names a folder, not a file", uri=uri)
    store = open_store(location.parent + location.query, access)
    entry = store.stat(location.name)
    if entry.size is None:
        yield from store.chunks(entry, _PIECE)
    elif entry.size > MAX_BYTES:
        raise _TooLong
    else:
        yield store.read(location.name)


def _unreadable(place: str | Path, why: str) -> JobFileError:
    return JobFileError([Problem("", why)], place_shown(place))
