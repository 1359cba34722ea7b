"""NodeReport: the state that a node publishes, one small JSON file in the run directory."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import field

from airflow_provider_ocidist.backports import StrEnum, dataclass
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.plain_text import plain_texts

_HARMFUL = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
"""Escapes of JSON that may stand for what no plain text has; few reports have one, and each is read at every poll."""
ALL_DAMAGED = "all damaged"
"""Value of `NodeReport.starts_from` of a node that has found all stored checkpoints to be damaged."""
OVER_THE_LONGEST = 2.0
"""Multiple of the longest step so far that a step may take; the longer of this and `limits.hang_timeout` counts."""


class Phase(StrEnum):
    """What a node is doing; in this order."""

    STARTING = "STARTING"
    FETCHING = "FETCHING"
    """The node fetches code, inputs, and the checkpoint to resume from."""
    JOINING = "JOINING"
    """The node waits for the other nodes."""
    TRAINING = "TRAINING"
    SAVING = "SAVING"
    """The node saves its last checkpoints and outputs."""
    DONE = "DONE"


@dataclass(frozen=True, kw_only=True)
class RankPace:
    """How long one process works on a step by itself, as the program measures it."""

    rank: int
    seconds: float
    """Seconds for the process's own part of a step, without the wait for others; the median of its last steps."""
    steps: int
    """Number of these steps."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of the training, as far as the program reports it."""

    step: int | None = None
    steps: int | None = None
    """Number of steps in all."""
    loss: float | None = None
    throughput: float | None = None
    """Units per second, in whatever the program counts: tokens, samples, iterations."""
    learning_rate: float | None = None
    printed: bool = False
    """Whether the step was read in the program's output; a log that shows the output need not repeat it."""
    updated_at: float | None = None
    """Unix time of the last output, step or checkpoint, by the node's own clock."""
    idle: float | None = None
    """Seconds without progress, as the node has measured them; a hang is judged by it. Progress is a new step where the
    program counts steps, else any output."""
    still: float | None = None
    """Seconds without progress of another kind than lines of output, as the node has measured them."""
    by_steps: bool = False
    """Whether steps count as progress: at least two were seen."""
    longest_step: float = 0.0
    """Seconds between two steps, the most so far."""
    step_time: float | None = None
    """Seconds for a step, over the last ones that this node has seen."""
    paces: tuple[RankPace, ...] = ()
    """Paces of the processes on this node that report their own time."""
    complete: bool = False
    """Whether the program reports that there is nothing left to train."""
    first_step: int | None = None
    """First step that the program itself has named in this launch: in its file or in words, not by a bar."""
    own_steps: int | None = None
    """Greatest number of steps in all that the program itself has named so: a bar may count something else."""
    goes_on: bool = False
    """Whether the progress file has named a further step after its first one."""
    idle_bar: int | None = None
    """Total of the first bar of this launch, if it stands at 0, as the Trainer's does when nothing is left to train."""
    losses: tuple[tuple[float, float], ...] = ()
    """Steps and losses from the first step of this attempt on, thinned evenly for a plot, in at most 2 KB."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The use of a node's machine."""

    cores: float | None = None
    """Processor cores that the training keeps busy."""
    memory: int | None = None
    """Bytes in use on the node, or in its container where that is limited."""
    memory_limit: int | None = None
    gpu: float | None = None
    """Share of the time, 0 to 1, in which something ran on the GPUs; their mean."""
    gpu_memory: float | None = None
    """Share in use, 0 to 1, of the GPU that has least left."""
    idle: float | None = None
    """Seconds since a GPU, or a tenth of a processor core, was last in use; None: not known."""


@dataclass(frozen=True, kw_only=True)
class StackPosition:
    """Where one process of a training that hangs stood, before it was ended."""

    rank: int | None
    """Rank of the process; None if its environment names none."""
    at: tuple[str, ...]
    """Innermost functions of its main thread, `reduce (train.py:12)`, the innermost first; empty if not known."""


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A process or node that is slower than the others."""

    rank: int | None
    """Rank of the slow process; None where only nodes report their steps."""
    node: int
    seconds: float
    """Seconds that it takes for a step."""
    median: float
    """Median of the seconds of all."""

    @property
    def line(self) -> str:
        """One line for a person: who is slow, and how slow."""
        who = f"node {self.node}" if self.rank is None else f"rank {self.rank} (on node {self.node})"
        return f"{who} is slow: {self.seconds:.3g} s for a step, the median is {self.median:.3g} s"


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Why the training was launched again, on the same machines, or on fewer or more of them."""

    cause: Cause
    message: str
    """One line for a person."""
    rank: int | None = None
    """Rank of the node that failed."""
    step: int | None = None
    """Step that it had reached: the last one reported in that launch, else that of the newest checkpoint; None: not
    known, or the program was not launched."""
    checkpoint: str | None = None
    """Digest of the newest checkpoint of all nodes by then; None: there was none."""
    seconds: float | None = None
    """Seconds from the end of the launch before until every node that has measured it had its first step; None: not
    known."""
    members: tuple[int, ...] = ()
    """Ranks of the nodes that take part from then on; empty: all."""
    lost: tuple[int, ...] = ()
    """Ranks of nodes that have ended at the service before: what still runs of one is to end."""
    behind: int = 0
    """Steps that may lie between that step and the failure, where the failed node has not reported it."""
    killed: bool = False
    """Whether a process was killed from outside, on a machine that lives, whatever budget pays for it."""
    hang: bool = False
    """Whether no node made progress, also where a fault of a machine is the cause."""


@dataclass(frozen=True, kw_only=True)
class EarlierGangs:
    """What the program has failed with in the gangs before this one, in the same try of its task."""

    restarts: tuple[Restart, ...]
    """Restarts of those gangs, oldest first, without those after the loss of a machine."""

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> EarlierGangs:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.read(cls, text)


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How long a node has measured from the end of one launch to the first step of the next."""

    launch: int
    """Number of the launch that had its first step, from 1."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Sending:
    """A file that a node is sending in parts; its place keeps them until the upload is completed or aborted."""

    folder: str
    """The URI that the name is relative to."""
    name: str
    upload_id: str


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the main node offers to go on from: whole saves in a folder that all nodes share, not all of them stored."""

    names: tuple[str, ...]
    """Names of the entries of the folder."""
    digest: str
    """Digest of the number of the launch that is to go on from them, and of their files."""
    checkpoint: CheckpointRef
    """Reference to the newest of them, which is not stored yet."""
    chosen: bool = False
    """Whether all nodes have found the same, so that the launch goes on from it."""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The state of one node, rewritten whole at every heartbeat. Times are Unix times, in seconds."""

    rank: int
    phase: Phase
    address: str
    """Address at which the other nodes reach this one; empty until it joins them."""
    public_key: str | None = None
    """Public key of this node, where the launcher logs in from one node to another."""
    main: bool = False
    """Whether the process of global rank 0 runs on this node; it writes checkpoints and outputs."""
    started_at: float
    heartbeat_at: float
    finished_at: float | None = None
    exit_code: int | None = None
    """Exit code of the training on this node; negative for a signal."""
    trained_for: float | None = None
    """Seconds from the start of the program to its end."""
    cause: Cause | None = None
    """Cause why this node failed by itself; None on nodes that were stopped."""
    message: str | None = None
    """One line for a person: the exception's last line, the signal, the missing file."""
    tail: str | None = None
    """Last lines of output, the traceback included; at most 4,000 characters."""
    progress: Progress | None = None
    usage: Usage | None = None
    health: tuple[str, ...] = ()
    """Faults of the machine, one line each; looked for when the training stands still, and every few minutes."""
    health_at: float | None = None
    """Unix time of the last such look; None: there was none yet."""
    slow: tuple[Slow, ...] = ()
    """Processes that are slower than the others at present; on the main node only."""
    stack_positions: tuple[StackPosition, ...] | None = field(default=None, metadata=codec.key("stands"))
    """Stack positions of the processes of this launch when it hung; None if they are not recorded."""
    moved: int | None = None
    """Count that grows while the node makes progress before the training; None: an older agent."""
    checkpoint: CheckpointRef | None = None
    """Newest complete checkpoint that this node has written, or started from."""
    writing: tuple[str, ...] | None = None
    """Entries of the checkpoint folder that the program has open for writing, or had when it was interrupted; on all
    but the main node. None before that is known, and once the program has exited with 0."""
    starts_from: str | None = None
    """Digest of what this node goes on from, empty for nothing, or `ALL_DAMAGED`; None before it has looked."""
    offers: Offer | None = None
    """Offer for the next launch, or for this one where that goes on from it; on the main node only."""
    holds: str | None = None
    """Digest of what this node has found of the main node's offer for the launch that it reports, empty where it cannot
    be read; None: it has not looked."""
    outputs: tuple[str, ...] = ()
    """URIs of the outputs that were copied."""
    sending: tuple[Sending, ...] = ()
    """Files of outputs on their way: the only record of their uploads after the node was killed."""
    price: float | None = None
    """Price of this node for an hour; None: not known."""
    spent_before: float | None = None
    """Node-seconds of the task's earlier attempts since its last clear, as node 0 has counted them."""
    cost_before: float | None = None
    """Cost of those attempts, each at its own price; None: not known."""
    apart: tuple[int, ...] | None = None
    """Nodes whose checkpoint folder is another than the main node's; on the main node only. None before it has
    looked."""
    lost: bool = False
    """Whether the platform has restarted this node's container after the process before had failed, or ended without a
    report."""
    restarts: tuple[Restart, ...] = ()
    """Restarts of this run so far, oldest first; their count is the number of the launch, from 0."""
    crash_loop: bool = False
    """Whether this node has ended the run because the same failure had ended a launch at the same step before."""
    recoveries: tuple[Recovery, ...] = ()
    """Recoveries that this node has measured; none of a program that reports no steps."""
    incarnation: int = 0
    """Number of nodes of this rank that were lost before this one was made in their place."""
    instance: str = ""
    """Id of this run of the node, where its platform itself makes another in its place; empty elsewhere."""
    predecessors: float = 0.0
    """Seconds that those nodes have run, all together."""
    admits: bool = False
    """Whether this node is about to ask for a launch with late nodes: one whose program succeeds waits for that."""
    leaves: bool = False
    """Whether this node has waited to take part for as long as it may, and ends: nobody admits it any more."""
    stopped: bool = False
    """Whether this node was stopped from outside before its program had ended, and takes part in no other launch: a
    preemption, a request to end the run. Its exit code shows no success then."""

    @property
    def program_has_ended(self) -> bool:
        """Whether its program has ended: it saves what that has left, or is done."""
        return self.phase in (Phase.SAVING, Phase.DONE)

    @property
    def was_launched(self) -> bool:
        """Whether the launch that it reports has begun there: all members had come.

        A node that was stopped while it waited for them is done too, and its program has no exit code.
        """
        if self.phase is Phase.DONE:
            return self.exit_code is not None
        return self.phase in (Phase.TRAINING, Phase.SAVING)

    @property
    def has_succeeded(self) -> bool:
        """Whether its program has exited with 0 by itself, and it has saved its results."""
        return self.phase is Phase.DONE and self.exit_code == 0 and not self.stopped

    @property
    def was_stopped(self) -> bool:
        """Whether the node was ended from outside, as one whose machine is preempted: another may take its place.

        It may still save what its program has left, and the program may have exited with 0 for it.
        """
        has_not_succeeded = self.phase is Phase.DONE and self.exit_code != 0
        return self.cause is None and (self.stopped or has_not_succeeded)

    @property
    def ran_until(self) -> float:
        """Unix time of its end, or of its last heartbeat."""
        return self.finished_at or self.heartbeat_at

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> NodeReport:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form.

        What a program has printed is read as plain text: Airflow's database would refuse the failure of its task.
        """
        return codec.read(cls, _plain(text) if _HARMFUL.search(text) else text)


def _plain(text: bytes) -> bytes:
    try:
        return json.dumps(plain_texts(json.loads(text))).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """The lease of a run: the waiting process renews it. Nodes compare it for change, not for content."""

    renewed_at: float
    """Unix time of the renewal, by the clock of the waiting process."""
    token: str
    """Token that changes with each renewal, whatever that clock does."""

    @classmethod
    def now(cls) -> Renewal:
        return cls(renewed_at=time.time(), token=uuid.uuid4().hex)

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """A request to all nodes: end the run, or this launch, after which all launch the training again."""

    cause: Cause
    message: str
    rank: int | None = None
    """Rank of the node that asks; None: the submitter."""
    restarts: tuple[Restart, ...] = ()
    """Restarts so far with the new one last, if the training is launched again; empty: the run ends."""
    hang: bool = False
    """Whether no node made progress, whatever the cause; then each node records the stacks of its processes."""

    @property
    def ends_run(self) -> bool:
        """Whether no launch follows."""
        return not self.restarts

    def asks_for_launch_after(self, launch: int) -> bool:
        """Whether it asks for a launch after that of this number, from 0."""
        return len(self.restarts) > launch

    def restarts_of(self, rank: int, launch: int) -> tuple[Restart, ...]:
        """Return the restarts in which a node of this launch, from 0, takes part: none for one that is lost."""
        # What was lost before is its predecessor.
        return () if any(rank in each.lost for each in self.restarts[launch:]) else self.restarts

    def concerns(self, launch: int) -> bool:
        """Whether it ends the launch of this number, from 0."""
        return self.ends_run or self.asks_for_launch_after(launch)

    def to_json(self) -> bytes:
        return json.dumps(codec.encode(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> StopRequest:
        """Read what `to_json` returned, in any version. Raises TypeError or ValueError for another form."""
        return codec.read(cls, text)
