"""Publishing as an agent does it, with the arguments that a test does not care about filled in."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.checkpoints import SaveFacts
from airflow_provider_ocidist.storage.retention import Retention, retain

FIRST = Fence(attempt=1)
_SEQUENCE = itertools.count(1)


def publish(
    path: Path,
    uri: str,
    *,
    step: int | None,
    fence: Fence = FIRST,
    sequence: int | None = None,
    loss: float | None = None,
    **options: Any,
) -> CheckpointRef:
    """Publish as the first attempt, later than all before."""
    number = next(_SEQUENCE) if sequence is None else sequence
    save = SaveFacts(step=step, loss=loss, fence=fence, sequence=number, proof="the test says so")
    return checkpoints.publish(path, uri, save, **options)


def keep_last(uri: str, keep: int, access: OciAccess | None = None) -> tuple[str, ...]:
    """Retain the last ones, as the first attempt does."""
    return retain(uri, Retention(keep=keep), fence=FIRST, access=access)
