"""HeldLinks: hard links to what is proved whole, so that it can be sent although the program deletes or replaces it."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import shutil
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from airflow_provider_ocidist.agent.save.disk_room import DiskRoom
from airflow_provider_ocidist.agent.save.entries import Candidate, Signature, names_in, scan
from airflow_provider_ocidist.storage.manifests import MANIFEST
from airflow_provider_ocidist.storage.stores.base import Store

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
    program writes into a file in place: what is sent is still to be compared with what was proved. Where the disk has
    no room for another checkpoint, the next save of the program comes first.
    """

    def __init__(self, folder: Path, holder: str = "") -> None:
        """`holder`: the launch and the node, by `holder_of`; empty: no other node can hold entries of this folder."""
        self._folder = folder
        self._holder = holder
        self._room = DiskRoom(folder)
        key = f"{holder}.{secrets.token_hex(4)}".lstrip(".")
        self._roots = tuple(place / HELD.format(folder.name, key) for place in (folder.parent, folder))
        self._held: dict[Key, Path | None] = {}
        """Place of the links to each entry; None where it cannot be held."""
        self._is_over = False
        self._lock = threading.RLock()
        self._count = 0
        self._noted: set[str] = set()

    def remove_left_over(self) -> None:
        """Delete the links of uploaders that were killed: all but those of the other nodes of this launch."""
        name = re.compile(
            rf"\.{re.escape(self._folder.name)}\.held\.(?:(?P<holder>[0-9a-f]{{8}}-[0-9]+)\.)?[0-9a-f]{{8}}\.part"
        )
        for place in (self._folder.parent, self._folder):
            for found in map(name.fullmatch, _names_in(place)):
                if found and not self._is_of_another_node(found["holder"]):
                    shutil.rmtree(place / found[0], ignore_errors=True)

    def _is_of_another_node(self, holder: str | None) -> bool:
        is_of_this_launch = holder is not None and holder.split("-")[0] == self._holder.split("-")[0]
        return is_of_this_launch and holder != self._holder

    def keep(self, items: Iterable[Candidate]) -> None:
        """Hold these entries, as far as they can be, and no others from now on. Raises nothing."""
        with self._lock:
            wanted = {} if self._is_over else {(item.path, item.signature): item for item in items}
            for key in [key for key in self._held if key not in wanted]:
                self._release(self._held.pop(key))
            self._room.expect(wanted.values())
            for key, item in wanted.items():
                if key in self._held:
                    continue
                if self._room.is_lacking:
                    self._room.warn(item.path)
                else:
                    self._held[key] = self._link(item)
            self.make_room()

    def make_room(self) -> None:
        """Release what lies on the disk by its links alone where another checkpoint has no room there."""
        with self._lock:
            for key, place in reversed([*self._held.items()]):
                if place is not None and self._room.needs(place):
                    self._release(place)
                    self._held[key] = None
                    self._room.warn(key[0])

    def hand_over(self, holder: str) -> bool:
        """Name the links by another launch, whose nodes leave them alone then; return whether all could be."""
        with self._lock:
            key = f"{holder}.{secrets.token_hex(4)}".lstrip(".")
            moved = {old: old.with_name(HELD.format(self._folder.name, key)) for old in self._roots}
            done = {old: new for old, new in moved.items() if _is_moved(old, new)}
            self._roots = tuple(done.get(old, old) for old in self._roots)
            self._held = {item: place and _below_new(place, done) for item, place in self._held.items()}
            self._holder = holder
            return len(done) == len(moved)

    def let_go(self, within: float) -> None:
        """Hold nothing from now on, in another thread's stead; wait so many seconds: a mount may not answer."""
        self._is_over = True
        thread = threading.Thread(target=self.keep, args=((),), name="let-go", daemon=True)
        thread.start()
        thread.join(within)

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


def holder_of(run: Store, launch: int, rank: int) -> str:
    """Return the name of a node of a launch of the program, for folders in which several nodes may hold links.

    `run`: the run directory; `launch`: the number of the launch, from 0.
    """
    return f"{zlib.crc32(f'{run.uri} {launch}'.encode()):08x}-{rank}"


def _is_moved(old: Path, new: Path) -> bool:
    """Move a folder, if it is there; return whether it is not where it was."""
    try:
        old.rename(new)
    except FileNotFoundError:
        return True
    except OSError as error:
        logger.info("%s cannot be renamed: %s", old, error)
        return False
    return True


def _below_new(place: Path, moved: Mapping[Path, Path]) -> Path:
    """Return where a place is once the folder two levels above it was moved."""
    root = place.parent.parent
    return moved.get(root, root) / place.parent.name / place.name


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
