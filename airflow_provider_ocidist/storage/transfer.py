"""copy: files and trees from any place to any other, in parallel, whole or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.copying.budget import CopyBudget
from airflow_provider_ocidist.storage.copying.changes import delete_names, extra, proven, unchanged, verdicts
from airflow_provider_ocidist.storage.copying.destination import Destination, Landing, destination, landing
from airflow_provider_ocidist.storage.copying.engine import Engine
from airflow_provider_ocidist.storage.copying.in_flight import InFlight
from airflow_provider_ocidist.storage.copying.meter import Meter, TransferProgress
from airflow_provider_ocidist.storage.copying.open_file import Copied
from airflow_provider_ocidist.storage.copying.selection import (
    Selection,
    absolute,
    find,
    is_wanted,
    refuse_links,
    refuse_loss,
)
from airflow_provider_ocidist.storage.locations import shown
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.opening import Stores

__all__ = [
    "MODES",
    "Copied",
    "CopyReport",
    "CopyRules",
    "Mode",
    "TransferProgress",
    "copy",
    "copy_entries",
    "copy_selection",
    "default_budget",
]

PART_SIZE = 8 << 20
"""Bytes of a part. Eight parts are in memory at a time during an upload; larger ones gained nothing when measured."""
THREADS = 64
"""Most threads; the number at a time is adapted (see `copying.lanes`)."""
LEFT_AFTER = 5.0
"""Seconds for which who cancels the upload of a checkpoint waits for what is under way: it may never be answered."""
Mode = Literal["all", "changed"]
MODES: tuple[Mode, ...] = ("all", "changed")


@dataclass(frozen=True, kw_only=True)
class CopyRules:
    """Which files to copy, and what to do at the end."""

    include: tuple[str, ...] = ()
    """Shell patterns for names relative to the tree, or for any part of them; none: everything."""
    exclude: tuple[str, ...] = ()
    mode: Mode = "all"
    verify: bool = False
    """Whether to compare all files with their source once more at the end."""
    delete_extra: bool = False
    """Whether to delete at the target, at the end, what the source does not have; what is excluded stays."""

    def wants(self, name: str) -> bool:
        return is_wanted(name, self.include, self.exclude)


@dataclass(frozen=True, kw_only=True)
class CopyReport:
    """What a copy has done."""

    files: int
    """Number of files copied to the target, including those that an interrupted attempt had copied."""
    bytes: int
    seconds: float
    skipped: tuple[str, ...] = ()
    """Names in the source that cannot be copied: links that lead out of the tree, sockets, pipes."""
    unchanged: tuple[str, ...] = ()
    """Names that were at the target already, with mode `changed`."""
    resumed_bytes: int = 0
    """Bytes of `bytes` that were not moved again, because an interrupted attempt had moved them."""
    deleted: tuple[str, ...] = ()
    """Names that only the target had, with `delete_extra`."""
    unverified: tuple[str, ...] = ()
    """Names of which only the size could be compared, with `verify`, if a place knows no checksum."""


def copy(
    source: str,
    target: str,
    *,
    access: OciAccess | None = None,
    target_access: OciAccess | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    mode: Mode = "all",
    verify: bool = False,
    delete_extra: bool = False,
    resume: bool = True,
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    threads: int = THREADS,
    in_flight: InFlight | None = None,
) -> CopyReport:
    """Copy a file or a tree; the target appears whole or not at all, the source stays as it is.

    A source that is a folder, or ends in `/`, is a tree: its content is copied to `target`. A file
    becomes `target`, or goes into it when that ends in `/` or is a local folder. A source with `*`, `?`, `[`
    or `**` in its names is all that matches; it is copied to `target`, by its path from the first such name.
    `include` and `exclude` are shell patterns for names relative to the tree, or for any part of them;
    `include` empty means everything. A tree that goes to a local folder which exists already replaces its files
    one by one, each whole. Empty folders are not copied. Mode `changed` leaves out files that are at the target
    already. `verify` compares all files once more at the end, `delete_extra` deletes what only the target has.
    With `resume`, a copy that was killed, or that the network ended, resumes when it is called
    again. `target_access` is for a target that has other credentials than the source. `part_size` is in bytes,
    `threads` the most at a time. `in_flight` learns which uploads are open. Raises StorageError, also when `cancel` was
    set.
    """
    rules = CopyRules(
        include=tuple(include), exclude=tuple(exclude), mode=mode, verify=verify, delete_extra=delete_extra
    )
    stores = Stores(access)
    found = find(source, stores)
    return copy_selection(
        found,
        landing(target, found, Stores(target_access) if target_access else stores),
        rules,
        budget=CopyBudget(threads, part_size),
        resume=resume,
        on_progress=on_progress,
        cancel=cancel,
        part_size=part_size,
        in_flight=in_flight,
    )


def default_budget() -> CopyBudget:
    """Return the streams and the memory of one copy."""
    return CopyBudget(THREADS, PART_SIZE)


def copy_selection(
    found: Selection,
    landed: Landing,
    rules: CopyRules,
    *,
    budget: CopyBudget,
    resume: bool = True,
    repeated: bool = False,
    on_progress: Callable[[TransferProgress], None] | None = None,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
    in_flight: InFlight | None = None,
) -> CopyReport:
    """Copy what was found to where it will lie. See `copy` for the rest.

    `repeated`: an earlier attempt, maybe on another machine, may have copied some files: those whose checksum proves
    it are not moved again.
    """
    if rules.mode not in MODES:
        raise StorageError(f"mode is {rules.mode!r}; it must be one of {', '.join(MODES)}")
    meter = Meter(on_progress)
    wanted = [entry for entry in found.entries if rules.wants(entry.name)]
    if rules.delete_extra:
        _require_tree(found, wanted)
        refuse_loss(found, absolute(landed.store))
    refuse_links((landed.rename or entry.name for entry in wanted), landed.store)
    with destination(landed, found, resume=resume) as place, budget.member():
        there = _already_there(found.store, wanted, place, rules, repeated=repeated)
        lacking = there.lacking(wanted)
        meter.bytes_there = sum(entry.size or 0 for entry in wanted) - sum(
            entry.size or 0 for entry in lacking
        )
        engine = Engine(
            found.store,
            place.store,
            meter,
            cancel=cancel,
            part_size=part_size,
            budget=budget,
            resume=resume,
            on_arrival=place.note,
            in_flight=in_flight,
        )
        copied = engine.run(lacking, place.rename)
        unverified = _verified(found.store, wanted, place) if rules.verify else ()
    deleted = _delete_extra(found, landed.store, rules) if rules.delete_extra else ()
    report = _report(found.store, wanted, there, copied, meter)
    return replace(report, deleted=deleted, unverified=unverified)


@dataclass(frozen=True)
class _AtTarget:
    """Names of files that need not be copied."""

    unchanged: frozenset[str]
    """Names that lay at the target before, with mode `changed`."""
    arrived: frozenset[str]
    """Names of files that an earlier attempt of this copy has moved."""

    def lacking(self, wanted: Sequence[Entry]) -> list[Entry]:
        there = self.unchanged | self.arrived
        return [entry for entry in wanted if entry.name not in there]


def _already_there(
    source: Store, wanted: Sequence[Entry], place: Destination, rules: CopyRules, *, repeated: bool
) -> _AtTarget:
    """Return what is at the target; `repeated`: also by checksums, where nothing else shows an earlier attempt."""
    same = unchanged(source, wanted, place.store, place.rename) if rules.mode == "changed" else set()
    there = _AtTarget(frozenset(same), frozenset(place.arrived(wanted)))
    if not repeated:
        return there
    proved = proven(source, there.lacking(wanted), place.store, place.rename)
    return replace(there, arrived=there.arrived | proved)


def _report(
    source: Store, wanted: Sequence[Entry], there: _AtTarget, copied: Sequence[Copied], meter: Meter
) -> CopyReport:
    earlier = [entry.size or 0 for entry in wanted if entry.name in there.arrived - there.unchanged]
    return CopyReport(
        files=len(copied) + len(earlier),
        bytes=sum(item.size for item in copied) + sum(earlier),
        seconds=time.monotonic() - meter.started,
        skipped=tuple(source.skipped),
        unchanged=tuple(sorted(there.unchanged)),
        resumed_bytes=meter.resumed_bytes + sum(earlier),
    )


def _require_tree(found: Selection, wanted: Sequence[Entry]) -> None:
    """Raise StorageError where the source cannot decide what the target shall keep."""
    if not found.is_tree or found.pattern:
        raise StorageError(
            f"delete_extra needs a folder as its source, and {shown(found.uri)} is not a folder: name "
            "a folder, with include",
            uri=found.uri,
        )
    if not wanted:
        raise StorageError(
            f"there is no file to copy at {shown(found.uri)}, and delete_extra would empty the target: correct the "
            "source, or delete the target by hand",
            uri=found.uri,
        )


def _verified(source: Store, wanted: Sequence[Entry], place: Destination) -> tuple[str, ...]:
    """Return the names of which size alone can be compared. Raises StorageError for what is not the same."""
    found = verdicts(source, wanted, place.store, place.rename)
    wrong = [name for name, verdict in found.items() if verdict == "different"]
    if wrong:
        raise StorageError(
            f"{len(wrong)} of {len(found)} files at {shown(place.store.uri)} differ from those "
            f"at {shown(source.uri)}: "
            f"{names_text(sorted(wrong), 5)}; copy again with mode changed",
            uri=place.store.uri,
        )
    return tuple(sorted(name for name, verdict in found.items() if verdict == "same size"))


def _delete_extra(found: Selection, store: Store, rules: CopyRules) -> tuple[str, ...]:
    names = extra(found.store, found.entries, store, rules.wants)
    delete_names(store, names)
    return tuple(names)


def copy_entries(
    source: Store,
    target: Store,
    entries: Sequence[Entry],
    *,
    cancel: threading.Event | None = None,
    part_size: int = PART_SIZE,
) -> list[Copied]:
    """Copy these files under their own names and return their SHA-256, taken during the copy."""
    budget = CopyBudget(THREADS, part_size)
    engine = Engine(
        source,
        target,
        Meter(None),
        cancel=cancel,
        part_size=part_size,
        budget=budget,
        sha256=True,
        left_after=LEFT_AFTER,
    )
    with budget.member():
        return engine.run(entries)
