"""Checkpoints: fetches the checkpoint to resume from into the checkpoint folder, before the start."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from airflow_provider_ocidist.agent.save.layouts import LATEST
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import cannot_be_fetched
from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import (
    BackendError,
    CheckpointError,
    CheckpointsDamaged,
    OcidistError,
    StorageError,
)
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.job import Checkpoints
from airflow_provider_ocidist.oci_client.credentials import OciAccess

if TYPE_CHECKING:
    from airflow_provider_ocidist.storage.checkpoints import Manifest, Through

logger = logging.getLogger(__name__)

MEGATRON = re.compile(r"iter_([0-9]{7,})")
"""Name of a checkpoint's folder as Megatron gives it."""
Brought = dict[str, Optional[CheckpointRef]]
"""Entries that were fetched, by their names; None for what another run has published."""
OnRead = Callable[[int], object]
"""Function that gets the number of bytes that were compared."""


@dataclass
class Fetching:
    """How checkpoints are fetched into a folder; what has been, and what has proved to be damaged."""

    folder: Path
    access: OciAccess
    switch: StopSwitch
    brought: Brought = field(default_factory=dict)
    """Entries that were fetched; each further one is added."""
    damaged: set[str] = field(default_factory=set)
    """URIs of checkpoints that are not read again; those that prove to be damaged are added."""
    through: Through | None = None
    """Function that returns the store to read from, as of `storage.checkpoints.fetch`; the next three are as there."""
    reuse: bool = True
    on_read: OnRead = lambda _: None
    cancel: threading.Event = field(default_factory=threading.Event)
    digest: str = ""
    """Digest of what was fetched last."""
    _pointers: set[str] = field(default_factory=set)
    """Names of the pointers that name the newest of theirs: what is fetched after that is older."""

    def has_whole(self, reference: CheckpointRef) -> bool:
        """Fetch a checkpoint; False when it is damaged in the store, not in transfer."""
        if reference.uri in self.damaged:
            return False
        try:
            self.take(self.fetch(reference.uri), reference)
        except CheckpointError as error:
            logger.warning("the checkpoint of %s is damaged: %s", reference.label, error)
            self.damaged.add(reference.uri)
            return False
        return True

    def fetch(self, uri: str) -> Path:
        """Fetch a checkpoint; one that arrives damaged is read once more, from its store alone, which decides.

        The first time, the transfer may be at fault, or another node that has sent a part.
        """
        try:
            return self._fetch(uri, self.through)
        except StorageError as error:
            if (
                self.cancel.is_set()
                or error.retryable
                or (self.through is None and not isinstance(error, CheckpointError))
            ):
                raise
            logger.warning("%s; reading it again, from the store alone", error)
        return self._fetch(uri, None)

    def _fetch(self, uri: str, through: Through | None) -> Path:
        from airflow_provider_ocidist.storage.checkpoints import fetch

        return fetch(
            uri,
            self.folder,
            self.access,
            through=through,
            reuse=self.reuse,
            on_read=self.on_read,
            on_fetched=self._note,
            cancel=self.cancel,
        )

    def _note(self, manifest: Manifest) -> None:
        self.digest = manifest.digest

    def take(self, checkpoint: Path, reference: CheckpointRef | None) -> None:
        if self.cancel.is_set():
            raise StorageError(f"the fetch of {checkpoint.name} was cancelled", uri=str(checkpoint))
        name, content = _pointer_to(checkpoint) or ("", "")
        if name and name not in self._pointers:
            self._pointers.add(name)
            checkpoint.with_name(name).write_text(content)
        self.brought[checkpoint.name] = reference


def resume(
    checkpoints: Checkpoints, how: Fetching, *, launched_before: Fence | None = None
) -> CheckpointRef | None:
    """Fetch the newest complete checkpoint into the folder; None when there is none yet.

    `launched_before`: this attempt, where it has launched the program before; its own checkpoints count also where the
    job goes on from no earlier attempt's.

    If the newest is damaged, the one before it is fetched. Raises CheckpointsDamaged when all are, as a fresh start
    would lose their content, and AgentError when the place cannot be read.
    """
    if checkpoints.uri is None or not (checkpoints.resume or launched_before):
        return None
    only = None if checkpoints.resume else launched_before
    return _resume_from(checkpoints.uri, how, only)


def resume_after_clear(config: AgentConfig, how: Fetching) -> CheckpointRef | None:
    """Fetch the task's checkpoint from before it was cleared, if configured; raises as `resume`."""
    if config.checkpoints_stem is None:
        return None
    from airflow_provider_ocidist.storage.stores.opening import open_store

    base, _, stem = config.checkpoints_stem.rpartition("/")
    places = [f"{stem}{number}/" for number in reversed(range(config.generation))]
    try:
        found = open_store(base, how.access).list_each(places)
    except (StorageError, BackendError, OSError) as error:
        raise cannot_be_fetched("the checkpoint to resume from", error, str(error)) from error
    had = (_resume_from(f"{base}/{place}".rstrip("/"), how) for place in places if found[place])
    return next((reference for reference in had if reference is not None), None)


def _resume_from(uri: str, how: Fetching, only: Fence | None = None) -> CheckpointRef | None:
    from airflow_provider_ocidist.storage.checkpoints import complete, published

    try:
        found = [each for each in complete(uri, how.access) if only in (None, each.fence)]
        # Of these the listing has shown that they are incomplete. Another may be published just now.
        incomplete = [] if found or only else published(uri, how.access)
        found = complete(uri, how.access) if incomplete else found
        how.switch.check()
        for reference in found:
            if how.has_whole(reference):
                logger.info("resuming from %s: %s", reference.label, reference.uri)
                _fetch_companions(uri, reference, how, only)
                return reference
    except (StorageError, OSError) as error:
        raise cannot_be_fetched("the checkpoint to resume from", error, str(error)) from error
    if found or incomplete:
        raise CheckpointsDamaged(
            f"all {len(found or incomplete)} checkpoints below {uri} are damaged: delete them to train from the start, "
            "or set checkpoints.resume: false"
        )
    return None


def _fetch_companions(uri: str, reference: CheckpointRef, how: Fetching, only: Fence | None) -> None:
    """Fetch a checkpoint's companions, stored under other names; instead of a damaged one, the one before it."""
    from airflow_provider_ocidist.storage.companions import companions_at

    fetched: set[str] = set()
    is_complete = False
    while not is_complete:
        is_complete = True
        for each in companions_at(uri, reference, how.access, only=only, without=how.damaged):
            if each.uri in fetched:
                continue
            if how.has_whole(each):
                fetched.add(each.uri)
                logger.info("also fetched %s: %s", each.label, each.uri)
            else:
                is_complete = False


def start_from(checkpoints: Checkpoints, how: Fetching) -> str:
    """Fetch another run's checkpoint into the folder, for a task that has none of its own; return its digest.

    The digest is that of what has arrived, and empty if there is nothing to start from: the place may be one that is
    rewritten.

    Raises AgentError when it is incomplete: a fresh start would silently ignore `start_from`.
    """
    if not checkpoints.start_from:
        return ""
    how.switch.check()
    try:
        how.take(how.fetch(checkpoints.start_from), None)
    except (OcidistError, OSError) as error:
        why = f"{error}; correct checkpoints.start_from, or leave it empty to train from the beginning"
        raise cannot_be_fetched("the checkpoint to start from", error, why) from error
    logger.info("starting from %s", checkpoints.start_from)
    return how.digest


def _pointer_to(checkpoint: Path) -> tuple[str, str] | None:
    """Return name and content of the file by which DeepSpeed or Megatron finds what to resume from.

    Without it DeepSpeed only warns, and so does Megatron, and trains from the beginning.
    """
    if not checkpoint.is_dir():
        return None
    if any(checkpoint.glob("*_states.pt")):
        return LATEST, checkpoint.name
    iteration = MEGATRON.fullmatch(checkpoint.name)
    return ("latest_checkpointed_iteration.txt", str(int(iteration[1]))) if iteration else None


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
