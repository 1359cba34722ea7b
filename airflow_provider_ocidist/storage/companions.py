"""Companions: the checkpoints under other names that belong to one, as `last.ckpt` beside that of a step."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import place
from airflow_provider_ocidist.storage.listing import by_folder, complete_in
from airflow_provider_ocidist.storage.manifests import Manifest
from airflow_provider_ocidist.storage.name_words import MAY_BE_HASH, MOST_MODELS, NUMBER
from airflow_provider_ocidist.storage.stores.opening import open_store

_DIGITS = re.compile("[0-9]+")
MOST = 8
"""Most names without a number, and most series with numbers, of which the newest is kept: a program may use a new name
each time."""


def companions(one: Manifest, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return a checkpoint's companions among all manifests, the newest first; of each series the newest.

    A companion has the same number or step in another series, as `optimizer_100.pt` and `model_100.pt`, or was saved
    before under a name without a number, as `last.ckpt`: a program looks for that name. The newest of each further
    numbered series is one too, with what was saved at its step: beside `best.pt` or `export-150.pt` a program may
    resume from `checkpoint-100` only.
    """
    found = [*_companions(one, manifests)]
    seen = {each.name for each in (one, *found)}
    found += islice(_numbered_series(one, manifests, seen), MOST)
    return [each for each in manifests if any(each is other for other in found)]


def _companions(one: Manifest, manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    seen = {_series(one.name)}
    steady = _steady_names(manifests)
    unnumbered = 0
    for each in manifests:
        series = _series(each.name)
        if series in seen or each.fence > one.fence:
            continue
        if _is_of_the_same_step(each, one):
            seen.add(series)
            yield each
        elif each.name in steady and unnumbered < MOST:
            seen.add(series)
            unnumbered += 1
            yield each


def _numbered_series(one: Manifest, manifests: Sequence[Manifest], seen: set[str]) -> Iterator[Manifest]:
    """Yield the newest of each series with numbers, each followed by what is of the same step.

    `seen`: names of series that are kept already.
    """
    steady, changing = _steady_names(manifests), _changing_names(manifests)
    kinds = {_kind(name, changing) for name in seen}
    may_be_dates = _number(one.name) is None
    for each in manifests:
        kind = _kind(each.name, changing)
        has_number = _is_numbered(each.name) if may_be_dates else _has_own_number(each.name)
        is_numbered = (has_number or each.name in changing) and each.name not in steady
        if is_numbered and kind not in kinds and each.fence <= one.fence:
            kinds.add(kind)
            yield each
            yield from _of_its_step(each, manifests)


def _of_its_step(one: Manifest, manifests: Sequence[Manifest]) -> Iterable[Manifest]:
    """Return the newest of each other series that was saved at the same step."""
    same = [each for each in manifests if each is not one and _is_of_the_same_step(each, one)]
    return {
        _series(each.name): each for each in reversed(same) if _series(each.name) != _series(one.name)
    }.values()


def _is_of_the_same_step(each: Manifest, one: Manifest) -> bool:
    if each.fence != one.fence:
        return False
    if _numbers(each.name) and _numbers(one.name):
        is_same = bool(_numbers(each.name) & _numbers(one.name))
    else:
        is_same = _holds(each.name, _number(one.name)) or _holds(one.name, _number(each.name))
    return is_same or (each.step is not None and each.step == one.step)


def _holds(name: str, number: int | None) -> bool:
    """Whether a name has a number by itself, or at its end: the 18 of `resnet18_last.pth` is none."""
    if number is None:
        return False
    alone = rf"(?<![0-9A-Za-z])0*{number}(?![0-9A-Za-z])"
    return re.search(rf"{alone}|(?<![0-9])0*{number}(?=\.[A-Za-z]|$)", name) is not None


def _steady_names(manifests: Sequence[Manifest]) -> set[str]:
    """Return the names that a program reuses for each checkpoint, as `last.ckpt` and `resnet18_last.pth`.

    A number within a word belongs to the name, unless it changes each time; a separate one does if the name was used
    twice, and the program did not go on from it to a new one: then it has only come back to an earlier step.
    """
    times = Counter(manifest.name for manifest in manifests)
    passed, changing = _passed_names(manifests, times), _changing_names(manifests)
    return {
        name
        for name, count in times.items()
        if _number(name) is None
        and name not in changing
        and ((count > 1 and name not in passed) or not NUMBER.search(name))
    }


def _changing_names(manifests: Sequence[Manifest]) -> set[str]:
    """Return the names whose numbers, also those within words, change with each save, as in `25epoch.pth`."""
    times = Counter(manifest.name for manifest in manifests)
    alike: dict[str, list[str]] = {}
    for name in times:
        alike.setdefault(_DIGITS.sub("#", name), []).append(name)
    return {
        name
        for names in alike.values()
        if len(names) > MOST_MODELS and all(times[name] == 1 for name in names)
        for name in names
        if _DIGITS.search(name)
    }


def _passed_names(manifests: Sequence[Manifest], times: Mapping[str, int]) -> set[str]:
    """Return the names with a separate number after which a name of their series was used for the first time."""
    new: set[str] = set()
    passed: set[str] = set()
    for name in dict.fromkeys(each.name for each in manifests):
        series = _series(name)
        if series in new:
            passed.add(name)
        elif times[name] == 1 and NUMBER.search(name):
            new.add(series)
    return passed


def _series(name: str) -> str:
    """Return a name without its numbers, but for those that are part of a word, as in `gpt2-last` and `t5-3b`."""
    placed = place(name)
    return NUMBER.sub("#", placed.series if placed else name)


def _kind(name: str, changing: Container[str]) -> str:
    """Return a series without its words of letters and digits, as the hash in `step-#-a1b2c3.pt`.

    `changing`: the names whose numbers within words change, too. Beside a number of its own such a word names a series,
    as in `fold2-epoch=1.ckpt`.
    """
    kind = MAY_BE_HASH.sub("#", _series(name))
    return _DIGITS.sub("#", kind) if name in changing and not _is_numbered(name) else kind


def _number(name: str) -> int | None:
    placed = place(name)
    return placed.number if placed else None


def _is_numbered(name: str) -> bool:
    return _number(name) is not None or NUMBER.search(name) is not None


def _has_own_number(name: str) -> bool:
    """Whether a name has a number that is neither a date nor a decimal."""
    placed = place(name)
    return placed is not None and (placed.number is not None or NUMBER.search(placed.series) is not None)


def _numbers(name: str) -> set[int]:
    placed = place(name)
    return {number for number in (placed.step, placed.epoch) if number is not None} if placed else set()


def companions_at(
    uri: str,
    reference: CheckpointRef,
    access: OciAccess | None = None,
    *,
    only: Fence | None = None,
    without: Container[str] = (),
) -> list[CheckpointRef]:
    """Return a published checkpoint's companions; `only`: of one attempt; `without`: URIs that do not count.

    Raises StorageError when the place cannot be read.
    """
    store = open_store(uri, access)
    complete = ((item.ref(store), item.manifest) for item in complete_in(store, by_folder(store.list())))
    found = {ref: manifest for ref, manifest in complete if ref.uri not in without}
    one = next((manifest for ref, manifest in found.items() if ref.uri == reference.uri), None)
    if one is None:
        return []
    belonging = companions(one, list(found.values()))
    return [
        ref
        for ref, manifest in found.items()
        if only in (None, ref.fence) and any(manifest is each for each in belonging)
    ]
