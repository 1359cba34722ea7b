"""Unfinished uploads: a killed node leaves them, and the bucket keeps, and bills, their parts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import Sending
from airflow_provider_ocidist.model.run import RunKey
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import publishing_attempt
from airflow_provider_ocidist.storage.stores.base import OpenUpload
from airflow_provider_ocidist.storage.stores.opening import open_store

log = logging.getLogger(__name__)


def abort_left_behind(uri: str, fence: Fence, access: OciAccess | None = None, *, aside: bool = True) -> int:
    """Abort the unfinished uploads of a task's earlier attempts, and return their number.

    `uri`: the folder of the task's checkpoints, which this attempt has fenced. Earlier ones publish nothing more
    there. `aside`: also those of what is kept aside there, which do not say whose they are: not while a node of this
    attempt may send one. Never raises: an open upload only costs storage.
    """
    base, _, own = uri.rstrip("/").rpartition("/")
    aborted = 0
    try:
        store = open_store(base, access)
        for upload in store.open_uploads(stem_of(own)):
            if _is_earlier(upload.name, own, fence, aside=aside):
                store.abort_upload(upload)
                aborted += 1
    except (OcidistError, OSError) as error:
        log.info("the uploads that earlier attempts have left open cannot be aborted: %s", error)
    if aborted:
        log.info("aborted %d uploads that earlier attempts had left open", aborted)
    return aborted


def abort_reported(sending: Iterable[Sending], access: OciAccess | None = None) -> int:
    """Abort the uploads that nodes which have ended had reported as open, and no others; return their number.

    One that has arrived stays. Never raises: an open upload only costs storage.
    """
    aborted = 0
    for each in sending:
        try:
            upload = OpenUpload(name=each.name, id=each.upload_id, begun_at=0.0)
            open_store(each.folder, access).abort_upload(upload)
            aborted += 1
        except (OcidistError, OSError) as error:
            log.info("the upload of %s that a node has left open cannot be aborted: %s", each.name, error)
    return aborted


def stem_of(place: str) -> str:
    """Return the common prefix of a task's folders of all generations."""
    found = RunKey.stem_in(place)
    return found[0] if found else place


def _is_earlier(name: str, own: str, fence: Fence, *, aside: bool) -> bool:
    """Whether a file, of this name below the folders of all tasks, was sent by an earlier attempt of this task."""
    place, _, rest = name.partition("/")
    folder, inside, _ = rest.partition("/")
    if not inside:
        return False
    if place == own:
        owner = publishing_attempt(folder)
        return aside if owner is None else owner < fence.attempt
    ours, theirs = RunKey.stem_in(own), RunKey.stem_in(place)
    return ours is not None and theirs is not None and ours[0] == theirs[0] and theirs[1] < ours[1]
