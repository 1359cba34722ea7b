"""A network of which a drill leaves a node little."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_provider_ocidist.backends.local.networks import switch, why_none

LISTENS = """
import socket, sys
from airflow_provider_ocidist.backends.local.node import plug_in
plug_in(*sys.argv[1:])
server = socket.create_server((sys.argv[2], 7000))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    while connection.recv(1 << 16):
        pass
    connection.sendall(b"all")
    connection.close()
"""
SENDS = """
import socket, subprocess, sys, time
from airflow_provider_ocidist.agent import faults
from airflow_provider_ocidist.backends.local.node import plug_in
plug_in(*sys.argv[1:3])

def sends():
    began = time.monotonic()
    with socket.create_connection((sys.argv[3], 7000)) as there:
        there.sendall(bytes(1 << 15))
        there.shutdown(socket.SHUT_WR)
        assert there.recv(3) == b"all"
    return time.monotonic() - began

# The kernel says only up to a second later that a new link carries; a packet before that is lost.
sends()
before = sends()
faults.limit_network("eth0", 10.0, *faults.TRICKLE)
starved = sends()
while b"tbf" in subprocess.run(["tc", "qdisc", "show"], capture_output=True, check=True).stdout:
    time.sleep(0.05)
print(before, starved, sends())
"""


def test_a_starved_network_carries_little_for_a_while() -> None:
    if reason := why_none():
        pytest.skip(reason)
    here, there = "10.7.9.1", "10.7.9.2"
    with (
        switch() as holder,
        subprocess.Popen(
            [sys.executable, "-c", LISTENS, str(holder), there], stdout=subprocess.PIPE, text=True
        ) as listening,
    ):
        try:
            assert listening.stdout is not None
            assert listening.stdout.readline() == "ready\n"
            sending = [sys.executable, "-c", SENDS, str(holder), here, there]
            done = subprocess.run(sending, capture_output=True, text=True, timeout=120, check=True)
        finally:
            listening.kill()
    before, starved, after = map(float, done.stdout.split())
    print(done.stdout)
    assert starved > 10 * before
    assert starved > 4 * after
