"""Injections: how a drill brings a fault about on its own node, and what it says of it."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_ocidist.agent import faults, guard, starvation
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.drill import Fault, FaultKind, When
from airflow_provider_ocidist.oci_client.credentials import OciAccess
from airflow_provider_ocidist.storage.stores.opening import open_store


@dataclass(frozen=True)
class InjuredNode:
    """The node that a fault strikes."""

    rank: int
    interface: str | None
    """Interface of the network that a fault disturbs."""
    stored: Callable[[], Sequence[CheckpointRef]]
    """Function that returns the job's stored checkpoints, the newest first."""
    access: OciAccess


@dataclass(frozen=True)
class Injection:
    """A fault that is about to happen."""

    do: Callable[[], None]
    """Function that brings it about."""
    message: str
    """Sentence for a person, on what is being done."""


def injection_of(fault: Fault, node: InjuredNode) -> Injection:
    """Return how to bring a fault about. Raises OcidistError or OSError where that cannot be now."""
    return _INJECTIONS[fault.kind](fault, node)


def _kill_rank(_fault: Fault, node: InjuredNode) -> Injection:
    victims = faults.ranks()[:1]
    message = f"killing process {_shown(victims)} of node {node.rank}"
    return Injection(lambda: faults.send(victims, signal.SIGKILL), message)


def _kill_agent(_fault: Fault, node: InjuredNode) -> Injection:
    own = os.getpid()
    return Injection(lambda: faults.send([own], signal.SIGKILL), f"killing the agent of node {node.rank}")


def _kill_node(_fault: Fault, node: InjuredNode) -> Injection:
    return Injection(faults.kill_all, f"killing all processes of node {node.rank}")


def _freeze_rank(fault: Fault, node: InjuredNode) -> Injection:
    victims = faults.ranks()[:1]
    message = f"freezing process {_shown(victims)} of node {node.rank}{_for(fault)}"
    return Injection(lambda: faults.freeze(victims, fault.seconds), message)


def _freeze_node(fault: Fault, node: InjuredNode) -> Injection:
    def freeze() -> None:
        # This process freezes itself last.
        faults.freeze([*guard.descendants(os.getpid()), os.getpid()], fault.seconds)

    return Injection(freeze, f"freezing all processes of node {node.rank}{_for(fault)}")


def _starve_node(fault: Fault, node: InjuredNode) -> Injection:
    share = f"{starvation.SHARE:.0%} of the time"
    message = f"letting the processes of node {node.rank} run for {share}{_for(fault)}"
    return Injection(lambda: starvation.starve(fault.seconds), message)


def _fill_disk(fault: Fault, node: InjuredNode) -> Injection:
    message = f"no file of the processes of node {node.rank} can grow{_for(fault)}"
    pids = guard.descendants(os.getpid())
    # The agent itself writes what is restored.
    limited = [*pids, os.getpid()] if fault.when is When.RESTORING else pids
    return Injection(lambda: faults.limit_files(limited, fault.seconds), message)


def _cut_network(fault: Fault, node: InjuredNode) -> Injection:
    interface, seconds = node.interface, fault.seconds
    assert interface is not None
    assert seconds is not None
    message = f"cutting node {node.rank} off from the network, at {interface}{_for(fault)}"
    return Injection(lambda: faults.cut(interface, seconds), message)


def _starve_network(fault: Fault, node: InjuredNode) -> Injection:
    interface, seconds = node.interface, fault.seconds
    assert interface is not None
    assert seconds is not None
    message = (
        f"letting node {node.rank} send {faults.TRICKLE[2]} per second at most, at {interface}{_for(fault)}"
    )
    return Injection(lambda: faults.limit_network(interface, seconds, *faults.TRICKLE), message)


def _corrupt_checkpoint(fault: Fault, node: InjuredNode) -> Injection:
    from airflow_provider_ocidist.storage.checkpoints import verify

    uri = node.stored()[0].uri
    file = max(verify(uri, node.access).files, key=lambda item: item.size)
    store = open_store(uri, node.access)
    content = bytearray(store.read(file.path))
    # A try that seemed to fail may have changed it.
    if hashlib.sha256(content).hexdigest() == file.sha256:
        content[len(content) // 2] ^= 0xFF

    def corrupt() -> None:
        store.write(file.path, bytes(content))

    def corrupt_and_kill() -> None:
        corrupt()
        faults.kill_all()

    changing = f"changing one byte of {store.uri_of(file.path)}"
    if fault.when is When.RESTORING:
        return Injection(corrupt, changing)
    return Injection(corrupt_and_kill, f"{changing}, and killing node {node.rank}")


_INJECTIONS: dict[FaultKind, Callable[[Fault, InjuredNode], Injection]] = {
    FaultKind.KILL_RANK: _kill_rank,
    FaultKind.KILL_AGENT: _kill_agent,
    FaultKind.KILL_NODE: _kill_node,
    FaultKind.FREEZE_RANK: _freeze_rank,
    FaultKind.FREEZE_NODE: _freeze_node,
    FaultKind.STARVE_NODE: _starve_node,
    FaultKind.CUT_NETWORK: _cut_network,
    FaultKind.STARVE_NETWORK: _starve_network,
    FaultKind.FULL_DISK: _fill_disk,
    FaultKind.CORRUPT_CHECKPOINT: _corrupt_checkpoint,
}


def _for(fault: Fault) -> str:
    return "" if fault.seconds is None else f" for {fault.seconds:g} s"


def _shown(pids: Sequence[int]) -> str:
    return str(pids[0]) if pids else "(none)"
