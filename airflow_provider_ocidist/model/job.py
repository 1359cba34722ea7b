"""TrainingJob: what to train, on how many nodes, where. Data only; `job_file` validates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model.field_limits import STRICT, Above, AtLeast, Seconds, SecondsOrZero


@dataclass(frozen=True, kw_only=True)
class Program:
    """The user's code and how it is called."""

    __pydantic_config__ = STRICT

    script: str = ""
    """Path of the entry script inside `source`; with `module` the name of a module, with the launcher `command` an
    executable. Needed, unless `container` says what starts."""
    source: str | None = None
    """File, folder, zip or tar on this machine, a git URL, or any fsspec URI. None: the code is in the image."""
    args: tuple[str, ...] = ()
    """Arguments of the program, one list item for each; no shell reads them."""
    module: bool = False
    """Whether to run `python -m script` instead of a file."""
    working_dir: str | None = None
    """Working directory, relative to the root of the code. None: the folder that the path of the script starts from."""
    python_path: tuple[str, ...] = ()
    """Folders that the program may import from, relative to the working directory, which is one of them anyway."""
    source_secret: str | None = None
    """OCID of a Vault secret that opens a private Git source: an SSH key, or a token. Only the nodes read it."""

    @property
    def is_local(self) -> bool:
        """Whether the code is on this machine and must be carried to the nodes."""
        source = self.source
        return source is not None and "://" not in source and not source.startswith("git@")


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """Python packages that every node installs before the training starts."""

    __pydantic_config__ = STRICT

    requirements: str | None = None
    """Requirements file, relative to the root of the code."""
    packages: tuple[str, ...] = ()
    """Requirements as pip takes them, `fire==0.4.0`."""


@dataclass(frozen=True, kw_only=True)
class Container:
    """What the container starts instead of the agent; the entrypoint of an image may still be the agent. Of nodes
    without an agent only the service's state is known: no progress, checkpoints, hangs or causes.
    """

    __pydantic_config__ = STRICT

    entrypoint: tuple[str, ...] | None = None
    """Entrypoint of the container; None: the image's own."""
    command: tuple[str, ...] = ()
    """Arguments of the entrypoint; empty: the image's own."""


@dataclass(frozen=True, kw_only=True)
class LauncherOptions:
    """What starts the processes of one node."""

    __pydantic_config__ = STRICT

    kind: str = "torchrun"
    """Name of the launcher, as `torchrun`, or `command` for any executable; each has a section in
    `docs/launchers.md`."""
    processes_per_node: Annotated[int, AtLeast(1)] | None = None
    """Number of processes on each node. None: one for each GPU that the node sees, or one where there is none."""
    args: tuple[str, ...] = ()
    """Arguments of the launcher itself; they win over those that ocidist would set."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Data that every node fetches before the training starts."""

    __pydantic_config__ = STRICT

    source: str
    """File or folder at any fsspec URI; a folder ends in `/`."""
    target: str
    """Path on the node: absolute, or relative to the working directory."""


@dataclass(frozen=True, kw_only=True)
class Output:
    """Files that nodes copy out when the training has ended."""

    __pydantic_config__ = STRICT

    path: str
    """File or folder on the node: absolute, or relative to the working directory."""
    uri: str
    """URI of the folder that receives it. `${NAME}` in it is a variable of the node's environment."""
    required: bool = True
    """Whether the run fails if this output is missing on the main node."""
    nodes: Literal["main", "all"] = "main"
    """Nodes whose files are copied. `main`: only the main node's; `all`: the main node's go to `uri`, those of any
    other to `node-<rank>/` in it."""
    when: Literal["success", "always"] = "success"
    """Outcomes after which it is copied. `always`: after a failure too, into `failed-<attempt>/` in `uri`."""

    @property
    def known_folder(self) -> str:
        """The folder that its URI names whatever the variables hold; empty where there is none."""
        return self.uri if "$" not in self.uri else self.uri.partition("$")[0].rpartition("/")[0]


PVC_SCHEME = "pvc://"
"""Beginning of a mount's source in a PersistentVolumeClaim of the namespace: `pvc://claim/folder`."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Storage that the platform mounts on every node."""

    __pydantic_config__ = STRICT

    source: str
    """File system's export on OCI, `10.0.0.1:/export`, or a bucket, `oci://bucket@namespace/prefix`. A relative path is
    a folder of `work_dir`."""
    path: str
    """Path at which nodes see it; on OCI a name is a folder in `/mnt`."""

    @property
    def is_in_work_dir(self) -> bool:
        """Whether `source` is a folder of the work directory."""
        return ":" not in self.source and not self.source.startswith("/") and not is_placeholder(self.source)


@dataclass(frozen=True, kw_only=True)
class Best:
    """Which checkpoint is the best."""

    __pydantic_config__ = STRICT

    metric: str = "loss"
    """Metric to compare: `loss`, or one that stands in the names: `val_loss` in `epoch=3-val_loss=0.42.ckpt`."""
    mode: Literal["min", "max"] = "min"
    """Whether the smallest or the largest value is the best."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """Checkpoints that the program writes to a folder and the agent uploads."""

    __pydantic_config__ = STRICT

    path: str = "checkpoints"
    """Folder relative to the working directory, or absolute, as on a mount. Each file or folder in it counts as a
    checkpoint, unless its name says otherwise."""
    pattern: str | None = None
    """Regular expression for the whole names of checkpoints, whose groups `step` and `epoch` are numbers; other names
    in `path` are ignored then. None: known layouts, as `step-100.pt`, `epoch=3-step=200.ckpt`, `last.ckpt`."""
    uri: str | None = None
    """URI of the folder for checkpoints; None: under `work_dir`. The key of the task is appended, so runs never mix."""
    redirect: bool = True
    """Whether checkpoints that the program itself writes below `uri`, with ocifs, land in `path` instead."""
    keep: Annotated[int, AtLeast(1)] = 3
    """Number of checkpoints that stay at the target, the last that were saved; the newest valid one is never
    deleted."""
    keep_every: Annotated[int, AtLeast(1)] | None = None
    """Interval in steps: checkpoints whose step is a multiple of it stay too."""
    keep_best: Best | None = None
    """Metric whose best checkpoint stays too."""
    resume: bool = True
    """Whether to fetch the newest valid checkpoint of this task before the training starts."""
    resume_after_clear: bool = False
    """Whether a cleared task resumes from the checkpoints that it had before, as long as it has none of its own."""
    start_from: str = ""
    """URI of another run's checkpoint, to resume from as long as this task has none of its own; empty: train from
    the beginning."""
    required: bool = True
    """Whether a run that wrote no checkpoint is a failure."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long each stage may take, in seconds."""

    __pydantic_config__ = STRICT

    max_runtime: Seconds | None = None
    """Longest time from submission to the end of the last node."""
    max_node_hours: Annotated[float, Above(0)] | None = None
    """Most hours of all nodes together, from the start of each agent; restarts and earlier attempts count, up to a
    clear."""
    max_cost: Annotated[float, Above(0)] | None = None
    """Most money for these hours: node-hours times the price of the shape in `prices`, here or in the connection."""
    start_timeout: Seconds = 1800.0
    """Longest time from submission until every node runs; a gang that misses one node is ended then."""
    replace_timeout: Seconds | None = None
    """Longest time for which the others wait for the machine that takes the place of a lost one (`restarts.node`).
    None: `start_timeout`."""
    grow_after: Seconds = 600.0
    """Time after which a gang that goes on with fewer nodes (`min_nodes`) asks for the missing machines again."""
    capacity_timeout: SecondsOrZero | None = None
    """Time for which an Airflow task that finds no machine asks again, before it fails. 0: it fails at once. None: 1
    hour."""
    join_timeout: Seconds = 600.0
    """Longest time from a node's start until it has found all the others. They wait longer for a node that still
    fetches code or data, as long as it makes progress at least once in this time. A store that does not answer is tried
    again for this long."""
    hang_timeout: Seconds | None = 1800.0
    """Longest time without progress on any node: a new step or a checkpoint where the program counts steps, else any
    output."""
    first_step_timeout: Seconds | None = None
    """Longest time before the first step of each launch in which the program only prints lines; what else is progress
    begins it anew. None: it may print for ever. For programs that report steps."""
    idle: Seconds | None = None
    """Longest time in which no node that trains uses a GPU, or a tenth of a processor core. None: not watched."""
    lost_timeout: Seconds = 120.0
    """Longest time without a heartbeat from a node that the service reports as running."""
    stop_grace: Seconds = 20.0
    """Time between SIGTERM and SIGKILL of the training; at most 5 seconds where `restarts` launches it again."""
    save_timeout: Seconds = 3600.0
    """Time after a successful training for which a node keeps its last checkpoints and outputs, and tries again to save
    them."""
    lease: SecondsOrZero | None = None
    """Longest time without a renewal of the run's lease; then its nodes end it themselves. 0: never. None: the default
    of the submitter, which is 2 hours for an Airflow task and `ocidist run --wait`, 10 minutes for `ocidist drill`, and
    never for `ocidist run` without `--wait`."""

    @property
    def replaced_within(self) -> float:
        """Seconds in which the machine that takes the place of a lost one has to be there."""
        return self.start_timeout if self.replace_timeout is None else self.replace_timeout


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often the nodes launch the training again on the machines that they have, before the run fails.

    The program resumes from its newest whole checkpoint. The same failure at the same step twice ends the run at once;
    a process that was killed from outside, three times; a preemption, never.
    """

    __pydantic_config__ = STRICT

    program: Annotated[int, AtLeast(0)] = 0
    """Launches after the program ended by itself: an exception, a killed process, no memory, unreadable data."""
    hang: Annotated[int, AtLeast(0)] = 0
    """Launches after `limits.hang_timeout` or `limits.first_step_timeout`."""
    node: Annotated[int, AtLeast(0)] = 0
    """Launches after an error of a GPU or of the network by which no node died. It also limits how many lost machines
    of a gang are replaced, and how often a try of the task creates a new gang instead. A preempted machine does not
    count."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Where to run; each backend extends this beside its own code."""

    __pydantic_config__ = STRICT

    kind: str
    candidates: tuple[Mapping[str, Any], ...] = ()
    """Alternatives to ask for, in this order, when there is no capacity or quota: what each changes in this section, as
    `{shape: VM.GPU.A10.2}`."""
    conn_id: str | None = None
    """Connection at whose service the gang is created, in candidates only: another region, or another cluster. The work
    directory stays that of the task's connection. None: the task's connection."""


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """One training, described once, for any backend."""

    __pydantic_config__ = STRICT

    name: str
    """Name for people; what is created is named after the Airflow task."""
    nodes: Annotated[int, AtLeast(1)] = 1
    """Number of machines."""
    min_nodes: Annotated[int, AtLeast(1)] | None = None
    """Least number of machines with which the training goes on when lost ones are not replaced in time; None: `nodes`.
    `nodes: {min: 2, max: 4}` sets both."""
    program: Program = field(default_factory=Program)
    backend: BackendOptions
    work_dir: str | None = None
    """Folder for the files that Airflow and the nodes exchange: any URI that all reach. None: the connection's."""
    image: str | None = None
    """Image of the nodes' container. None: the platform's own Python environment."""
    launcher: LauncherOptions = field(default_factory=LauncherOptions)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the training processes. It is plain text at every platform: name secrets, do not put them here."""
    inputs: tuple[Input, ...] = ()
    share_inputs: bool = True
    """Whether nodes take from one another what one of them has read, so that the store is read once for all. The store
    is read in place of a node that does not answer, or is slow."""
    outputs: tuple[Output, ...] = ()
    checkpoints: Checkpoints | None = None
    """Checkpoints of the training. None: no checkpoint is uploaded, resumed from or required."""
    require_training: bool | None = None
    """Whether a run that shows no step, loss, checkpoint or output is a failure. If not, it is a success, with a
    warning if it ended within a minute. None: the connection's value, by default no."""
    limits: Limits = field(default_factory=Limits)
    restarts: Restarts = field(default_factory=Restarts)
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of everything that is created."""
    dependencies: Dependencies | None = None
    """Packages to install. None: the image or the environment has all that is needed."""
    container: Container | None = None
    """Start of the container of `image`; None: the agent."""
    main_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of node 0, which win over `env`."""
    worker_env: Mapping[str, str] = field(default_factory=dict)
    """Variables of all other nodes, which win over `env`."""
    mounts: tuple[Mount, ...] = ()
    prices: Mapping[str, Annotated[float, Above(0)]] = field(default_factory=dict)
    """Prices of a node for an hour, by shape, in any one currency; `*` for every other shape. They win over the
    connection's."""

    @property
    def choices(self) -> tuple[Mapping[str, Any], ...]:
        """What each choice of a place changes in `backend`, in order; the first is the section as it is."""
        return ({}, *self.backend.candidates)

    def at_choice(self, number: int) -> TrainingJob:
        """Return the job at one of its choices, from 0."""
        return replace(self, backend=replace(self.backend, **self.choices[number], candidates=()))

    def to_mapping(self) -> dict[str, Any]:
        """Return the job as `job_file.build` takes it; defaults are left out."""
        from airflow_provider_ocidist.model import codec

        value = dict(codec.encode(self))
        # A backend's options leave out their own kind, as it is their default.
        options = {"kind": self.backend.kind, **value.pop("backend", {})}
        return {**value, "backend": options}


def is_placeholder(text: str) -> bool:
    """Return whether Airflow has yet to fill in a part of the text."""
    return "{{" in text or "{%" in text
