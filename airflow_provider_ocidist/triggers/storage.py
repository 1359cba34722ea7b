"""Triggers that watch a place in storage: for new data under a prefix, for a new checkpoint."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_provider_ocidist.errors import OcidistError, Unopenable, service_error_in
from airflow_provider_ocidist.gangs.stopwatch import Stopwatch
from airflow_provider_ocidist.model.evidence import ANSWERED, Unanswered
from airflow_provider_ocidist.provider_info import DEFAULT_CONN_ID
from airflow_provider_ocidist.triggers.connections import OpenedConnection, is_refusal, shared_storage
from airflow_provider_ocidist.triggers.threads import look_at_storage

# DAG files load this module for the triggers: what only a running trigger needs is imported where it is used.
if TYPE_CHECKING:
    from airflow_provider_ocidist.gangs.task_log import TaskLog
    from airflow_provider_ocidist.storage.stores.base import Entry

MOST_DEFECTS = 3
"""Looks in a row that end with an error that is no answer, and not Airflow's; then it is raised."""
SEEN = "ocidist_seen"
"""Key of the last reported data's digest in the asset's state store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files below a prefix at one moment, each by name and etag; without an etag, by size and time."""

    files: frozenset[tuple[str, str | None]]
    bytes: int = 0
    uri: str = ""
    earlier_digest: str | None = None
    """Digest that earlier versions have stored of this listing: of files without an etag, it has the names alone."""

    @classmethod
    def of(cls, entries: Sequence[Entry], uri: str) -> Listing:
        """Return what a place lists; `uri` without secrets: it goes into events, which many may read."""
        files = frozenset((entry.name, entry.etag or f"{entry.size}-{entry.modified}") for entry in entries)
        earlier = _digest((entry.name, entry.etag) for entry in entries)
        return cls(files, sum(entry.size or 0 for entry in entries), uri, earlier)

    @property
    def digest(self) -> str:
        """Identifies a listing; small enough to be stored anywhere."""
        return _digest(self.files)


def _digest(files: Iterable[tuple[str, str | None]]) -> str:
    lines = sorted(f"{name}\0{etag}" for name, etag in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Deliveries:
    """Decides from successive listings when a delivery of new data is complete. Pure."""

    def __init__(self, reported: str | None, settle: float) -> None:
        """`reported`: digest of the last reported listing; None: the first listing is not reported.

        Only the digest is known of a listing that another process reported: then any difference counts.
        `settle` is in seconds.
        """
        self.reported = reported
        self._settle = settle
        self._known: Listing | None = None
        self._at_rest: Listing | None = None
        self._since = 0.0

    def note_unread(self) -> None:
        """Begin the wait for rest anew: while the place cannot be read, nothing may be able to arrive there either."""
        self._at_rest = None

    def complete(self, found: Listing, now: float, asked_at: float | None = None) -> bool:
        """Return whether to report a listing; deleted files alone are not reported.

        It was made between `asked_at` and `now`; what arrives meanwhile may be missing in it.
        """
        if found != self._at_rest:
            self._at_rest, self._since = found, now
        if self.reported in (None, found.digest, found.earlier_digest):
            self._take(found)
            return False
        rested = (now if asked_at is None else asked_at) - self._since
        if max(0.0, rested) < self._settle:
            return False
        is_news = self._known is None or bool(found.files - self._known.files)
        self._take(found)
        return is_news

    def _take(self, found: Listing) -> None:
        self._known, self.reported = found, found.digest


class NewDataTrigger(BaseEventTrigger):
    """Fires when files have been added or replaced under a prefix and none has changed for a while since.

    For `AssetWatcher(name=..., trigger=NewDataTrigger("oci://bucket@namespace/incoming/"))`. Files that lie there
    at the first look cause no event. On Airflow 3.3 the reported state is stored, so that data which arrives while the
    triggerer restarts causes an event afterwards. Deleted files alone cause none, unless they are deleted while the
    triggerer is down: it stores a digest of the list of files, not the list.

    :param uri: the prefix, at any place that a copy can read; a relative one is below the connection's `work_dir`
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param poll_interval: seconds between two looks
    :param settle: seconds without a change after which a delivery counts as complete
    """

    def __init__(
        self, uri: str, conn_id: str = DEFAULT_CONN_ID, poll_interval: float = 60.0, settle: float = 120.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no types
        self.uri = uri
        self.conn_id = conn_id
        self.poll_interval = poll_interval
        self.settle = settle

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(self, "uri", "conn_id", "poll_interval", "settle")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        deliveries = Deliveries(await self._recall(), self.settle)
        while True:
            asked_at = time.monotonic()
            found = await self._look()
            if found is None:
                deliveries.note_unread()
            else:
                before = deliveries.reported
                if deliveries.complete(found, time.monotonic(), asked_at):
                    yield TriggerEvent({"uri": found.uri, "files": len(found.files), "bytes": found.bytes})
                if deliveries.reported is not None and deliveries.reported != before:
                    # Saved after the event: a triggerer that dies in between reports twice, not never.
                    await self._note(deliveries.reported)
            await asyncio.sleep(self.poll_interval)

    async def _look(self) -> Listing | None:
        try:
            found: Listing = await look_at_storage(self._listing, place=_threads_of(self.conn_id, self.uri))
        except Unopenable as error:
            # Airflow would start a watcher that ends again and again.
            self.log.error("%s: this trigger can never find data; correct its uri", error)
            return None
        except (OcidistError, OSError) as error:
            self.log.warning("%s; will look again", error)
            return None
        except Exception as error:  # noqa: BLE001 - a watcher must not end
            # Airflow's, while it cannot read the connection. A trigger that it starts again may know nothing any more.
            self.log.warning("%s: %s; will look again", type(error).__name__, error)
            return None
        return found

    def _listing(self) -> Listing:
        return shared_storage(self.conn_id).use(self._listing_by)

    def _listing_by(self, opened: OpenedConnection) -> Listing:
        from airflow_provider_ocidist.storage.locations import shown

        store = opened.store(opened.hook.uri(self.uri))
        return Listing.of(store.as_source().list(), shown(store.uri))

    async def _recall(self) -> str | None:
        store = getattr(self, "asset_state_store", None)
        if store is None:
            return None
        try:
            value = await store.aget(self._key)
        except ValueError as error:
            # Airflow has one store per asset; with several assets it is ambiguous.
            self.log.warning(
                "the digest of the reported data cannot be stored, and is lost when the triggerer restarts: %s",
                error,
            )
            self.asset_state_store = None
            return None
        return value if isinstance(value, str) else None

    async def _note(self, digest: str) -> None:
        store = getattr(self, "asset_state_store", None)
        if store is not None:
            await store.aset(self._key, digest)

    @property
    def _key(self) -> str:
        return f"{SEEN}_{hashlib.sha256(self.uri.encode()).hexdigest()[:12]}"


FIRST_LOOK_AFTER = 10.0
"""Seconds until the first look. The deferring task has just looked, and Airflow fails a task whose event comes before
its executor knows that it has deferred."""


class CheckpointTrigger(BaseTrigger):
    """Fires once there is a complete checkpoint of a later step below a URI; with None if the look fails for good.

    :param uri: the folder that holds a run's checkpoints
    :param conn_id: Airflow connection of type `oci`, for `oci://` URIs
    :param after_step: fire only for steps above this one
    :param poll_interval: seconds between two looks
    """

    def __init__(self, uri: str, conn_id: str, after_step: int, poll_interval: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's has no types
        self.uri = uri
        self.conn_id = conn_id
        self.after_step = after_step
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _serialized(self, "uri", "conn_id", "after_step", "poll_interval")

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(FIRST_LOOK_AFTER)
        look = CheckpointLook(self.uri, self.conn_id, self.after_step, self.log, has_looked=True)
        place = _threads_of(self.conn_id, self.uri)
        try:
            while (found := await look_at_storage(look.look, place=place)) is None:  # noqa: ASYNC110 - what is waited for is in storage
                await asyncio.sleep(self.poll_interval)
        except OcidistError as error:
            # The task looks once more and fails with this error in its own log.
            self.log.warning("%s", error)
            found = None
        yield TriggerEvent(found)


class CheckpointLook:
    """Looks for a later checkpoint repeatedly; fails once the refusals are conclusive (`evidence`)."""

    def __init__(
        self,
        uri: str,
        conn_id: str,
        after_step: int,
        log: TaskLog,
        *,
        is_evident: bool = False,
        has_looked: bool = False,
        defects: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_evident`: the evidence is already conclusive, so that the next refusal is raised.

        `has_looked`: the task has looked before, so that its connection exists. `defects`: looks of it before this
        process, in a row, that ended with an error that is no answer.
        """
        self._is_evident = is_evident
        self.has_looked = has_looked
        self.defects = defects
        self._place = uri, conn_id, after_step
        self._log = log
        self._asked = Stopwatch(clock)
        self.unanswered: Unanswered = ANSWERED

    def go_on_after(self, unanswered: Unanswered, seconds: float) -> None:
        """Take over an earlier process's refusals; its last look was at least `seconds` ago."""
        self.unanswered = unanswered
        self._asked.reset()
        if unanswered.questions:
            self._asked.go_on_after(seconds)

    def look(self) -> dict[str, Any] | None:
        """Return the result of `later_checkpoint`; None, with a warning, if the place may be readable again later.

        Raises StorageError or BackendError when the refusals are conclusive (`evidence`), or when the place or the
        credentials are wrong before any request (Unopenable, and errors without a status). Raises Airflow's exceptions
        if it cannot read the connection for the first look.
        """
        try:
            found = later_checkpoint(*self._place)
        except (OcidistError, OSError) as error:
            self._note(error)
            self._log.warning("%s; will look again", error)
            return None
        except Exception as error:
            # Airflow's, while it cannot read the connection. Others are defects, which pass at most by chance.
            self.defects = 0 if isinstance(error, AirflowException) else self.defects + 1
            if not self.has_looked or self.defects == MOST_DEFECTS:
                raise
            self.unanswered = self.unanswered.failed(self._asked.lap())
            self._log.warning("%s: %s; will look again", type(error).__name__, error)
            return None
        self.has_looked = True
        self.defects = 0
        self._asked.reset()
        self.unanswered = ANSWERED
        return found

    def _note(self, error: OcidistError | OSError) -> None:
        """Count an error. Raises it if it is conclusive."""
        seconds = self._asked.lap()
        if isinstance(error, Unopenable):
            raise error
        if not is_refusal(error):
            self.unanswered = self.unanswered.failed(seconds)
            return
        refusal = service_error_in(error)
        status = None if refusal is None else refusal.status_code
        if status is None or self._is_evident:
            raise error
        # `use` reads the connection again after a refusal.
        self.unanswered = self.unanswered.refused(str(status), seconds).with_new_credentials()
        if self.unanswered.is_conclusive:
            raise error


def later_checkpoint(uri: str, conn_id: str, after_step: int) -> dict[str, Any] | None:
    """Return uri, step and loss of the newest complete checkpoint whose step is above `after_step`, None without any.

    A checkpoint without a step counts only if `after_step` is negative, and one of an attempt never once a later
    attempt has published any: no later one goes on from it.

    Raises StorageError or BackendError when the place cannot be read.
    """
    from airflow_provider_ocidist.model import codec
    from airflow_provider_ocidist.storage import checkpoints

    complete = shared_storage(conn_id).use(lambda opened: checkpoints.complete_of(opened.store(uri)))
    latest = [each for each in complete if each.fence == complete[0].fence]
    later = (each for each in latest if after_step < 0 or (each.step is not None and each.step > after_step))
    found = next(later, None)
    return None if found is None else dict(codec.encode(found))


def _threads_of(conn_id: str, uri: str) -> tuple[str, str]:
    """Return what shares threads: the looks by one connection into one bucket, at one host, or below one folder."""
    scheme, separator, rest = uri.rpartition("://")
    if separator and scheme not in ("file", "local"):
        return conn_id, f"{scheme}://{rest.partition('/')[0]}"
    # Below the work directory, or at the first folders of a path, which are mostly those of a mount.
    return conn_id, "/".join(rest.split("/", 3)[:3]) if rest.startswith("/") else ""


def _serialized(trigger: BaseTrigger, *names: str) -> tuple[str, dict[str, Any]]:
    cls = type(trigger)
    return f"{cls.__module__}.{cls.__qualname__}", {name: getattr(trigger, name) for name in names}
