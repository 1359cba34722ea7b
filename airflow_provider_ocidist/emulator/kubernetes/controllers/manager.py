"""Manager: runs controllers, each for one object at a time, when something it watches has changed."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.metadata import owners_of
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Event, Key
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

AGAIN_S = 0.05
"""Seconds until the next look after a conflict: another client wrote the object in between."""
MAX_BACKOFF_S = 5.0
"""Most seconds until a controller that failed looks at its object again."""
MAX_WAIT_S = 3600.0
"""Most seconds of one wait: a look in a thousand years would be too much for a lock."""

logger = logging.getLogger(__name__)

KeysOf = Callable[[Obj], Iterable[Key]]


class Controller(Protocol):
    """Brings what is there closer to what an object asks for."""

    @property
    def watches(self) -> Mapping[str, KeysOf]:
        """The functions that return whose turn a change of an object makes it, by kind: see `itself` and `owner`."""

    def reconcile(self, cluster: Cluster, namespace: str, name: str) -> float | None:
        """Look at one object, which may be gone; return in how many seconds to look again without a change."""


def itself(obj: Obj) -> Iterable[Key]:
    """Return the key of the object that has changed."""
    return [(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])]


def owner(kind: str) -> KeysOf:
    """Return a function that returns the keys of an object's owners of a kind."""

    def keys(obj: Obj) -> Iterable[Key]:
        namespace = obj["metadata"].get("namespace", "")
        return [(namespace, each["name"]) for each in owners_of(obj) if each["kind"] == kind]

    return keys


class Manager:
    """One thread and a queue; each object waits in it once for each controller."""

    def __init__(self, cluster: Cluster, controllers: Sequence[Controller]) -> None:
        self._cluster = cluster
        self._controllers = controllers
        self._wake = threading.Condition()
        self._due: dict[tuple[int, Key], float] = {}
        self._heap: list[tuple[float, int, int, Key]] = []
        self._order = itertools.count()
        self._failures: dict[tuple[int, Key], int] = {}
        self._stopped = False
        self._subscriptions: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="ocidist-controllers", daemon=True)

    def start(self) -> None:
        for index, controller in enumerate(self._controllers):
            for kind, keys in controller.watches.items():
                if self._cluster.has_kind(kind):
                    noted = partial(self._note, index, keys)
                    self._subscriptions.append(self._cluster.subscribe_from(kind, None, noted))
        self._thread.start()

    def stop(self) -> None:
        """Return when no controller runs any more."""
        for end in self._subscriptions:
            end()
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()

    def _note(self, index: int, keys: KeysOf, event: Event) -> None:
        for key in keys(event.object):
            self._enqueue(index, key, 0)

    def _enqueue(self, index: int, key: Key, delay_s: float) -> None:
        due = time.monotonic() + delay_s
        with self._wake:
            if self._due.get((index, key), due + 1) > due:
                self._due[index, key] = due
                heapq.heappush(self._heap, (due, next(self._order), index, key))
                self._wake.notify()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            self._reconcile(*turn)

    def _next(self) -> tuple[int, Key] | None:
        """Wait for the next turn; None when the manager is stopped."""
        with self._wake:
            while not self._stopped:
                wait = min(self._heap[0][0] - time.monotonic(), MAX_WAIT_S) if self._heap else None
                if wait is not None and wait <= 0:
                    due, _, index, key = heapq.heappop(self._heap)
                    if self._due.get((index, key)) == due:
                        del self._due[index, key]
                        return index, key
                    continue
                self._wake.wait(wait)
        return None

    def _reconcile(self, index: int, key: Key) -> None:
        controller = self._controllers[index]
        try:
            again = controller.reconcile(self._cluster, *key)
        except KubernetesError as error:
            if error.code != 409:
                logger.warning("%s of %s: %s", type(controller).__name__, "/".join(key), error)
            again = AGAIN_S if error.code == 409 else self._backoff(index, key)
        except Exception:
            logger.exception("%s failed for %s", type(controller).__name__, "/".join(key))
            again = self._backoff(index, key)
        else:
            self._failures.pop((index, key), None)
        if again is not None:
            self._enqueue(index, key, again)

    def _backoff(self, index: int, key: Key) -> float:
        count = self._failures[index, key] = self._failures.get((index, key), 0) + 1
        return min(MAX_BACKOFF_S, AGAIN_S * 2.0 ** min(count, 10))
