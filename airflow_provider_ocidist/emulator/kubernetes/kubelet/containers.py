"""The life of one container: pulled, made, run, restarted, ended."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet import images, pod_logs
from airflow_provider_ocidist.emulator.kubernetes.kubelet.environment import ConfigError, command, resolve
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_status import ContainerEnd, ContainerProgress
from airflow_provider_ocidist.emulator.kubernetes.kubelet.volumes import MountError, places
from airflow_provider_ocidist.emulator.kubernetes.metadata import now
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.nodes import processes
from airflow_provider_ocidist.emulator.nodes.processes import Node, NodeCommand

MESSAGE_BYTES = 4096
"""Most bytes of a termination message."""
SIGKILLED = 137
"""Exit code of a container that was killed with SIGKILL."""
KILLED_EARLY = 128 + signal.SIGUSR1
"""Exit code of a container that was killed before its first process had blocked the signal that means so."""
START_ERROR = 128
"""Exit code of a container that could not be started."""
logger = logging.getLogger(__name__)

Say = Callable[[str, str, bool], None]
"""Function that records an event of the pod: reason, message, whether it is a warning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the containers of one pod share."""

    cluster: Cluster
    pod: Obj
    folder: Path
    mounts: Mapping[str, Path]
    """Files that all containers see, such as `/etc/hosts`."""
    volumes: Mapping[str, Path]
    hostname: str
    environment: Mapping[str, str]
    settings: ClusterSettings
    default_commands: Mapping[str, Sequence[str]]
    logs: PodLogs
    say: Say
    report: Callable[[], None]
    """Function that writes the pod's status."""
    is_missing: Callable[[str], bool]
    """Function that returns whether an image cannot be pulled."""
    present: set[tuple[str, str]]
    """Machines with the images that they have pulled."""
    is_idle: bool
    """Whether it runs without a process until it is ended."""


@dataclass(slots=True)
class ContainerLife:
    """One container. `live` returns when it is over and no process of it is left."""

    spec: Obj
    around: Surroundings
    policy: str
    """Restart policy: Always, OnFailure or Never."""
    is_sidecar: bool = False
    progress: ContainerProgress = field(init=False)
    process: Node | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Event of its first start."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event | None = None
    """Event that ends a run without a process."""
    _cause: tuple[int, str] | None = None
    """Exit code and reason, if it was ended from outside with others than the process has."""

    def __post_init__(self) -> None:
        self.progress = ContainerProgress(
            name=self.spec["name"], image=self.spec["image"], is_sidecar=self.is_sidecar
        )

    async def live(self) -> None:
        delay = 0.0
        while not self._stop.is_set():
            if not await self._pulled():
                break
            environment = await self._environment()
            if environment is None:
                break
            ended = await self._run(environment)
            if self._stop.is_set() or not self._starts_again(ended.exit_code):
                self.progress.ended = ended
                break
            await self._wait_before_restart(ended, delay)
            delay = min(delay * 2 or self.around.settings.backoff_s, self.around.settings.backoff_max_s)
        self.progress.over = True
        self.progress.running_since = None
        self.around.report()

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL when it has not ended within its grace."""
        self._stop.set()
        if self._idle is not None:
            self._idle.set()
        process = self.process
        if process is None:
            return
        if grace_s > 0:
            process.terminate()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.exited), grace_s)
        process.kill()
        await asyncio.shield(process.exited)

    def kill(self, cause: tuple[int, str] | None = None) -> None:
        """End its processes at once; what follows is the restart policy's business."""
        if self._idle is None and self.process is None:
            return
        self._cause = cause
        if self._idle is not None:
            self._idle.set()
        if self.process is not None:
            self.process.kill()

    def _starts_again(self, exit_code: int) -> bool:
        return self.policy == "Always" or (self.policy == "OnFailure" and exit_code != 0)

    async def _pulled(self) -> bool:
        """Pull the image, again and again; return whether it is here before the stop."""
        image, say, delay = self.spec["image"], self.around.say, self.around.settings.backoff_s
        while self.around.is_missing(image):
            why = images.not_found(image)
            say("Pulling", f'Pulling image "{image}"', False)
            say("Failed", f'Failed to pull image "{image}": {why}', True)
            say("Failed", "Error: ErrImagePull", True)
            self._wait_for("ErrImagePull", why)
            if await self._stopped_within(min(delay / 10, 1.0)):
                return False
            say("BackOff", f'Back-off pulling image "{image}"', False)
            say("Failed", "Error: ImagePullBackOff", True)
            self._wait_for("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {why}')
            if await self._stopped_within(delay):
                return False
            delay = min(delay * 2, self.around.settings.backoff_max_s)
        if not self.progress.container_id and not await self._arrives():
            say("Pulled", f'Container image "{image}" already present on machine', False)
        return not self._stop.is_set()

    async def _arrives(self) -> bool:
        """Fetch the image if this machine does not have it yet, and return whether it was fetched."""
        around, image = self.around, self.spec["image"]
        took, here = around.settings.pull_s, (str(around.pod["spec"].get("nodeName")), image)
        if not took or around.is_idle or here in around.present:
            return False
        around.say("Pulling", f'Pulling image "{image}"', False)
        if not await self._stopped_within(took):
            around.present.add(here)
            around.say("Pulled", f'Successfully pulled image "{image}" in {took:g}s', False)
        return True

    async def _environment(self) -> dict[str, str] | None:
        """Return the variables, once all that they refer to is there; None after a stop."""
        while True:
            try:
                own = resolve(self.around.cluster, self.around.pod, self.spec)
                self._check_command(own)
                return own
            except ConfigError as error:
                self.around.say("Failed", f"Error: {error}", True)
                self._wait_for("CreateContainerConfigError", str(error))
            except LookupError as error:
                self.around.say("Failed", f"Error: {error.args[0]}", True)
                self._wait_for("CreateContainerError", str(error.args[0]))
            if await self._stopped_within(self.around.settings.mount_retry_s):
                return None

    def _check_command(self, environment: Mapping[str, str]) -> None:
        if not self._command(environment):
            raise LookupError("no command specified")

    def _command(self, environment: Mapping[str, str]) -> Sequence[str]:
        own = command(self.spec, environment)
        if self.spec.get("command"):
            return own
        return [*self.around.default_commands.get(self.spec["image"], ()), *own]

    def _wait_for(self, reason: str, message: str) -> None:
        self.progress.waiting = (reason, message)
        self.around.report()

    async def _stopped_within(self, seconds: float) -> bool:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)
        return self._stop.is_set()

    async def _wait_before_restart(self, ended: ContainerEnd, delay: float) -> None:
        progress, pod = self.progress, self.around.pod["metadata"]
        progress.last, progress.ended, progress.running_since = ended, None, None
        progress.restarts += 1
        if not delay:
            return
        full = f"{pod['name']}_{pod['namespace']}({pod['uid']})"
        text = f"back-off {delay:g}s restarting failed container={self.spec['name']} pod={full}"
        self.around.say(
            "BackOff", f"Back-off restarting failed container {self.spec['name']} in pod {full}", True
        )
        self._wait_for("CrashLoopBackOff", text)
        await self._stopped_within(delay)

    async def _idle_until_ended(self) -> None:
        self._idle = asyncio.Event()
        self.progress.running_since, self.progress.waiting = now(), None
        self.around.report()
        if not self._stop.is_set():
            await self._idle.wait()
        self._idle = None
        self.progress.running_since = None

    async def _run(self, own: Mapping[str, str]) -> ContainerEnd:
        progress, name = self.progress, self.spec["name"]
        progress.container_id = f"containerd://{secrets.token_hex(32)}"
        started = now()
        if self.around.is_idle:
            await self._idle_until_ended()
            return self._ended(*(self._taken_cause() or (SIGKILLED, "Error")), started, "")
        log = self.around.logs.open(self.around.pod["metadata"]["uid"], name)
        message_file = self.around.folder / f"{name}.message"
        message_file.write_bytes(b"")
        try:
            made = await asyncio.to_thread(self._made, own, message_file)
            self.process = await processes.start(made, log.write)
            self.around.say("Created", f"Container created: {name}", False)
            self.around.say("Started", f"Container started: {name}", False)
            progress.running_since, progress.waiting = started, None
            self.begun.set()
            self.around.report()
            if self._stop.is_set():
                self.process.kill()
            code = await self.process.exited
        except (MountError, OSError) as error:
            self.around.say("Failed", f"Error: {error}", True)
            return self._ended(START_ERROR, "StartError", started, str(error))
        finally:
            self.process = None
            progress.running_since = None
            log.close()
        if code == KILLED_EARLY:
            code = SIGKILLED
        code, reason = self._taken_cause() or (code, "Completed" if code == 0 else "Error")
        return self._ended(code, reason, started, self._message(message_file, code))

    def _taken_cause(self) -> tuple[int, str] | None:
        """Return the cause of this end, which is none of the next one."""
        cause, self._cause = self._cause, None
        return cause

    def _ended(self, code: int, reason: str, started: str, message: str) -> ContainerEnd:
        return ContainerEnd(
            exit_code=code,
            reason=reason,
            started=started,
            finished=now(),
            container_id=self.progress.container_id,
            message=message,
        )

    def _message(self, file: Path, code: int) -> str:
        text = file.read_bytes()[-MESSAGE_BYTES:].decode(errors="replace")
        wants_log = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        path = self.around.logs.path(self.around.pod["metadata"]["uid"], self.spec["name"])
        return pod_logs.tail(path, 80)[-2048:] if not text and wants_log and code and path else text

    def _made(self, own: Mapping[str, str], message_file: Path) -> NodeCommand:
        """Lay out what the container sees, and return its command. Raises MountError, OSError."""
        around, home = self.around, self.around.folder / "rootfs" / self.spec["name"]
        home.mkdir(parents=True, exist_ok=True)
        environment = {**images.environment(home, around.hostname), **around.environment, **own}
        arguments = self._command(own)
        if "/" not in arguments[0] and not shutil.which(arguments[0], path=environment["PATH"]):
            raise FileNotFoundError(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: exec:"
                f' "{arguments[0]}": executable file not found in $PATH'
            )
        mounts = {**around.mounts, **dict(places(self.spec, around.volumes, own))}
        mounts.setdefault(self.spec.get("terminationMessagePath") or "/dev/termination-log", message_file)
        begins_in = self.spec.get("workingDir")
        if begins_in and not Path(begins_in).is_dir() and not _lies_in(begins_in, mounts):
            own_folder = around.folder / "working" / self.spec["name"]
            own_folder.mkdir(parents=True, exist_ok=True)
            mounts[begins_in] = own_folder
        return NodeCommand(
            arguments=arguments,
            folder=home,
            environment=environment,
            mounts=mounts,
            hostname=around.hostname,
            begins_in=begins_in,
        )


def _lies_in(place: str, mounts: Mapping[str, Path]) -> bool:
    return any(f"{place}/".startswith(f"{each}/") for each in mounts)
