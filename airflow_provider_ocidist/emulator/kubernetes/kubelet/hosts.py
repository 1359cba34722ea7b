"""Names: the `/etc/hosts` of each pod, with the pods and services that cluster DNS would know."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from airflow_provider_ocidist.emulator.kubernetes import selectors
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster, Event

DOMAIN = "cluster.local"
HEAD = "127.0.0.1\tlocalhost\n"


def hostname(pod: Obj) -> str:
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")


def lines(cluster: Cluster, namespace: str) -> Iterator[str]:
    """Yield the addresses of a namespace, each with its names."""
    pods = [pod for pod in cluster.stored("Pod", namespace) if _is_reachable(pod)]
    for pod in pods:
        subdomain = pod["spec"].get("subdomain")
        if subdomain and cluster.find("Service", namespace, subdomain):
            yield _line(pod, f"{hostname(pod)}.{subdomain}", namespace)
    for service in cluster.stored("Service", namespace):
        selector = service["spec"].get("selector")
        if selector:
            fits = selectors.of_object({"matchLabels": selector})
            for pod in pods:
                if fits(pod["metadata"].get("labels") or {}):
                    yield _line(pod, service["metadata"]["name"], namespace)


def _is_reachable(pod: Obj) -> bool:
    status = pod.get("status") or {}
    return bool(status.get("podIP")) and status.get("phase") in ("Pending", "Running")


def _line(pod: Obj, name: str, namespace: str) -> str:
    full = f"{name}.{namespace}.svc"
    return f"{pod['status']['podIP']}\t{name} {name}.{namespace} {full} {full}.{DOMAIN}\n"


class Hosts:
    """Keeps the files of the pods that live as their namespaces change."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._files: dict[str, dict[str, tuple[Path, str]]] = {}
        self._ends = [cluster.subscribe(kind, self._note) for kind in ("Pod", "Service")]
        self._stale: set[str] = set()
        self._changed = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ocidist-names", daemon=True)
        self._thread.start()

    def add(self, pod: Obj, path: Path) -> None:
        """Write a pod's file, and keep it."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        own = f"{HEAD}{pod['status']['podIP']}\t{hostname(pod)}\n"
        with self._lock:
            self._files.setdefault(namespace, {})[uid] = (path, own)
        path.write_text(own)
        self._refresh(namespace)

    def remove(self, pod: Obj) -> None:
        with self._lock:
            self._files.get(pod["metadata"]["namespace"], {}).pop(pod["metadata"]["uid"], None)

    def stop(self) -> None:
        for end in self._ends:
            end()
        self._stopped = True
        self._changed.set()
        self._thread.join()

    def _note(self, event: Event) -> None:
        namespace = event.object["metadata"]["namespace"]
        if self._files.get(namespace):
            self._stale.add(namespace)
            self._changed.set()

    def _run(self) -> None:
        while self._changed.wait() and not self._stopped:
            self._changed.clear()
            while self._stale:
                self._refresh(self._stale.pop())

    def _refresh(self, namespace: str) -> None:
        text = "".join(lines(self._cluster, namespace))
        with self._lock:
            for path, own in self._files.get(namespace, {}).values():
                # In place: the pod sees this very file. Only added to or cut at its end where that is enough.
                with suppress(FileNotFoundError):
                    _rewrite(path, own + text)


def _rewrite(path: Path, text: str) -> None:
    if path.read_text() != text:
        with path.open("r+") as file:
            file.write(text)
            file.truncate()
