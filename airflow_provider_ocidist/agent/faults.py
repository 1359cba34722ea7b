"""Faults: what a drill does to the processes, the network and the files of its own node."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.join.node_identity import SWITCH_VARIABLE
from airflow_provider_ocidist.agent.join.topology import own_interface
from airflow_provider_ocidist.errors import AgentError, Cause
from airflow_provider_ocidist.model.drill import DRILL_VARIABLE, Fault

TRICKLE = ("tbf", "rate", "64kbit", "burst", "4kb", "latency", "2s")
"""Discipline of `tc` for a starved network: a step waits for it; the beats and the answer to a probe come in time."""


def ranks() -> list[int]:
    """Return the training processes of this node, the agent's nearest descendants first.

    They are those to which a launcher has given a rank; a training without a launcher is one process.
    """
    found = guard.descendants(os.getpid())
    ranked = [pid for pid in found if b"LOCAL_RANK=" in _environment(pid)]
    # Their own children, as those that load data, inherit the variable.
    return [pid for pid in ranked if guard.state_and_parent(pid)[1] not in ranked] or found[1:2]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to the processes that still live. Raises ProcessLookupError where none does."""
    gone = 0
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            gone += 1
    if gone == len(pids):
        raise ProcessLookupError(f"no process is left for {number.name}")


def kill_all() -> None:
    own = os.getpid()
    # All are stopped first, so that none can react to another's death.
    others = guard.descendants(own)
    with contextlib.suppress(ProcessLookupError):
        send(others, signal.SIGSTOP)
    send([*others, own], signal.SIGKILL)


def freeze(pids: Sequence[int], seconds: float | None) -> None:
    if seconds is not None:
        numbers = " ".join(str(pid) for pid in pids)
        _run_later(seconds, f"kill -CONT {numbers}")
    send(pids, signal.SIGSTOP)


def _run_later(seconds: float, command: str) -> None:
    """Run a command of the shell in so many seconds, also if this process is frozen or dead then."""
    # With outputs of its own: those of this process count as open, and so its node as running, until it ends.
    subprocess.Popen(
        ["/bin/sh", "-c", f"sleep {seconds:.0f}; {command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def interface_to_disturb(fault: Fault, address: str, environ: Mapping[str, str]) -> str:
    """Return the interface of this node's address. Raises AgentError, with the remedy, where that is refused."""

    def refused(why: str) -> AgentError:
        return AgentError(f"{DRILL_VARIABLE}: {fault}: {why}", cause=Cause.CONFIG)

    if environ.get(SWITCH_VARIABLE) == "" or ipaddress.ip_address(address).is_loopback:
        raise refused(
            f"the nodes share the network of this machine ({address}), so that none can be disturbed alone"
        )
    interface = own_interface(address)
    if interface is None:
        raise refused(f"{address} belongs to no interface of this node")
    if lacking := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise refused(f"{', '.join(lacking)} missing on the node: apt-get install iproute2")
    if not _leads_out(interface):
        raise refused(
            f"{interface} belongs to the machine, so that others on it would be disturbed too: give the node a network "
            "namespace of its own (no host network)"
        )
    # It is up already: this only shows whether this process may change it.
    tried = _run("ip", "link", "set", "dev", interface, "up")
    if tried.returncode:
        raise refused(f"the node may not change its network (CAP_NET_ADMIN): {tried.stderr.strip()}")
    return interface


def _leads_out(interface: str) -> bool:
    """Whether the other end of an interface is in another network namespace, as that of a container's is."""
    return "link-netnsid" in _run("ip", "-o", "link", "show", "dev", interface).stdout


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def cut(interface: str, seconds: float) -> None:
    """Lose all packets that leave by an interface, for so long. Raises OSError where that cannot be done."""
    limit_network(interface, seconds, "blackhole")


def limit_network(interface: str, seconds: float, *discipline: str) -> None:
    """Let a discipline of `tc` send what leaves by an interface, for so long. Raises OSError where it cannot."""
    done = _run("tc", "qdisc", "replace", "dev", interface, "root", *discipline)
    if done.returncode:
        raise OSError(f"{interface} takes no {discipline[0]}: {done.stderr.strip()}")
    # Two end that: this process may be killed, and with a training it kills the programs that it has started itself.
    undo = ("tc", "qdisc", "del", "dev", interface, "root")
    threading.Timer(seconds, _run, undo).start()
    _run_later(seconds, shlex.join(undo))


def limit_files(pids: Sequence[int], seconds: float | None) -> None:
    usual, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = {pid: _set_file_limit(pid, 0) for pid in pids}
    if all(limit is None for limit in before.values()):
        raise ProcessLookupError("no process of the node can be limited")
    if seconds is not None:
        timer = threading.Timer(seconds, _restore_file_limits, (before, usual))
        # The process does not wait for this timer: a training that the fault has ended needs no restored limits.
        timer.daemon = True
        timer.start()


def _restore_file_limits(before: Mapping[int, int | None], usual: int) -> None:
    """Let the node's processes write again, also those that have begun meanwhile and inherited the limit."""
    own = os.getpid()
    # The agent first: what it starts inherits its limit.
    for pid in (own, *guard.descendants(own)):
        limit = before.get(pid)
        _set_file_limit(pid, usual if limit is None else limit)


def _set_file_limit(pid: int, limit: int) -> int | None:
    """Limit the size of files that a process writes; return the limit before, None where the process is gone."""
    with contextlib.suppress(OSError):
        before, highest = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, highest))
        return before
    return None
