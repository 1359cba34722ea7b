"""The cluster as a whole: started, reached, reset, closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
import yaml

from airflow_provider_ocidist.emulator import private_files
from airflow_provider_ocidist.emulator.certificates import Authority
from airflow_provider_ocidist.emulator.cluster_settings import ClusterSettings
from airflow_provider_ocidist.emulator.connections import config_of
from airflow_provider_ocidist.emulator.context import Context
from airflow_provider_ocidist.emulator.errors import StartupError
from airflow_provider_ocidist.emulator.faults import Faults
from airflow_provider_ocidist.emulator.kubernetes import core_kinds, users
from airflow_provider_ocidist.emulator.kubernetes.api.server import ApiServer
from airflow_provider_ocidist.emulator.kubernetes.controllers.garbage import GarbageCollector, Namespaces
from airflow_provider_ocidist.emulator.kubernetes.controllers.manager import Controller, Manager
from airflow_provider_ocidist.emulator.kubernetes.controllers.scheduler import Scheduler
from airflow_provider_ocidist.emulator.kubernetes.initial_objects import create_initial_objects
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet.hosts import Hosts
from airflow_provider_ocidist.emulator.kubernetes.kubelet.kubelet import Kubelet
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_faults import PodFaults
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pods import Machines
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.operators import Operators
from airflow_provider_ocidist.emulator.kubernetes.statuses import KubernetesError
from airflow_provider_ocidist.emulator.kubernetes.users import User, Users
from airflow_provider_ocidist.emulator.listening import LOOPBACK, listen
from airflow_provider_ocidist.emulator.nodes import machine, processes
from airflow_provider_ocidist.emulator.nodes.addresses import AddressPool
from airflow_provider_ocidist.emulator.proxy import for_nodes

NO_NAMESPACES = (
    "--kubernetes needs namespaces of mounts, to show pods their volumes and names, and this machine does not let us"
    " make any: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or in a container --privileged)"
)


class Kubernetes:
    """A cluster, and its API server on a port of its own. All but the constructor is for the event loop."""

    def __init__(
        self, context: Context, settings: ClusterSettings, authority: Authority, pool: AddressPool
    ) -> None:
        self._folder = context.folder / "kubernetes"
        self._folder.mkdir(exist_ok=True, mode=0o700)
        self._ca_file = authority.ca_file
        self._authority = authority
        self._context = context
        self._pool = pool
        self.settings = replace(
            settings, pod_environment={**_way_to_oci(context), **settings.pod_environment}
        )
        self._operators = Operators(
            training_operator=settings.training_operator,
            trainer=settings.trainer,
            status_delay_s=settings.status_delay_s,
            init_tries=settings.init_tries,
            pod_backoff_s=settings.backoff_s,
        )
        self.cluster = Cluster([*core_kinds.KINDS, *self._operators.kinds])
        self._operators.admit(self.cluster)
        self.users = Users()
        self._admin = self.users.issue(users.admin())
        self.logs = PodLogs(self._folder / "logs")
        self.faults = Faults(context.options.seed)
        self.api = ApiServer(self.cluster, self.users, self.logs, self.faults, self.settings)
        self.pod_faults = PodFaults(self.cluster, self.settings)
        self.url = ""
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the administrator, for whom nothing is forbidden."""
        return self._folder / "kubeconfig"

    async def start(self, port: int = 0) -> None:
        """Serve. Raises StartupError."""
        if not await asyncio.to_thread(processes.can_mount):
            raise StartupError(NO_NAMESPACES)
        self._listener = listen(LOOPBACK, port)
        self.url = self.api.url = f"https://{LOOPBACK}:{self._listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            config_of(self.api, self._authority.context(LOOPBACK), refusal=_unreadable)
        )
        self._serving = asyncio.create_task(self._server.serve([self._listener]))
        while not self._server.started and not self._serving.done():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(0.005)
        private_files.write(self.kubeconfig, self.config_of(self._admin, users.ADMIN).encode())
        self._begin()

    def _begin(self) -> None:
        create_initial_objects(self.cluster, self.settings)
        self._operators.create_objects(self.cluster)
        self._hosts = Hosts(self.cluster)
        own: list[Controller] = [
            GarbageCollector(self.cluster),
            Namespaces(self.cluster),
            Scheduler(self.cluster),
        ]
        self._manager = Manager(self.cluster, [*own, *self._operators.controllers])
        self._manager.start()
        machines = Machines(
            cluster=self.cluster,
            folder=self._folder,
            pool=self._pool,
            hosts=self._hosts,
            logs=self.logs,
            settings=self.settings,
            default_commands={
                image: machine.split(command) for image, command in self._context.options.images.items()
            },
            environment={**self.settings.pod_environment, **self._service_address()},
            credentials=self._credentials,
            is_missing=self.pod_faults.is_missing,
            is_idle=self.pod_faults.is_idle,
        )
        self.kubelet = Kubelet(machines)
        self.kubelet.start()
        self.pod_faults.watch(self.kubelet)

    async def _end(self) -> None:
        self.pod_faults.clear()
        await asyncio.to_thread(self._manager.stop)
        await self.kubelet.close()
        await asyncio.to_thread(self._hosts.stop)

    async def reset(self) -> None:
        """End all pods, and begin again; tokens stay."""
        self.faults.clear()
        self.api.come_back()
        await self._end()
        self.api.calls.clear()
        self.cluster.clear()
        self.api.cut_watches()
        self._begin()

    async def close(self) -> None:
        """End all pods, then the server."""
        if self._serving is None or self._server is None or self._listener is None:
            return
        await self._end()
        self.api.end_watches()
        self._server.should_exit = True
        await self._serving
        self._listener.close()

    def new_user(self, user: User, lifetime_s: float | None) -> tuple[str, str]:
        """Return a new user's token, and a kubeconfig with it."""
        token = self.users.issue(user, lifetime_s)
        return token, self.config_of(token, user.name)

    def config_of(self, token: str, name: str) -> str:
        """Return a kubeconfig with a token."""
        cluster = {"server": self.url, "certificate-authority": str(self._ca_file)}
        context = {"cluster": "ocidist", "user": name, "namespace": self.settings.namespace}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "ocidist", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "ocidist", "context": context}],
            "current-context": "ocidist",
        }
        return yaml.safe_dump(content)

    def _credentials(self, pod: Obj) -> Mapping[str, bytes]:
        namespace, spec = pod["metadata"]["namespace"], pod["spec"]
        if spec.get("automountServiceAccountToken") is False:
            return {}
        token = self.users.issue(
            users.service_account(namespace, spec.get("serviceAccountName") or "default")
        )
        return {
            "token": token.encode(),
            "namespace": namespace.encode(),
            "ca.crt": self._ca_file.read_bytes(),
        }

    def _service_address(self) -> Mapping[str, str]:
        """Return the variables by which a pod finds the API server."""
        host, _, port = self.url.removeprefix("https://").partition(":")
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


def _unreadable(status: int, message: str) -> dict[str, Any]:
    """Return the answer to what is no request."""
    return KubernetesError(status, "BadRequest", message).status()


def _way_to_oci(context: Context) -> Mapping[str, str]:
    """Return what brings a pod's clients of OCI to the emulator, and its processes to each other."""
    local = "127.0.0.0/8,127.0.0.1,localhost,.svc,.cluster.local"
    return {
        "HTTPS_PROXY": for_nodes(context.proxy_url),
        "REQUESTS_CA_BUNDLE": str(context.ca_bundle),
        "NO_PROXY": local,
        "no_proxy": local,
        **machine.socket_interface(),
    }
