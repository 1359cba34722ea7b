"""Checkpoints: carries each that the program writes to safety; brings the newest back before the start."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import zipfile
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.config import AgentConfig
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.errors import (
    AgentError,
    BackendError,
    Cause,
    CheckpointError,
    IncompleteCheckpoint,
    OcidistError,
    StorageError,
)
from airflow_provider_ocidist.job import Checkpoints
from airflow_provider_ocidist.oci_credentials import OciAccess
from airflow_provider_ocidist.storage.checkpoints import CheckpointRef, step_of

if TYPE_CHECKING:
    from airflow_provider_ocidist.agent.deliveries import ShardCollector

logger = logging.getLogger(__name__)

LOOK_INTERVAL = 1.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a failed upload is tried again; doubled each time."""
LAST_TRIES = 4
UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
PROGRAMS = (".py",)
"""DeepSpeed puts `zero_to_fp32.py` beside its checkpoints."""
ZIPPED = (".pt", ".pth", ".ptz", ".npz", ".zip", ".keras")


@dataclass(frozen=True, slots=True)
class Signature:
    """What changes when somebody writes to a file or folder."""

    size: int
    modified_ns: int
    files: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One entry of the checkpoint folder that may be worth carrying."""

    path: Path
    step: int
    signature: Signature


def resume(
    folder: Path, checkpoints: Checkpoints, access: OciAccess, switch: StopSwitch
) -> CheckpointRef | None:
    """Bring the newest complete checkpoint into the folder; None when there is none yet.

    One whose content is damaged gives way to the one before it. Raises AgentError when all are damaged, for to begin
    anew would lose what they hold, or when the place cannot be read.
    """
    if checkpoints.uri is None or not checkpoints.resume:
        return None
    return _resume_from(checkpoints.uri, folder, access, switch)


def resume_after_clear(
    folder: Path, config: AgentConfig, access: OciAccess, switch: StopSwitch
) -> CheckpointRef | None:
    """Bring what the task had before it was cleared, where its job says so. Raises AgentError as `resume` does."""
    if config.checkpoints_stem is None:
        return None
    from airflow_provider_ocidist.storage.stores import open_store

    base, _, stem = config.checkpoints_stem.rpartition("/")
    places = [f"{stem}{number}/" for number in reversed(range(config.generation))]
    try:
        found = open_store(base, access).list_each(places)
    except (StorageError, BackendError, OSError) as error:
        raise _cannot_be_fetched(error) from error
    had = (
        _resume_from(f"{base}/{place}".rstrip("/"), folder, access, switch)
        for place in places
        if found[place]
    )
    return next((reference for reference in had if reference is not None), None)


def _cannot_be_fetched(error: Exception) -> AgentError:
    return AgentError(f"the checkpoint to go on from cannot be fetched: {error}", cause=Cause.DATA)


def _resume_from(uri: str, folder: Path, access: OciAccess, switch: StopSwitch) -> CheckpointRef | None:
    from airflow_provider_ocidist.storage.checkpoints import complete

    try:
        found = complete(uri, access)
        switch.check()
        for reference in found:
            if _fetch_whole(reference, folder, access):
                logger.info("going on from step %d: %s", reference.step, reference.uri)
                return reference
    except (StorageError, OSError) as error:
        raise _cannot_be_fetched(error) from error
    if found:
        raise AgentError(
            f"all {len(found)} checkpoints below {uri} are damaged: delete them to begin anew, "
            "or set checkpoints.resume: false",
            cause=Cause.DATA,
        )
    return None


def start_from(folder: Path, checkpoints: Checkpoints, access: OciAccess, switch: StopSwitch) -> None:
    """Bring the checkpoint of another run into the folder, for a task that has none of its own.

    Raises AgentError when it is not there whole: to begin anew would lose what it was asked to go on from.
    """
    if not checkpoints.start_from:
        return
    from airflow_provider_ocidist.storage.checkpoints import fetch

    switch.check()
    try:
        _point_deepspeed_to(fetch(checkpoints.start_from, folder, access))
    except (OcidistError, OSError) as error:
        raise AgentError(
            f"the checkpoint to start from cannot be fetched: {error}; correct checkpoints.start_from, "
            "or leave it empty to begin anew",
            cause=Cause.DATA,
        ) from error
    logger.info("starting from %s", checkpoints.start_from)


def _fetch_whole(reference: CheckpointRef, folder: Path, access: OciAccess) -> bool:
    """Fetch a checkpoint; False when it is damaged at its place, rather than on its way."""
    from airflow_provider_ocidist.storage.checkpoints import fetch

    for tried in (1, 2):
        try:
            _point_deepspeed_to(fetch(reference.uri, folder, access))
            return True
        except CheckpointError as error:
            logger.warning("the checkpoint of step %d is damaged (try %d): %s", reference.step, tried, error)
    return False


def _point_deepspeed_to(checkpoint: Path) -> None:
    """DeepSpeed goes on from what the file `latest` names; without one it begins anew and only warns."""
    if checkpoint.is_dir() and any(checkpoint.glob("*_states.pt")):
        checkpoint.with_name("latest").write_text(checkpoint.name)


def candidates(folder: Path) -> list[Candidate]:
    """Return the entries that are named after a step and not obviously unfinished, newest step first."""
    found = []
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            step = step_of(path.name)
            if (
                step is not None
                and not path.name.startswith(".")
                and not path.name.endswith(UNFINISHED + PROGRAMS)
            ):
                with contextlib.suppress(OSError):
                    found.append(Candidate(path, step, signature(path)))
    return sorted(found, key=lambda candidate: candidate.step, reverse=True)


def signature(path: Path) -> Signature:
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    statuses = [file.stat() for file in files]
    return Signature(
        size=sum(status.st_size for status in statuses),
        modified_ns=max((status.st_mtime_ns for status in statuses), default=path.stat().st_mtime_ns),
        files=len(files),
    )


def is_whole(path: Path) -> bool | None:
    """Return whether the format itself says that nothing is missing; None when the format does not tell."""
    try:
        if path.is_dir():
            return _is_whole_folder(path)
        if path.suffix in ZIPPED:
            return zipfile.is_zipfile(path) or (None if _is_pickle(path) else False)
        if path.suffix == ".safetensors":
            return _is_whole_safetensors(path)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return None


def _is_whole_folder(path: Path) -> bool | None:
    names = [item.name for item in path.rglob("*")]
    if not names or any(name.endswith(UNFINISHED) for name in names):
        return False
    # torch.distributed.checkpoint writes its `.metadata` last.
    return ".metadata" in names if any(name.endswith(".distcp") for name in names) else None


def _is_pickle(path: Path) -> bool:
    """Old formats of torch.save have no directory at the end that could be missing."""
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def _is_whole_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, 100_000_000)))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return path.stat().st_size == 8 + length + max(ends, default=0)


class CheckpointCourier:
    """Watches the folder while the training runs, and publishes what has come to rest."""

    def __init__(
        self,
        folder: Path,
        checkpoints: Checkpoints,
        access: OciAccess,
        *,
        loss_at: Callable[[int], float | None],
        on_published: Callable[[CheckpointRef], object],
        shards: ShardCollector | None = None,
    ) -> None:
        """`shards`: where there are other nodes, which may hold parts of what is here."""
        self.folder = folder
        self.checkpoints = checkpoints
        self.access = access
        self.loss_at = loss_at
        self.on_published = on_published
        self.shards = shards
        self.error: str | None = None
        """Why the last upload failed; None when it did not."""
        self._incomplete: dict[int, str] = {}
        """Why checkpoints will never be whole, by their steps; of those that are newer than all that is published."""
        self._seen = {candidate.path: candidate.signature for candidate in candidates(folder)}
        self._carried = dict(self._seen)
        self._changed_at: dict[Path, float] = {}
        self._pause = FIRST_PAUSE
        self._try_again_at = 0.0
        self._training_ended = threading.Event()
        self._clean = True
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.shards:
            self.shards.open()
        self._thread.start()

    def finish(self, *, clean: bool, limit: float | None) -> str | None:
        """Carry what is left, for at most `limit` seconds; return why that did not work, None when it did.

        `clean`: the program ended by itself, so that whatever it wrote last is whole.
        """
        self._clean = clean
        self._training_ended.set()
        self._thread.join(limit)
        if self._thread.is_alive():
            return f"checkpoints were still on their way to {self.checkpoints.uri} after {limit:.0f} s"
        incomplete = next(iter(self._incomplete.values()), None)
        return self.error or (incomplete if self.checkpoints.required else None)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            # A thread dies in silence, and silence would pass for "the program wrote none".
            logger.exception("unexpected")
            self.error = f"checkpoints cannot be carried to safety: {type(error).__name__}: {error}"
        finally:
            if self.shards:
                self.shards.close()

    def _watch(self) -> None:
        while not self._training_ended.wait(LOOK_INTERVAL):
            if time.monotonic() >= self._try_again_at:
                self._carry(self._rested())
        for _ in range(LAST_TRIES):
            if self._carry(self._left_over()):
                self.error = None
                return
            time.sleep(min(self._pause, 5.0))

    def _rested(self) -> list[Candidate]:
        """Return what is new, and has not changed since the last look, or for longer where parts need that."""
        found = candidates(self.folder)
        changed = {item.path for item in found if self._seen.get(item.path) != item.signature}
        self._changed_at |= dict.fromkeys(changed, time.monotonic())
        self._seen = {item.path: item.signature for item in found}
        new = self._new([item for item in found if item.path not in changed])
        return [item for item in new if is_whole(item.path) is not False and self._has_rested(item)]

    def _has_rested(self, item: Candidate) -> bool:
        if self.shards is None or item.path not in self._changed_at:
            return True
        try:
            return time.monotonic() - self._changed_at[item.path] >= self.shards.rest_of(item.path)
        except OSError:
            # The program is deleting it while it is looked at.
            return False

    def _left_over(self) -> list[Candidate]:
        """Return what is new after the end: nobody writes any more, but killing may have left a half."""
        killed_writing = time.time_ns() - 10**9
        found = candidates(self.folder)
        at_rest = {item.path for item in found if self._clean or item.signature.modified_ns < killed_writing}
        return self._new([item for item in found if _is_credible(item, at_rest)])

    def _new(self, found: list[Candidate]) -> list[Candidate]:
        # When uploads are slower than the program, older ones would be deleted as soon as they had arrived.
        kept = found[: self.checkpoints.keep]
        return [item for item in kept if self._carried.get(item.path) != item.signature]

    def _carry(self, items: list[Candidate]) -> bool:
        """Publish them, the newest first: it is what a restart needs. Return whether all went well."""
        for item in items:
            try:
                self._publish(item)
            except IncompleteCheckpoint as error:
                self._given_up(item, error)
            except (OcidistError, OSError) as error:
                # A program that deletes its own old checkpoints may do so under our hands.
                if item.path.exists():
                    self._failed(item, error)
                    return False
        if items:
            self._retain()
        return True

    def _publish(self, item: Candidate) -> None:
        from airflow_provider_ocidist.storage.checkpoints import publish

        uri, loss = self.checkpoints.uri, self.loss_at(item.step)
        assert uri is not None
        if self.shards and self.shards.needs_others(item.path):
            reference = self.shards.publish(item, uri, loss=loss)
        else:
            reference = publish(item.path, uri, step=item.step, loss=loss, access=self.access)
        self._carried[item.path] = item.signature
        self.error, self._pause, self._try_again_at = None, FIRST_PAUSE, 0.0
        self._incomplete = {step: why for step, why in self._incomplete.items() if step > item.step}
        logger.info("checkpoint of step %d is safe: %s", item.step, reference.uri)
        self.on_published(reference)

    def _given_up(self, item: Candidate, error: IncompleteCheckpoint) -> None:
        self._carried[item.path] = item.signature
        # Unless the program has deleted it meanwhile, as one does that keeps only the last.
        if item.path.exists():
            why = f"the checkpoint {item.path.name} is not whole and is not published: {error}"
            self._incomplete[item.step] = why
            logger.warning("%s", why)

    def _failed(self, item: Candidate, error: Exception) -> None:
        self.error = f"the checkpoint {item.path.name} cannot be carried to safety: {error}"
        logger.warning("%s; trying again in %.0f s", self.error, self._pause)
        self._try_again_at = time.monotonic() + self._pause
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    def _retain(self) -> None:
        from airflow_provider_ocidist.storage.checkpoints import retain

        try:
            assert self.checkpoints.uri is not None
            retain(self.checkpoints.uri, self.checkpoints.keep, self.access)
        except (OcidistError, OSError) as error:
            logger.warning("old checkpoints cannot be deleted: %s", error)


def _is_credible(item: Candidate, at_rest: Container[Path]) -> bool:
    whole = is_whole(item.path)
    return item.path in at_rest if whole is None else whole


def folder_of(checkpoints: Checkpoints | None, working_dir: Path) -> Path:
    """Return where the program writes checkpoints; an absolute path stays one."""
    return Path(os.path.normpath(working_dir / (checkpoints.path if checkpoints else "checkpoints")))
