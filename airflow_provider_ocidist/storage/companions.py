"""Companions: the checkpoints under other names that belong to one, as `last.ckpt` beside that of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import place
from airflow_provider_ocidist.storage.listing import by_folder, complete_in
from airflow_provider_ocidist.storage.manifests import CheckpointRef, Manifest
from airflow_provider_ocidist.storage.stores import open_store

MOST = 8
"""Names without a number of which the newest version is kept: a program may call each by another name."""


def companions(one: Manifest, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return what belongs to a checkpoint, of all that are there, the newest first; of each series the newest.

    That is what has the same number or step under a name of another series, as `optimizer_100.pt` and `model_100.pt`,
    and what was saved under a name without a number before, as `last.ckpt`: a program looks for it by that name.
    """
    return list(_companions(one, manifests))


def _companions(one: Manifest, manifests: Sequence[Manifest]) -> Iterator[Manifest]:
    seen = {_series(one.name)}
    unnumbered = 0
    for each in manifests:
        series = _series(each.name)
        if series in seen or each.fence > one.fence:
            continue
        if _is_of_the_same_step(each, one):
            seen.add(series)
            yield each
        elif _is_always_called_so(each.name) and unnumbered < MOST:
            seen.add(series)
            unnumbered += 1
            yield each


def _is_of_the_same_step(each: Manifest, one: Manifest) -> bool:
    if each.fence != one.fence:
        return False
    if _holds(each.name, _number(one.name)) or _holds(one.name, _number(each.name)):
        return True
    return each.step is not None and each.step == one.step


def _holds(name: str, number: int | None) -> bool:
    return number is not None and re.search(rf"(?<!\d)0*{number}(?!\d)", name) is not None


def _is_always_called_so(name: str) -> bool:
    return _number(name) is None and not re.search(r"\d", name)


def _series(name: str) -> str:
    placed = place(name)
    return re.sub(r"\d+", "#", placed.series if placed else name)


def _number(name: str) -> int | None:
    placed = place(name)
    return placed.number if placed else None


def companions_at(uri: str, reference: CheckpointRef, access: OciAccess | None = None) -> list[CheckpointRef]:
    """Return what belongs to a published checkpoint. Raises StorageError when the place cannot be read."""
    store = open_store(uri, access)
    found = {item.ref(store): item.manifest for item in complete_in(store, by_folder(store.list()))}
    one = next((manifest for ref, manifest in found.items() if ref.uri == reference.uri), None)
    if one is None:
        return []
    belonging = companions(one, list(found.values()))
    return [ref for ref, manifest in found.items() if any(manifest is each for each in belonging)]
