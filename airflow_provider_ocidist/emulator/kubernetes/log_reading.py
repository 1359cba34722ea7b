"""Reading logs: `kubectl logs` and its options."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import BinaryIO

from airflow_provider_ocidist.emulator.kubernetes import statuses
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet import pod_logs
from airflow_provider_ocidist.emulator.wire import whole_number

LOOK_S = 0.05
QUIET_AFTER_END_S = 0.1
"""Seconds after a container's end in which its last lines may be on their way to the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LogReading:
    """What a client wants of a log."""

    container: str
    follow: bool
    previous: bool
    timestamps: bool
    since: datetime | None
    tail_lines: int | None
    limit_bytes: int | None

    @classmethod
    def of(cls, query: Mapping[str, str], pod: Obj) -> LogReading:
        """Return what a query asks for. Raises 400."""
        return cls(
            container=_container(query.get("container", ""), pod),
            follow=query.get("follow", "").lower() in ("true", "1"),
            previous=query.get("previous", "").lower() in ("true", "1"),
            timestamps=query.get("timestamps", "").lower() in ("true", "1"),
            since=_since(query),
            tail_lines=_number(query, "tailLines"),
            limit_bytes=_number(query, "limitBytes"),
        )

    def check(self, pod: Obj, *, has_log: bool) -> None:
        """Raise 400 where a container has no log that could be read."""
        name = pod["metadata"]["name"]
        if self.previous and not has_log:
            text = f'previous terminated container "{self.container}" in pod "{name}" not found'
            raise statuses.bad_request(text)
        if has_log:
            return
        status = pod["status"]
        for each in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
            waiting = each["state"].get("waiting") if each["name"] == self.container else None
            if waiting:
                raise statuses.bad_request(_waits(self.container, name, waiting["reason"]))
        if status.get("phase") == "Pending":
            if not pod["spec"].get("nodeName"):
                raise statuses.bad_request(f"pod {name} does not have a host assigned")
            raise statuses.bad_request(_waits(self.container, name, "ContainerCreating"))


def _waits(container: str, pod: str, reason: str) -> str:
    what = {
        "ContainerCreating": "ContainerCreating",
        "PodInitializing": "PodInitializing",
        "ErrImagePull": "image can't be pulled",
        "ImagePullBackOff": "trying and failing to pull image",
    }.get(reason, reason)
    why = f"is waiting to start: {what}"
    return f'container "{container}" in pod "{pod}" {why}'


def _container(name: str, pod: Obj) -> str:
    names = [each["name"] for each in pod["spec"]["containers"]]
    inits = [each["name"] for each in pod["spec"].get("initContainers") or ()]
    if not name and len(names) > 1:
        text = f"a container name must be specified for pod {pod['metadata']['name']}, choose one of: {names}"
        raise statuses.bad_request(text.replace("', '", " ").replace("'", ""))
    if name and name not in [*names, *inits]:
        raise statuses.bad_request(f"container {name} is not valid for pod {pod['metadata']['name']}")
    return name or names[0]


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    number = whole_number(text)
    if number is None:
        raise statuses.bad_request(f"{name} must be a number from 0 on, not {text!r:.100}")
    return number


def _since(query: Mapping[str, str]) -> datetime | None:
    seconds = _number(query, "sinceSeconds")
    if seconds is not None:
        try:
            return datetime.now(timezone.utc) - timedelta(seconds=seconds)
        except OverflowError as error:
            raise statuses.bad_request(f"sinceSeconds: {error}") from error
    if text := query.get("sinceTime"):
        try:
            since = datetime.fromisoformat(_to_microseconds(text.replace("Z", "+00:00")))
            return since if since.tzinfo else since.replace(tzinfo=timezone.utc)
        except ValueError as error:
            raise statuses.bad_request(f"sinceTime: {error}") from error
    return None


def _to_microseconds(text: str) -> str:
    """Return a time without its nanoseconds, which Python has none of."""
    head, dot, tail = text.partition(".")
    if not dot:
        return text
    digits = len(tail) - len(tail.lstrip("0123456789"))
    return f"{head}.{tail[:digits][:6].ljust(6, '0')}{tail[digits:]}"


async def follow(
    path: Path, query: LogReading, lives: Callable[[], bool], cut: asyncio.Event
) -> AsyncIterator[bytes]:
    """Yield the lines that are wanted; if the log is to be followed, also those that come while the container lives."""
    left = query.limit_bytes
    with suppress(FileNotFoundError), path.open("rb") as file:
        found = pod_logs.selected(
            file.read().splitlines(keepends=True), since=query.since, count=query.tail_lines
        )
        async for piece in _pieces(file, found, query, lives, cut):
            text = piece if left is None else piece[:left]
            yield text
            left = None if left is None else left - len(text)
            if left == 0:
                return


async def _pieces(
    file: BinaryIO, found: list[bytes], query: LogReading, lives: Callable[[], bool], cut: asyncio.Event
) -> AsyncIterator[bytes]:
    yield _shown(found, query)
    while query.follow and not cut.is_set():
        living = lives()
        if not living:
            await asyncio.sleep(QUIET_AFTER_END_S)
        if data := file.read():
            yield _shown(data.splitlines(keepends=True), query)
        elif not living:
            return
        else:
            await asyncio.sleep(LOOK_S)


def _shown(lines: list[bytes], query: LogReading) -> bytes:
    return b"".join(lines if query.timestamps else [line.partition(b" ")[2] for line in lines])
