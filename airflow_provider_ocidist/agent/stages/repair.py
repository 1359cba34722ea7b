"""Repair: a node stores again what is damaged or missing, and whole on its disk, for as long as it may."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from airflow_provider_ocidist.agent.train.interruptible import interruptible
from airflow_provider_ocidist.errors import DamagedFence, OcidistError
from airflow_provider_ocidist.model.amounts import names_text

logger = logging.getLogger("ocidist")

LOOK_INTERVAL = 0.5
"""Seconds between two looks at whether the time is over."""
NEED_INTERVAL = 0.2
"""Seconds between two looks at whether the repair is of use still."""
FENCE_INTERVAL = 2.0
"""Seconds between two looks at whether a later attempt or launch saves to the same place."""


def store_missing(context: NodeContext, folder: Path, cancel: threading.Event) -> None:
    """Store the files that are missing of the newest checkpoints, and whole in this node's folder.

    All nodes would go on from the checkpoint before, though nothing of the newest is lost. Once `cancel` is set, what
    is being sent is aborted.
    """
    settings, nodes = context.config.checkpoints, context.config.nodes
    if settings is None or settings.uri is None:
        return
    from airflow_provider_ocidist.storage import repairs

    try:
        stored = repairs.store_missing(
            settings.uri,
            folder,
            context.access,
            begin_at=context.rank / nodes,
            alone=not context.others,
            cancel=cancel,
        )
    except (OcidistError, OSError) as error:
        logger.warning("what is missing of stored checkpoints cannot be stored again: %s", error)
        return
    if stored:
        logger.info("stored again, as files were missing that are on this node: %s", names_text(stored))


def is_overtaken(context: NodeContext) -> bool:
    """Whether a later attempt or launch saves where this one does: then it repairs nothing there any more.

    A damaged fence counts as a later one. One that cannot be read now does not: the repair fails by itself then.
    """
    settings = context.config.checkpoints
    if settings is None or settings.uri is None:
        return False
    from airflow_provider_ocidist.storage.fences import current_fence
    from airflow_provider_ocidist.storage.stores.opening import open_store

    try:
        found = current_fence(open_store(settings.uri, context.access))
    except DamagedFence:
        return True
    except (OcidistError, OSError):
        return False
    return found is not None and found > context.fence


def repair_within(
    repair: Callable[[threading.Event], object],
    *,
    in_all: float = math.inf,
    switch: StopSwitch | None = None,
    grace: float | None = None,
    overtaken: Callable[[], bool] = lambda: False,
    needless: Callable[[], bool] | None = None,
) -> None:
    """Repair until that is done, or has taken `in_all` seconds.

    `repair` gets an event that is set when it is to leave off. A repair that is given up is no failure: the nodes go
    on from the checkpoint before. Raises Stopped after a stop request to `switch`; without it requests do not count.
    `grace`: of a node that ends anyway, for which requests do not count either; after a signal it has so many seconds
    left, and none where it counts as lost. `overtaken`: whether another saves to the same place, looked at before,
    meanwhile and afterwards; then the repair leaves off. So it does once it is `needless`.
    """
    heeded, ending = (switch, None) if grace is None else (None, switch)
    _LimitedRepair(repair, _Deadline(in_all, ending, grace or 0.0), overtaken, needless).make(heeded)


class _LimitedRepair:
    """A repair, and the watches that ask it to leave off."""

    def __init__(
        self,
        repair: Callable[[threading.Event], object],
        deadline: _Deadline,
        overtaken: Callable[[], bool],
        needless: Callable[[], bool] | None,
    ) -> None:
        self._repair = repair
        self._deadline = deadline
        self._overtaken = overtaken
        self._needless = needless
        self._limit, self._ended = StopSwitch(), threading.Event()

    def make(self, switch: StopSwitch | None) -> None:
        """Make the repair; a stop request to `switch` ends it, and raises Stopped."""
        if switch is not None:
            switch.listen(lambda: self._limit.ask(Stop(message="the node is to end")))
        _in_background(self._watch_time, "repair-limit")
        if self._needless is not None:
            _in_background(partial(self._watch_need, self._needless), "repair-need")
        try:
            interruptible(self._work, self._limit)
        except Stopped as stopped:
            if switch is not None:
                switch.check()
            logger.warning("the repair of stored checkpoints is given up: %s", stopped)
        finally:
            self._ended.set()

    def _work(self) -> None:
        if not self._heed_fence():
            # Not in the watch of the time: a store that never answers must not hold that up.
            _in_background(self._watch_fence, "repair-fence")
            self._repair(self._limit.event)
            self._heed_fence()

    def _watch_time(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL):
            if self._deadline.is_over():
                self._limit.ask(Stop(message="it takes too long"))
                return

    def _watch_need(self, needless: Callable[[], bool]) -> None:
        while not self._ended.is_set():
            if needless():
                self._limit.ask(Stop(message="the next launch does not begin from what is stored"))
                return
            self._ended.wait(NEED_INTERVAL)

    def _watch_fence(self) -> None:
        while not self._ended.wait(FENCE_INTERVAL) and not self._heed_fence():
            pass

    def _heed_fence(self) -> bool:
        if self._overtaken():
            self._limit.ask(Stop(message="a later attempt or launch saves there, or its fence is damaged"))
        return self._limit.event.is_set()


def _in_background(work: Callable[[], None], name: str) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


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
