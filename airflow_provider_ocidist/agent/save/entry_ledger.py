"""Entry ledger: entries that an interrupted attempt left in a lasting checkpoint folder, as on a mount."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from airflow_provider_ocidist.agent.save.entries import Candidate, SeenEntries, candidates, listing
from airflow_provider_ocidist.agent.save.layouts import LATEST, LATEST_UNIVERSAL
from airflow_provider_ocidist.errors import AgentError, Cause, StoreUnavailable

logger = logging.getLogger(__name__)

LEDGER = ".{}.ocidist.json"
"""File with the entries that were there before an attempt, or were proved in it, each with its files."""
ASIDE = "{}-unproved"
# Both are beside the folder: a program may take any entry in it for a checkpoint.
ASIDE_WITHIN = ".{}-unproved.part"
"""Hidden folder within it, where nothing can be moved out: it is a mount, or the folder above is read-only."""

READ_AGAIN = (0.1, 0.4, 1.5, 3.0)
"""Seconds before each further try to read the ledger, or the folder: a mount may fail for a moment."""

READ_AGAIN_AT_FIRST = (*READ_AGAIN, 10.0, 20.0, 30.0)
"""Seconds in a first attempt, which fails without the folder."""

Stamps = list[list[object]]
UNREAD: Stamps = [["?"]]
"""Stamps of an entry of before a first attempt that could not be read: whatever it is, it is the user's."""
Found = TypeVar("Found")


class Ledger:
    """The entries of a checkpoint folder that may be offered to a program."""

    def __init__(
        self, folder: Path, pattern: str | None = None, stopped: threading.Event | None = None
    ) -> None:
        """Once `stopped` is set, nothing waits for what cannot be read."""
        self.folder = folder
        self.pattern = pattern
        self._stopped = stopped or threading.Event()
        self._is_unread = False
        """Whether it could not be read at the beginning. Then what it has recorded stays."""
        self.file = folder.with_name(LEDGER.format(folder.name))
        self._known: dict[str, Stamps] = {}

    def begin(self, fetched: Collection[str] = ()) -> list[str]:
        """Set aside an earlier attempt's unproved entries, record the rest, and return the names set aside.

        `fetched`: the names of the entries that this attempt has fetched. Before a first attempt all stays: it is
        the user's. Raises StoreUnavailable where it cannot read the folder.
        """
        try:
            known = self._patiently(self._read)
        except (OSError, ValueError) as error:
            # Taken for a first attempt, this one would record as whole what a killed one has left half.
            self._is_unread = True
            logger.warning(
                "%s cannot be read, so that all entries stay: %s. Remedy, if that lasts: delete the file, if all "
                "entries are complete",
                self.file,
                error,
            )
            return []
        try:
            found = self._patiently(self._list, READ_AGAIN if known is not None else READ_AGAIN_AT_FIRST)
        except OSError as error:
            if known is None:
                # Whatever lies there would be taken for an earlier attempt's by the next one.
                raise StoreUnavailable(f"the checkpoint folder cannot be read: {error}") from error
            self._is_unread = True
            logger.warning("the checkpoint folder cannot be read, so that all entries stay: %s", error)
            return []
        aside = []
        before = dict.fromkeys(found.unreadable, UNREAD) if known is None else known
        self._known = {name: before[name] for name in found.unreadable if name in before}
        for item in found.items:
            name = item.path.name
            if known is None or name in fetched or is_unchanged(known.get(name), item):
                self._known[name] = _stamps(item)
            elif self._set_aside(item.path):
                aside.append(name)
            elif name in known:
                # It stays unproved.
                self._known[name] = known[name]
        self._write()
        return aside

    def add(self, item: Candidate) -> None:
        """Record an entry from which the next attempt or launch may go on."""
        self._known[item.path.name] = _stamps(item)
        self._write()

    def _read(self) -> dict[str, Stamps] | None:
        """Return the ledger, None where there is none yet. Raises OSError, ValueError."""
        try:
            found = json.loads(self.file.read_text())
        except FileNotFoundError:
            return None
        if not isinstance(found, dict):
            raise ValueError("it is no mapping")  # noqa: TRY004 (as for other text that is no ledger)
        return found

    def _list(self) -> SeenEntries:
        return listing(self.folder, self.pattern)

    def _patiently(self, look: Callable[[], Found], pauses: Sequence[float] | None = None) -> Found:
        """Return what a look finds, once it can read all. Raises what the last look raises."""
        for pause in READ_AGAIN if pauses is None else pauses:
            try:
                found = look()
                if not (isinstance(found, SeenEntries) and found.unreadable):
                    return found
            except OSError:
                pass
            if self._stopped.wait(pause):
                break
        return look()

    def _write(self) -> None:
        if self._is_unread and not self._is_read_by_now():
            return
        new = self.file.with_name(f"{self.file.name}.new")
        try:
            with new.open("w") as file:
                file.write(json.dumps(self._known))
                file.flush()
                # After a power cut, a ledger without content would stand for one that cannot be read.
                os.fsync(file.fileno())
            new.replace(self.file)
        except OSError as error:
            logger.debug("%s cannot be written: %s", self.file, error)

    def _is_read_by_now(self) -> bool:
        """Take over what was recorded, where that can be read by now."""
        try:
            known = self._read()
        except (OSError, ValueError):
            return False
        if known is None:
            return False
        self._known = {**known, **self._known}
        self._is_unread = False
        return True

    def _set_aside(self, path: Path) -> bool:
        try:
            aside = _move_aside(path)
        except OSError as error:
            logger.warning("%s may be incomplete, and cannot be set aside: %s", path, error)
            return False
        logger.warning(
            "%s was left by an interrupted attempt and may be incomplete: it was moved to %s. "
            "Remedy: if it is complete, delete %s and move it back before the next attempt",
            path.name,
            aside,
            self.file,
        )
        return True


def _move_aside(path: Path) -> Path:
    """Move an entry to where such are set aside, and return that folder. Raises OSError."""
    try:
        return _move(path, aside_of(path.parent))
    except FileNotFoundError:
        raise
    except OSError:
        return _move(path, _aside_within(path.parent))


def _move(path: Path, aside: Path) -> Path:
    place = aside / path.name
    aside.mkdir(exist_ok=True)
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
    path.replace(place)
    for pointer in _pointers_to(path):
        with contextlib.suppress(OSError):
            pointer.replace(aside / pointer.name)
    return aside


def _pointers_to(path: Path) -> list[Path]:
    """Return the files beside an entry that name it as DeepSpeed's newest checkpoint: it fails where that is gone."""
    found = []
    for pointer in map(path.with_name, (LATEST, LATEST_UNIVERSAL)):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if pointer.is_file() and pointer.read_text().strip() == path.name:
                found.append(pointer)
    return found


def set_aside(folder: Path, names: Iterable[str]) -> None:
    """Move entries aside from which not all nodes would go on. Raises AgentError: a program would find them."""
    for name in sorted(names):
        try:
            aside = _move_aside(folder / name)
        except FileNotFoundError:
            # Another node that shares the folder was faster.
            continue
        except OSError as error:
            message = f"not all nodes would go on from {folder / name}, and it cannot be moved away: {error}"
            raise AgentError(message, cause=Cause.DATA) from error
        logger.warning("not all nodes would go on from %s: it was moved to %s", name, aside)


def stamps_of(folder: Path, pattern: str | None = None) -> dict[str, Stamps]:
    """Return the entries of a folder, each with its files, or UNREAD. Raises OSError where it cannot be listed."""
    found = listing(folder, pattern)
    return {
        **dict.fromkeys(found.unreadable, UNREAD),
        **{item.path.name: _stamps(item) for item in found.items},
    }


def discard(
    folder: Path,
    pattern: str | None = None,
    *,
    fetched: Collection[str] = (),
    before: Mapping[str, Stamps] | None = None,
) -> None:
    """Delete the entries of a folder of which this node has parts only.

    Those that were fetched are whole; those that have been there since `before`, unchanged, are the user's.
    """
    for item in candidates(folder, pattern):
        name = item.path.name
        if name in fetched or is_unchanged((before or {}).get(name), item):
            continue
        if item.path.is_dir() and not item.path.is_symlink():
            shutil.rmtree(item.path, ignore_errors=True)
        else:
            item.path.unlink(missing_ok=True)
        for pointer in _pointers_to(item.path):
            pointer.unlink(missing_ok=True)


def aside_of(folder: Path) -> Path:
    """Return where an earlier attempt's unproved entries of a folder are set aside."""
    return folder.with_name(ASIDE.format(folder.name))


def _aside_within(folder: Path) -> Path:
    return folder / ASIDE_WITHIN.format(folder.name)


def _stamps(item: Candidate) -> Stamps:
    return [[name, stamp.size, stamp.modified_ns] for name, stamp in item.signature.files]


def is_unchanged(before: Stamps | None, item: Candidate) -> bool:
    """Whether an entry is what it was before, as far as that was to be read."""
    return before is not None and before in (UNREAD, _stamps(item))


def forget_aside(folder: Path) -> None:
    """Delete what was set aside: a newer checkpoint is complete."""
    for aside in (aside_of(folder), _aside_within(folder)):
        with contextlib.suppress(OSError):
            shutil.rmtree(aside)
