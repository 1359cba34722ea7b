"""Carried: what one launch's uploader leaves to that of the next one on this machine, which goes on from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from airflow_provider_ocidist.agent.save.entries import Candidate, Files, candidates, scan, signature
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.publishing import Whole
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.storage.checkpoint_names import Placed


@dataclass(frozen=True, kw_only=True)
class Carried:
    """Whole checkpoints that are not sent yet, and lie in the folder together with all that belongs to them."""

    waiting: tuple[Whole, ...]
    """The oldest first, numbered from 1: in the next launch they come before what that saves."""
    links: HeldLinks
    """Links to some of them."""
    in_place: tuple[Candidate, ...]
    """Newest save of each series."""

    @property
    def newest(self) -> Whole:
        """The newest of them: nothing that is published is newer."""
        return self.waiting[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of what lies there."""
        return tuple(item.path.name for item in self.in_place)

    def digest(self, launch: int) -> str:
        """Return what nodes compare before the launch of this number goes on from what lies there."""
        return _digest({item.path.name: item.files for item in self.in_place}, launch)


class NewestInPlace:
    """Knows the newest whole save of each series, and whether they all lie where a program resumes from them."""

    def __init__(self, there: Sequence[Candidate] = ()) -> None:
        """`there`: what the launch goes on from, the newest first."""
        self._newest = {item.placed.series: (0, item) for item in reversed(there)}

    def add(self, item: Candidate, begun: int) -> None:
        """Take in a whole save, by its number."""
        self._newest[item.placed.series] = begun, item

    def found(self, series_of: Callable[[Placed], str]) -> tuple[Candidate, ...] | None:
        """Return them, the newest first; None where the program has deleted or overwritten one.

        What is stored then belongs to the newest: a program may resume from both together. `series_of`: the series of
        a name, by all that the program's names have shown.
        """
        newest: dict[str, Candidate] = {}
        for _, item in sorted(self._newest.values(), key=lambda each: each[0]):
            series = series_of(item.placed)
            newest.pop(series, None)
            newest[series] = item
        return tuple(reversed([*newest.values()])) if all(map(_is_in_place, newest.values())) else None


def digest_of(folder: Path, names: Iterable[str], launch: int) -> str:
    """Return what `Carried.digest` returns on the node that has proved these entries, as this node finds them now.

    Raises OSError.
    """
    return _digest({name: scan(folder / name) for name in names}, launch)


def _digest(entries: Mapping[str, Files], launch: int) -> str:
    # Not the inodes: some mounts give a file another one on each node.
    files = {name: [[file, *stamp[:2]] for file, stamp in sorted(entries[name].items())] for name in entries}
    return hashlib.sha256(json.dumps([launch, files], sort_keys=True).encode()).hexdigest()


def fetched_into(folder: Path, pattern: str | None, names: Collection[str]) -> list[Candidate]:
    """Return the entries of a folder that were fetched into it, the last written first."""
    return [item for item in candidates(folder, pattern) if item.path.name in names] if names else []


def renumbered(waiting: Iterable[Whole]) -> tuple[Whole, ...]:
    """Return checkpoints in the order of saving, numbered from 1."""
    in_order = sorted(waiting, key=lambda whole: whole.begun)
    return tuple(replace(whole, begun=number) for number, whole in enumerate(in_order, 1))


def _is_in_place(item: Candidate) -> bool:
    try:
        return signature(item.path) == item.signature
    except OSError:
        return False
