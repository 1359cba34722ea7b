"""A shared look: the states and log lines of several gangs, in as few calls as their backend allows. No Airflow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from airflow_provider_ocidist.backends.base import Backend, LogPart
from airflow_provider_ocidist.backends.capabilities import now_at
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.gangs.actions import Action
from airflow_provider_ocidist.model.run import RunRecord, RunStatus

log = logging.getLogger(__name__)


class Watched(Protocol):
    """One of the gangs of a look, a `watch.Watch`: it takes what was read, and returns what to do next."""

    record: RunRecord

    def lines_since(self, now: float) -> list[float]: ...

    def begin_look(self) -> None: ...

    def end_look(self, *, answered: bool) -> None: ...

    def observe(self, status: RunStatus, part: LogPart | None, now: float, read_at: float) -> Action: ...

    def after_failure(self, error: BackendError, now: float) -> Action | Exception: ...

    def after_unforeseen(self, error: Exception, now: float) -> Action | Exception: ...

    def warn(self, message: str, error: Exception, now: float) -> None: ...


AnyWatched = TypeVar("AnyWatched", bound=Watched)


@dataclass(frozen=True, slots=True)
class PollResult:
    """What a look at several gangs has found."""

    outcomes: tuple[Action | Exception, ...]
    """Outcomes in the order of the gangs; an exception if another request cannot help."""
    trouble: BackendError | None = None
    """Error of the service; it slows the poller down if it may pass or concerns the states."""
    unanswered: bool = False
    """Whether the service did not return the state of some gangs."""


def look_together(backend: Backend, watches: Sequence[AnyWatched], now: float) -> PollResult:
    """Look at gangs of one backend in as few calls as it allows; an error of one does not affect the others."""
    outcomes: dict[AnyWatched, Action | Exception] = {}
    statuses: dict[AnyWatched, RunStatus] = {}
    lines: dict[AnyWatched, LogPart] = {}
    trouble: BackendError | None = None
    unanswered = False
    for group in _grouped(watches, _compartment):
        for watch in group:
            watch.begin_look()
        try:
            statuses.update(zip(group, backend.status([watch.record.ref for watch in group]), strict=True))
        except BackendError as error:
            trouble, unanswered = error, True
            outcomes.update((watch, watch.after_failure(error, now)) for watch in group)
        except Exception as error:
            log.exception("the states of %d gangs could not be read", len(group))
            outcomes.update((watch, watch.after_unforeseen(error, now)) for watch in group)
        for watch in group:
            watch.end_look(answered=watch in statuses)
    # The service stamps the lines: where this machine's clock is ahead of its, the last ones would be passed over.
    read_at = now_at(backend, now)
    for group in _grouped(statuses, _log_place):
        try:
            found = backend.logs_of([(watch.record.ref, watch.lines_since(read_at)) for watch in group])
            lines.update(zip(group, found, strict=True))
        except BackendError as error:
            trouble = error
            for watch in group:
                watch.warn("%s; the log lines will follow later", error, now)
        except Exception as error:
            log.exception("the log lines of %d gangs could not be read", len(group))
            for watch in group:
                watch.warn("its log lines could not be read (%s); will try again", error, now)
    for watch, status in statuses.items():
        outcomes[watch] = _attempt(watch.observe, status, lines.get(watch), now, read_at)
    return PollResult(tuple(outcomes[watch] for watch in watches), trouble, unanswered)


def _attempt(work: Callable[..., Any], *args: Any) -> Any:
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 - the look at the others continues
        return error


def _grouped(watches: Iterable[AnyWatched], key: Callable[[AnyWatched], Hashable]) -> list[list[AnyWatched]]:
    groups: dict[Hashable, list[AnyWatched]] = {}
    for watch in watches:
        groups.setdefault(key(watch), []).append(watch)
    return list(groups.values())


def _compartment(watch: Watched) -> Hashable:
    return watch.record.ref.compartment_id


def _log_place(watch: Watched) -> Hashable:
    ref = watch.record.ref
    # Gangs of several compartments may share a log group.
    return (ref.log_group_id, ref.log_id) if ref.log_group_id else ref.compartment_id
