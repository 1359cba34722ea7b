"""The logs of gangs' pods, from the cluster itself: the control plane has none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_ocidist.backends.base import LogPart
from airflow_provider_ocidist.backends.kubernetes import pod_logs
from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.options import ClusterFields
from airflow_provider_ocidist.backends.kubernetes.pod_logs import PodLog
from airflow_provider_ocidist.backends.runai.options import Fields
from airflow_provider_ocidist.model.run import RunRef
from airflow_provider_ocidist.work_dir.parallel import in_parallel


def api_of(fields: Fields) -> Api | None:
    """Return the way into the cluster; None where the connection names none."""
    if not fields.kube_config_path:
        return None
    return Api(
        ClusterFields(kube_config_path=fields.kube_config_path, cluster_context=fields.cluster_context)
    )


def read(api: Api, gangs: Iterable[tuple[RunRef, str | None, Sequence[float]]], most: int) -> list[LogPart]:
    """Return what was read of each gang: its namespace, None once it is gone, and the Unix time of each node.

    `most`: about how many lines of all. Raises BackendError.
    """
    gangs = list(gangs)
    wanted = [
        (number, PodLog(namespace=namespace, pod=ref.run_ids[rank], rank=rank, since=since[rank]))
        for number, (ref, namespace, since) in enumerate(gangs)
        if namespace is not None
        for rank in range(ref.nodes)
    ]
    limit = pod_logs.bytes_of(most, len(wanted))
    found = in_parallel(lambda item: pod_logs.read(api, item[1], limit), wanted)
    read_of = list(zip(wanted, found, strict=True))
    return [
        pod_logs.part_of((each.rank, lines) for (own, each), lines in read_of if own == number)
        for number in range(len(gangs))
    ]
