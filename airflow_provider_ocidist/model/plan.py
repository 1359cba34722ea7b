"""The plan of a gang: the literal requests, and what is expected of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.run_key import RunKey, Tries


@dataclass(frozen=True, kw_only=True)
class Request:
    """One literal request of a plan."""

    verb: str
    """Name of the request at the service, `CreateJob`."""
    body: Mapping[str, Any]
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What must be there, besides exit codes of 0, before a run counts as a success."""

    checkpoint: bool = False
    outputs: tuple[str, ...] = ()
    """URIs of the folders that the job's required outputs go to."""
    reports: bool = True
    """Whether every node has an agent that reports; where not, a node's silence means nothing."""
    training: bool = False
    """Whether a step, loss, checkpoint or output has to show that there was a training."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that `submit` will send, in order. Printing it is the dry run; making it never creates anything."""

    key: RunKey
    backend: str
    nodes: int
    topology: str
    """Layout of the nodes, in the backend's own term."""
    reason: str
    """Sentence that names the topology and why it was chosen."""
    requests: tuple[Request, ...]
    run_dir: str
    checkpoints_uri: str | None = None
    code: str | None = None
    """Local path whose content travels with the job; None when nothing does."""
    expects: Expectations = Expectations()
    lease: float | None = None
    """Seconds without a lease renewal after which the nodes end a run; None: never."""
    compartment_id: str | None = None
    region: str | None = None
    """Region of the connection; None if only its profile names one."""
    conn_id: str | None = None
    """Connection at whose service the gang is created; None: the task's."""
    tries: Tries | None = None
    """Try of the task that asks; None where no Airflow task does."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Machines that are asked for, and where; a lack of capacity is recorded under them. Empty: capacity cannot
    lack."""
    candidate: str = ""
    """Part of `backend.candidates` that the plan uses, for people; empty: the section as it is."""
    price: float | None = None
    """Price of a node for an hour; None: not known."""
    replaces: bool = False
    """Whether the waiting side replaces a lost node, while the others wait for the new one."""
