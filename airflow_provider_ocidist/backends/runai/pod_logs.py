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
from airflow_provider_ocidist.work_dir.parallel import in_parallel


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
    """Return what was read of each gang: its namespace, None once it is gone, and the Unix time of each node.

    `most`: about how many lines of all; `turns`: whose log is read now. Raises BackendError.
    """
    gangs = list(gangs)
    wanted = [
        (number, PodLog(namespace=namespace, pod=ref.run_ids[rank], rank=rank, since=since[rank]))
        for number, (ref, namespace, since) in enumerate(gangs)
        if namespace is not None
        for rank in range(ref.nodes)
    ]
    turn = turns.of([(each.namespace, each.pod) for _, each in wanted], gangs=len(gangs))
    limit = pod_logs.bytes_of(most, len(turn))
    due = [each for _, each in wanted if (each.namespace, each.pod) in turn]
    read_now = in_parallel(lambda each: pod_logs.read(api, each, limit), due, pod_logs.at_a_time(len(gangs)))
    found = dict(zip(due, read_now, strict=True))
    of_gangs: list[list[tuple[int, PodLines]]] = [[] for _ in gangs]
    for number, each in wanted:
        of_gangs[number].append((each.rank, found.get(each, PodLines.later(each.since))))
    return [pod_logs.part_of(lines) for lines in of_gangs]
