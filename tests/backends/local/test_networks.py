"""Nodes of this machine, each on a network of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_provider_ocidist.backends.local.networks import switch, why_none
from airflow_provider_ocidist.errors import BackendError

NODE = """
import os, socket, sys, time
from airflow_provider_ocidist.agent import faults, guard
from airflow_provider_ocidist.backends.local.node import plug_in
plug_in(sys.argv[1], sys.argv[2])
"""
LISTENS = f"""{NODE}
server = socket.create_server((sys.argv[2], 7000))
print("ready", flush=True)
sys.stdin.read()
"""
ASKS = f"""{NODE}
def asks():
    try:
        socket.create_connection((sys.argv[3], 7000), 0.5).close()
    except OSError:
        return "silence"
    return "an answer"

# The first packet over a new link may be lost.
while asks() != "an answer":
    time.sleep(0.05)
print("an answer")
faults.cut("eth0", 1.0)
print(asks())
if sys.argv[4:]:
    guard.kill_descendants(os.getpid())
while asks() != "an answer":
    time.sleep(0.05)
print("an answer")
"""


@pytest.mark.parametrize("ends_training", [False, True])
def test_nodes_on_a_switch_hear_one_another_except_while_one_is_cut_off(*, ends_training: bool) -> None:
    """With the training that a node ends meanwhile it kills all that it has started."""
    if reason := why_none():
        pytest.skip(reason)
    here, there = "10.7.7.1", "10.7.7.2"
    with (
        switch() as holder,
        subprocess.Popen(
            [sys.executable, "-c", LISTENS, str(holder), there],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as listening,
    ):
        assert listening.stdout is not None
        assert listening.stdout.readline() == b"ready\n"
        asking = [sys.executable, "-c", ASKS, str(holder), here, there]
        asking += ["ends"] if ends_training else []
        done = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.splitlines() == ["an answer", "silence", "an answer"]


def test_without_the_tools_there_is_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BackendError, match=r"for each node: ip, tc, unshare, nsenter missing here"), switch():
        pass


IS_ASKED = """
import os, subprocess, sys
from airflow_provider_ocidist.agent import faults
from airflow_provider_ocidist.backends.local.node import plug_in
from airflow_provider_ocidist.errors import AgentError
from airflow_provider_ocidist.model.drill import Fault

name, address, *switch = sys.argv[1:]
if switch:
    plug_in(*switch, address)
else:
    commands = ["link add {0} type bridge", "address add {1}/24 dev {0}", "link set {0} up"]
    for command in commands:
        subprocess.run(["ip", *command.format(name, address).split()], check=True)
subprocess.run(["tc", "qdisc", "replace", "dev", name, "root", "pfifo", "limit", "7"], check=True)
fault = Fault.parse("cut-network@training:node=0,step=1,seconds=1")
try:
    print(faults.interface_to_disturb(fault, address, {"OCIDIST_SWITCH": "1"}))
except AgentError as error:
    print(error)
print(subprocess.run(["tc", "qdisc", "show", "dev", name], capture_output=True, text=True).stdout)
"""


def test_only_a_network_that_leads_out_of_a_namespace_is_cut_and_a_question_changes_none() -> None:
    if reason := why_none():
        pytest.skip(reason)
    asked = [sys.executable, "-c", IS_ASKED]
    machines = ["unshare", "--net", *asked, "nic0", "10.7.8.1"]
    refused = subprocess.run(machines, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "nic0 belongs to the machine" in refused
    with switch() as holder:
        own = [*asked, "eth0", "10.7.8.2", str(holder)]
        found = subprocess.run(own, capture_output=True, text=True, timeout=60, check=True).stdout
    assert found.startswith("eth0\n")
    assert "pfifo" in refused
    assert "pfifo" in found
