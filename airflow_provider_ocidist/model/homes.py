"""Homes: the nouns of each home, and where a person looks there, by the kind of backend. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.kinds import DEFAULT_BACKEND

if TYPE_CHECKING:
    from airflow_provider_ocidist.model.run_ref import RunRef


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of one home, for messages of rooms that know no home."""

    node: str
    """Noun of one node: `pod`."""
    gang: str
    """Noun of what holds all nodes of a gang: `PyTorchJob`."""
    where: str
    """Place or program to delete it by hand: `with kubectl`."""
    by_hand: str = ""
    """Way to end it there, where the place alone does not say it; empty: it does."""
    cost: str = "and may still occupy their machines"
    """Consequence of nodes that have not ended, as a part of a sentence."""
    helper: str = "the cluster's administrators"
    """People who help if nodes do not end."""
    identifier: str = "id"
    """Noun of the service's own ids: `OCID`."""
    id_begins: str = ""
    """First characters of each of its ids; empty: its ids have no form of their own."""
    keep_log: str = ""
    """Setting with which the service keeps the nodes' output; empty: it always does."""
    has_console: bool = False
    """Whether each run has a page in OCI's console, or at the emulator."""


def _on_kubernetes(gang: str) -> Words:
    return Words(node="pod", gang=gang, where="with kubectl", by_hand=f"by deleting the {gang} with kubectl")


WORDS: Mapping[str, Words] = {
    "oci_data_science": Words(
        node="job run",
        gang="job",
        where="in the console (Data Science, Jobs, job runs)",
        cost="and may still be billed",
        helper="its support",
        identifier="OCID",
        id_begins="ocid1.",
        keep_log="name a log group in the connection or the job (backend.log_group_id)",
        has_console=True,
    ),
    "pytorchjob": _on_kubernetes("PyTorchJob"),
    "trainjob": _on_kubernetes("TrainJob"),
    "runai": Words(node="pod", gang="workload", where="in Run:ai, under Workloads"),
    "local": Words(
        node="process", gang="process group", where="on its machine, with kill", helper="that machine's owner"
    ),
}
OTHER = Words(node="node", gang="run", where="at the service", helper="the service's support")
"""Words for a backend that this version does not know."""


def words_of(kind: str) -> Words:
    """Return the words of a kind of backend; general ones for a kind that this version does not know."""
    return WORDS.get(kind, OTHER)


def command_on(verb: str, kind: str, job_id: str, conn_id: str | None = None) -> str:
    """Return the command line of ocidist that does this to a gang, which it names as `ocidist list` does.

    `conn_id`: the connection by which the command reaches it; None: its usual one.
    """
    backend = [] if kind == DEFAULT_BACKEND else ["--backend", kind]
    # As one word with the option, since an id may begin with a dash.
    connection = [] if conn_id is None else [f"--conn-id={conn_id}"]
    return shlex.join(["ocidist", verb, *connection, *backend, job_id])


def cancel_command(ref: RunRef, named: str | None = None) -> str:
    """Return the command line that ends a gang, at the connection where it is.

    `named`: the connection of its task; None: the usual one.
    """
    return command_on("cancel", ref.backend, ref.job_id, ref.conn_id or named)


def how_to_end(*refs: RunRef, named: str | None = None) -> str:
    """Return how a person ends gangs of one home that may still live, as a part of a sentence: `end them with ...`.

    `named`: as for `cancel_command`.
    """
    return ways_to_end(refs[0].backend, *(cancel_command(ref, named) for ref in refs))


def ways_to_end(kind: str, *commands: str) -> str:
    """Return what `how_to_end` does, where the commands name the gangs in another way than by their references."""
    words = words_of(kind)
    return f"{' and '.join(commands)}, or {words.by_hand or words.where}"


def place_in(kind: str, resource_id: str) -> tuple[str, ...]:
    """Return the realm and the region that an id names; nothing where ids of this kind name none.

    An id without a form of its own may hold anything, as the path of a run directory does.
    """
    begins = words_of(kind).id_begins
    return tuple(resource_id.split(".")[2:4]) if begins and resource_id.startswith(begins) else ()
