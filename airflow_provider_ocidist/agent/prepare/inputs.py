"""Inputs: the data that the program reads, on this node before it starts; nodes share what they read of it."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.agent.prepare.code import fetch_errors
from airflow_provider_ocidist.agent.prepare.shared_input import SharedInput
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import with_retries
from airflow_provider_ocidist.errors import AgentError, Cause, StorageError
from airflow_provider_ocidist.model.amounts import size_text
from airflow_provider_ocidist.model.job import Input
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.locations import shown, shown_in

if TYPE_CHECKING:
    from airflow_provider_ocidist.agent.share.exchange import Exchange
    from airflow_provider_ocidist.storage.transfer import CopyReport, TransferProgress

logger = logging.getLogger(__name__)

AT_A_TIME = 4
"""Number of inputs that are copied at the same time."""
PROGRESS_EVERY_S = 15.0


def fetch_inputs(
    inputs: Sequence[Input],
    working_dir: Path,
    access: OciAccess,
    switch: StopSwitch,
    patience: float = 0.0,
    exchange: Exchange | None = None,
) -> None:
    """Copy all inputs, some at a time. Raises AgentError for the first that fails; the others are cancelled.

    `patience`: the seconds for which to retry while a store does not answer. `exchange`: with the other nodes.
    """
    if not inputs:
        return
    from concurrent.futures import ThreadPoolExecutor, as_completed

    ended = threading.Event()
    switch.listen(ended.set)
    with ThreadPoolExecutor(AT_A_TIME, "inputs") as pool:
        fetched = [
            pool.submit(
                with_retries,
                functools.partial(_fetch, item, working_dir, access, ended, exchange, number),
                patience,
                ended,
            )
            for number, item in enumerate(inputs)
        ]
        try:
            for future in as_completed(fetched):
                future.result()
        except BaseException:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            switch.check()
            raise


def _fetch(
    item: Input,
    working_dir: Path,
    access: OciAccess,
    ended: threading.Event,
    exchange: Exchange | None,
    number: int,
) -> None:
    target = working_dir / os.path.expanduser(item.target)  # noqa: PTH111 - keeps the slash
    what = f"the input {shown(item.source)}"
    place = f"{target}{'/' if item.target.endswith('/') else ''}"
    source = SharedInput(item.source, place, access, ended, exchange, number=number)
    with fetch_errors(what, target):
        report = _copy(source, what, target, ended)
    if report.files == 0:
        raise AgentError(f"{what} is empty", cause=Cause.DATA)
    logger.info(
        "fetched %s: %d files, %s in %.1f s%s",
        what,
        report.files,
        size_text(report.bytes),
        report.seconds,
        f", of which {size_text(source.borrowed)} from other nodes" if source.borrowed else "",
    )


def _copy(source: SharedInput, what: str, target: Path, ended: threading.Event) -> CopyReport:
    from airflow_provider_ocidist.storage.copying.resuming import until_whole

    watch = _Watch(what, target)

    def attempt() -> CopyReport:
        try:
            return source.copy(watch)
        except StorageError as error:
            if disk.is_full(error):
                raise disk.full_error(what, target, watch.bytes_total) from error
            raise

    def say(error: StorageError) -> None:
        why = shown_in(str(error))
        logger.warning("%s was interrupted after %s: %s; resuming", what, size_text(watch.bytes_done), why)

    return until_whole(
        attempt,
        bytes_done=lambda: watch.bytes_done,
        may_go_on=lambda _: not ended.is_set(),
        say=say,
        cancel=ended,
    )


class _Watch:
    """Checks a copy periodically: free space for all of it, and its progress."""

    def __init__(self, what: str, target: Path) -> None:
        self._what = what
        self._target = target
        self._log_progress = _progress_logger(what)
        self._is_room_checked = False
        self.bytes_done = self.bytes_total = 0

    def __call__(self, now: TransferProgress) -> None:
        # What was there before is no progress of an attempt that has moved nothing.
        if now.bytes_done:
            self.bytes_done = max(self.bytes_done, now.bytes_at_target)
        self.bytes_total = now.bytes_total
        if not self._is_room_checked:
            self._is_room_checked = True
            disk.check_room(self._what, now.bytes_total - now.bytes_done, self._target)
        self._log_progress(now)


def _progress_logger(what: str) -> Callable[[TransferProgress], None]:
    from airflow_provider_ocidist.storage.progress import progress_lines

    return progress_lines(logger.info, what, PROGRESS_EVERY_S)
