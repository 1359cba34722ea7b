"""LogFollower: each log line of a gang once, however late, also across processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backports import Self
from airflow_provider_ocidist.model.log_cursor import LogCursor

MOST_IDS = 2000
"""Most ids of recently logged lines in a saved cursor: 80 KB."""


_NOTHING: Mapping[int, float] = {}


class LogFollower:
    """Yields each log line of a gang once, though lines may arrive late and out of order.

    A look reads the lines since the last look, whether a node writes much or nothing: so gangs that are looked at
    together read from the same time, and can share a search. Every 30 s a look reads the last two minutes again, for
    late lines (Oracle's own reader reads three minutes again, every time). Every 300 s it reads the last quarter of an
    hour of a silent node again; a line that can only be found later than that is never logged. Lines that do not fit
    into one look are read at the next.
    """

    OVERLAP = 120.0
    RECHECK_EVERY = 30.0
    LAG = 15.0
    """Seconds after which most lines can be found."""
    LATE_EVERY = 300.0
    LATEST = 900.0
    """Seconds after which a late line of a silent node is no longer searched for."""

    __slots__ = ("_from", "_looked_at", "_newest", "_seen", "_unread_from")

    def __init__(self, since: Sequence[float]) -> None:
        self._from = tuple(since)
        self._newest = list(since)
        self._seen: dict[int, dict[str, float]] = {}
        """Times of the lines that were returned lately, by rank and id."""
        self._looked_at: float | None = None
        self._unread_from: Mapping[int, float] = _NOTHING

    @classmethod
    def after(cls, saved: LogCursor) -> Self:
        """Return a follower that continues at the cursor of another process."""
        follower = cls(saved.since)
        follower._newest = list(saved.newest)
        follower._seen = {rank: dict(lines) for rank, lines in enumerate(saved.lines) if lines}
        return follower

    def to_save(self, try_number: int) -> LogCursor:
        """Return the cursor of the log of try `try_number`."""
        since = [
            max(first, newest - self.OVERLAP) for first, newest in zip(self._from, self._newest, strict=True)
        ]
        seen = [(time, id_, rank) for rank, ids in self._seen.items() for id_, time in ids.items()]
        recent = sorted(each for each in seen if each[0] > since[each[2]])
        if len(recent) > MOST_IDS:
            # Never beyond the newest logged line of a node: one may be far behind another that writes much.
            cut = recent[-MOST_IDS - 1][0]
            since = [max(start, min(cut, newest)) for start, newest in zip(since, self._newest, strict=True)]
        kept: tuple[dict[str, float], ...] = tuple({} for _ in since)
        for time, id_, rank in recent:
            if time > since[rank]:
                kept[rank][id_] = time
        return LogCursor(try_number, tuple(self._newest), tuple(since), kept)

    @property
    def is_behind(self) -> bool:
        """Whether the last look left lines for the next one."""
        return bool(self._unread_from)

    @property
    def reached(self) -> tuple[Mapping[int, float], tuple[float, ...]]:
        """How far it has come, of the unread lines too: it gets no further while this stays the same."""
        return dict(self._unread_from), self.cursor

    @property
    def cursor(self) -> tuple[float, ...]:
        """Time of the newest returned line of each node: where another follower may continue. Unix times, by rank."""
        return tuple(self._newest)

    def since(self, now: float, *, again: bool = False) -> list[float]:
        """Return the time from which to read the lines of each node at `now`. Unix times, by rank.

        `again`: include the stragglers, whether they are due or not.
        """
        if self._looked_at is None:
            return list(self._from)
        if self._begins(self.LATE_EVERY, now):
            since = [max(newest - self.OVERLAP, self._looked_at - self.LATEST) for newest in self._newest]
        elif again or self._begins(self.RECHECK_EVERY, now):
            since = [max(newest, self._looked_at) - self.OVERLAP for newest in self._newest]
        else:
            since = [max(newest, self._looked_at - self.LAG) for newest in self._newest]
        return [self._unread_from.get(rank, start) for rank, start in enumerate(since)]

    def take(
        self, lines: Iterable[LogLine], now: float, unread_from: Mapping[int, float] | None = None
    ) -> list[LogLine]:
        """Return those lines, of the ones read at `now`, that were not returned before.

        `unread_from`: Unix times, by rank, after which lines are left unread; `lines` has none from after them.
        """
        # Older lines came from a shared search; they were returned before, and their ids are forgotten.
        oldest = [
            max(first, newest - self.OVERLAP) for first, newest in zip(self._from, self._newest, strict=True)
        ]
        new = []
        for line in lines:
            seen = self._seen.setdefault(line.rank, {})
            if line.time > self._from[line.rank] and line.time >= oldest[line.rank] and line.id not in seen:
                seen[line.id] = line.time
                self._newest[line.rank] = max(self._newest[line.rank], line.time)
                new.append(line)
        if self._begins(self.RECHECK_EVERY, now):
            for rank, seen in self._seen.items():
                _forget_before(seen, self._newest[rank] - self.OVERLAP)
        self._looked_at = now
        self._unread_from = dict(unread_from) if unread_from else _NOTHING
        return new

    def _begins(self, period: float, now: float) -> bool:
        """Return whether a period has begun since the last look; all gangs of a process share the periods."""
        return self._looked_at is None or now // period > self._looked_at // period


def _forget_before(seen: dict[str, float], time: float) -> None:
    for id_ in [id_ for id_, when in seen.items() if when < time]:
        del seen[id_]
