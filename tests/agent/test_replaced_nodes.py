"""A node that is made in the place of a lost one takes part in the launch with which the others wait for it."""

from __future__ import annotations

import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose.outcome import STOPPED_CODE
from airflow_provider_ocidist.agent.node import NodeAgent
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.model.agent_config import INCARNATION_VARIABLE
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE, lost_report_of, report_of
from airflow_provider_ocidist.storage.fences import current_fence
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Agent, Gang, until
from tests.agent.opened import once_opened
from tests.agent.stages.test_restarts import TRAINS, beating, gang
from tests.storage.published import publish

LOST = Restart(cause=Cause.NODE, message="node 1: gone", rank=1, step=3)
WAITS_ONCE = """
at(3 + launch)
if launch == 0:
    time.sleep(1000)
"""


def kill(agent: Agent) -> None:
    """Let a whole node go, as its machine does."""
    agent.process.kill()
    agent.process.wait()


def ask(gang: Gang, restart: Restart = LOST) -> None:
    """Ask the others for another launch, as those who wait do."""
    request = StopRequest(cause=restart.cause, message=restart.message, restarts=(restart,))
    (gang.run_dir / "stop.json").write_bytes(request.to_json())


def again(gang: Gang, rank: int, **environ: str) -> Agent:
    return gang.start(rank, **{INCARNATION_VARIABLE: "1", **environ})[-1]


def replaced(root: Path, script: str = WAITS_ONCE, **changes: Any) -> Gang:
    return gang(root, script, nodes=2, **{"replaces": True, **changes})


@pytest.mark.parametrize("rank", [0, 1])
def test_the_others_keep_their_agent_and_begin_again_with_the_new_node(tmp_path: Path, rank: int) -> None:
    with replaced(tmp_path) as two:
        agents = two.start()
        for agent in agents:
            agent.prints("launch 0")
            agent.shows(lambda agent=agent: agent.report.phase is Phase.TRAINING)
        lost, other = agents[rank], agents[1 - rank]
        kill(lost)
        ask(two)
        new = again(two, rank)
        assert (other.wait(), new.wait()) == (0, 0)
        assert f"launch 1 of node {other.rank}" in other.stdout.read_text()
        assert (other.report.incarnation, new.report.incarnation) == (0, 1)
        assert other.report.restarts == new.report.restarts == (LOST,)
        kept = NodeReport.from_json((two.run_dir / lost_report_of(rank, 0)).read_bytes())
        assert kept.phase is Phase.TRAINING
        assert new.report.predecessors == pytest.approx(kept.heartbeat_at - kept.started_at)


def test_the_others_learn_from_the_new_node_that_the_lost_one_was_preempted(tmp_path: Path) -> None:
    preempted = Restart(cause=Cause.PREEMPTED, message="Preempted.", rank=1)
    with replaced(tmp_path) as two:
        first, second = two.start()
        first.prints("launch 0")
        kill(second)
        ask(two)
        first.shows(lambda: first.report.restarts == (LOST,))
        ask(two, preempted)
        new = again(two, 1)
        assert (first.wait(), new.wait()) == (0, 0)
        assert first.report.restarts == new.report.restarts == (preempted,)


def test_nodes_that_wait_for_another_are_ended_by_the_submitters_request(tmp_path: Path) -> None:
    with replaced(tmp_path) as two:
        first, second = two.start()
        first.prints("launch 0")
        kill(second)
        ask(two)
        first.shows(lambda: first.report.phase is Phase.FETCHING)
        final = StopRequest(cause=Cause.CANCELED, message="enough")
        (two.run_dir / "stop.json").write_bytes(final.to_json())
        assert first.wait() == STOPPED_CODE
        # One that comes later finds the request, too.
        assert again(two, 1).wait() == STOPPED_CODE


def test_a_further_node_may_be_lost_before_the_first_is_replaced(tmp_path: Path) -> None:
    with gang(tmp_path, WAITS_ONCE, nodes=3, replaces=True) as three:
        first, *others = three.start()
        first.prints("launch 0")
        kill(others[0])
        ask(three)
        for each in (first, others[1]):
            each.shows(lambda each=each: each.report.restarts == (LOST,))
        kill(others[1])
        # It had taken part in that launch already: the others are asked for the one after.
        both = (LOST, Restart(cause=Cause.NODE, message="node 2: gone", rank=2))
        request = StopRequest(cause=Cause.NODE, message="m", restarts=both)
        (three.run_dir / "stop.json").write_bytes(request.to_json())
        new = [again(three, rank) for rank in (1, 2)]
        assert [agent.wait() for agent in (first, *new)] == [0, 0, 0]
        assert first.report.restarts == both


def test_a_node_that_was_stopped_has_not_succeeded_though_its_program_exits_with_0(tmp_path: Path) -> None:
    script = """
at(3 + launch)
if launch == 0 and node == 1:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print("ready", flush=True)
    time.sleep(1000)
if launch == 0:
    until(pathlib.Path(os.environ["GO"]).exists)
    raise RuntimeError("the other one is gone")
"""
    with replaced(tmp_path, script) as two:
        go = tmp_path / "go"
        first, second = two.start(GO=str(go))
        second.prints("ready")
        second.signal(signal.SIGTERM)
        assert second.wait() == STOPPED_CODE
        report = second.report
        assert (report.exit_code, report.cause, report.stopped) == (0, None, True)
        go.touch()
        first.shows(lambda: first.report.restarts)
        new = again(two, 1, GO=str(go))
        assert (first.wait(), new.wait()) == (0, 0)
        assert (new.report.incarnation, new.report.stopped) == (1, False)


def test_a_lost_node_that_comes_back_ends_itself_and_disturbs_no_node_that_trains_on(tmp_path: Path) -> None:
    script = """
at(3 + launch)
until(lambda: launch and pathlib.Path(os.environ["GO"]).exists())
"""
    with replaced(tmp_path, script) as two:
        go = tmp_path / "go"
        first, second = two.start(GO=str(go))
        for agent in (first, second):
            agent.prints("launch 0")
            agent.shows(lambda agent=agent: agent.report.phase is Phase.TRAINING)
        second.signal(signal.SIGSTOP)
        ask(two, replace(LOST, lost=(1,)))
        new = again(two, 1, GO=str(go))
        new.shows(lambda: new.report.incarnation and new.report.phase is Phase.TRAINING)
        second.signal(signal.SIGCONT)
        assert second.wait() == STOPPED_CODE
        assert new.report.incarnation == 1
        go.touch()
        assert (first.wait(), new.wait()) == (0, 0)
        assert (new.report.incarnation, new.report.phase) == (1, Phase.DONE)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_final_weights_are_those_of_an_undisturbed_training(tmp_path: Path, victim: int) -> None:
    import torch

    place = tmp_path / "kept"
    script = TRAINS.replace("os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(1000)")
    with Gang(
        tmp_path,
        script,
        nodes=2,
        kind="torchrun",
        checkpoints=Checkpoints(uri=str(place)),
        limits=Limits(stop_grace=5.0, join_timeout=60.0),
        restarts=Restarts(node=2),
        replaces=True,
    ) as two:
        agents = two.start(VICTIM=str(victim))
        agents[0].prints("step: 8 ")
        until(lambda: list(place.glob("step-006.pt/manifest.json")))
        kill(agents[victim])
        ask(two)
        new = again(two, victim, VICTIM=str(victim))
        assert (agents[1 - victim].wait(), new.wait()) == (0, 0)
    weights = torch.zeros(4)
    for step in range(1, 13):
        weights = weights * 0.5 + 3.0 * step
    (last,) = place.glob("step-012.pt.launch-1/step-012.pt")
    assert torch.equal(torch.load(last)["weights"], weights)


def test_a_node_that_does_not_come_to_the_meeting_after_a_restart_is_named_as_lost_and_replaced(
    tmp_path: Path,
) -> None:
    script = "at(3 + launch)\nassert launch, 'once'\n"
    with replaced(tmp_path, script, join_timeout=6.0) as two:
        store, asked = open_store(str(two.run_dir)), two.run_dir / "stop.json"
        late = NodeReport(
            rank=1, phase=Phase.JOINING, address="127.0.99.2", started_at=0.0, heartbeat_at=0.0, moved=1
        )
        store.write(report_of(1), late.to_json())
        (first,) = two.start(0)
        beating(store, late, lambda: asked.exists() or first.process.poll() is not None)
        restarts = StopRequest.from_json(asked.read_bytes()).restarts
        # It lives, and its fetch stands still, as on a mount that does not answer.
        stuck = replace(late, phase=Phase.FETCHING, restarts=restarts)

        def is_named() -> bool:
            request = StopRequest.from_json(asked.read_bytes())
            return len(request.restarts) > 1 or first.process.poll() is not None

        beating(store, stuck, is_named)
        assert first.process.poll() is None, first.stderr.read_text()
        request = StopRequest.from_json(asked.read_bytes())
        assert request.restarts[:-1] == restarts
        named = request.restarts[-1]
        assert (named.cause, named.rank, named.lost) == (Cause.NODE, 1, (1,))
        assert "node 1 made no progress" in named.message
        new = again(two, 1)
        assert (first.wait(), new.wait()) == (0, 0)
        assert first.report.restarts == new.report.restarts == request.restarts


def test_a_late_node_that_lives_ends_itself_once_it_is_named(tmp_path: Path) -> None:
    script = "at(3 + launch)\nif launch == 0:\n    time.sleep(1000)\n"
    with replaced(tmp_path, script) as two:
        _, second = two.start()
        second.prints("launch 0")
        ask(two, replace(LOST, lost=(1,)))
        assert second.wait() == STOPPED_CODE
        assert "this node counts as lost" in second.stderr.read_text()


class LateNode:
    """A new node that prepares in this process, in the place of a lost one of three; the test writes for the others."""

    def __init__(self, root: Path, rank: int) -> None:
        self.root, self.rank, self.kept = root, rank, root / "kept"
        self.gang = gang(
            root, "", nodes=3, attempt=1, replaces=True, checkpoints=Checkpoints(uri=str(self.kept))
        )
        self.store = open_store(str(self.gang.run_dir))
        self.asked = [Restart(cause=Cause.NODE, message=f"node {rank}: gone", rank=rank)]
        self.write_request()
        environ = self.gang._environ(rank) | {INCARNATION_VARIABLE: "1", "HOME": str(root)}
        self.agent = NodeAgent(self.gang.config, environ, StopSwitch())
        self.others = [each for each in range(3) if each != rank]

    @property
    def report(self) -> NodeReport:
        return self.agent.heartbeat.report

    def write_request(self) -> StopRequest:
        request = StopRequest(cause=Cause.NODE, message="gone", restarts=tuple(self.asked))
        self.store.write(STOP_FILE, request.to_json())
        return request

    def another_is_lost(self) -> None:
        """Ask for a further launch, as those who wait do; this node hears of it at once."""
        lost = self.others[len(self.asked) % 2]
        self.asked.append(Restart(cause=Cause.NODE, message=f"node {lost}: gone", rank=lost))
        self.agent.heartbeat.heed(self.write_request())

    def save(self, step: int) -> CheckpointRef:
        """Publish what the launch before has left."""
        (self.root / f"step-{step}.txt").write_text(f"of step {step}")
        fence = Fence(attempt=1, launch=len(self.asked))
        return publish(self.root / f"step-{step}.txt", str(self.kept), step=step, fence=fence)

    def the_others_go_back(self, *, launch: int) -> None:
        """Let the others report that they have saved all, and take part in this launch."""
        for rank in self.others:
            report = NodeReport(
                rank=rank,
                phase=Phase.FETCHING,
                address="",
                started_at=0.0,
                heartbeat_at=0.0,
                restarts=tuple(self.asked[:launch]),
            )
            self.store.write(report_of(rank), report.to_json())


@pytest.mark.parametrize("further", [1, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_new_node_restores_for_the_launch_that_was_asked_for_while_it_restored(
    tmp_path: Path, rank: int, further: int
) -> None:
    late = LateNode(tmp_path, rank)
    running = threading.Thread(target=late.agent.run, daemon=True)
    heard = [threading.Event() for _ in range(further)]
    ref = late.save(1)
    for number, each in enumerate(heard, start=1):
        # Amid the download of what it would have gone back to.
        once_opened(
            Path(ref.uri, f"step-{number}.txt"), lambda each=each: (late.another_is_lost(), each.set())
        )
        late.the_others_go_back(launch=number)
        if number == 1:
            running.start()
        until(lambda each=each: each.is_set() or not running.is_alive())
        assert each.is_set(), late.report.message
        # The others save, and only then go back for that launch.
        ref = late.save(number + 1)
    late.the_others_go_back(launch=further + 1)
    until(lambda: late.report.phase is Phase.JOINING or not running.is_alive())
    assert running.is_alive(), late.report.message
    late.agent.switch.ask(Stop(message="enough"))
    running.join()
    report, fence = late.report, current_fence(open_store(str(late.kept)))
    assert len(report.restarts) == further + 1
    assert (report.starts_from, report.checkpoint) == (ref.digest, ref)
    # Its mark, by which the main node finds that it shares the folder.
    assert (late.gang.code(rank) / "checkpoints" / f".{late.gang.name}-{rank}").exists()
    if rank == 0:
        assert fence is not None
        assert fence.launch == further + 1
