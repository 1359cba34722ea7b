"""The logs of a gang's pods, from the cluster itself: the control plane has none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from airflow_provider_ocidist.backends.base import LogLine
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.work_dir.parallel import in_parallel

GONE = (400, 404)
"""A container that has not started, and a pod that does not exist (any more)."""


def read(fields: Fields, namespace: str, ref: RunRef, since: Sequence[float]) -> list[LogLine]:
    """Return the lines of all nodes since the Unix time of each. Raises BackendError."""
    client = _client(fields)

    def lines_of(rank: int) -> list[LogLine]:
        return list(_lines(_text(client, namespace, ref.run_ids[rank]), rank, since[rank]))

    found = in_parallel(lines_of, range(ref.nodes))
    return sorted((line for lines in found for line in lines), key=lambda line: line.time)


def _client(fields: Fields) -> Any:
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise BackendError(
            "the connection names a kube_config_path, and there is no client for it: "
            "pip install 'airflow-provider-ocidist[kubernetes]'",
            cause=Cause.CONFIG,
        ) from error
    try:
        return client.CoreV1Api(
            config.new_client_from_config(config_file=fields.kube_config_path, context=fields.cluster_context)
        )
    except (config.ConfigException, OSError) as error:
        raise BackendError(
            f"kube_config_path {fields.kube_config_path} cannot be used: {error}", cause=Cause.CONFIG
        ) from error


def _text(client: Any, namespace: str, pod: str) -> str:
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        # As it comes: the client turns the text of a log into `b'...'`.
        answer = client.read_namespaced_pod_log(
            pod, namespace, timestamps=True, _preload_content=False, _request_timeout=30
        )
        return str(answer.data.decode(errors="replace"))
    except ApiException as error:
        if error.status in GONE:
            return ""
        raise BackendError(
            f"reading the log of pod {pod}: {error.status} {error.reason}",
            status_code=error.status,
            retryable=error.status in (429, 500, 502, 503, 504),
        ) from error
    except HTTPError as error:
        raise BackendError(f"reading the log of pod {pod}: {error}", retryable=True) from error


def _lines(text: str, rank: int, since: float) -> Iterator[LogLine]:
    for line in text.splitlines():
        stamp, _, words = line.partition(" ")
        try:
            at = datetime.fromisoformat(stamp[:26].rstrip("Z") + "+00:00").timestamp()
        except ValueError:
            continue
        if at >= since:
            digest = hashlib.sha256(line.encode()).hexdigest()[:16]
            yield LogLine(id=f"{rank}-{digest}", time=at, rank=rank, text=words)
