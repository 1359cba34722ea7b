"""Output places: which files of a node's outputs would meet others at their targets."""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.amounts import names_text
from airflow_provider_ocidist.model.job import Output
from airflow_provider_ocidist.storage.locations import join, parse, shown

_FAILED = re.compile("failed-[0-9]+")


@dataclass(frozen=True, kw_only=True)
class Clash:
    """One file that is not copied, as its place is another's."""

    output: str
    """Path of the output that has the file."""
    name: str
    """Name of the file in it."""
    place: str
    other: str
    """Path of the output that is copied to that place."""
    theirs: str = ""
    """Folder there that other nodes or attempts write; empty if this node does."""


@dataclass(frozen=True, kw_only=True)
class OthersFolders:
    """Folders to which other nodes, or other attempts, copy an output."""

    output: str
    root: str
    nodes: frozenset[str]
    """Names of the folders of the other nodes."""
    attempts: bool
    """Whether failed attempts copy it too."""

    def first_of(self, place: str) -> str:
        """Return the name of the folder in which a place lies; empty if it lies in none of these."""
        if not place.startswith(f"{self.root}/"):
            return ""
        first, _, below = place[len(self.root) + 1 :].partition("/")
        if not below and not self.root.startswith("/"):
            # An object store has files and folders of one name.
            return ""
        is_theirs = first in self.nodes or (self.attempts and _FAILED.fullmatch(first))
        return first if is_theirs else ""


class OutputPlaces:
    """The places that this node's outputs are copied to, one output after the other."""

    def __init__(self, others: Sequence[OthersFolders] = ()) -> None:
        self._others = others
        self._outputs: list[str] = []
        """Paths of the outputs; two may have the same."""
        self._owners: dict[str, tuple[int, Path]] = {}
        """The number of the output, and the file, that each place is for."""
        self._folders: dict[str, int] = {}
        """Number of the output for which each folder is needed."""

    def add(self, output: str, source: Path, uri: str, names: Iterable[str]) -> tuple[Clash, ...]:
        """Take the places of an output's files; return those that are others'."""
        root, is_file = absolute(uri), source.is_file()
        self._outputs.append(output)
        clashes = (self._take(source if is_file else source / name, root, name) for name in names)
        return tuple(clash for clash in clashes if clash)

    def _take(self, file: Path, root: str, name: str) -> Clash | None:
        """Take the place of a file of the last output, unless it is another's."""
        place, number = join(root, name), len(self._outputs) - 1
        output = self._outputs[number]
        for each in self._others:
            if theirs := each.first_of(place):
                return Clash(output=output, name=name, place=place, other=each.output, theirs=theirs)
        # On a file system, a file where the other has a folder cannot be written either.
        above = [join(root, folder) for folder in _folders_above(name)] if root.startswith("/") else []
        owner, same = self._owners.get(place, (None, file))
        others = [*([] if owner is None or _is_same(file, same) else [owner]), self._folders.get(place)]
        others += [self._owners[folder][0] for folder in above if folder in self._owners]
        for other in others:
            if other is not None and other != number:
                return Clash(output=output, name=name, place=place, other=self._outputs[other])
        self._owners.setdefault(place, (number, file))
        self._folders.update((folder, number) for folder in above)
        return None


def _is_same(first: Path, second: Path) -> bool:
    return first == second or os.path.realpath(first) == os.path.realpath(second)


def _folders_above(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def absolute(uri: str) -> str:
    """Return what two URIs of one folder share."""
    place = parse(uri)
    return os.path.realpath(place.path) if place.kind == "local" else uri.rstrip("/")


def lines_of(clashes: Iterable[Clash]) -> list[str]:
    """Return the warnings about files that are left out, one line for each pair of outputs."""
    places: Mapping[tuple[str, str, str], list[str]] = defaultdict(list)
    for clash in clashes:
        places[clash.output, clash.other, clash.theirs].append(shown(clash.place))
    return [_line(*key, names_text(found)) for key, found in places.items()]


def _line(output: str, other: str, theirs: str, places: str) -> str:
    if theirs:
        return (
            f"the output {output} would write {places}, to which other nodes or attempts copy the output {other}: "
            f"rename {theirs}, or give them different URIs"
        )
    return (
        f"the outputs {other} and {output} would both write {places}, so that of {output} is left out: "
        "give them different URIs"
    )


def meetings(outputs: Sequence[Output]) -> list[str]:
    """Return the pairs of outputs of which one is copied to the folder of the other, or below it.

    Whether they meet is known only once the program has written them; what is the same file never does.
    """
    return [
        f"{first.path} and {second.path}"
        for first, second in itertools.combinations(outputs, 2)
        if _may_meet(first, second) or _may_meet(second, first)
    ]


def _may_meet(outer: Output, inner: Output) -> bool:
    above, below = absolute(outer.uri), absolute(inner.uri)
    if not f"{below}/".startswith(f"{above}/"):
        return False
    return os.path.normpath(inner.path) != os.path.normpath(join(outer.path, below[len(above) :]))
