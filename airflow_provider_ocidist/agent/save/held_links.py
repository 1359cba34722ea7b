"""HeldLinks: hard links to what is proved whole, so that it can be sent although the program deletes or replaces it."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, names_in, scan
from airflow_provider_ocidist.storage.manifests import MANIFEST

logger = logging.getLogger(__name__)

HELD = ".{}.held.{}.part"
"""Hidden folder with the links of one uploader; no store lists such names, and none is a checkpoint's."""
REMEDY = (
    "let the program keep more checkpoints, or save less often, or give the node a faster link to the store"
)

Key = tuple[Path, Signature]


class HeldLinks:
    """Links to entries of one checkpoint folder, beside it; within it where only that is on the same file system.

    A link costs no copy, and keeps the files on the disk after the program has deleted them. It shows also what the
    program writes into a file in place: what is sent is still to be compared with what was proved.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        key = secrets.token_hex(4)
        self._roots = tuple(place / HELD.format(folder.name, key) for place in (folder.parent, folder))
        self._held: dict[Key, Path | None] = {}
        """Place of the links to each entry; None where it cannot be held."""
        self._count = 0
        self._noted: set[str] = set()

    def remove_left_over(self) -> None:
        """Delete the links of an uploader that was killed. No other may hold any of this folder's entries now."""
        name = re.compile(rf"\.{re.escape(self._folder.name)}\.held\.[0-9a-f]{{8}}\.part")
        for place in (self._folder.parent, self._folder):
            for found in _names_in(place):
                if name.fullmatch(found):
                    shutil.rmtree(place / found, ignore_errors=True)

    def keep(self, items: Iterable[Candidate]) -> None:
        """Hold these entries, as far as they can be, and no others from now on. Raises nothing."""
        wanted = {(item.path, item.signature): item for item in items}
        for key in [key for key in self._held if key not in wanted]:
            self._release(self._held.pop(key))
        for key, item in wanted.items():
            if key not in self._held:
                self._held[key] = self._link(item)

    def source(self, item: Candidate) -> Path:
        """Return where an entry is to be read from: its links, else the entry itself."""
        place = self._held.get((item.path, item.signature))
        # The program may have deleted what it does not know.
        return place if place is not None and place.exists() else item.path

    def holds(self, item: Candidate) -> bool:
        """Whether an entry can be read whatever the program deletes."""
        return self.source(item) != item.path

    def _link(self, item: Candidate) -> Path | None:
        self._count += 1
        try:
            if (fault := _why_not(item)) is not None:
                raise OSError(errno.EINVAL, fault)
            return self._linked(item)
        except FileNotFoundError:
            # The program is deleting it.
            return None
        except OSError as error:
            self._note(item, error.strerror or str(error))
            return None

    def _linked(self, item: Candidate) -> Path | None:
        """Return the linked entry, None where it is not the proved one any more. Raises OSError."""
        beside, within = (root / str(self._count) / item.path.name for root in self._roots)
        try:
            return self._linked_at(item, beside)
        except FileNotFoundError:
            raise
        except OSError:
            # It is on another file system, as that of a mount's folder, or may not be written to.
            return self._linked_at(item, within)

    def _linked_at(self, item: Candidate, place: Path) -> Path | None:
        try:
            _link_files(item, place)
            if scan(place) == item.files:
                return place
        except OSError:
            self._release(place)
            raise
        self._release(place)
        return None

    def _release(self, place: Path | None) -> None:
        if place is None:
            return
        shutil.rmtree(place.parent, ignore_errors=True)
        try:
            place.parent.parent.rmdir()
        except OSError:
            # Another entry is held there, or it could not be created.
            return

    def _note(self, item: Candidate, why: str) -> None:
        if why not in self._noted:
            self._noted.add(why)
            logger.info(
                "%s cannot be held for its upload by hard links: %s. If the program deletes it before all of it is "
                "sent, it is not published. Remedy: %s",
                item.path.name,
                why,
                REMEDY,
            )


def _why_not(item: Candidate) -> str | None:
    """Return why links would not be the same as an entry. Raises OSError."""
    if MANIFEST in item.files:
        return f"it contains a {MANIFEST} of its own"
    if item.path.is_dir() and not all(map(_is_plain, _below(os.fspath(item.path)))):
        return "it contains links, or what is no file"
    return None


def _is_plain(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)


def _below(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _below(entry.path)


def _link_files(item: Candidate, place: Path) -> None:
    if not item.path.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        # What a link leads to: a link to the link would lead nowhere once the program has deleted the file.
        os.link(os.path.realpath(item.path), place)
        return
    for name in item.files:
        to = place / name
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(item.path / name, to)


def _names_in(folder: Path) -> list[str]:
    try:
        return names_in(folder)
    except OSError:
        return []
