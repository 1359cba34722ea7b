"""A host whose link loses packets: its own steps take longer, it is named for that, and no step is taken for a hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.job import LauncherOptions, Limits, Program
from tests.agent.gangs import until
from tests.containers.hosts import Host, Lab, why_not

LOADS = """
import json, os, pathlib, socket, sys, threading, time
SIZE = 1 << 20
rank, over = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
ends = False
def look():
    global ends
    ends = over.exists()
together = threading.Barrier(3, look)
def serve(peer):
    for asked in iter(lambda: peer.recv(1), b""):
        if asked == b"d":
            peer.sendall(bytes(SIZE))
        else:
            together.wait()
            peer.sendall(b"e" if ends else b"g")
def accept():
    for _ in range(3):
        threads.append(threading.Thread(target=serve, args=(server.accept()[0],)))
        threads[-1].start()
threads = []
if rank == 0:
    server = socket.create_server(place)
    threads.append(threading.Thread(target=accept))
    threads[0].start()
while True:
    try:
        main = socket.create_connection(place)
        break
    except OSError:
        time.sleep(0.1)
step, answer = 0, b"g"
while answer == b"g":
    step += 1
    began, left = time.monotonic(), SIZE
    main.sendall(b"d")
    while left:
        left -= len(main.recv(min(left, 1 << 16)) or sys.exit("node 0 is gone"))
    seconds = time.monotonic() - began
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "rank": rank, "seconds": seconds}) + "\\n")
    main.sendall(b"b")
    answer = main.recv(1)
# Else the thread that serves it would wait for ever.
main.close()
print("trained", step, "steps", flush=True)
"""
"""Each rank loads its part of a step from node 0, reports how long that took, and waits for the others."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Lab(tmp_path, hosts=3) as lab:
        yield lab


def test_a_node_whose_link_loses_packets_is_named_and_no_slow_step_is_a_hang(lab: Lab) -> None:
    over = lab.root / "over"
    lab.hosts[1].lose_packets(0.05)
    hosts = lab.run(
        LOADS,
        program=Program(script="program.py", args=(str(over),)),
        launcher=LauncherOptions(kind="python"),
        limits=Limits(join_timeout=60.0, stop_grace=5.0, hang_timeout=10.0),
    )
    until(lambda: " is slow: " in hosts[0].stderr.read_text() or has_ended(hosts[0]))
    said, slow = hosts[0].stderr.read_text(), hosts[0].report.slow
    assert "rank 1 (on node 1) is slow: " in said, said
    assert [each.node for each in slow] == [1]
    over.touch()
    assert [host.wait() for host in hosts] == [0, 0, 0], hosts[0].stderr.read_text()
    assert hosts[0].stderr.read_text().count("is slow: ") == 1, "once, and nobody else"


def has_ended(host: Host) -> bool:
    return host.process is not None and host.process.poll() is not None
