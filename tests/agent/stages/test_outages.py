"""A process that is killed while the store is away costs the training that time, and nothing else."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose.diagnosis import NodeFailure
from airflow_provider_ocidist.agent.join import store_wait
from airflow_provider_ocidist.agent.stages import gang_end
from airflow_provider_ocidist.agent.stopping import Stop
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.model.report import Progress, StopRequest
from airflow_provider_ocidist.model.work_dir import STOP_FILE
from tests.agent.gangs import Agent, Gang, until
from tests.agent.join.test_store_wait import Gone, in_the_background, looks
from tests.agent.stages.test_gang_end_rules import AGREED, CONSEQUENCE, Node, a_report
from tests.agent.stages.test_restarts import TRAINS, gang

SEED = int(os.environ.get("TEST_SEED", "20261127"))
WAITS = "this node waits for the store"
BACK = "the store answers again"


class Away:
    """A work directory that leaves and comes back in one moment, as the store does in an outage."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._nothing = root / "nothing"
        self._nothing.write_text("no folder")
        (root / "store").mkdir()
        self.come_back()

    def leave(self) -> None:
        self._lead_to(self._nothing)

    def come_back(self) -> None:
        self._lead_to(self._root / "store")

    def _lead_to(self, target: Path) -> None:
        link = self._root / "next"
        link.symlink_to(target)
        # Gangs write their run directories below it.
        link.replace(self._root / "run")


@pytest.fixture
def away(tmp_path: Path) -> Away:
    return Away(tmp_path)


def said(agent: Agent) -> str:
    return agent.stderr.read_text()


BY_MARKS = """
at(3 + launch)
marks = pathlib.Path(os.environ["MARKS"])
if launch == 0 and node == int(os.environ["VICTIM"]):
    save(1)
    (marks / "reached").touch()
    until((marks / "away").exists)
    os.kill(os.getpid(), signal.SIGKILL)
if launch == 0 and os.environ["OTHER"] == "loses its peer":
    until((marks / "away").exists)
    raise RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:19863")
if launch == 0:
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", range(3))
def test_what_is_killed_while_the_store_is_away_is_launched_again_once_it_is_back(
    tmp_path: Path, away: Away, number: int
) -> None:
    draw = random.Random(f"{SEED}.{number}")
    victim, other = draw.randrange(2), ("waits", "loses its peer")[number % 2]
    print(f"seed {SEED}.{number}: node {victim} is killed, and the other {other}")
    marks = tmp_path / "marks"
    marks.mkdir()
    kept = Checkpoints(uri=str(tmp_path / "run" / "kept"), required=False)
    # No budget pays for the error of the one that has lost its peer: it has to be explained by the other.
    with gang(tmp_path, BY_MARKS, nodes=2, restarts=Restarts(program=1), checkpoints=kept) as two:
        two.start(MARKS=str(marks), VICTIM=str(victim), OTHER=other)
        until((marks / "reached").exists)
        for agent in two.agents:
            # One that has not seen the others join would still wait for them.
            agent.prints(f"launch 0 of node {agent.rank}")
        away.leave()
        (marks / "away").touch()
        waiting = two.agents if other == "loses its peer" else [two.agents[victim]]
        for agent in waiting:
            agent.shows(lambda agent=agent: WAITS in said(agent))
        away.come_back()
        assert [agent.wait() for agent in two.agents] == [0, 0], [said(agent) for agent in two.agents]
        (restart,) = two.agents[0].report.restarts
        assert (restart.rank, two.agents[1].report.restarts) == (victim, (restart,))
        assert restart.cause in (Cause.USER, Cause.OOM)
        for agent in two.agents:
            assert agent.stdout.read_text().count(f"launch 1 of node {agent.rank}") == 1
        for agent in waiting:
            assert (said(agent).count(WAITS), said(agent).count(BACK)) == (1, 1)


HELD = TRAINS.replace(
    "        os.kill(os.getpid(), signal.SIGKILL)\n",
    """        marks = pathlib.Path(os.environ["MARKS"])
        (marks / "reached").touch()
        while not (marks / "away").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
""",
)


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_final_weights_are_those_of_a_training_whose_store_was_always_there(
    tmp_path: Path, away: Away, victim: int
) -> None:
    import torch

    marks = tmp_path / "marks"
    marks.mkdir()
    target = tmp_path / "run" / "kept"
    settings = {"checkpoints": Checkpoints(uri=str(target)), "restarts": Restarts(program=1)}
    limits = Limits(stop_grace=5.0, join_timeout=60.0)
    with Gang(tmp_path, HELD, nodes=2, kind="torchrun", limits=limits, **settings) as two:
        two.start(MARKS=str(marks), VICTIM=str(victim))
        until((marks / "reached").exists)
        away.leave()
        (marks / "away").touch()
        agent = two.agents[victim]
        agent.shows(lambda: WAITS in said(agent))
        away.come_back()
        assert [each.wait() for each in two.agents] == [0, 0], [said(each) for each in two.agents]
        assert len(two.agents[0].report.restarts) == 1
        printed = "".join(each.stdout.read_text() for each in two.agents)
    weights = torch.zeros(4)
    for step in range(1, 13):
        weights = weights * 0.5 + 3.0 * step
    (last,) = target.glob("step-012.pt.launch-1/step-012.pt")
    assert torch.equal(torch.load(last)["weights"], weights)
    # It went on from step 6, its newest whole checkpoint, whether that had been sent before the outage or not.
    assert len(re.findall(r"step: 7 ", printed)) == 2
    assert len(re.findall(r"step: 6 ", printed)) == 1


SLOW = """
import time
from airflow_provider_ocidist.agent.save import saving
from airflow_provider_ocidist.storage import checkpoints

saving.SAVE_LIMIT = 1.0
send = checkpoints._send

def slow(*arguments):
    for _ in range(20):
        time.sleep(0.5)
        with open("/dev/zero", "rb") as file:
            # It is known by what it reads that an upload gets further.
            file.read(saving.READ_STEP)
    return send(*arguments)

checkpoints._send = slow
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_checkpoint_that_takes_longer_to_send_than_any_limit_is_gone_on_from_all_the_same(
    tmp_path: Path, victim: int
) -> None:
    """The nodes have disks of their own: what is not in the store is lost to one of them."""
    script = """
at(launch)
saved = pathlib.Path(os.environ["SAVED"])
if launch == 0 and node == 0:
    save(1)
    saved.touch()
if launch == 0 and node == int(os.environ["VICTIM"]):
    until(saved.exists)
    os.kill(os.getpid(), signal.SIGKILL)
if launch == 0:
    time.sleep(1000)
"""
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    kept = Checkpoints(uri=str(tmp_path / "kept"))
    with gang(tmp_path, script, nodes=2, join_timeout=6.0, checkpoints=kept) as two:
        codes = two.run(SAVED=str(tmp_path / "saved"), VICTIM=str(victim), PYTHONPATH=path)
        assert codes == [0, 0], [said(agent) for agent in two.agents]
        for agent in two.agents:
            assert f"launch 1 of node {agent.rank} sees ['step-1.txt']" in agent.stdout.read_text()


# What the node decides meanwhile


OWN = NodeFailure(cause=Cause.USER, message="ValueError", exit_code=1)


def node_without_a_store(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Node, Gone, list[str]]:
    """Return one of three nodes, its store, which is away, and what it asks of that."""
    monkeypatch.setattr(store_wait, "ASK_INTERVAL", 0.02)
    node, store = Node(folder, **settings), Gone(folder)
    node.store = node.heartbeat.store = node.heartbeat.quick_store = store
    return node, store, looks(store, monkeypatch)


def test_a_node_decides_by_what_the_others_report_once_the_store_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, store, asked = node_without_a_store(tmp_path, monkeypatch)
    ended = in_the_background(lambda: node.end._failed(OWN))
    until(lambda: len(asked) > 5)
    node.others(a_report(1, progress=Progress(step=41)), a_report(2))
    store.is_gone = False
    until(lambda: ended)
    assert node.asked
    (restart,) = node.asked.restarts
    assert (restart.rank, restart.step, restart.cause) == (0, 41, Cause.USER)
    assert ended[0].restarts == node.asked.restarts


def test_after_an_outage_a_node_waits_longer_for_the_failure_that_explains_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may wait for the answer to a request that the store has swallowed; no budget pays for this node."""
    monkeypatch.setattr(gang_end, "EXPLANATION_LIMIT", 0.0)
    monkeypatch.setattr(gang_end, "LOST_AFTER", 600.0)
    node, store, asked = node_without_a_store(tmp_path, monkeypatch, restarts=Restarts(program=1))
    ended = in_the_background(lambda: node.end._failed(CONSEQUENCE))
    until(lambda: len(asked) > 5)
    store.is_gone = False
    before = len(asked)
    until(lambda: len(asked) > before + 5)
    assert ended == []
    request = StopRequest(cause=Cause.USER, message="ValueError", rank=1, restarts=AGREED)
    store.write(STOP_FILE, request.to_json())
    until(lambda: ended)
    assert (ended[0].cause, ended[0].restarts) == (None, AGREED)


@pytest.mark.parametrize(
    "restarts, said",
    [
        (Restarts(), "ValueError"),
        (Restarts(hang=1), "ValueError; not launched again: restarts.program is 0"),
    ],
)
def test_a_node_waits_for_no_store_where_no_launch_can_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: Restarts, said: str
) -> None:
    node, _, _ = node_without_a_store(tmp_path, monkeypatch, restarts=restarts)
    monkeypatch.setattr(node.end._store_wait, "until_it_answers", lambda _: pytest.fail("it waits"))
    found = node.end._failed(OWN)
    assert (found.cause, found.message, found.restarts) == (Cause.USER, said, ())


def test_the_only_node_asks_nobody_and_waits_for_no_store_before_it_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, _, _ = node_without_a_store(tmp_path, monkeypatch, nodes=1)
    monkeypatch.setattr(node.end._store_wait, "until_it_answers", lambda _: pytest.fail("it waits"))
    assert [each.cause for each in node.end._failed(OWN).restarts] == [Cause.USER]


@pytest.mark.parametrize("failure", [OWN, CONSEQUENCE])
def test_a_store_that_stays_away_for_the_limit_ends_the_run_with_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: NodeFailure
) -> None:
    limits = Limits(join_timeout=0.2)
    node, _, _ = node_without_a_store(tmp_path, monkeypatch, limits=limits)
    monkeypatch.setattr(gang_end, "LOST_AFTER", 0.0)
    found = node.end._failed(failure)
    assert (found.cause, found.restarts) == (failure.cause, ())
    assert (found.message or "").endswith("; not launched again: the store does not answer")


@pytest.mark.parametrize("cause", [Cause.BUDGET, Cause.ABANDONED])
def test_lease_and_budget_end_the_wait_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause
) -> None:
    node, store, asked = node_without_a_store(tmp_path, monkeypatch)
    ended = in_the_background(lambda: node.end._failed(OWN))
    until(lambda: len(asked) > 5)
    node.end.declare(Stop(message="it is over", cause=cause))
    until(lambda: ended)
    assert ended[0].restarts == ()
    assert node.switch.stop
    assert node.switch.stop.cause is cause
    store.is_gone = False
    assert node.asked is None
