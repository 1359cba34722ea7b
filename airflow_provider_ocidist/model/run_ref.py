"""RunRef: points at the gang that was created."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.plan import Plan
from airflow_provider_ocidist.model.report import Restart
from airflow_provider_ocidist.model.run_key import RunKey


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """Points at what was created; small JSON that lives in XCom, task state, triggers."""

    backend: str
    key: RunKey
    nodes: int
    job_id: str
    run_ids: tuple[str, ...]
    """Ids of the runs by rank; rank 0 is the main run. Empty text for a node that was never created. Nodes may share a
    run."""
    run_dir: str
    submitted_at: float
    """Unix time, by the service's clock, of the request for the first node."""
    checkpoints_uri: str | None = None
    compartment_id: str | None = None
    """Compartment at OCI, namespace on Kubernetes."""
    log_group_id: str | None = None
    """OCID of the log group with the nodes' lines; earlier versions have put the namespace here on Kubernetes."""
    log_id: str | None = None
    has_own_log: bool = False
    """Whether its home keeps the nodes' lines without a log group."""
    topology: str = "job_runs"
    """Layout of the nodes, as in the plan; the default is for records of older versions."""
    lease: float | None = None
    """Seconds without a lease renewal after which its nodes end a run, as configured; None: never."""
    candidate: str = ""
    """Part of `backend.candidates` that the gang uses, as in the plan."""
    conn_id: str | None = None
    """Connection at whose service the gang was created; None: the task's."""
    price: float | None = None
    """Price of a node for an hour; None: not known."""
    replaces: bool = False
    """Whether the waiting side replaces a lost node, as in the plan."""
    replaced: tuple[Restart, ...] = ()
    """Reasons why nodes were replaced, oldest first; how often a rank is among them is its incarnation."""
    lost_runs: tuple[str, ...] = ()
    """UIDs of the lost pods, in the order of `replaced`; empty where each new node has its own id in `run_ids`."""
    lost_seconds: float = 0.0
    """Seconds that the lost nodes have run, all together, by the service's clock."""

    @classmethod
    def of(cls, plan: Plan, job_id: str, run_ids: tuple[str, ...], **own: Any) -> RunRef:
        """Return where the gang of a plan is, created just now. `own`: what only its backend sets."""
        return cls(
            **{
                "backend": plan.backend,
                "key": plan.key,
                "nodes": plan.nodes,
                "job_id": job_id,
                "run_ids": run_ids,
                "run_dir": plan.run_dir,
                "submitted_at": time.time(),
                "checkpoints_uri": plan.checkpoints_uri,
                "compartment_id": plan.compartment_id,
                "conn_id": plan.conn_id,
                "topology": plan.topology,
                "lease": plan.lease,
                "replaces": plan.replaces,
                **own,
            }
        )

    def incarnation(self, rank: int) -> int:
        """Return how many nodes of a rank were lost before the one that has it now."""
        return sum(each.rank == rank for each in self.replaced)

    def sharing_texts(self) -> RunRef:
        """Return an equal reference whose texts are shared with other gangs': a thousand wait in one process."""
        shared = ("backend", "compartment_id", "log_group_id", "log_id", "topology")
        texts: dict[str, Any] = {
            name: sys.intern(text) for name in shared if (text := getattr(self, name)) is not None
        }
        of_key: dict[str, Any] = {
            name: sys.intern(getattr(self.key, name)) for name in ("dag_id", "run_id", "task_id")
        }
        key = replace(self.key, **of_key)
        return replace(self, key=key, **texts)

    @property
    def has_log(self) -> bool:
        """Whether the lines of its nodes can be read."""
        return self.has_own_log or self.log_group_id is not None

    @property
    def main_run_id(self) -> str:
        return self.run_ids[0]

    @property
    def complete(self) -> bool:
        """Whether every node was created; False after a submission that was cut off."""
        return all(self.run_ids)

    def to_json(self) -> dict[str, Any]:
        return dict(codec.encode(self))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RunRef:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.decode(cls, value)
