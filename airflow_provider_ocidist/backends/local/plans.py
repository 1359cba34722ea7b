"""Plan the processes that a job starts on this machine. Pure."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.agent.join.node_identity import ADDRESSES_VARIABLE
from airflow_provider_ocidist.backends.fields import ConnectionFields, read_fields
from airflow_provider_ocidist.backends.local.networks import FIELD
from airflow_provider_ocidist.backends.local.node import SWITCH
from airflow_provider_ocidist.backends.node_config import may_replace, node_config, plan_of
from airflow_provider_ocidist.backends.prices import price_of
from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.model.agent_config import RANK_VARIABLE
from airflow_provider_ocidist.model.job import BackendOptions, TrainingJob
from airflow_provider_ocidist.model.run import Plan, Request, RunKey

KIND = "local"
WORK_DIR = "~/.ocidist"
START = "StartProcess"
LOOPBACK, BEHIND_SWITCH = 127, 10
"""First number of the addresses of nodes: on this machine's own network, and each on a network of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalOptions(BackendOptions):
    """Nodes as processes of this machine."""

    kind: str = KIND
    python: str | None = None
    """Python interpreter that has torch; None: the one that starts the nodes."""


def make_plan(job: TrainingJob, key: RunKey, fields: Mapping[str, Any]) -> Plan:
    """Return the plan of a gang. Raises JobFileError when `work_dir` is no folder of this machine."""
    work_dir = _folder(str(job.work_dir or folder_in(fields)))
    if "://" in work_dir:
        problem = Problem(
            "work_dir", f"must be a folder of this machine for backend {KIND!r}, not {work_dir}"
        )
        raise JobFileError([problem], job.name)
    given = read_fields(ConnectionFields, fields)
    job = replace(job, work_dir=work_dir, require_training=given.requires_training(job))
    source = None if job.program.is_local else job.program.source
    price = price_of(job, None, given.prices)
    config = node_config(
        job,
        key,
        source,
        price=price,
        main_env=job.main_env,
        worker_env=job.worker_env,
        replaces=may_replace(job),
    )
    python = getattr(job.backend, "python", None) or sys.executable
    switch = str(fields.get(FIELD, ""))
    environment = {**job.env, **config.to_env(), SWITCH: switch}
    environment[ADDRESSES_VARIABLE] = ",".join(
        _addresses(BEHIND_SWITCH if switch else LOOPBACK, key, job.nodes)
    )
    ignored = f"; image {job.image} is not used" if job.image else ""
    return plan_of(
        job,
        key,
        config,
        backend=KIND,
        topology="processes",
        reason=f"topology processes: each node is a process of this machine, run by {python}{ignored}",
        requests=tuple(
            Request(
                verb=START, body={"python": python, "environment": {**environment, RANK_VARIABLE: str(rank)}}
            )
            for rank in range(job.nodes)
        ),
    )


def folder_in(fields: Mapping[str, Any]) -> str:
    """Return the connection's work directory; the usual one where that is no folder but, say, a bucket."""
    work_dir = _folder(str(fields.get("work_dir") or WORK_DIR))
    return _folder(WORK_DIR) if "://" in work_dir else work_dir


def _folder(place: str) -> str:
    """Return a folder by its whole path, so that it is the same one for every process; another place as it is."""
    path = place.removeprefix("file://")
    return path if "://" in path else str(Path(path).expanduser().absolute())


def _addresses(network: int, key: RunKey, nodes: int) -> list[str]:
    """Return an address for each node, others than those of another gang on this machine.

    A single node has one too: by its address in the network it would use the port of a whole machine.
    """
    if not _has_many_loopbacks():
        return ["127.0.0.1"]
    first, second = hashlib.sha256(key.name.encode()).digest()[:2]
    return [f"{network}.{1 + first % 254}.{second}.{1 + rank}" for rank in range(nodes)]


def _has_many_loopbacks() -> bool:
    return sys.platform.startswith("linux")


def _rules(job: TrainingJob) -> Iterator[Problem]:
    if job.container is not None:
        yield Problem("container", f"cannot be started by backend {KIND!r}: name a program instead")
    for number, mount in enumerate(job.mounts):
        yield Problem(
            f"mounts.{number}",
            f"is not supported by backend {KIND!r}: create the folder {mount.path} on this machine",
        )
    if job.nodes > 1 and not _has_many_loopbacks():
        yield Problem(
            "nodes", f"must be 1 for backend {KIND!r} here: only Linux has an address for each node"
        )
    if job.nodes > 254:
        yield Problem("nodes", f"must be at most 254 for backend {KIND!r}")


RULES = (_rules,)
