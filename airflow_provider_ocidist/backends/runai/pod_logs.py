"""The logs of gangs' pods, from the cluster itself: the control plane has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.backends.base import LogPart
from airflow_provider_ocidist.backends.kubernetes import pod_logs
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLines, PodLog, Turns
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.model.run import RunRef


def api_of(fields: Fields) -> Api | None:
    """Return the way into the cluster; None where the connection names none."""
    if not fields.kube_config_path:
        return None
    return Api(
        ClusterFields(kube_config_path=fields.kube_config_path, cluster_context=fields.cluster_context)
    )


def read(
    api: Api, gangs: Iterable[tuple[RunRef, str | None, Sequence[float]]], most: int, turns: Turns
) -> list[LogPart]:
    """Return the lines of each gang; with a gang come its namespace, None once it is gone, and each node's Unix time.

    `most`: about how many lines of all; `turns`: whose log is read now. Raises BackendError.
    """
    gangs = list(gangs)
    namespaces = {ref.job_id: namespace for ref, namespace, _ in gangs}

    def read_node(ref: RunRef, rank: int, since: float, limit: int) -> PodLines:
        namespace = namespaces[ref.job_id]
        if namespace is None:
            return PodLines()
        wanted = PodLog(namespace=namespace, pod=ref.run_ids[rank], rank=rank, since=since)
        return pod_logs.read(api, wanted, limit)

    return pod_logs.in_turn([(ref, since) for ref, _, since in gangs], read_node, turns, most)
