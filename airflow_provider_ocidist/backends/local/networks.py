"""Networks: a switch that connects nodes of this machine, each on a network of its own, for drills that cut one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_provider_ocidist.backends.local.node import BRIDGE
from airflow_provider_ocidist.errors import BackendError, Cause

FIELD = "switch"
"""Field of a backend: the process that holds the switch."""
TOOLS = ("ip", "tc", "unshare", "nsenter")
MAKE = f"ip link add {BRIDGE} type bridge && ip link set {BRIDGE} up"
PROBE = f"{MAKE} && ip link add cable type veth peer name plug && tc qdisc replace dev cable root blackhole"
"""Makes all that a drill needs of the kernel."""
HOLD = f"{MAKE} && echo ready && exec cat"
"""Makes the switch, and holds it until nobody can write to this program any more."""


def why_none() -> str | None:
    """Return why a node of this machine can have no network of its own; None: it can."""
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"{', '.join(lacking)} missing here: apt-get install iproute2 util-linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", PROBE], capture_output=True, text=True, check=False
    )
    return f"no network namespaces here: {done.stderr.strip()}" if done.returncode else None


@contextmanager
def switch() -> Iterator[int]:
    """Make a network that nothing but nodes joins; give the process that holds it. Raises BackendError.

    The kernel removes it with the last process in it, however this process ends.
    """
    if reason := why_none():
        raise _none(reason)
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Ctrl-C ends the nodes first.
        start_new_session=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise _none(holder.stderr.read().decode(errors="replace").strip())
        yield holder.pid


def _none(why: str) -> BackendError:
    return BackendError(
        f"a drill that cuts the network needs a network namespace for each node: {why}", cause=Cause.CONFIG
    )
