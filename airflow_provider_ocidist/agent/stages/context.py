"""Context: what all stages of one node share."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from airflow_provider_ocidist.agent.join.heartbeat import Heartbeat
from airflow_provider_ocidist.agent.join.node_identity import identity_of
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.output_masking import keep_from_log
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.store_retries import cannot_be_used, with_retries_unless_stopped
from airflow_provider_ocidist.agent.train.activity import Activity
from airflow_provider_ocidist.agent.train.shared_log import mark_own_lines
from airflow_provider_ocidist.errors import OcidistError
from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE, INSTANCE_VARIABLE, AgentConfig
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.masking import masked_text, secrets_in
from airflow_provider_ocidist.model.members import members_of, others_of
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.oci_client.credentials import OciAccess

T = TypeVar("T")


class NodeContext:
    """One node of a gang: its settings, its identity, its report, and how it is asked to end."""

    def __init__(self, config: AgentConfig, environ: Mapping[str, str], switch: StopSwitch) -> None:
        self.config = config
        self.switch = switch
        self.identity = identity_of(environ, config.nodes)
        self.rank = self.identity.rank
        self.main_rank = 0
        """Rank of the node on which the process of global rank 0 runs, once the nodes have joined."""
        self.goes_on_from: CheckpointRef | None = None
        """Checkpoint that this launch goes on from, if that is not stored yet: it lies in the checkpoint folder."""
        self.awaits_since: float | None = None
        """Time since which this node waits to take part, on the clock `time.monotonic`; None where it does not."""
        self.environ = {**environ, **(config.worker_env if self.rank else config.main_env)}
        if config.one_run:
            mark_own_lines(self.rank)
        self.access = OciAccess.from_environment(environ, config.oci_endpoint, config.oci_region)
        self.folder = Path(tempfile.mkdtemp(prefix="ocidist-", dir=home_of(environ)))
        self.meter = ProgressMeter(self.folder)
        self.secrets = secrets_in([dict(environ), codec.encode(config)])
        keep_from_log(self.secrets)
        self.activity = Activity()
        self.heartbeat = self._heartbeat()

    @property
    def is_main(self) -> bool:
        """Whether the process of global rank 0 runs here: then checkpoints and outputs are here too."""
        return self.rank == self.main_rank

    @property
    def is_member(self) -> bool:
        """Whether this node takes part in this launch; else it waits until another one names it."""
        return self.rank in members_of(self.heartbeat.restarts, self.config.nodes)

    @property
    def others(self) -> tuple[int, ...]:
        """The ranks of the other nodes that take part in this launch."""
        return others_of(self.rank, self.heartbeat.restarts, self.config.nodes)

    @property
    def fence(self) -> Fence:
        """The fence of this launch: a node that was lost in an earlier one publishes and deletes nothing any more."""
        return replace(self.config.fence, launch=self.heartbeat.launch)

    def masked(self, text: str) -> str:
        """Return a text without this node's secrets."""
        return masked_text(text, self.secrets)

    def with_retries(self, work: Callable[[], T]) -> T:
        """Do a part of the preparation; retry for `limits.join_timeout` while the store does not answer."""
        self.activity.enter()
        return with_retries_unless_stopped(work, self.config.limits.join_timeout, self.switch)

    def _heartbeat(self) -> Heartbeat:
        now = time.time()
        report = NodeReport(
            rank=self.rank,
            phase=Phase.STARTING,
            address="",
            started_at=now,
            heartbeat_at=now,
            price=self.config.price,
            incarnation=int(self.environ.get(INCARNATION_VARIABLE, "0")),
            instance=self.environ.get(INSTANCE_VARIABLE, ""),
        )
        return open_heartbeat(self.config, self.access, report, self.switch)


def open_heartbeat(
    config: AgentConfig, access: OciAccess, report: NodeReport, switch: StopSwitch
) -> Heartbeat:
    """Return a node's heartbeat, not started; a service that does not answer now, or refuses, is asked again.

    Raises AgentError when the run directory cannot be used.
    """

    def opened() -> Heartbeat:
        try:
            return Heartbeat.open(config.run_dir, access, report, switch)
        except OcidistError as error:
            raise cannot_be_used("the run directory", error) from error

    return with_retries_unless_stopped(opened, config.limits.join_timeout, switch)


def home_of(environ: Mapping[str, str]) -> str | None:
    """Return the node's home, which is deleted with the node; None where it has none for files of ours."""
    home = environ.get("HOME")
    # ssh, mpirun and pdsh would split other names, or put something else in their places.
    if home is None or not re.fullmatch(r"[\w./@+,:=-]+", home):
        return None
    return home if os.access(home, os.W_OK) else None
