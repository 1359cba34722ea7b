"""Topology: this node's rank, address and devices, and its place among the others."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import itertools
import json
import os
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent.join.node_identity import NODES_FILE_VARIABLE, NodeIdentity, identity_of
from airflow_provider_ocidist.errors import AgentError, Cause, TopologyTimeout
from airflow_provider_ocidist.launchers.base import MASTER_PORT, Placement
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import NodeReport

NO_GPU = ("", "-1", "NoDevFiles")
"""Names of no device in CUDA_VISIBLE_DEVICES."""
LISTED_EVERY = 0.4
"""Seconds between two looks into the service's list of nodes."""
SHARED_PORTS = range(20000, 29000)
"""Ports at which gangs meet that share one machine."""


def own_rank(config: AgentConfig, environ: Mapping[str, str]) -> int:
    """Return this node's rank. Raises AgentError when no usable one is set."""
    return identity_of(environ, config.nodes).rank


def await_address(
    place: NodeIdentity, environ: Mapping[str, str], pause: Callable[[float], object], timeout: float
) -> str:
    """Return where others reach this node.

    In a run of many nodes the service lists them all in a file, which grows as they start; their network may differ
    from the outgoing interface's. Raises TopologyTimeout when this node is not listed in time.
    """
    file = environ.get(NODES_FILE_VARIABLE)
    if place.address is not None:
        return place.address
    if file is None:
        return own_address(environ)
    deadline = time.monotonic() + timeout
    while (address := listed_address(Path(file), place.rank)) is None:
        if time.monotonic() > deadline:
            raise TopologyTimeout(
                f"{NODES_FILE_VARIABLE} ({file}) does not name node {place.rank} after {timeout:.0f} s"
            )
        pause(LISTED_EVERY)
    return address


def listed_address(file: Path, rank: int) -> str | None:
    """Return a node's address from the service's list; None when it is missing, or half written."""
    try:
        found = [node["IPAddress"] for node in json.loads(file.read_text()) if int(node["Rank"]) == rank]
        return str(ipaddress.ip_address(found[0])) if found else None
    except (OSError, ValueError, TypeError, LookupError):
        return None


def own_address(environ: Mapping[str, str]) -> str:
    """Return the address from the node's FQDN, else the outgoing interface's."""
    name = environ.get("FQDN")
    if name:
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(name)
            # Many images map a machine's own name to 127.0.1.1, which no other machine can reach.
            if address == name or not ipaddress.ip_address(address).is_loopback:
                return address
    return _outgoing_address()


def _outgoing_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks the routing table
            return str(probe.getsockname()[0])
        except OSError:
            # An isolated network has no route out.
            others = [address for _, address in interfaces() if not ipaddress.ip_address(address).is_loopback]
            return others[0] if others else "127.0.0.1"


def own_interface(address: str) -> str | None:
    """Return the interface of an address, None where it belongs to none."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    return next((name for name, own in interfaces() if own == address), None)


def interfaces() -> list[tuple[str, str]]:
    """Return name and IPv4 address of each interface that has one; of those with several, each."""
    import fcntl

    get_configuration, entry_size, room = 0x8912, 40, 1 << 16  # SIOCGIFCONF, struct ifreq
    buffer = ctypes.create_string_buffer(room)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, get_configuration, struct.pack("iP", room, ctypes.addressof(buffer)))
        except OSError:
            return []
    (length,) = struct.unpack_from("i", answer)
    entries = [buffer.raw[at : at + entry_size] for at in range(0, length, entry_size)]
    # An alias, `eth0:1`, is no interface to any library.
    return [
        (os.fsdecode(entry[:16].partition(b"\0")[0]).partition(":")[0], socket.inet_ntoa(entry[20:24]))
        for entry in entries
    ]


def count_devices(environ: Mapping[str, str]) -> int:
    """Return how many GPUs this node sees, without asking any driver."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA sees none behind one that it does not know.
        return len([*itertools.takewhile(lambda name: name.strip() not in NO_GPU, visible.split(","))])
    return len([device for device in Path("/dev").glob("nvidia[0-9]*") if device.name[6:].isdecimal()])


def require_own_addresses(reports: Sequence[NodeReport]) -> None:
    """Raise AgentError, naming them, where several nodes would be reached at one address.

    Launchers identify nodes by address, and assign ranks in its order: global rank 0 could run anywhere.
    """
    at: dict[str, list[int]] = {}
    for report in reports:
        at.setdefault(_plain(report.address), []).append(report.rank)
    shared = [
        f"nodes {', '.join(map(str, ranks))} all announce {address}"
        for address, ranks in at.items()
        if len(ranks) > 1
    ]
    if shared:
        raise AgentError(
            f"{'; '.join(shared)}: each node needs an address of its own. It is taken from OCIDIST_ADDRESSES, "
            f"POD_IP, the service's list ({NODES_FILE_VARIABLE}), FQDN, or the outgoing interface, in this order: "
            "correct what they say; give containers on one machine networks of their own, and those on several "
            "machines the network of their host",
            cause=Cause.CONFIG,
        )


def _plain(address: str) -> str:
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def placement_of(
    config: AgentConfig, reports: Sequence[NodeReport], place: NodeIdentity, environ: Mapping[str, str]
) -> Placement:
    """Return this node's placement among the members, which are renumbered where some are missing."""
    number = [report.rank for report in reports].index(place.rank)
    address = reports[number].address
    # Each launch has its own id: processes that the launch before has left must not join.
    restarts = len(reports[number].restarts)
    rendezvous = f"{config.run_name}-restart-{restarts}" if restarts else config.run_name
    # The platform names the node of rank 0.
    master = (None if reports[0].rank else place.master) or reports[0].address
    gpus = count_devices(environ)
    return Placement(
        rank=number,
        nodes=len(reports),
        processes_per_node=config.launcher.processes_per_node or max(1, gpus),
        gpus=gpus,
        master_address=master,
        master_port=master_port(reports[0].address, rendezvous, place.master_port),
        address=address,
        addresses=tuple(report.address for report in reports),
        public_keys=tuple(report.public_key or "" for report in reports),
        rendezvous_id=rendezvous,
        join_timeout=config.limits.join_timeout,
        interface=own_interface(address),
        cores=usable_cores(),
    )


def usable_cores() -> int:
    """Return on how many processor cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # PyPy has no such call; the kernel's mask is words in hexadecimal, with commas between.
    status = Path("/proc/self/status").read_text(errors="replace")
    found = re.search(r"^Cpus_allowed:\s*([0-9a-f,]+)$", status, re.MULTILINE)
    return bin(int(found[1].replace(",", ""), 16)).count("1") if found else os.cpu_count() or 1


def master_port(master: str, run_name: str, given: int | None = None) -> int:
    """Return the port given by the platform, else the well-known one.

    Gangs that share one machine each get a port of their own: torch listens on all addresses at once.
    """
    if ipaddress.ip_address(master).is_loopback:
        return SHARED_PORTS[zlib.crc32(run_name.encode()) % len(SHARED_PORTS)]
    return given or MASTER_PORT
