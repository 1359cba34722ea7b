"""Repair: bounds the time in which a node stores again what is damaged or missing, and whole on its disk."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from airflow_provider_ocidist.agent.save.saving import Movement
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.interruptible import interruptible

logger = logging.getLogger("ocidist")

LOOK_INTERVAL = 0.5
"""Seconds between two looks at whether the time is over."""
LAST_LIMIT = 120.0
"""Seconds for a repair where no launch follows: then the waiting process cancels nodes that save after a failure."""


def repair_within(
    repair: Callable[[threading.Event], object],
    *,
    still: float = math.inf,
    in_all: float = math.inf,
    switch: StopSwitch | None = None,
    grace: float | None = None,
) -> None:
    """Repair until that is done, has made no progress for `still` seconds, or has taken `in_all`.

    `repair` gets an event that is set when it is to leave off. A repair that is given up is no failure: the nodes go
    on from the checkpoint before. Raises Stopped after a stop request to `switch`; without it requests do not count.
    `grace`: of a node that ends anyway, for which requests do not count either; after a signal it has so many seconds
    left, and none where it counts as lost.
    """
    time_limit, ended = StopSwitch(), threading.Event()
    ending = switch if grace is not None else None
    deadline = _Deadline(in_all, ending, grace or 0.0)

    def watch() -> None:
        movement = Movement()
        while not ended.wait(LOOK_INTERVAL):
            if movement.still_for() > still or deadline.is_over():
                time_limit.ask(Stop(message="it takes too long"))
                return

    if switch is not None and ending is None:
        switch.listen(lambda: time_limit.ask(Stop(message="the node is to end")))
    threading.Thread(target=watch, name="repair-limit", daemon=True).start()
    try:
        interruptible(lambda: repair(time_limit.event), time_limit)
    except Stopped as stopped:
        if switch is not None and ending is None:
            switch.check()
        logger.warning("the repair of stored checkpoints is given up: %s", stopped)
    finally:
        ended.set()


class _Deadline:
    """The end of the time for a repair; a signal to a node that ends anyway brings it forward."""

    def __init__(self, in_all: float, ending: StopSwitch | None, grace: float) -> None:
        self._until = time.monotonic() + in_all
        self._ending = ending
        self._grace = grace
        self._is_signalled = False

    def is_over(self) -> bool:
        now, ending = time.monotonic(), self._ending
        if ending is not None and ending.signalled.is_set() and not self._is_signalled:
            # Once: the platform kills the node some time after the first signal.
            self._is_signalled = True
            self._until = min(self._until, now + self._grace)
        return now > self._until or (ending is not None and ending.is_lost)
