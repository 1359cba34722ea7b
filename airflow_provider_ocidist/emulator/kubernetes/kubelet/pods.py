"""The life of one pod: volumes, init containers, containers, its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_ocidist.emulator import trees
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.kubernetes import events
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet import pod_status
from airflow_provider_ocidist.emulator.kubernetes.kubelet.containers import (
    SIGKILLED,
    ContainerLife,
    Surroundings,
)
from airflow_provider_ocidist.emulator.kubernetes.kubelet.hosts import Hosts, hostname
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.kubelet.volumes import TOKEN_PLACE, MountError, Volumes
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool

DEADLINE = "Pod was active on the node longer than the specified deadline"
HOST_ADDRESS = "127.0.0.1"
EVICTED = "Evicted"
"""Reason of the failure of a pod that was evicted."""
OOM_KILLED = (SIGKILLED, "OOMKilled")
"""Exit code and reason of a container that was killed for lack of memory."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machines:
    """What all pods of a cluster are made with."""

    cluster: Cluster
    folder: Path
    pool: AddressPool
    hosts: Hosts
    logs: PodLogs
    settings: ClusterSettings
    default_commands: Mapping[str, Sequence[str]]
    """Command that each image runs."""
    environment: Mapping[str, str]
    """Variables that each container gets besides its own."""
    credentials: Callable[[Obj], Mapping[str, bytes]]
    """Function that returns the files of a pod's service account."""
    is_missing: Callable[[str], bool]
    is_idle: Callable[[Obj], bool]
    """Function that returns whether a pod's containers are to run without a process."""
    present: set[tuple[str, str]] = field(default_factory=set)
    """Machines with the images that they have pulled."""


class PodLife:
    """One pod on its node. `live` returns when it is over and no process of it is left."""

    def __init__(self, pod: Obj, machines: Machines) -> None:
        self.pod = pod
        self._machines = machines
        self._settings = machines.settings
        self._folder = machines.folder / "pods" / pod["metadata"]["uid"]
        self._stop = asyncio.Event()
        self._failure: tuple[str, str] | None = None
        self.is_silent = False
        self._address = ""
        self._inits: list[ContainerLife] = []
        self._mains: list[ContainerLife] = []
        self._beside: list[asyncio.Task[None]] = []
        """Lives of the sidecars."""
        self._stopping: asyncio.Task[None] | None = None
        self._grace_s = 0.0

    @property
    def containers(self) -> Sequence[ContainerLife]:
        return [*self._inits, *self._mains]

    async def live(self) -> None:
        metadata = self.pod["metadata"]
        try:
            self._address = self._machines.pool.take()
            await self._live()
        except Exception:
            logger.exception(
                "pod %s/%s: the emulator failed to run it", metadata["namespace"], metadata["name"]
            )
            self._failure = self._failure or ("EmulatorError", "the emulator failed to run this pod")
        finally:
            await self._end_containers(0)
            self._machines.hosts.remove(self.pod)
            self._machines.pool.give_back(self._address)
            self._report(is_over=True)
            await asyncio.to_thread(trees.remove, self._folder)

    def end(self, grace_s: float) -> None:
        """Stop all containers within so many seconds; a later call may shorten the time."""
        if self._stopping is None or grace_s < self._grace_s:
            self._grace_s = grace_s
            self._stop.set()
            self._stopping = asyncio.get_running_loop().create_task(self._end_containers(grace_s))

    def fail(self, reason: str, message: str) -> None:
        """End the pod from outside: it stays, as failed."""
        self._failure = (reason, message)
        self.end(0)

    def lose(self) -> None:
        """End all processes and report nothing any more, as on a machine that is lost."""
        self.is_silent = True
        self.end(0)

    def kill(self, cause: tuple[int, str] | None = None) -> None:
        """Kill the processes of all containers that run."""
        for container in self.containers:
            container.kill(cause)

    async def _end_containers(self, grace_s: float) -> None:
        """Stop the containers, the sidecars after the others, within so many seconds in all."""
        self._stop.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        others = [container for container in self.containers if not container.is_sidecar]
        await asyncio.gather(*(container.stop(grace_s) for container in others))
        await self._end_sidecars(max(until - loop.time(), 0.0) if grace_s else 0.0)

    async def _end_sidecars(self, grace_s: float) -> None:
        """Stop the sidecars, the last first."""
        for sidecar in reversed([each for each in self._inits if each.is_sidecar]):
            await sidecar.stop(grace_s)
        await asyncio.gather(*self._beside, return_exceptions=True)

    async def _live(self) -> None:
        spec, is_idle = self.pod["spec"], self._machines.is_idle(self.pod)
        volumes = {} if is_idle else await self._mounted()
        if volumes is None:
            return
        around = await asyncio.to_thread(self._surroundings, volumes, is_idle=is_idle)
        if self._stop.is_set():
            return  # what ends its containers has found none yet
        policy = spec["restartPolicy"]
        of_inits = "Never" if policy == "Never" else "OnFailure"
        inits = [] if is_idle else spec.get("initContainers") or []
        self._inits = [_init(each, around, of_inits) for each in inits]
        self._mains = [ContainerLife(each, around, policy) for each in spec["containers"]]
        if self._inits:
            for main in self._mains:
                main.progress.waiting = ("PodInitializing", "")
        self._report()
        deadline = self._deadline()
        try:
            if await self._initialized() and not self._stop.is_set():
                await asyncio.gather(*(main.live() for main in self._mains))
        finally:
            if deadline is not None:
                deadline.cancel()
            if self._stopping is None:
                await self._end_sidecars(float(spec.get("terminationGracePeriodSeconds") or 0))
        if self._stopping is not None:
            await self._stopping

    async def _initialized(self) -> bool:
        for init in self._inits:
            if init.is_sidecar:
                if not await self._begun(init):
                    return False
                continue
            await init.live()
            if init.progress.ended is None or init.progress.ended.exit_code != 0:
                return False
        return True

    async def _begun(self, sidecar: ContainerLife) -> bool:
        """Start a sidecar, and return whether it runs; what comes after it does not wait for its end."""
        life = asyncio.create_task(sidecar.live())
        self._beside.append(life)
        begun = asyncio.create_task(sidecar.begun.wait())
        await asyncio.wait((life, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        return sidecar.begun.is_set()

    def _deadline(self) -> asyncio.TimerHandle | None:
        seconds = self.pod["spec"].get("activeDeadlineSeconds")
        if seconds is None:
            return None
        return asyncio.get_running_loop().call_later(seconds, self.fail, "DeadlineExceeded", DEADLINE)

    async def _mounted(self) -> dict[str, Path] | None:
        """Make the volumes, again and again until all that they need is there; None after a stop."""
        machines = self._machines
        volumes = Volumes(machines.cluster, self.pod, self._folder, machines.folder / "claims")
        while not self._stop.is_set():
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                return await asyncio.to_thread(volumes.make)
            except MountError as error:
                self._report()
                self._say("FailedMount", str(error), True)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop.wait(), self._settings.mount_retry_s)
        return None

    def _files(self) -> Mapping[str, Path]:
        """Write what all containers see."""
        machines, names = self._machines, self._folder / "hosts"
        machines.hosts.add(self.pod, names)
        account = self._folder / "account"
        account.mkdir(exist_ok=True)
        for name, content in machines.credentials(self.pod).items():
            (account / name).write_bytes(content)
        return {"/etc/hosts": names, TOKEN_PLACE: account}

    def _surroundings(self, volumes: Mapping[str, Path], *, is_idle: bool) -> Surroundings:
        """Lay out what the containers share; nobody reads the files of idle ones, which thousands would rewrite."""
        machines = self._machines
        self.pod["status"].update(podIP=self._address, hostIP=HOST_ADDRESS)
        return Surroundings(
            cluster=machines.cluster,
            pod=self.pod,
            folder=self._folder,
            mounts={} if is_idle else self._files(),
            volumes=volumes,
            hostname=hostname(self.pod),
            environment=machines.environment,
            settings=machines.settings,
            default_commands=machines.default_commands,
            logs=machines.logs,
            say=self._say,
            report=self._report,
            is_missing=machines.is_missing,
            present=machines.present,
            is_idle=is_idle,
        )

    def _say(self, reason: str, message: str, warning: bool) -> None:
        events.record(self._machines.cluster, self.pod, reason, message, component="kubelet", warning=warning)

    def _report(self, *, is_over: bool = False) -> None:
        """Write the pod's status, unless the pod is gone or nobody can hear of it."""
        metadata = self.pod["metadata"]
        if self.is_silent:
            return
        try:
            self._machines.cluster.modify(
                "Pod",
                metadata["namespace"],
                metadata["name"],
                lambda obj: self._update_status(obj, is_over),
                "status",
            )
        except KubernetesError as error:
            if error.code not in (404, 409):
                raise

    def _update_status(self, obj: Obj, is_over: bool) -> None:
        """Put into a pod's status what is known here."""
        if obj["metadata"]["uid"] != self.pod["metadata"]["uid"]:
            raise KubernetesError(409, "Conflict", "this pod has been replaced by another")
        status = obj["status"]
        inits = [each.progress for each in self._inits]
        mains = [each.progress for each in self._mains]
        status["phase"] = pod_status.phase(inits, mains) if mains else "Pending"
        status.setdefault("startTime", now())
        status.update(hostIP=HOST_ADDRESS, hostIPs=[{"ip": HOST_ADDRESS}])
        if self._address:
            status.update(podIP=self._address, podIPs=[{"ip": self._address}])
        if self._failure is not None:
            status.update(reason=self._failure[0], message=self._failure[1])
        if is_over and (self._failure is not None or status["phase"] not in ("Succeeded", "Failed")):
            status["phase"] = "Failed"
        if mains:
            values = pod_status.of_pod(inits, mains)
            status["conditions"] = pod_status.conditions(status.get("conditions") or (), values)
            status["containerStatuses"] = [each.body() for each in mains]
        if inits:
            status["initContainerStatuses"] = [each.body() for each in inits]


def _init(spec: Obj, around: Surroundings, policy: str) -> ContainerLife:
    """Return an init container; one that is always restarted is a sidecar."""
    if spec.get("restartPolicy") == "Always":
        return ContainerLife(spec, around, "Always", is_sidecar=True)
    return ContainerLife(spec, around, policy)
