"""The only node of a gang goes on from what is whole on its disk, and sends that beside the training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.job import Checkpoints, Restarts
from airflow_provider_ocidist.storage.checkpoints import complete, newest
from tests.agent.gangs import Gang, until
from tests.agent.stages.test_outages import Away
from tests.agent.stages.test_restarts import gang

SLOW = """
import os, pathlib, time
from airflow_provider_ocidist.errors import StorageError
from airflow_provider_ocidist.storage import checkpoints

send = checkpoints._send

def slow(source, target, entries, cancel):
    marks = pathlib.Path(os.environ["MARKS"])
    while "step-1.txt" not in target.uri and not (marks / "open").exists():
        (marks / "sends").touch()
        if cancel.wait(0.02):
            raise StorageError("it was cancelled")
    return send(source, target, entries, cancel)

checkpoints._send = slow
"""
"""A store that takes nothing but the first checkpoint until it is let."""
FAILS_IN_AN_UPLOAD = """
marks, kept = pathlib.Path(os.environ["MARKS"]), pathlib.Path(os.environ["KEPT"])

def stored(step):
    return list(kept.glob(f"step-{step}.txt*/manifest.json"))

at(launch * 10)
if launch == 0:
    save(1)
    until(lambda: stored(1))
    save(2)
    until((marks / "sends").exists)
    os.kill(os.getpid(), signal.SIGKILL)
print(f"launch {launch}: stored {bool(stored(2))}", flush=True)
"""


class Slow:
    """A gang of one node whose store takes nothing new until it is open."""

    def __init__(self, root: Path, script: str, **changes: Any) -> None:
        self.marks, self.kept = root / "marks", root / "kept"
        self.marks.mkdir()
        (root / "sitecustomize.py").write_text(SLOW)
        settings = {"checkpoints": Checkpoints(uri=str(self.kept)), **changes}
        self.gang: Gang = gang(root, FAILS_IN_AN_UPLOAD + script, **settings)
        path = os.pathsep.join([str(root), str(Path(__file__).parents[3])])
        self.environ = {"MARKS": str(self.marks), "KEPT": str(self.kept), "PYTHONPATH": path}

    def start(self) -> None:
        (self.node,) = self.gang.start(**self.environ)

    def open(self) -> None:
        (self.marks / "open").touch()

    @property
    def stored(self) -> list[tuple[int | None, int]]:
        """Steps and numbers of what is stored, the newest first."""
        return [(each.step, each.sequence) for each in complete(str(self.kept))]

    def manifests(self) -> list[dict[str, object]]:
        return [json.loads(file.read_text()) for file in self.kept.glob("*/manifest.json")]


def test_a_launch_begins_from_what_is_not_sent_yet_which_arrives_beside_the_training(tmp_path: Path) -> None:
    one = Slow(tmp_path, "until(lambda: stored(2))\nsave(3)\nuntil(lambda: stored(3))\n")
    with one.gang:
        one.start()
        one.node.prints("launch 1 of node 0 sees ['step-1.txt', 'step-2.txt']")
        one.node.prints("launch 1: stored False")
        assert one.stored == [(1, 1)]
        one.open()
        assert one.node.wait() == 0, one.node.stderr.read_text()
        assert one.stored == [(3, 3), (2, 2), (1, 1)]
        assert one.node.report.checkpoint == newest(str(one.kept))


def test_a_machine_that_is_lost_before_that_has_arrived_leaves_the_checkpoint_before_it(
    tmp_path: Path,
) -> None:
    one = Slow(tmp_path, "time.sleep(1000)\n")
    with one.gang:
        one.start()
        one.node.prints("launch 1: stored False")
        (one.marks / "sends").unlink()
        until((one.marks / "sends").exists)
        os.killpg(one.node.process.pid, signal.SIGKILL)
        one.node.wait()
        one.open()
        assert one.stored == [(1, 1)]
        assert [each["name"] for each in one.manifests()] == ["step-1.txt"]


def test_a_second_failure_before_that_has_arrived_waits_for_it(tmp_path: Path) -> None:
    """Otherwise failures that come faster than an upload would keep it from the store for good."""
    script = """
if launch == 1:
    save(3)
    raise RuntimeError("again")
save(4)
"""
    one = Slow(tmp_path, script, restarts=Restarts(program=3))
    with one.gang:
        one.start()
        one.node.prints("launch 1: stored False")
        until(lambda: "has left it to this one already" in one.node.stderr.read_text())
        one.open()
        assert one.node.wait() == 0, one.node.stderr.read_text()
        printed = one.node.stdout.read_text()
        assert "launch 2 of node 0 sees ['step-1.txt', 'step-2.txt', 'step-3.txt']" in printed
        assert "launch 2: stored True" in printed
        assert one.stored == [(4, 4), (3, 3), (2, 2)]


def test_what_the_program_has_deleted_is_carried_too(tmp_path: Path) -> None:
    """A program that keeps its last checkpoint only, of which each hundredth step is to stay."""
    script = """
(marks / "sends").unlink()
until((marks / "sends").exists)
(folder / "step-2.txt").unlink()
save(3)
(marks / "open").touch()
until(lambda: stored(3))
"""
    kept = Checkpoints(uri=str(tmp_path / "kept"), keep=1, keep_every=2)
    one = Slow(tmp_path, script, restarts=Restarts(program=3), checkpoints=kept)
    with one.gang:
        one.start()
        assert one.node.wait() == 0, one.node.stderr.read_text()
        assert "launch 1: stored False" in one.node.stdout.read_text()
        assert one.stored == [(3, 3), (2, 2)]
        assert not list((tmp_path / "node-0").rglob(".checkpoints.held.*"))


def test_the_end_of_the_run_sends_what_was_carried(tmp_path: Path) -> None:
    one = Slow(tmp_path, "time.sleep(1000)\n")
    with one.gang:
        one.start()
        one.node.prints("launch 1: stored False")
        one.node.signal(signal.SIGTERM)
        one.open()
        assert one.node.wait() != 0
        assert one.stored == [(2, 2), (1, 1)]


def test_a_program_that_fails_at_once_each_time_is_a_crash_loop_as_where_all_was_sent(tmp_path: Path) -> None:
    script = "raise RuntimeError('as always')\n"
    # It reports no steps: what it goes on from shows how far it was.
    one = Slow(tmp_path, script, restarts=Restarts(program=9))
    one.gang.script = one.gang.script.replace("at(launch * 10)\n", "")
    with one.gang:
        one.start()
        one.node.prints("launch 1: stored False")
        one.open()
        assert one.node.wait() == 1
        report = one.node.report
        assert "crash loop" in (report.message or "")
        # After the kill, which is another failure, it fails twice.
        assert [each.step for each in report.restarts] == [1, 2]


@pytest.mark.parametrize("is_half", [True, False])
def test_what_belongs_to_it_and_is_half_written_is_fetched_so_that_all_is_sent_before(
    tmp_path: Path, *, is_half: bool
) -> None:
    """A state that is overwritten in place: of two files that belong together, one is whole."""
    script = "print('state', (folder / 'state').read_text(), flush=True)\n"
    one = Slow(tmp_path, script)
    before = """
    new = folder / "state.tmp"
    new.write_text("state of 1")
    new.rename(folder / "state")
    save(1)
    until(lambda: stored(1) and list(kept.glob("state*/manifest.json")))
    save(2)
    until((marks / "sends").exists)
"""
    half = '    (folder / "state").write_text("ha")\n' if is_half else ""
    began = one.gang.script.index("    save(1)\n    until(lambda: stored(1))\n")
    ended = one.gang.script.index("    os.kill")
    one.gang.script = one.gang.script[:began] + before + half + one.gang.script[ended:]
    site = tmp_path / "sitecustomize.py"
    site.write_text(site.read_text().replace('"step-1.txt" not in', '"step-2.txt" in'))
    with one.gang:
        one.start()
        if is_half:
            until(lambda: "is uploaded before the next launch" in one.node.stderr.read_text())
            one.open()
        else:
            one.node.prints("launch 1: stored False")
            one.open()
        assert one.node.wait() == 0, one.node.stderr.read_text()
        printed = one.node.stdout.read_text()
        assert f"launch 1: stored {is_half}" in printed
        assert "state state of 1" in printed


def test_the_next_launch_begins_while_the_store_is_away(tmp_path: Path) -> None:
    script = """
at(launch * 10)
marks = pathlib.Path(os.environ["MARKS"])
if launch == 0:
    (marks / "reached").touch()
    until((marks / "away").exists)
    save(1)
    os.kill(os.getpid(), signal.SIGKILL)
until((marks / "back").exists)
"""
    away, marks, place = Away(tmp_path), tmp_path / "marks", tmp_path / "run" / "kept"
    marks.mkdir()
    with gang(tmp_path, script, checkpoints=Checkpoints(uri=str(place))) as one:
        (node,) = one.start(MARKS=str(marks))
        until((marks / "reached").exists)
        away.leave()
        (marks / "away").touch()
        node.prints("launch 1 of node 0 sees ['step-1.txt']")
        away.come_back()
        (marks / "back").touch()
        assert node.wait() == 0, node.stderr.read_text()
        assert [each.step for each in complete(str(place))] == [1]
