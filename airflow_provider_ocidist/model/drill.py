"""Drill: a fault that a gang inflicts on itself, and what its nodes then record of it."""

from __future__ import annotations

import json
from dataclasses import field
from typing import TypeVar

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.job import TrainingJob

Member = TypeVar("Member", bound=StrEnum)

DRILL_VARIABLE = "OCIDIST_DRILL"
"""Environment variable with a fault, as `Fault.parse` reads it; the node that has it injects the fault into itself."""
UNDISTURBED = "undisturbed"
"""Value of that variable for a training without a fault, whose nodes record their steps and checkpoints."""


class FaultKind(StrEnum):
    """What is done to one node."""

    KILL_RANK = "kill-rank"
    """SIGKILL to one training process."""
    KILL_AGENT = "kill-agent"
    """SIGKILL to the agent alone."""
    KILL_NODE = "kill-node"
    """SIGKILL to all processes of the node at once, as if its machine lost power."""
    FREEZE_RANK = "freeze-rank"
    """SIGSTOP to one training process: it hangs."""
    FREEZE_NODE = "freeze-node"
    """SIGSTOP to all processes of the node: it is silent."""
    STARVE_NODE = "starve-node"
    """All processes of the node run for a small part of the time only: it is slow."""
    CUT_NETWORK = "cut-network"
    """All packets that the node's machine sends are lost: no other machine hears it."""
    STARVE_NETWORK = "starve-network"
    """The node's machine sends only a few packets in a second."""
    FULL_DISK = "full-disk"
    """No file of the training processes can grow."""
    CORRUPT_CHECKPOINT = "corrupt-checkpoint"
    """One byte of the newest stored checkpoint is changed; then as kill-node."""


OF_PROCESSES = (FaultKind.KILL_RANK, FaultKind.FREEZE_RANK)
"""Faults of one process of the training."""
OF_FETCHES = (FaultKind.FULL_DISK, FaultKind.CORRUPT_CHECKPOINT)
"""Faults that a restore meets only if it reads the store: a node uses what it has on its disk."""
OF_NETWORKS = (FaultKind.CUT_NETWORK, FaultKind.STARVE_NETWORK)
"""Faults of what a machine sends."""
OF_TIME = (FaultKind.STARVE_NODE, FaultKind.STARVE_NETWORK)
"""Faults that make a node slow: they cost time, and no launch and no machine."""


class When(StrEnum):
    """The moment of a node's life at which a fault is injected."""

    RENDEZVOUS = "rendezvous"
    """The program is launched, and has reported no step."""
    TRAINING = "training"
    SAVING = "saving"
    """A new entry has appeared in the checkpoint folder."""
    UPLOADING = "uploading"
    """The node's files of a checkpoint are in the store, and its manifest is not."""
    RESTORING = "restoring"
    """The node is about to look for the checkpoint to resume from; `prelude_of` the fault makes it do so."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a drill."""

    kind: FaultKind
    when: When = When.TRAINING
    node: int = 0
    """Rank of the node."""
    step: int = 1
    """First step at which the fault may happen; of no meaning at the rendezvous."""
    seconds: float | None = None
    """Seconds that what does not kill lasts; None: for ever."""

    def __str__(self) -> str:
        where = f"{self.kind}@{self.when}:node={self.node}"
        return f"{where},step={self.step}" + (
            f",seconds={self.seconds:.0f}" if self.seconds is not None else ""
        )

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read what `str` writes: `kill-rank@training:node=1,step=30`. Raises ValueError, with the remedy."""
        what, _, rest = text.partition(":")
        kind, _, when = what.partition("@")
        values = dict(part.partition("=")[::2] for part in rest.split(",") if part)
        if unknown := set(values) - {"node", "step", "seconds"}:
            raise ValueError(
                f"{text!r}: {', '.join(sorted(unknown))} is unknown: node, step and seconds are known"
            )
        seconds = values.get("seconds")
        return cls(
            kind=_one_of(FaultKind, kind, text),
            when=_one_of(When, when or When.TRAINING, text),
            node=_number(values.get("node", "0"), text),
            step=_number(values.get("step", "1"), text),
            seconds=None if seconds is None else float(_number(seconds, text)),
        )


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """One injected fault, recorded just before it was injected."""

    kind: FaultKind = field(metadata=codec.key("deed"))
    node: int
    step: int | None
    """Last step that the training had reported."""
    launch: int
    at: float
    """Unix time by the node's clock."""
    message: str


@dataclass(frozen=True, kw_only=True)
class StepSeen:
    """A step that a node has seen reported first."""

    at: float
    """Unix time by the node's clock."""
    launch: int
    step: int


@dataclass(frozen=True, kw_only=True)
class SaveSeen:
    """A checkpoint that the main node has published while it trained."""

    launch: int
    step: int
    reached: int | None
    """Last step that the program had reported by then: it goes on while a checkpoint is on its way to the store."""


@dataclass(frozen=True, kw_only=True)
class DrillJournal:
    """What one node has recorded of a drill."""

    injected: tuple[InjectedFault, ...] = field(default=(), metadata=codec.key("strikes"))
    steps: tuple[StepSeen, ...] = ()
    damaged: tuple[str, ...] = ()
    """URIs of the checkpoints that the node has read and found to be damaged."""
    saves: tuple[SaveSeen, ...] = ()
    writes: bool = False
    """Whether the program has written into this node's checkpoint folder while it trained."""

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> DrillJournal:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.read(cls, text)


def prelude_of(fault: Fault) -> Fault:
    """Return the fault that is injected first, so that there is a restore to disturb."""
    kind = FaultKind.KILL_NODE if fault.kind in OF_FETCHES else FaultKind.KILL_RANK
    return Fault(kind=kind, node=fault.node, step=fault.step)


def why_impossible(fault: Fault, job: TrainingJob) -> str | None:
    """Return why a fault cannot happen to a job; None where it can."""
    if fault.node >= job.nodes:
        return f"{fault}: the job has {job.nodes} nodes, counted from 0"
    needs = (
        fault.when in (When.SAVING, When.UPLOADING, When.RESTORING)
        or fault.kind is FaultKind.CORRUPT_CHECKPOINT
    )
    if needs and job.checkpoints is None:
        return f"{fault}: the job has no section 'checkpoints'"
    if fault.kind is FaultKind.CORRUPT_CHECKPOINT and fault.when is When.RENDEZVOUS:
        return f"{fault}: a checkpoint is stored only later; use corrupt-checkpoint@training"
    if fault.when is When.RESTORING and fault.kind in OF_PROCESSES:
        return f"{fault}: while it restores, a node has no training process; use kill-node or kill-agent"
    if fault.kind is FaultKind.FREEZE_RANK and fault.seconds is None and job.limits.hang_timeout is None:
        return f"{fault}: without limits.hang_timeout the job would wait for ever; name seconds"
    if fault.kind in OF_NETWORKS and fault.seconds is None:
        return f"{fault}: name seconds, so that the machine gets its network back"
    if fault.kind in OF_NETWORKS and _on_host_network(job):
        return f"{fault}: the nodes use the network of their machines, so that others there would be disturbed too"
    return None


def _on_host_network(job: TrainingJob) -> bool:
    """Whether the job asks for the network of its machines; a node finds out by itself what the platform gives it."""
    return any(getattr(job.backend, name, None) for name in ("host_network", "preset"))


def _one_of(kind: type[Member], value: str, text: str) -> Member:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{text!r}: {value!r} must be one of {', '.join(kind)}") from None


def _number(value: str, text: str) -> int:
    if not value.isdecimal():
        raise ValueError(f"{text!r}: {value!r} is not a whole number")
    return int(value)
