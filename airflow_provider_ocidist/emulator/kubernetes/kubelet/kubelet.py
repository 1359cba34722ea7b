"""Kubelet: starts the pods that have a node, ends those that are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pods import Machines, PodLife
from airflow_provider_ocidist.emulator.kubernetes.objects import Event
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError

ENDED = ("Succeeded", "Failed")
logger = logging.getLogger(__name__)


class Kubelet:
    """The kubelets of all nodes. All its methods are for the thread of its event loop."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._loop = asyncio.get_running_loop()
        self._lives: dict[str, PodLife] = {}
        self._over: set[str] = set()
        """Pods that have run here and are still in the store: older news of them may be on the way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._machines.cluster.subscribe_from("Pod", None, self._heard)

    async def close(self) -> None:
        """End all pods; returns when no process of theirs is left."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        for life in self._lives.values():
            life.lose()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def lives(self) -> Iterator[PodLife]:
        yield from list(self._lives.values())

    def life(self, uid: str) -> PodLife | None:
        return self._lives.get(uid)

    def _heard(self, event: Event) -> None:
        """Called in the thread that made the change."""
        self._loop.call_soon_threadsafe(self._see, event)

    def _see(self, event: Event) -> None:
        pod = event.object
        uid = pod["metadata"]["uid"]
        life = self._lives.get(uid)
        if event.type == "DELETED":
            if life is not None:
                life.lose()
            self._machines.logs.forget(uid)
            self._over.discard(uid)
        elif life is not None:
            self._maybe_end(life, pod)
        elif (
            uid not in self._over and pod["spec"].get("nodeName") and pod["status"].get("phase") not in ENDED
        ):
            self._start(pod)

    def _start(self, pod: Obj) -> None:
        life = self._lives[pod["metadata"]["uid"]] = PodLife(_own(pod), self._machines)
        task = self._loop.create_task(self._live(life))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._maybe_end(life, pod)

    def _maybe_end(self, life: PodLife, pod: Obj) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            life.end(pod["metadata"].get("deletionGracePeriodSeconds") or 0)

    async def _live(self, life: PodLife) -> None:
        await life.live()
        metadata = life.pod["metadata"]
        del self._lives[metadata["uid"]]
        self._over.add(metadata["uid"])
        cluster = self._machines.cluster
        found = cluster.find("Pod", metadata["namespace"], metadata["name"])
        is_same = found is not None and found["metadata"]["uid"] == metadata["uid"]
        if found is not None and is_same and "deletionTimestamp" in found["metadata"] and not life.is_silent:
            try:
                cluster.delete("Pod", metadata["namespace"], metadata["name"], grace=0, uid=metadata["uid"])
            except KubernetesError as error:
                logger.info("%s", error)


def _own(pod: Obj) -> Obj:
    """Return a pod whose status may be filled in; events must not be altered."""
    return {**pod, "status": dict(pod.get("status") or {})}
