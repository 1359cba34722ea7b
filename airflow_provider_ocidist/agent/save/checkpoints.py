"""Checkpoints: fetches the checkpoint to resume from into the checkpoint folder, before the start."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import cannot_be_fetched
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    CheckpointError,
    OcidistError,
    StorageError,
)
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.job import Checkpoints
from airflow_provider_ocidist.oci_client.credentials import OciAccess

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.checkpoints import Through

logger = logging.getLogger(__name__)


def resume(
    folder: Path,
    checkpoints: Checkpoints,
    access: OciAccess,
    switch: StopSwitch,
    brought: set[str] | None = None,
    *,
    launched_before: Fence | None = None,
    through: Through | None = None,
    damaged: set[str] | None = None,
) -> CheckpointRef | None:
    """Fetch the newest complete checkpoint into the folder; None when there is none yet.

    `brought`: the names of the fetched entries are added to it. `launched_before`: this attempt, where it has launched
    the program before; its own checkpoints count also where the job goes on from no earlier attempt's. `through`: as
    `storage.checkpoints.fetch`. `damaged`: the URIs of checkpoints that are not read again; those that prove to be
    damaged are added.

    If the newest is damaged, the one before it is fetched. Raises AgentError when all are damaged, as a fresh start
    would lose their content, or when the place cannot be read.
    """
    if checkpoints.uri is None or not (checkpoints.resume or launched_before):
        return None
    only = None if checkpoints.resume else launched_before
    return _resume_from(
        checkpoints.uri, folder, access, switch, brought, only, through=through, damaged=damaged
    )


def resume_after_clear(
    folder: Path,
    config: AgentConfig,
    access: OciAccess,
    switch: StopSwitch,
    brought: set[str] | None = None,
    *,
    through: Through | None = None,
    damaged: set[str] | None = None,
) -> CheckpointRef | None:
    """Fetch the task's checkpoint from before it was cleared, if configured; the rest: as `resume`."""
    if config.checkpoints_stem is None:
        return None
    from airflow_provider_ocidist.storage.stores.opening import open_store

    base, _, stem = config.checkpoints_stem.rpartition("/")
    places = [f"{stem}{number}/" for number in reversed(range(config.generation))]
    try:
        found = open_store(base, access).list_each(places)
    except (StorageError, BackendError, OSError) as error:
        raise cannot_be_fetched("the checkpoint to resume from", error, str(error)) from error
    had = (
        _resume_from(
            f"{base}/{place}".rstrip("/"), folder, access, switch, brought, through=through, damaged=damaged
        )
        for place in places
        if found[place]
    )
    return next((reference for reference in had if reference is not None), None)


def _resume_from(
    uri: str,
    folder: Path,
    access: OciAccess,
    switch: StopSwitch,
    brought: set[str] | None,
    only: Fence | None = None,
    *,
    through: Through | None,
    damaged: set[str] | None,
) -> CheckpointRef | None:
    from airflow_provider_ocidist.storage.checkpoints import complete, published

    try:
        found = [each for each in complete(uri, access) if only in (None, each.fence)]
        # Of these the listing has shown that they are incomplete. Another may be published just now.
        incomplete = [] if found or only else published(uri, access)
        found = complete(uri, access) if incomplete else found
        switch.check()
        for reference in found:
            if _fetch_whole(reference, folder, access, brought, through, damaged):
                logger.info("resuming from %s: %s", reference.label, reference.uri)
                _fetch_companions(uri, reference, folder, access, brought, only, through, damaged)
                return reference
    except (StorageError, OSError) as error:
        raise cannot_be_fetched("the checkpoint to resume from", error, str(error)) from error
    if found or incomplete:
        raise AgentError(
            f"all {len(found or incomplete)} checkpoints below {uri} are damaged: delete them to train from the start, "
            "or set checkpoints.resume: false",
            cause=Cause.DATA,
        )
    return None


def _fetch_companions(
    uri: str,
    reference: CheckpointRef,
    folder: Path,
    access: OciAccess,
    brought: set[str] | None,
    only: Fence | None,
    through: Through | None,
    damaged: set[str] | None,
) -> None:
    """Fetch a checkpoint's companions, stored under other names; skip damaged ones."""
    from airflow_provider_ocidist.storage.companions import companions_at

    for companion in companions_at(uri, reference, access, only=only):
        if _fetch_whole(companion, folder, access, brought, through, damaged):
            logger.info("also fetched %s: %s", companion.label, companion.uri)


def start_from(
    folder: Path,
    checkpoints: Checkpoints,
    access: OciAccess,
    switch: StopSwitch,
    brought: set[str] | None = None,
    *,
    through: Through | None = None,
) -> None:
    """Fetch another run's checkpoint into the folder, for a task that has none of its own.

    `brought`: its name is added to it; `through`: as `storage.checkpoints.fetch`.

    Raises AgentError when it is incomplete: a fresh start would silently ignore `start_from`.
    """
    if not checkpoints.start_from:
        return
    switch.check()
    try:
        _take(_fetch(checkpoints.start_from, folder, access, through), brought)
    except (OcidistError, OSError) as error:
        why = f"{error}; correct checkpoints.start_from, or leave it empty to train from the beginning"
        raise cannot_be_fetched("the checkpoint to start from", error, why) from error
    logger.info("starting from %s", checkpoints.start_from)


def _fetch_whole(
    reference: CheckpointRef,
    folder: Path,
    access: OciAccess,
    brought: set[str] | None,
    through: Through | None,
    damaged: set[str] | None,
) -> bool:
    """Fetch a checkpoint; False when it is damaged in the store, not in transfer."""
    if damaged is not None and reference.uri in damaged:
        return False
    try:
        _take(_fetch(reference.uri, folder, access, through), brought)
    except CheckpointError as error:
        logger.warning("the checkpoint of %s is damaged: %s", reference.label, error)
        if damaged is not None:
            damaged.add(reference.uri)
        return False
    return True


def _fetch(uri: str, folder: Path, access: OciAccess, through: Through | None) -> Path:
    """Fetch a checkpoint; one that arrives damaged is read once more, from its store alone, which decides.

    The first time, the transfer may be at fault, or another node that has sent a part.
    """
    from airflow_provider_ocidist.storage.checkpoints import fetch

    try:
        return fetch(uri, folder, access, through=through)
    except StorageError as error:
        if error.retryable or (through is None and not isinstance(error, CheckpointError)):
            raise
        logger.warning("%s; reading it again, from the store alone", error)
    return fetch(uri, folder, access)


def _take(checkpoint: Path, brought: set[str] | None) -> None:
    _point_deepspeed_to(checkpoint)
    if brought is not None:
        brought.add(checkpoint.name)


def _point_deepspeed_to(checkpoint: Path) -> None:
    """Write `latest`, which names what DeepSpeed resumes from; without it DeepSpeed only warns."""
    if checkpoint.is_dir() and any(checkpoint.glob("*_states.pt")):
        checkpoint.with_name("latest").write_text(checkpoint.name)


def checkpoint_folder(checkpoints: Checkpoints | None, working_dir: Path) -> Path:
    """Return where the program writes checkpoints; an absolute path stays one."""
    return Path(os.path.normpath(working_dir / (checkpoints.path if checkpoints else "checkpoints")))


def ocifs_environment(checkpoints: Checkpoints | None) -> dict[str, str]:
    """Return the variables with which checkpoints that the program writes with ocifs land in the checkpoint folder."""
    if checkpoints is None or checkpoints.uri is None or not checkpoints.redirect:
        return {}
    # The last name is the task's, which the job does not know.
    base = checkpoints.uri.rpartition("/")[0]
    scheme, _, path = base.partition("://")
    # Of a whole bucket, much else is written by the same program.
    if scheme != "oci" or "/" not in path:
        return {}
    pattern = {"OCIDIST_CHECKPOINT_PATTERN": checkpoints.pattern} if checkpoints.pattern else {}
    return {"OCIDIST_CHECKPOINT_URI": base, **pattern}
