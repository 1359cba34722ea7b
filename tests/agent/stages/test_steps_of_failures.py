"""How far a launch has come that fails before it reports a step: as far as the checkpoint from which it went on."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Restarts
from airflow_provider_ocidist.model.report import Phase, Progress, Restart
from tests.agent.stages.test_gang_end_rules import HANG, Node, a_report, checkpoint_at
from tests.agent.stages.test_restarts import gang

SEED = int(os.environ.get("TEST_SEED", "20261127"))
RAISES = NodeFailure(cause=Cause.USER, message="a bad batch", exit_code=1)
KILLED = NodeFailure(cause=Cause.NODE, message="killed by SIGKILL", exit_code=-9, killed=True)


@dataclass(frozen=True)
class Reporting:
    """A program that reports and saves some of its steps."""

    every: int
    saves_every: int

    def saved(self, step: int) -> int:
        """Return the newest checkpoint of a training that has done this step."""
        return step - step % self.saves_every

    def reported(self, step: int, begins_after: int = 0) -> int | None:
        """Return the last step that a launch has reported which began after one step, and has done another."""
        last = step - step % self.every
        return last if last > begins_after else None


def a_launch(folder: Path, program: Reporting, before: tuple[Restart, ...], done: int, begun_at: int) -> Node:
    """Return the only node of a launch that went on from one step, and has done another."""
    node = Node(folder, nodes=1, before=before, restarts=Restarts(program=9, hang=9))
    node.heartbeat.update(phase=Phase.TRAINING, checkpoint=checkpoint_at(program.saved(done)))
    node.context.meter.step_now = lambda: program.reported(done, begun_at)
    node.context.meter.steps_apart = program.every
    return node


@pytest.mark.parametrize("number", range(60))
def test_whatever_a_program_reports_and_saves_the_second_failure_at_one_step_is_a_crash_loop(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    program = Reporting(draw.choice([1, 1, 2, 10, 50]), draw.choice([1, 7, 15, 40]))
    # The step after this one fails in each launch; there is a checkpoint before.
    done = draw.randint(max(program.saves_every, program.every), 200)
    print(f"seed {SEED}.{number}: {program}, fails after {done}")
    before: tuple[Restart, ...] = ()
    for launch, begun_at in enumerate((0, program.saved(done))):
        node = a_launch(tmp_path / str(launch), program, before, done, begun_at)
        found = node.end._failed(RAISES)
        before = found.restarts
        assert bool(before) is (launch == 0), found.message
    assert "crash loop: USER at step" in (found.message or "")
    assert node.heartbeat.report.crash_loop


@pytest.mark.parametrize("number", range(60))
def test_a_launch_that_fails_before_any_step_near_the_first_failure_is_no_crash_loop(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.other.{number}")
    every = draw.choice([1, 2, 10])
    program = Reporting(every, saves_every=every * draw.choice([2, 5]))
    saved = program.saves_every * draw.randint(1, 9)
    # The first launch has reported a step after its checkpoint; the second fails before it reports that one.
    done = saved + every + draw.randrange(program.saves_every - every)
    print(f"seed {SEED}.other.{number}: {program}, fails after {done} and after {saved}")
    first = a_launch(tmp_path / "0", program, (), done, 0).end._failed(RAISES)
    again = a_launch(tmp_path / "1", program, first.restarts, saved, saved).end._failed(RAISES)
    assert len(again.restarts) == 2, again.message


@pytest.mark.parametrize("number", range(60))
def test_two_kills_between_two_reports_of_a_program_may_be_chance_and_the_third_is_none(
    tmp_path: Path, number: int
) -> None:
    draw = random.Random(f"{SEED}.killed.{number}")
    every = draw.choice([1, 10, 100])
    program = Reporting(every, saves_every=every)
    saved = every * draw.randint(1, 9)
    # Wherever between two reports: as far as anybody knows, they are at one step.
    done = [saved + draw.randrange(every) for _ in range(3)]
    print(f"seed {SEED}.killed.{number}: {program}, killed after {done}")
    before: tuple[Restart, ...] = ()
    for launch, (begun_at, step) in enumerate(zip((0, saved, saved), done, strict=True)):
        assert len(before) == launch
        node = a_launch(tmp_path / str(launch), program, before, step, begun_at)
        found = node.end._failed(KILLED)
        before = found.restarts
    assert (before, found.cause) == ((), Cause.NODE)
    assert f"crash loop: a process was killed at step {saved} for the third time" in (found.message or "")


def test_two_unrelated_kills_within_a_hundred_steps_end_no_run(tmp_path: Path) -> None:
    script = """
done = max([int(name[5:-4].partition(".")[0]) for name in seen()], default=0)
for step in range(done + 1, 301):
    time.sleep(0.01)
    if step == {0: 150, 1: 190}.get(launch):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1000)
    if step % 100 == 0:
        save(step)
        at(step)
"""
    kept = Checkpoints(uri=str(tmp_path / "kept"))
    with gang(tmp_path, script, checkpoints=kept, restarts=Restarts(program=5)) as one:
        assert one.run() == [0]
        report = one.agents[0].report
    assert [(each.step, each.killed) for each in report.restarts] == [(100, True)] * 2
    assert report.progress
    assert report.progress.step == 300


def test_a_hang_before_the_first_step_of_a_launch_is_the_same_as_one_there(tmp_path: Path) -> None:
    program = Reporting(every=10, saves_every=10)
    first = a_launch(tmp_path / "0", program, (), 95, 0)
    first.end.declare(HANG)
    assert first.switch.stop
    again = a_launch(tmp_path / "1", program, first.switch.stop.restarts, 95, 90)
    again.end.declare(HANG)
    assert again.switch.stop
    assert not again.switch.stop.restarts
    assert "crash loop: HANG at step 90 for the second time" in again.switch.stop.message


@pytest.mark.parametrize("phase", [Phase.FETCHING, Phase.JOINING])
def test_a_launch_that_never_began_has_come_to_no_step(tmp_path: Path, phase: Phase) -> None:
    before = (Restart(cause=Cause.USER, message="m", step=20, checkpoint="digest-20"),)
    node = Node(tmp_path, before=before)
    node.heartbeat.update(phase=phase)
    asked = node.end._failed(RAISES).restarts
    assert [each.step for each in asked] == [20, None]


@pytest.mark.parametrize("step", [7, None])
def test_a_step_that_any_node_has_reported_counts_before_that_of_a_checkpoint(
    tmp_path: Path, step: int | None
) -> None:
    node = Node(tmp_path).others(a_report(1, progress=Progress(step=step)), a_report(2))
    (restart,) = node.end._failed(RAISES).restarts
    assert restart.step == (20 if step is None else 7)


def test_a_bad_batch_right_after_a_checkpoint_ends_the_run_the_second_time(tmp_path: Path) -> None:
    script = """
done = max([int(name[5:-4].partition(".")[0]) for name in seen()], default=0)
for step in range(done + 1, 9):
    if step == 4:
        raise ValueError("a bad batch")
    save(step)
    at(step)
"""
    kept = Checkpoints(uri=str(tmp_path / "kept"))
    with gang(tmp_path, script, checkpoints=kept, restarts=Restarts(program=9)) as one:
        assert one.run() == [1]
        report = one.agents[0].report
    assert [each.step for each in report.restarts] == [3]
    assert "crash loop: USER at step 3 for the second time" in (report.message or "")
