"""Survey: what a batch of copies would read and write, and which of its items are in one another's way."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import JobFileError, OcidistError, Problem, StorageError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import locations
from airflow_provider_ocidist.storage.batch_reports import error_text
from airflow_provider_ocidist.storage.copy_items import CopyItem
from airflow_provider_ocidist.storage.copying.destination import Landing, landing
from airflow_provider_ocidist.storage.copying.selection import (
    Selection,
    absolute,
    find,
    is_below,
    is_wanted,
    refuse_loss,
)
from airflow_provider_ocidist.storage.stores.opening import Stores

AT_A_TIME = 8
"""Number of items at a time; with 64 streams, each then has eight."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Opens the places of the two sides."""

    sources: Stores
    targets: Stores

    @classmethod
    def of(cls, source: OciAccess | None = None, target: OciAccess | None = None) -> Sides:
        """Return both sides for these credentials; None: those of this machine."""
        sources = Stores(source)
        return cls(sources=sources, targets=sources if target == source else Stores(target))


@dataclass(frozen=True, kw_only=True)
class Surveyed:
    """An item, its source's files, and their target."""

    item: CopyItem
    found: Selection
    wanted: int
    bytes: int
    landed: Landing
    at: float
    """Time of the listing, on the clock `time.monotonic`."""

    @property
    def root(self) -> str:
        """The root of what is written, as `absolute` returns it."""
        return absolute(self.landed.store)


def survey(items: Sequence[CopyItem], sides: Sides) -> list[Surveyed]:
    """List all sources and targets. Raises JobFileError or StorageError with all faults."""
    with ThreadPoolExecutor(AT_A_TIME, "survey") as pool:
        looked = list(pool.map(lambda item: _look(item, sides), items))
    found = [look for look in looked if isinstance(look, Surveyed)]
    problems = [*clashes(found)]
    if problems:
        raise JobFileError(problems, "the data to copy")
    errors = [(item, look) for item, look in zip(items, looked) if isinstance(look, Exception)]
    errors += [(one.item, _nothing_fits(one)) for one in _without_files(found)]
    if errors:
        lines = "\n  ".join(
            f"item {item.number}: {item.shown}: {error_text(error)}" for item, error in errors
        )
        raise StorageError(
            f"{len(errors)} of {len(items)} items cannot be copied, and so nothing was:\n  {lines}",
            retryable=any(isinstance(error, StorageError) and error.retryable for _, error in errors),
        )
    return found


def _without_files(found: Sequence[Surveyed]) -> Iterator[Surveyed]:
    """Yield the items whose `include` fits no file, though they have files: of several sources one must have one.

    A source without files is as it should be, and so is one whose files are all excluded.
    """
    fitting: dict[int, bool] = {}
    for one in found:
        fits = any(is_wanted(entry.name, one.item.rules.include, ()) for entry in one.found.entries)
        empty = not (one.item.rules.include and one.found.entries)
        fitting[one.item.number] = fitting.get(one.item.number, False) or fits or empty
    first = {one.item.number: one for one in reversed(found)}
    yield from (one for number, one in sorted(first.items()) if not fitting[number])


def _nothing_fits(one: Surveyed) -> StorageError:
    patterns = ", ".join(map(repr, one.item.rules.include))
    count = len(one.found.entries)
    files = f"none of its {count} files fits" if count > 1 else "its file does not fit"
    return StorageError(f"{files} include ({patterns}): correct the patterns")


def _look(item: CopyItem, sides: Sides) -> Surveyed | OcidistError | OSError:
    try:
        return surveyed_of(item, sides)
    except (OcidistError, OSError) as error:
        return error


def surveyed_of(item: CopyItem, sides: Sides) -> Surveyed:
    """List an item's source, and find its target. Raises StorageError, OSError."""
    found = find(item.source, sides.sources)
    landed = landing(item.target, found, sides.targets)
    if item.rules.delete_extra:
        refuse_loss(found, absolute(landed.store))
    wanted = [entry for entry in found.entries if item.rules.wants(entry.name)]
    return Surveyed(
        item=item,
        found=found,
        wanted=len(wanted),
        bytes=sum(entry.size or 0 for entry in wanted),
        landed=landed,
        at=time.monotonic(),
    )


def clashes(surveyed: Sequence[Surveyed]) -> Iterator[Problem]:
    """Yield a problem for items that write the same file, read what another writes, or delete what it copies."""
    if len(surveyed) == 1:
        return
    writers: dict[str, Surveyed] = {}
    for one in surveyed:
        for place in _written(one):
            other = writers.setdefault(place, one)
            if other is not one:
                yield _problem(
                    one,
                    f"would write {locations.shown(place)}, and so would item {other.item.number}: separate them",
                )
                break
    for one in surveyed:
        if one.found.is_tree:
            yield from _of_tree(one, surveyed)
        for entry in one.found.entries:
            place = f"{absolute(one.found.store)}/{entry.name}"
            if place in writers and writers[place] is not one:
                yield _problem(one, _reads_what(writers[place]))
                break


def _of_tree(one: Surveyed, surveyed: Sequence[Surveyed]) -> Iterator[Problem]:
    source = absolute(one.found.store)
    for other in surveyed:
        if other is one:
            continue
        if is_below(other.root, source) and not one.found.pattern and one.item.number != other.item.number:
            yield _problem(one, _reads_what(other))
        if one.item.rules.delete_extra and (is_below(other.root, one.root) or is_below(one.root, other.root)):
            yield _problem(
                one, f"would delete what item {other.item.number} copies: give them folders of their own"
            )
        elif one.item.rules.delete_extra and _reads_below(other, one.root):
            yield _problem(
                one, f"would delete what item {other.item.number} reads: give them folders of their own"
            )


def _reads_below(one: Surveyed, folder: str) -> bool:
    source = absolute(one.found.store)
    return is_below(source, folder) or (
        is_below(folder, source)
        and any(is_below(f"{source}/{entry.name}", folder) for entry in one.found.entries)
    )


def _reads_what(writer: Surveyed) -> str:
    return f"reads where item {writer.item.number} writes: put it in a task of its own, after this one"


def _problem(one: Surveyed, message: str) -> Problem:
    return Problem(f"item {one.item.number}, {one.item.shown}", message)


def _written(one: Surveyed) -> Iterator[str]:
    for entry in one.found.entries:
        if one.item.rules.wants(entry.name):
            yield f"{one.root}/{one.landed.rename or entry.name}"
