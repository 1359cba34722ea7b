"""Which files are the same at source and target, which differ, and which only the target has."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Literal

from airflow_provider_ocidist.storage.stores.base import Entry, Store

_THREADS = 16

Verdict = Literal["same", "different", "same size"]
"""Result of a comparison. `same size`: the two places know no checksum that could be compared."""


def unchanged(source: Store, entries: Sequence[Entry], target: Store, rename: str | None) -> set[str]:
    """Return the names, at the source, of files that need not be copied.

    Size and checksum decide; files on this machine are read for it. Where a place knows no checksum, or the two know
    different ones, a copy of the same size counts as the same if it is not older than its source; without times, none
    does.
    """
    return _chosen(source, entries, target, rename, is_same)


def proven(source: Store, entries: Sequence[Entry], target: Store, rename: str | None) -> set[str]:
    """Return the names, at the source, of files whose checksum says that they are at the target."""
    return _chosen(source, entries, target, rename, _is_proven)


def verdicts(
    source: Store, entries: Sequence[Entry], target: Store, rename: str | None
) -> dict[str, Verdict]:
    """Return the result of the comparison of each file with the target's, by its name at the source."""
    there = _present(target, rename)
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "verify") as pool:
        found = pool.map(
            lambda entry: _verdict(source, entry, target, there.get(rename or entry.name)), entries
        )
        return {entry.name: verdict for entry, verdict in zip(entries, found)}


def extra(source: Store, entries: Sequence[Entry], target: Store, wanted: Callable[[str], bool]) -> list[str]:
    """Return the names that are only at the target, of those that are wanted.

    `entries` are the source's as they were copied; it is listed once more, as another copy may have copied newer files
    since. A source file that cannot be copied, such as a link that leads out, does not count as missing; a link of the
    target's is nobody's copy.
    """
    known = {entry.name for entry in entries}
    left_out = {f"{name}/" for name in source.skipped}
    # The target is listed first: its files were in the source before.
    names = [entry.name for entry in _files(target) if entry.name not in known and wanted(entry.name)]
    if not names:
        return []
    known |= {entry.name for entry in source.list()}
    spared = tuple(left_out | {f"{name}/" for name in source.skipped})
    return [name for name in names if name not in known and not f"{name}/".startswith(spared)]


def delete_names(store: Store, names: Sequence[str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "delete") as pool:
        for _ in pool.map(store.delete, names):
            pass


def is_same(source: Store, ours: Entry, target: Store, theirs: Entry) -> bool:
    """Whether a file need not be copied, by the rule of `unchanged`."""
    if ours.size is None:
        return False
    verdict = compare(source, ours, target, theirs)
    if verdict == "same size":
        return bool(ours.modified and theirs.modified and theirs.modified >= ours.modified)
    return verdict == "same"


def _is_proven(source: Store, ours: Entry, target: Store, theirs: Entry) -> bool:
    return ours.size is not None and compare(source, ours, target, theirs) == "same"


def compare(source: Store, ours: Entry, target: Store, theirs: Entry) -> Verdict:
    """Compare size and checksum; an unknown size matches any."""
    if None not in (ours.size, theirs.size) and ours.size != theirs.size:
        return "different"
    known = source.checksum(ours), target.checksum(theirs)
    if source.folder and target.folder:
        known = source.checksum_by_reading(ours, None), target.checksum_by_reading(theirs, None)
    elif source.folder and known[1]:
        known = source.checksum_by_reading(ours, known[1].part_size), known[1]
    elif target.folder and known[0]:
        known = known[0], target.checksum_by_reading(theirs, known[0].part_size)
    if not all(known):
        return "same size"
    if known[0] == known[1]:
        return "same"
    # Digests of parts of different sizes cannot be compared.
    of_parts = known[0] and known[1] and known[0].part_size != known[1].part_size
    return "same size" if of_parts else "different"


def _verdict(source: Store, ours: Entry, target: Store, theirs: Entry | None) -> Verdict:
    return "different" if theirs is None else compare(source, ours, target, theirs)


def _chosen(
    source: Store,
    entries: Sequence[Entry],
    target: Store,
    rename: str | None,
    is_chosen: Callable[[Store, Entry, Store, Entry], bool],
) -> set[str]:
    there = _present(target, rename)
    pairs = [(entry, there[rename or entry.name]) for entry in entries if (rename or entry.name) in there]
    with concurrent.futures.ThreadPoolExecutor(_THREADS, "compare") as pool:
        judged = pool.map(lambda pair: is_chosen(source, pair[0], target, pair[1]), pairs)
        return {entry.name for (entry, _), same in zip(pairs, judged) if same}


def _present(target: Store, rename: str | None) -> dict[str, Entry]:
    if rename is None:
        return {entry.name: entry for entry in _files(target)}
    try:
        there = target.stat(rename)
    except FileNotFoundError:
        return {}
    return {rename: there} if there.behind is None else {}


def _files(target: Store) -> list[Entry]:
    """Return the target's files without its links: the content of one changes with another file."""
    return [entry for entry in target.list() if entry.behind is None]
