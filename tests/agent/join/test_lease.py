"""Nodes that nobody waits for end by themselves; those that somebody waits for do not."""

from __future__ import annotations

import threading
from pathlib import Path

from airflow_provider_ocidist.agent.join.lease import LOOKS, LeaseWatch
from airflow_provider_ocidist.errors import Cause, StorageError
from airflow_provider_ocidist.job import Checkpoints, Limits, Output
from airflow_provider_ocidist.model.report import Phase, Renewal
from airflow_provider_ocidist.model.work_dir import LEASE_FILE
from tests.agent.gangs import Gang

HOUR = 3600.0
LEASE = 2 * HOUR
WAITS = """
import os, pathlib, signal, sys, time
def save(*_):
    if os.environ["RANK"] == "0":
        folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
        (folder / "step-7.tmp").write_text("last weights")
        (folder / "step-7.tmp").rename(folder / "step-7.txt")
        pathlib.Path("outputs").mkdir()
        pathlib.Path("outputs/summary.json").write_text("{}")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
if os.environ["RANK"] == "0":
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    time.sleep(1)
    (folder / "step-3.tmp").write_text("weights")
    (folder / "step-3.tmp").rename(folder / "step-3.txt")
print("ready")
time.sleep(float(sys.argv[1]))
"""


class Story:
    """A node's watch, its clock, and what it finds at each look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.renewal: bytes | None = b"first"
        self.readable = True
        self.reads = 0
        self.said: list[str] = []
        self.watch = LeaseWatch(LEASE, self.read, declare=self.said.append, clock=lambda: self.now)

    def read(self) -> bytes | None:
        self.reads += 1
        if not self.readable:
            raise StorageError("the store is down")
        return self.renewal

    def goes_on(self, seconds: float, beat: float = 2.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.watch.look()
            self.now += beat


def test_a_lease_runs_out_and_says_how_long_nobody_was_there() -> None:
    story = Story()
    story.goes_on(LEASE)
    assert story.said == []
    story.goes_on(LEASE)
    assert set(story.said) == {"nobody has waited for this run for 2h (limits.lease)"}
    assert len(story.said) <= LOOKS


def test_a_renewal_begins_it_anew() -> None:
    story = Story()
    for hour in range(10):
        story.renewal = f"of hour {hour}".encode()
        story.goes_on(HOUR)
    assert story.said == []
    story.goes_on(1.2 * HOUR)
    assert story.said


def test_an_outage_of_the_store_is_no_silence() -> None:
    story = Story()
    story.goes_on(HOUR)
    story.readable = False
    story.goes_on(10 * HOUR)
    story.readable = True
    story.goes_on(0.8 * HOUR)
    assert story.said == []
    story.goes_on(0.5 * HOUR)
    assert story.said


def test_where_nobody_ever_renews_nobody_has_to() -> None:
    story = Story()
    story.renewal = None
    story.goes_on(10 * HOUR, beat=60.0)
    assert story.said == []


def test_a_renewal_that_is_deleted_is_none() -> None:
    story = Story()
    story.goes_on(HOUR)
    story.renewal = None
    story.goes_on(1.2 * HOUR)
    assert story.said


def test_a_node_looks_a_dozen_times_in_a_lease() -> None:
    story = Story()
    story.goes_on(LEASE)
    assert story.reads == LOOKS


def test_nodes_that_nobody_waits_for_save_and_end(tmp_path: Path) -> None:
    outputs = (Output(path="outputs", uri=str(tmp_path / "out"), when="always"),)
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    limits = Limits(lease=8.0, stop_grace=5.0, join_timeout=30.0)
    with Gang(
        tmp_path, WAITS, nodes=2, args=["90"], limits=limits, checkpoints=checkpoints, outputs=outputs
    ) as gang:
        renew(gang)
        codes = gang.run()
        main, other = (agent.report for agent in gang.agents)
    assert Cause.ABANDONED in {main.cause, other.cause}
    assert 76 in codes
    assert main.message
    assert "nobody has waited for this run for 8s (limits.lease): ended" in main.message
    assert "a retry resumes from step 3 or later" in f"{main.message}{other.message}"
    assert (main.phase, other.phase) == (Phase.DONE, Phase.DONE)
    assert main.checkpoint
    assert main.checkpoint.step == 7
    assert (tmp_path / "out" / f"failed-{gang.name}" / "summary.json").exists()


def test_nodes_that_somebody_waits_for_go_on(tmp_path: Path) -> None:
    done = threading.Event()
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, WAITS, args=["7"], limits=Limits(lease=5.0), checkpoints=checkpoints) as gang:

        def wait_for_it() -> None:
            while not done.wait(1.0):
                renew(gang)

        renew(gang)
        waiting = threading.Thread(target=wait_for_it)
        waiting.start()
        try:
            assert gang.run() == [0]
        finally:
            done.set()
            waiting.join()


def renew(gang: Gang) -> None:
    gang.run_dir.mkdir(parents=True, exist_ok=True)
    (gang.run_dir / LEASE_FILE).write_bytes(Renewal.now().to_json())
