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


def repair_within(
    repair: Callable[[threading.Event], object],
    *,
    still: float = math.inf,
    in_all: float = math.inf,
    switch: StopSwitch | None = None,
) -> None:
    """Repair until that is done, has made no progress for `still` seconds, or has taken `in_all`.

    `repair` gets an event that is set when it is to leave off. A repair that is given up is no failure: the nodes go
    on from the checkpoint before. Raises Stopped after a stop request to `switch`; without it requests do not count.
    """
    time_limit, ended = StopSwitch(), threading.Event()

    def watch() -> None:
        movement, until = Movement(), time.monotonic() + in_all
        while not ended.wait(LOOK_INTERVAL):
            if movement.still_for() > still or time.monotonic() > until:
                time_limit.ask(Stop(message="it takes too long"))
                return

    if switch is not None:
        switch.listen(lambda: time_limit.ask(Stop(message="the node is to end")))
    threading.Thread(target=watch, name="repair-limit", daemon=True).start()
    try:
        interruptible(lambda: repair(time_limit.event), time_limit)
    except Stopped as stopped:
        if switch is not None:
            switch.check()
        logger.warning("the repair of stored checkpoints is given up: %s", stopped)
    finally:
        ended.set()
