"""Retention: selects and deletes old checkpoints."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.job import Best, Checkpoints
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import fences
from airflow_provider_ocidist.storage.checkpoint_names import publishing_attempt, save_folder
from airflow_provider_ocidist.storage.companions import companions
from airflow_provider_ocidist.storage.listing import (
    Complete,
    by_folder,
    complete_in,
    delete_folder,
    holds_checkpoints,
    without_needed,
)
from airflow_provider_ocidist.storage.manifests import MANIFEST, Manifest
from airflow_provider_ocidist.storage.stores.base import Entry, Store
from airflow_provider_ocidist.storage.stores.opening import open_store

log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 3600.0
"""Seconds by which files without a manifest are older than the newest checkpoint when they count as abandoned."""


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Which checkpoints stay: those that one of the rules keeps."""

    keep: int = 3
    """Number of the last checkpoints that stay, at least one."""
    every: int | None = None
    """Interval in steps: the newest checkpoint of each step that is a multiple of it stays."""
    best: Best | None = None
    """Metric whose best checkpoint stays; of equal ones the newest."""

    @classmethod
    def of(cls, checkpoints: Checkpoints) -> Retention:
        return cls(keep=checkpoints.keep, every=checkpoints.keep_every, best=checkpoints.keep_best)


def superfluous(
    manifests: Sequence[Manifest], rule: Retention, fence: Fence, folders: Sequence[str] = ()
) -> list[Manifest]:
    """Return the complete checkpoints that no rule keeps; `manifests` has the newest first.

    `folders`: the folder of each; it distinguishes versions of one save from another run's. Without any, names do.
    Never the newest, no companion of a kept one, and none of an attempt later than `fence`.
    """
    versions, manifests = manifests, _last_versions(manifests, folders or [each.name for each in manifests])
    last = _last(manifests, max(1, rule.keep))
    kept = [*last, *_every(manifests, rule.every), *_best(manifests, rule.best)]
    kept += [each for one in kept for each in companions(one, manifests)]
    return [each for each in versions if each.fence <= fence and not any(each is other for other in kept)]


def _last_versions(manifests: Sequence[Manifest], folders: Sequence[str]) -> Sequence[Manifest]:
    """Return the last version of each save: a file that a program adds to a whole one makes another."""
    found: dict[object, Manifest] = {}
    for number, (each, folder) in enumerate(zip(manifests, folders)):
        # Version 1 had no numbers.
        save = (
            (each.fence, each.sequence, each.name, save_folder(each.name, folder))
            if each.sequence
            else number
        )
        found.setdefault(save, each)
    return tuple(found.values())


def _last(manifests: Sequence[Manifest], count: int) -> list[Manifest]:
    """Return the last `count`; their companions do not count."""
    found: list[Manifest] = []
    beside: list[Manifest] = []
    for each in manifests:
        if len(found) == count:
            break
        if not any(each is other for other in beside):
            found.append(each)
            beside += companions(each, manifests)
    return found


def _every(manifests: Sequence[Manifest], step: int | None) -> Sequence[Manifest]:
    if step is None:
        return ()
    oldest_first = reversed(manifests)
    multiples = {each.step: each for each in oldest_first if each.step is not None and each.step % step == 0}
    return tuple(multiples.values())


def _best(manifests: Sequence[Manifest], best: Best | None) -> Sequence[Manifest]:
    if best is None:
        return ()
    values = ((each.metric(best.metric), each) for each in manifests)
    known = [(value, each) for value, each in values if value is not None and math.isfinite(value)]
    choose = min if best.mode == "min" else max
    # Both return the first of equal ones, which is the newest.
    return (choose(known, key=lambda item: item[0])[1],) if known else ()


def retain(uri: str, rule: Retention, *, fence: Fence, access: OciAccess | None = None) -> tuple[str, ...]:
    """Delete the complete checkpoints below a URI that no rule keeps, and old remains; return their folders.

    Incomplete ones count in no rule. What a file of a folder that stays is a link to stays, too. Manifests are deleted
    first, so that no half-deleted checkpoint is found. Raises Fenced, and deletes nothing more, once a later attempt or
    launch saves there.
    """
    store = open_store(uri, access)
    fences.advance_fence(store, fence)
    folders = by_folder(store.list())
    complete = complete_in(store, folders)
    if not complete:
        return ()
    gone = superfluous([item.manifest for item in complete], rule, fence, [item.folder for item in complete])
    doomed = [item.folder for item in complete if any(item.manifest is each for each in gone)]
    remains = [
        each for each in _remains(folders, complete[0], fence) if not holds_checkpoints(store, folders[each])
    ]
    doomed = without_needed([*doomed, *remains], folders)
    for folder in doomed:
        fences.advance_fence(store, fence)
        delete_folder(store, folders[folder])
    if doomed:
        try:
            _abort_uploads(store, complete[0], fence)
        except (OcidistError, OSError) as error:
            # Some may delete objects and not list uploads; an open one only costs storage.
            log.debug("open uploads of %s cannot be aborted: %s", store.uri, error)
    return tuple(doomed)


def _abort_uploads(store: Store, newest: Complete, fence: Fence) -> None:
    """Abort abandoned uploads: of earlier attempts, or begun long before the newest was published."""
    for upload in store.open_uploads():
        folder, inside, _ = upload.name.partition("/")
        owner = publishing_attempt(folder)
        is_abandoned = upload.begun_at < newest.modified - ABANDONED_AFTER_S
        # What is kept aside does not say by which attempt.
        is_ours = owner is None or owner == fence.attempt
        is_earlier = owner is not None and owner < fence.attempt
        if inside and (is_earlier or (is_ours and is_abandoned)):
            store.abort_upload(upload)


def _remains(folders: Mapping[str, Mapping[str, Entry]], newest: Complete, fence: Fence) -> Iterator[str]:
    """Yield the folders without a manifest that no node of this or an earlier attempt is writing any more."""
    for folder, files in folders.items():
        changed = max(entry.modified or math.inf for entry in files.values())
        is_abandoned = changed < newest.modified - ABANDONED_AFTER_S
        owner = publishing_attempt(folder)
        if MANIFEST not in files and is_abandoned and owner is not None and owner <= fence.attempt:
            yield folder
