"""Unproved copies: keeps unproved entries aside, where a person finds them and no retry does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.save.saving import SaveDeadline
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoint_names import UNPROVED
from airflow_provider_ocidist.storage.locations import join

logger = logging.getLogger(__name__)


def keep_aside(paths: Sequence[Path], uri: str, access: OciAccess, deadline: SaveDeadline) -> None:
    """Copy entries to `unproved/` of a place of checkpoints, in the time left; failures are logged."""
    from airflow_provider_ocidist.storage.transfer import copy

    for path in paths:
        place = join(uri, UNPROVED, path.name) if path.is_dir() else join(uri, UNPROVED)
        too_late = threading.Event()
        timer = threading.Timer(max(0.0, deadline.left), too_late.set)
        timer.start()
        try:
            copy(str(path), f"{place}/", access=access, cancel=too_late)
            logger.warning("%s is kept aside in %s", path.name, join(uri, UNPROVED))
        except (OcidistError, OSError) as error:
            logger.warning("%s cannot be kept aside: %s", path.name, error)
        finally:
            timer.cancel()


def forget(uri: str, access: OciAccess) -> None:
    """Delete what was kept aside: a newer checkpoint is complete; failures are logged."""
    from airflow_provider_ocidist.storage.stores.opening import open_store

    try:
        store = open_store(uri, access)
        for entry in store.list(f"{UNPROVED}/"):
            store.delete(entry.name)
    except (OcidistError, OSError) as error:
        logger.warning("what was kept aside in %s cannot be deleted: %s", join(uri, UNPROVED), error)
