"""LastWords: the last output of failed programs without an agent, read before it is deleted with their pods."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from airflow_provider_ocidist.backends.kubernetes.api import Api
from airflow_provider_ocidist.backends.kubernetes.objects import Obj
from airflow_provider_ocidist.backends.kubernetes.pod_parts import exit_of, runs_agent
from airflow_provider_ocidist.errors import BackendError
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunRef

LAST_LINES = 20
"""Lines that are kept of a program without an agent."""
log = logging.getLogger(__name__)


class LastWords:
    """The last output of failed nodes without an agent, read once for each end of a container."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._noted: dict[str, dict[int, tuple[str, str]]] = {}
        """End and last output of nodes without an agent, by the gang's id and by rank."""

    def note(self, api: Api, ref: RunRef, pods: Mapping[int, Obj]) -> None:
        """Read the last output of failed programs without an agent, before it is deleted with their pods."""
        noted = self._noted.setdefault(ref.job_id, {})
        for rank, pod in pods.items():
            ended = None if runs_agent(pod) else exit_of(pod, self._container)
            at = str((ended or {}).get("finishedAt"))
            if ended and ended.get("exitCode") and noted.get(rank, ("", ""))[0] != at:
                tail = self._tail(api, ref, pod)
                if tail is not None:
                    noted[rank] = (at, tail)

    def _tail(self, api: Api, ref: RunRef, pod: Obj) -> str | None:
        """Return the last output of a pod; None where the next look may get it."""
        path = f"/api/v1/namespaces/{ref.compartment_id}/pods/{pod['metadata']['name']}/log"
        try:
            text = api.text(path, container=self._container, tailLines=LAST_LINES)
        except BackendError as error:
            log.debug("%s: its last lines cannot be read: %s", ref.key.name, error)
            return None if error.retryable else ""
        return text.decode(errors="replace")

    def added_to(self, ref: RunRef, node: NodeStatus) -> NodeStatus:
        """Return the status of a node with what it had printed, if it has failed."""
        _, text = self._noted.get(ref.job_id, {}).get(node.rank, ("", ""))
        return replace(node, tail=text) if text and node.state is NodeState.FAILED else node

    def forget(self, ref: RunRef) -> None:
        self._noted.pop(ref.job_id, None)
