"""copy: files and trees from any place to any other, in parallel, whole or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.copying.changes import unchanged
from airflow_provider_ocidist.storage.copying.destination import destination
from airflow_provider_ocidist.storage.copying.engine import Engine
from airflow_provider_ocidist.storage.copying.meter import Meter, TransferProgress
from airflow_provider_ocidist.storage.copying.open_file import Copied
from airflow_provider_ocidist.storage.copying.selection import find, is_wanted
from airflow_provider_ocidist.storage.stores import Entry, Store

__all__ = ["MODES", "Copied", "CopyReport", "Mode", "TransferProgress", "copy", "copy_entries"]

PART_SIZE = 8 << 20
"""Bytes. Eight of them are in memory at a time on their way up; larger gained nothing where it was measured."""
THREADS = 64
"""At most; how many work at a time is found out (see `copying.lanes`)."""
Mode = Literal["all", "changed"]
MODES: tuple[Mode, ...] = ("all", "changed")


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyReport:
    """What a copy has done."""

    files: int
    """That the copy has brought to the target, also those that an interrupted attempt had brought."""
    bytes: int
    seconds: float
    skipped: tuple[str, ...] = ()
    """Names in the source that cannot be copied: links that lead out of the tree, sockets, pipes."""
    unchanged: tuple[str, ...] = ()
    """With mode `changed`: names that were at the target already."""
    resumed_bytes: int = 0
    """Of `bytes`: what was not moved again, because an interrupted attempt had moved it."""


def copy(
    source: str,
    target: str,
    *,
    access: OciAccess | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mode: Mode = "all",
    resume: bool = True,
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
) -> CopyReport:
    """Copy a file or a tree; the target appears whole or not at all, the source stays as it is.

    A source that is a folder, or ends in `/`, is a tree: what it holds comes to lie under `target`. A file
    becomes `target`, or goes into it when that ends in `/` or is a local folder. `include` and `exclude` are
    shell patterns for names relative to the tree, or for any part of them; `include` empty means everything.
    A tree that goes to a local folder which exists already replaces its files one by one, each whole. Empty
    folders are not copied. Mode `changed` leaves out files that are at the target already. With `resume`, a
    copy that was killed, or that the network ended, goes on where it was when it is asked for again.
    `part_size` is in bytes, `threads` the most at a time. Raises StorageError, also when `cancel` was set.
    """
    if mode not in MODES:
        raise StorageError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    meter = Meter(on_progress)
    found = find(source, access)
    wanted = [entry for entry in found.entries if is_wanted(entry.name, include, exclude)]
    with destination(target, found, access, resume=resume) as place:
        same = unchanged(found.store, wanted, place.store, place.rename) if mode == "changed" else set()
        arrived = place.arrived(wanted)
        rest = [entry for entry in wanted if entry.name not in same | arrived]
        engine = Engine(
            found.store,
            place.store,
            meter,
            cancel=cancel,
            part_size=part_size,
            threads=threads,
            resume=resume,
            on_arrival=place.note,
        )
        copied = engine.run(rest, place.rename)
    kept = [entry.size or 0 for entry in wanted if entry.name in arrived - same]
    return CopyReport(
        files=len(copied) + len(kept),
        bytes=sum(item.size for item in copied) + sum(kept),
        seconds=time.monotonic() - meter.started,
        skipped=tuple(found.store.skipped),
        unchanged=tuple(sorted(same)),
        resumed_bytes=meter.resumed_bytes + sum(kept),
    )


def copy_entries(
    source: Store,
    target: Store,
    entries: Sequence[Entry],
    *,
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
) -> list[Copied]:
    """Copy these files under their own names and return their SHA-256, taken from the bytes on their way."""
    meter = Meter(on_progress)
    engine = Engine(source, target, meter, cancel=cancel, part_size=part_size, threads=threads, sha256=True)
    return engine.run(entries)
