"""All processes of a node are killed amid a training: the others name it and end, and another gang goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.storage.checkpoints import newest
from tests.agent.gangs import Agent, Gang, processes_with, until

TRAINS = """
import os, pathlib, socket, sys, time
rank, last, connected = int(os.environ["RANK"]), int(sys.argv[1]), int(sys.argv[2])
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
first = max((int(path.stem[5:]) for path in folder.glob("step-*.txt")), default=0)
print("goes on from", first, flush=True)
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
# Nodes behind those that are connected wait as one does whose own peers all live.
peers = []
if rank == 0:
    server = socket.create_server(place)
    peers += [server.accept()[0] for _ in range(connected)]
while 0 < rank <= connected and not peers:
    try:
        peers += [socket.create_connection(place)]
    except OSError:
        time.sleep(0.05)
for step in range(first + 1, last + 1):
    for peer in peers:
        try:
            peer.sendall(b"x")
            is_there = peer.recv(1)
        except OSError:
            is_there = b""
        if not is_there:
            raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer")
    if rank == 0:
        (folder / ".draft").write_text(str(step))
        (folder / ".draft").rename(folder / f"step-{step}.txt")
        print(f"step {step}/{last} loss 1.0", flush=True)
    time.sleep(0.1)
"""
"""Node 0 exchanges a message with the connected nodes in each step, and saves after it."""
FOR_EVER = 10_000
PROMISED_S = 10.0
"""Seconds within which the others end, by docs/failures/nodes.md."""


def a_gang(root: Path, kept: Path, *, connected: int, last: int = FOR_EVER) -> Gang:
    root.mkdir(exist_ok=True)
    limits = Limits(stop_grace=2.0, join_timeout=60.0)
    args = (str(last), str(connected))
    return Gang(root, TRAINS, nodes=3, args=args, checkpoints=Checkpoints(uri=str(kept)), limits=limits)


def once_it_trains(gang: Gang) -> Sequence[Agent]:
    agents = gang.start()
    for agent in agents:
        agent.prints("goes on from 0")
        agent.shows(lambda agent=agent: agent.report.phase is Phase.TRAINING)
    agents[0].prints("step 2/")
    return agents


def kill(node: Agent) -> float:
    """Send SIGKILL to all processes of a node, its agent first, until none is left; return when that began."""
    at = time.time()
    node.signal(signal.SIGKILL)

    def none_is_left() -> bool:
        left = processes_with(str(node.home))
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(none_is_left)
    return at


def assert_that_they_end_and_name_it(others: Sequence[Agent], lost: int, killed_at: float) -> None:
    codes = [agent.wait() for agent in others]
    reports = [agent.report for agent in others]
    assert 0 not in codes
    assert all(f"because node {lost} was lost" in str(report.message) for report in reports), reports
    causes = [report.cause for report in reports]
    assert Cause.NODE in causes
    assert set(causes) <= {Cause.NODE, None}, "who only follows has no cause of its own"
    assert max(report.finished_at or 0.0 for report in reports) - killed_at < PROMISED_S


def test_when_the_main_node_is_killed_the_others_name_it_and_end_in_seconds(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with a_gang(tmp_path, kept, connected=2) as gang:
        main, *others = once_it_trains(gang)
        killed_at = kill(main)
        assert_that_they_end_and_name_it(others, 0, killed_at)


def test_when_a_worker_node_is_killed_the_others_end_and_the_next_gang_goes_on_from_the_newest_checkpoint(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    with a_gang(tmp_path / "first", kept, connected=1) as gang:
        main, lost, unaware = once_it_trains(gang)
        main.shows(lambda: main.report.checkpoint)
        killed_at = kill(lost)
        assert_that_they_end_and_name_it([main, unaware], 1, killed_at)
    saved = newest(str(kept))
    assert saved is not None
    assert saved.step
    with a_gang(tmp_path / "second", kept, connected=1, last=saved.step + 2) as gang:
        assert gang.run() == [0, 0, 0]
        said = [agent.stdout.read_text().splitlines()[0] for agent in gang.agents]
        report = gang.agents[0].report
    assert said == [f"goes on from {saved.step}"] * 3
    assert report.checkpoint
    assert report.checkpoint.step == saved.step + 2
