"""Handover: whether an uploader leaves what it has not sent to that of the next launch, or sends it before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from airflow_provider_ocidist.agent.save.carried import Carried, NewestInPlace, renumbered
from airflow_provider_ocidist.agent.save.held_links import HeldLinks
from airflow_provider_ocidist.agent.save.publishing import Publisher, Whole
from airflow_provider_ocidist.storage.checkpoint_names import Placed

logger = logging.getLogger(__name__)

SENT_FIRST = 2.0
"""Seconds after the end of a launch in which checkpoints are sent before the next: what is small is safe then."""
LOOK_INTERVAL = 0.1
"""Seconds between two looks at whether an upload that was cut off has ended."""


class Handover:
    """Whether what an uploader has not sent is left to the next launch, or sent before it.

    The node asks, while it waits for the uploader's thread to end; that thread decides.
    """

    def __init__(
        self, publisher: Publisher, links: HeldLinks, in_place: NewestInPlace, taken_over: Carried | None
    ) -> None:
        """`taken_over`: what the launch before has left to this uploader."""
        self.in_place = in_place
        self.before = len(taken_over.waiting) if taken_over else 0
        """Count of the saves that are taken over."""
        self.left: Carried | None = None
        """Checkpoints that are left to the next launch."""
        self.is_open = self.is_awaited = False
        """Whether what is not sent may be left to the next launch; whether such a launch, on this node alone, waits."""
        self._publisher = publisher
        self._links = links
        self._agrees: Callable[[Carried], bool] = lambda _: True
        self._deciding = threading.Lock()

    def owes(self, whole: Whole) -> bool:
        """Whether the launch before has left a checkpoint to this uploader."""
        return whole.begun <= self.before

    def begin(self, agrees: Callable[[Carried], bool] | None) -> None:
        """Let what is not sent be left from now on, unless `agrees` says of it that the other nodes lack it.

        None: there are no others.
        """
        self._agrees = agrees or self._agrees
        self.is_open, self.is_awaited = True, agrees is None

    def decided(self, thread: threading.Thread, is_over: Callable[[], bool]) -> Carried | None:
        """Return what is left of that which is not sent in `SENT_FIRST` seconds; None: it has to be sent first.

        `thread`: that of the uploader. `is_over`: whether it is waited for no more.
        """
        thread.join(SENT_FIRST)
        with self._deciding:
            if thread.is_alive() and self.is_open:
                self._publisher.cancel()
        while thread.is_alive() and self.is_open and not is_over():
            thread.join(LOOK_INTERVAL)
        with self._deciding:
            self.is_open = False
            if self.left is None:
                # What hangs may come back, and it is waited for then.
                self._publisher.go_on()
            return self.left

    def leaves(
        self, waiting: Iterable[Whole], *, newest: int, series_of: Callable[[Placed], str]
    ) -> bool | None:
        """Leave what waits, if the next launch can go on from what is here; return whether it can, None if none asks.

        Otherwise all is sent before it. `newest`: the number of the newest published save.
        """
        if not self.is_open:
            return None
        # Without the lock: a mount may not answer.
        rest = self._rest(waiting, newest, series_of)
        if rest is not None and not self._agrees(rest):
            rest = None
        return self._decide(rest)

    def _decide(self, rest: Carried | None) -> bool | None:
        with self._deciding:
            if not self.is_open:
                return None
            self.left = rest
            if rest is None:
                self.is_open = False
                self._publisher.go_on()
            return rest is not None

    def _rest(
        self, waiting: Iterable[Whole], newest: int, series_of: Callable[[Placed], str]
    ) -> Carried | None:
        """Return what waits, if the next launch finds here all that it would find in the store."""
        rest = [whole for whole in waiting if self._publisher.is_there(whole)]
        if not rest:
            return None
        in_place = self.in_place.found(series_of)
        why = "not all files that belong to it are whole on this node"
        if any(whole.begun < newest for whole in rest):
            # The next launch numbers what it sends above all that is stored.
            why = "a newer one is published already"
        elif any(map(self.owes, rest)):
            # Failures may come faster than an upload: it would never be safe.
            why = "the launch before has left it to this one already"
        elif in_place is not None:
            return Carried(waiting=renumbered(rest), links=self._links, in_place=in_place)
        logger.info("%s is uploaded before the next launch: %s", rest[-1].item.path.name, why)
        return None
