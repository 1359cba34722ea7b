"""AgentConfig: a node's whole configuration, in one environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.job import (
    Checkpoints,
    Dependencies,
    Input,
    LauncherOptions,
    Limits,
    Output,
    Program,
    Restarts,
)

CONFIG_VARIABLE = "OCIDIST_CONFIG"
"""Variable with the configuration, as JSON."""
RANK_VARIABLE = "OCIDIST_NODE_RANK"
"""Variable with the node's rank; absent where the service itself numbers the nodes, in NODE_RANK."""
INCARNATION_VARIABLE = "OCIDIST_INCARNATION"
"""Variable with the number of nodes of this rank that were lost before; absent for none."""
INSTANCE_VARIABLE = "OCIDIST_INSTANCE"
"""Variable with the id of this one run of a node, where the platform itself makes another in its place under the same
name: a pod's UID."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The task of one node; the same for all nodes of a gang, which differ by rank alone."""

    run_name: str
    """Name of this attempt, unique among all attempts of all tasks; also the id of the rendezvous."""
    nodes: int
    run_dir: str
    """URI of this attempt's meeting point; nothing in it is older than the attempt."""
    program: Program
    """Program to launch; `source` None: the code lies in `code/` beside the agent, or in the image at an absolute
    path."""
    launcher: LauncherOptions = field(default_factory=LauncherOptions)
    inputs: tuple[Input, ...] = ()
    share_inputs: bool = True
    """Whether nodes take inputs from one another."""
    outputs: tuple[Output, ...] = ()
    checkpoints: Checkpoints | None = None
    """Checkpoints to publish; their `uri` is complete: they are written to `<uri>/<name>/`."""
    checkpoints_stem: str | None = None
    """URI of this task's checkpoints without the generation at its end; None unless the task resumes after a clear."""
    generation: int = 0
    """Number of this generation; earlier ones have smaller numbers."""
    attempt: int = 0
    """Number of this attempt within the generation, from 1."""
    limits: Limits = field(default_factory=Limits)
    restarts: Restarts = field(default_factory=Restarts)
    dependencies: Dependencies | None = None
    main_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of node 0, which win over `env`; empty where the service itself gives each node its own."""
    worker_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of all other nodes, which win over `env`; empty as `main_env` is."""
    secrets_apart: bool = False
    """Whether variables that the service gives to single nodes, and this configuration lacks, hold secrets."""
    mounts: tuple[str, ...] = ()
    """Folders that the platform mounts, as `job.Mount.path` names them; a node without one fails at once."""
    one_run: bool = False
    """Whether all nodes are one run at the service: they share its log, and the first that fails ends it for all."""
    ends_others: bool = False
    """Whether the platform ends all other nodes when one fails, or when node 0 succeeds: the first to end waits for
    them."""
    starts_again: bool = False
    """Whether the platform restarts a node's container by itself. The restarted node does nothing: another pod takes
    its place, or the gang is created again."""
    replaces: bool = False
    """Whether the waiting side replaces a lost node; then the other nodes wait for the new one."""
    min_nodes: int | None = None
    """Least number of nodes with which the training goes on without those that are not replaced; None: all."""
    reports: bool = True
    """Whether an agent certainly reads this configuration; where not, a node's silence means nothing."""
    require_training: bool = False
    """Whether a run that shows no step, loss, checkpoint or output is a failure; the waiting process judges that."""
    price: float | None = None
    """Price of a node for an hour; None: not known."""
    oci_endpoint: str | None = None
    """Service endpoint of every OCI client, for the emulator; None: the region's own."""
    oci_region: str | None = None
    """Region of every OCI client, where the gang was created at another connection than its task's; None: the
    node's own."""
    conn_id: str | None = None
    """Connection at whose service the gang was created; None: its task's connection."""

    @property
    def fence(self) -> Fence:
        """The fence of its checkpoints: those of a later attempt are newer, whatever their steps."""
        return Fence(generation=self.generation, attempt=self.attempt)

    def to_env(self) -> dict[str, str]:
        """Return the one variable that carries it to a node; `from_env` reads it."""
        return {CONFIG_VARIABLE: json.dumps(codec.encode(self), separators=(",", ":"))}

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> AgentConfig:
        """Read what `to_env` wrote. Raises AgentError when it is absent or not ours."""
        text = environ.get(CONFIG_VARIABLE)
        if text is None:
            raise AgentError(
                f"{CONFIG_VARIABLE} is not set: this node was not started by ocidist", cause=Cause.CONFIG
            )
        try:
            return codec.decode(cls, json.loads(text))
        except (ValueError, TypeError) as error:
            raise AgentError(f"{CONFIG_VARIABLE} cannot be read: {error}", cause=Cause.CONFIG) from error
