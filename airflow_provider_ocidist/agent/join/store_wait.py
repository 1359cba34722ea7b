"""StoreWait: a node that has something to ask of all others waits while the store is away."""

from __future__ import annotations

import logging
import time

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.model.pauses import next_pause
from airflow_provider_ocidist.model.report import StopRequest

logger = logging.getLogger(__name__)

ASK_INTERVAL, LONGEST_ASK_INTERVAL = 1.0, 10.0
"""Seconds between two looks at whether the store answers again; the longer one after it has answered, and has not
taken the request."""


class StoreWait:
    """The waits of one node for the store. All of one outage have one limit, from its first request without answer."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._switch = heartbeat.switch
        self._away_since: float | None = None
        """Time since which the store does not answer a wait for it; None while none waits."""

    @property
    def is_away(self) -> bool:
        """Whether the store had not answered by the end of the last wait for it."""
        return self._away_since is not None

    def until_it_answers(self, limit: float) -> bool:
        """Wait while the store does not answer, and until there is a reason to end; return whether it did not at first.

        `limit`: in seconds from the first time that it has not answered, whichever of several waits that was in.
        """
        if self._heartbeat.store_answers():
            self._away_since = None
            return False
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning(
                "before another launch of the training, this node waits for the store, for at most %.0f s",
                limit,
            )
        # Each look is one small request with a short limit: what the store swallowed in its outage holds nothing up.
        while self._away_for < limit and not self._switch.event.wait(ASK_INTERVAL):
            if self._heartbeat.store_answers():
                logger.warning("the store answers again, after %.0f s", self._away_for)
                self._away_since = None
                return True
        return True

    def ask_all_to_stop(self, request: StopRequest, limit: float) -> StopRequest | None:
        """Do what `Heartbeat.ask_all_to_stop` does, and again while the store takes no request.

        That ends after `limit` seconds, as that of `until_it_answers` does, and once this node is to end.
        """
        until = (self._away_since or time.monotonic()) + limit
        pause = ASK_INTERVAL
        counts = self._heartbeat.ask_all_to_stop(request)
        while counts is None and self._may_ask_again(limit, until, pause):
            counts = self._heartbeat.ask_all_to_stop(request)
            pause = next_pause(pause, LONGEST_ASK_INTERVAL)
        return counts

    @property
    def _away_for(self) -> float:
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    def _may_ask_again(self, limit: float, until: float, pause: float) -> bool:
        """Wait before another try to ask all others; return whether there is one."""
        left = until - time.monotonic()
        if left <= 0:
            return False
        if self._switch.event.wait(min(pause, left)):
            time.sleep(ASK_INTERVAL)
        self.until_it_answers(limit)
        stop = self._switch.stop
        # What another node has asked for is read by the next try.
        return stop is None or bool(stop.restarts)
