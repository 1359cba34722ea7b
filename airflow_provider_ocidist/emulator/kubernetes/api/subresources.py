"""What is asked of one object beside its content: the log of a pod, a token of a service account."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse

from airflow_provider_ocidist.emulator.kubernetes import fields, statuses, users
from airflow_provider_ocidist.emulator.kubernetes.api.answers import as_json
from airflow_provider_ocidist.emulator.kubernetes.api.calls import Call, OpenStreams
from airflow_provider_ocidist.emulator.kubernetes.api.paths import Target
from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet.pod_logs import PodLogs
from airflow_provider_ocidist.emulator.kubernetes.log_reading import LogReading, follow
from airflow_provider_ocidist.emulator.kubernetes.metadata import now, stamp
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.statuses import Problem
from airflow_provider_ocidist.emulator.kubernetes.users import User, Users

TOKEN_REQUEST: Mapping[str, Any] = {
    **fields.ALWAYS,
    "spec": {"expirationSeconds": "int", "audiences": "list[str]", "boundObjectRef": "object"},
}
MIN_TOKEN_S, MAX_TOKEN_S = 1, 2**32
"""Least and most seconds of a token's life."""


class Subresources:
    """Answers requests for logs and tokens."""

    def __init__(self, cluster: Cluster, known: Users, logs: PodLogs, streams: OpenStreams) -> None:
        self._cluster = cluster
        self._users = known
        self._logs = logs
        self._streams = streams

    async def log(self, call: Call, target: Target) -> Response:
        pod = self._cluster.get("Pod", target.namespace, target.name)
        query = LogReading.of(call.query, pod)
        path = self._logs.path(pod["metadata"]["uid"], query.container, previous=query.previous)
        query.check(pod, has_log=path is not None)
        if path is None:
            return Response(b"", media_type="text/plain")
        pieces = follow(path, query, partial(self._is_running, pod, query.container), self._streams.cut)
        if query.follow:
            return StreamingResponse(pieces, media_type="text/plain")
        return Response(b"".join([piece async for piece in pieces]), media_type="text/plain")

    def _is_running(self, pod: Obj, container: str) -> bool:
        metadata = pod["metadata"]
        found = self._cluster.find("Pod", metadata["namespace"], metadata["name"])
        if found is None or found["metadata"]["uid"] != metadata["uid"]:
            return False
        status = found["status"]
        states = (status.get("containerStatuses") or []) + (status.get("initContainerStatuses") or [])
        return any(each["name"] == container and "running" in each["state"] for each in states)

    async def token(self, call: Call, target: Target) -> Response:
        self._cluster.get("ServiceAccount", target.namespace, target.name)
        request = await call.fields("TokenRequest", TOKEN_REQUEST)
        seconds = (request.get("spec") or {}).get("expirationSeconds") or 3600
        if not MIN_TOKEN_S <= seconds <= MAX_TOKEN_S:
            text = f"Invalid value: {seconds}: must be from {MIN_TOKEN_S} to {MAX_TOKEN_S}"
            problem = Problem("spec.expirationSeconds", text)
            raise statuses.unprocessable("TokenRequest.authentication.k8s.io", target.name, [problem])
        user: User = users.service_account(target.namespace, target.name)
        token = self._users.issue(user, seconds)
        status = {"token": token, "expirationTimestamp": _after(seconds)}
        metadata = {"name": target.name, "namespace": target.namespace, "creationTimestamp": now()}
        body = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": metadata}
        return as_json({**body, "spec": {"expirationSeconds": seconds}, "status": status}, 201)


def _after(seconds: float) -> str:
    return stamp(datetime.now(timezone.utc) + timedelta(seconds=seconds))
