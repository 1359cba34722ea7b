"""RunaiServer: the stand-in on a port of its own, on loopback, from start to stop."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import uvicorn

from airflow_provider_ocidist.emulator.connections import config_of
from airflow_provider_ocidist.emulator.faults import Faults
from airflow_provider_ocidist.emulator.listening import LOOPBACK, listen, url_of
from airflow_provider_ocidist.emulator.loop_thread import LoopThread, until_started
from airflow_provider_ocidist.emulator.runai.app import ControlPlane, ControlPlaneApp
from airflow_provider_ocidist.emulator.runai.control import RunaiControl
from airflow_provider_ocidist.emulator.runai.tokens import Tokens
from airflow_provider_ocidist.emulator.runai.workloads import ClusterObjects, Project, SubmittedWorkloads
from airflow_provider_ocidist.emulator.runai_settings import Account, RunaiSettings

if TYPE_CHECKING:
    from typing_extensions import Self

TICK_S = 0.1
PROJECT = "research"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunaiAccess:
    """How clients reach the stand-in: what a connection of type `runai` needs."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    project: str
    project_id: str
    cluster_id: str
    namespace: str


class RunaiServer:
    """`with RunaiServer(cluster) as access: ...`; workloads run in the cluster beneath."""

    def __init__(self, cluster: ClusterObjects, options: RunaiSettings | None = None) -> None:
        account = Account(client_id="ocidist", client_secret=secrets.token_urlsafe(24))
        given = options or RunaiSettings()
        self._options = replace(given, accounts=(account, *given.accounts))
        self._cluster = cluster
        self._thread: LoopThread | None = None
        self.access: RunaiAccess
        """Access to the control plane, set by `start`."""

    def __enter__(self) -> RunaiAccess:
        self.start()
        return self.access

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Serve, in a thread; return when the first request would be answered. Raises what prevented it."""
        thread = self._thread = LoopThread("ocidist-runai", self._serve)
        thread.start()
        if thread.failure is not None:
            raise thread.failure
        return self

    def stop(self) -> None:
        """End the server; what runs in the cluster ends with that. May be called twice."""
        if self._thread is not None:
            self._thread.stop()
        self._thread = None

    async def _serve(self, is_ready: Callable[[], None], ended: asyncio.Event) -> None:
        with listen(LOOPBACK, 0) as listener:
            url, cluster_id = url_of(listener), str(uuid.uuid4())
            projects = [Project("1", PROJECT), Project("2", "others")]
            workloads = SubmittedWorkloads(
                projects, cluster_id, self._cluster, pools=self._options.node_pools
            )
            tokens = Tokens(self._options.accounts, self._options.token_lifetime_s)
            control = RunaiControl(workloads, tokens, Faults(None))
            plane = ControlPlane(workloads, tokens, self._options, cluster_id=cluster_id, url=url)
            self.access = self._access(url, workloads.projects["1"], cluster_id)
            server = uvicorn.Server(config_of(ControlPlaneApp(control, plane), refusal=_unreadable))
            serving = asyncio.create_task(server.serve([listener]))
            try:
                await until_started(server, serving)
                is_ready()
                await _ticking(workloads, ended)
            finally:
                server.should_exit = True
                await serving

    def _access(self, url: str, project: Project, cluster_id: str) -> RunaiAccess:
        account = self._options.accounts[0]
        return RunaiAccess(
            url=url,
            client_id=account.client_id,
            client_secret=account.client_secret,
            project=project.name,
            project_id=project.id,
            cluster_id=cluster_id,
            namespace=project.namespace,
        )


async def _ticking(workloads: SubmittedWorkloads, ended: asyncio.Event) -> None:
    """Move the workloads on until the end."""
    while not ended.is_set():
        workloads.tick()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ended.wait(), TICK_S)


def _unreadable(status: int, message: str) -> dict[str, Any]:
    """Return the answer to what is no request."""
    return {"code": status, "message": message}
