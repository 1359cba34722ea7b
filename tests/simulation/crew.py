"""Crew: processes that run the schedules of a campaign; whatever one of them does, each schedule has its answer."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

LIMIT = 120.0
"""Seconds that a schedule may take on a busy machine. A usual one takes a tenth of one."""
SCHEDULES_EACH = 400
"""After which a process is replaced, so that what it has kept of each does not grow for ever."""
AHEAD = 4
"""Schedules that a process has before it: it need not wait for the one that hands them out."""
PR_SET_PDEATHSIG = 1
_FORK = multiprocessing.get_context("fork")


@dataclass
class _Worker(Generic[Item]):
    process: BaseProcess
    pipe: Connection[Any, Any]
    given: list[Item] = field(default_factory=list)
    """Which it has not answered yet; it is at the first of them."""
    since: float = 0.0
    """When it began with that."""
    had: int = 0


def run_all(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    lost: Callable[[Item, str], Result],
    processes: int,
    limit: float = LIMIT,
    *,
    replaced_after: int = SCHEDULES_EACH,
) -> Iterator[Result]:
    """Yield what came of each item, in the order of their ends.

    `lost` makes the result of an item that does not end within the limit, or ends the process that is at it.
    `replaced_after`: the number of items after which a process is replaced.
    """
    left = iter(items)
    workers: list[_Worker[Item]] = [_new(work, limit) for _ in range(processes)]
    try:
        while True:
            for at, worker in enumerate(workers):
                if worker.had >= replaced_after and not worker.given:
                    _end(worker)
                    workers[at] = _new(work, limit)
            _give(workers, left, replaced_after)
            if not any(worker.given for worker in workers):
                return
            next_limit = min(worker.since for worker in workers if worker.given) + limit
            wait([each.pipe for each in workers if each.given], max(0.0, next_limit - time.monotonic()))
            for at, worker in enumerate(workers):
                while worker.given and worker.pipe.poll():
                    try:
                        result = worker.pipe.recv()
                    except (EOFError, OSError):
                        worker.process.join()
                        why = f"its process ended with {worker.process.exitcode}"
                        result, workers[at] = _replace(worker, work, lost, why, limit)
                        yield result
                        break
                    worker.given.pop(0)
                    worker.since = time.monotonic()
                    yield result
                else:
                    if worker.given and time.monotonic() - worker.since > limit:
                        result, workers[at] = _replace(
                            worker, work, lost, f"not over after {limit:.0f} s", limit
                        )
                        yield result
    finally:
        for worker in workers:
            _end(worker)


def _new(work: Callable[[Item], Result], limit: float) -> _Worker[Item]:
    own, its = _FORK.Pipe()
    process = _FORK.Process(target=_serve, args=(its, own, work, limit), daemon=True)
    process.start()
    its.close()
    return _Worker(process, own)


def _serve(
    pipe: Connection[Any, Any], of_parent: Connection[Any, Any], work: Callable[[Item], Result], limit: float
) -> None:
    of_parent.close()
    # However the campaign ends, its processes do not outlive it.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        # Where it hangs is shown before it is ended.
        faulthandler.dump_traceback_later(0.9 * limit, file=sys.__stderr__)
        result = work(item)
        faulthandler.cancel_dump_traceback_later()
        pipe.send(result)


def _give(workers: list[_Worker[Item]], left: Iterator[Item], replaced_after: int) -> None:
    """Give each process what it may have before it, to all of them in turn."""
    for ahead in range(AHEAD):
        for worker in workers:
            if len(worker.given) > ahead or worker.had >= replaced_after:
                continue
            item = next(left, None)
            if item is None:
                return
            _hand(worker, item)


def _hand(worker: _Worker[Item], item: Item) -> None:
    if not worker.given:
        worker.since = time.monotonic()
    with suppress(OSError):  # that its process is gone shows at its answer
        worker.pipe.send(item)
    worker.given.append(item)
    worker.had += 1


def _replace(
    worker: _Worker[Item],
    work: Callable[[Item], Result],
    lost: Callable[[Item, str], Result],
    why: str,
    limit: float,
) -> tuple[Result, _Worker[Item]]:
    """Return the result of what a process was at, and another process, which has what came after that."""
    _end(worker)
    first, *others = worker.given
    fresh: _Worker[Item] = _new(work, limit)
    for item in others:
        _hand(fresh, item)
    return lost(first, why), fresh


def _end(worker: _Worker[Item]) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()
