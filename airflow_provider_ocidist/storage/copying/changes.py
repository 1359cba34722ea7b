"""Which files are at the target already, just as they are at the source."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence

from airflow_provider_ocidist.storage.stores import Entry, Store

_THREADS = 16


def unchanged(source: Store, entries: Sequence[Entry], target: Store, rename: str | None) -> set[str]:
    """Return the names, at the source, of files that need not be copied.

    Size and checksum decide; what lies on this machine is read for it. Where a place knows no checksum (or
    the two know different ones), a copy that is not older than its source counts as the same, or never.
    """
    there = _present(target, rename)
    pairs = [(entry, there[rename or entry.name]) for entry in entries if (rename or entry.name) in there]
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "compare") as pool:
        judged = pool.map(lambda pair: is_same(source, pair[0], target, pair[1]), pairs)
        return {entry.name for (entry, _), same in zip(pairs, judged, strict=True) if same}


def is_same(source: Store, ours: Entry, target: Store, theirs: Entry) -> bool:
    if ours.size is None or ours.size != theirs.size:
        return False
    known = source.checksum(ours), target.checksum(theirs)
    if source.folder and target.folder:
        return source.checksum_by_reading(ours, None) == target.checksum_by_reading(theirs, None)
    if source.folder and known[1]:
        return source.checksum_by_reading(ours, known[1].part_size) == known[1]
    if target.folder and known[0]:
        return target.checksum_by_reading(theirs, known[0].part_size) == known[0]
    if all(known):
        return known[0] == known[1]
    return bool(ours.modified and theirs.modified and theirs.modified >= ours.modified)


def _present(target: Store, rename: str | None) -> dict[str, Entry]:
    if rename is None:
        return {entry.name: entry for entry in target.list()}
    try:
        return {rename: target.stat(rename)}
    except FileNotFoundError:
        return {}
