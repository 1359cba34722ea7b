"""A failed training is launched again on the same machines, from its newest whole checkpoint."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.diagnose.outcome import STOPPED_CODE
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stages.gang_end import GangEnd
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.agent.train.supervise import Ended
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.model.causes import exit_code_of
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.model.report import NodeReport, Phase, Restart, StopRequest
from airflow_provider_ocidist.model.work_dir import report_of
from airflow_provider_ocidist.storage.checkpoints import SaveFacts, publish
from airflow_provider_ocidist.storage.stores.base import Store
from airflow_provider_ocidist.storage.stores.opening import open_store
from tests.agent.gangs import Gang, until

PROGRAM = """
import json, os, pathlib, signal, sys, time
node, launch = int(os.environ["OCIDIST_NODE_RANK"]), int(os.environ["OCIDIST_RESTARTS"])
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)

def at(step):
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
        file.write(json.dumps({"step": step}) + "\\n")

def save(step, size=100):
    new = folder / f".step-{step}.txt"
    new.write_text("w" * size)
    new.rename(folder / f"step-{step}.txt")

def seen():
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))

def until(found):
    while not found():
        time.sleep(0.02)

print(f"launch {launch} of node {node} sees {seen()}", flush=True)
"""
TWICE = Restarts(program=2, hang=2, node=2)


def gang(root: Path, script: str, *, join_timeout: float = 60.0, **changes: Any) -> Gang:
    limits = Limits(stop_grace=5.0, join_timeout=join_timeout, hang_timeout=changes.pop("hang_timeout", None))
    return Gang(root, PROGRAM + script, **{"restarts": TWICE, "limits": limits, **changes})


def test_a_program_that_fails_once_is_launched_again_and_succeeds(tmp_path: Path) -> None:
    script = "at(7 + launch)\nassert launch, 'the first launch fails'\n"
    with gang(tmp_path, script) as one:
        assert one.run() == [0]
        (restart,) = one.agents[0].report.restarts
        assert (restart.cause, restart.step, restart.rank) == (Cause.USER, 7, 0)
        assert "the first launch fails" in restart.message
        assert [each.launch for each in one.agents[0].report.recoveries] == [1]


def test_a_training_longer_than_the_time_to_join_counts_as_no_fetch_that_makes_no_progress(
    tmp_path: Path,
) -> None:
    script = "at(launch)\nif launch == 0:\n    time.sleep(6)\n    raise ValueError('once')\n"
    kept = Checkpoints(uri=str(tmp_path / "kept"), required=False)
    with gang(tmp_path, script, join_timeout=3.0, checkpoints=kept) as one:
        assert one.run() == [0]
        assert len(one.agents[0].report.restarts) == 1


def beating(store: Store, report: NodeReport, over: Callable[[], object]) -> None:
    """Write the report of another node again and again."""
    while not over():
        store.write(report_of(report.rank), replace(report, heartbeat_at=time.time()).to_json())
        time.sleep(0.1)


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.JOINING])
def test_a_wait_for_what_another_node_saves_or_repairs_is_no_fetch_that_makes_no_progress(
    tmp_path: Path, phase: Phase
) -> None:
    with gang(tmp_path, "at(launch)\nassert launch, 'once'\n", nodes=2, join_timeout=2.5) as two:
        store, asked = open_store(str(two.run_dir)), two.run_dir / "stop.json"
        other = NodeReport(
            rank=1, phase=Phase.JOINING, address="127.0.99.2", started_at=0.0, heartbeat_at=0.0
        )
        store.write(report_of(1), other.to_json())
        (first,) = two.start(0)
        beating(store, other, lambda: asked.exists() or first.process.poll() is not None)
        restarts = StopRequest.from_json(asked.read_bytes()).restarts
        # Longer than a node may fetch without progress.
        until_then = time.monotonic() + 8.0
        beating(store, replace(other, phase=phase), lambda: time.monotonic() > until_then)
        beating(store, replace(other, restarts=restarts), lambda: first.process.poll() is not None)
        assert first.wait() == 0, first.stderr.read_text()
        assert len(first.report.restarts) == 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_missing_of_the_newest_stored_checkpoint_is_stored_again_before_another_launch(
    tmp_path: Path, nodes: int
) -> None:
    script = """
at(launch)
if launch == 0 and node == 0:
    save(1)
    save(2)
    until(pathlib.Path(os.environ["MARK"]).exists)
    raise RuntimeError("first")
if launch == 0:
    time.sleep(1000)
"""
    kept, mark = tmp_path / "kept", tmp_path / "go"
    with gang(tmp_path, script, nodes=nodes, checkpoints=Checkpoints(uri=str(kept))) as some:
        some.start(MARK=str(mark))
        until(lambda: list(kept.glob("step-2.txt/manifest.json")))
        stored = kept / "step-2.txt" / "step-2.txt"
        stored.unlink()
        mark.touch()
        assert [agent.wait() for agent in some.agents] == [0] * nodes
        assert stored.read_text() == "w" * 100
        for agent in some.agents:
            assert "'step-2.txt']" in agent.stdout.read_text()
            assert len(agent.report.restarts) == 1


def test_a_killed_process_of_one_node_begins_both_again_in_the_same_agents(tmp_path: Path) -> None:
    script = """
at(3 + launch)
if launch == 0 and node == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if launch == 0:
    time.sleep(1000)
"""
    with gang(tmp_path, script, nodes=2) as two:
        assert two.run() == [0, 0]
        reports = [agent.report for agent in two.agents]
        assert reports[0].restarts == reports[1].restarts
        (restart,) = reports[0].restarts
        # Nothing points at the machine, which lives.
        assert restart.rank == 1
        assert restart.cause in (Cause.USER, Cause.OOM)
        assert [each.launch for each in reports[1].recoveries] == [1]
        # The other node's first program may have been ended before it printed.
        assert all(f"launch 1 of node {agent.rank}" in agent.stdout.read_text() for agent in two.agents)


@pytest.mark.parametrize(
    "restarts, charged",
    [
        (Restarts(program=1), Cause.USER),
        (Restarts(program=1, node=1), Cause.USER),
        (Restarts(node=1), Cause.NODE),
        (Restarts(hang=1), None),
    ],
    ids=["program", "both", "node", "neither"],
)
def test_a_process_that_is_killed_from_outside_is_charged_to_the_program_or_else_to_the_machine(
    tmp_path: Path, restarts: Restarts, charged: Cause | None
) -> None:
    script = "at(3 + launch)\nif launch == 0:\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n"
    with gang(tmp_path, script, restarts=restarts) as one:
        assert one.run() == [0 if charged else 143]
        report = one.agents[0].report
        assert [each.cause for each in report.restarts] == [charged] * bool(charged)
        # The cause stays: a retry may well succeed.
        assert report.cause is (None if charged else Cause.NODE)


def test_the_same_failure_at_the_same_step_twice_ends_the_run_with_its_step(tmp_path: Path) -> None:
    with gang(
        tmp_path, "at(5)\nraise ValueError('always here')\n", nodes=2, restarts=Restarts(program=9)
    ) as two:
        codes = two.run()
        assert all(codes)
        texts = " ".join(agent.report.message or "" for agent in two.agents)
        assert "not launched again: crash loop: USER at step 5 for the second time" in texts
        assert "always here" in texts
        (failed, *_) = [agent.report for agent in two.agents if agent.report.crash_loop]
        assert failed.cause is Cause.USER
        assert "Traceback (most recent call last)" in (failed.tail or "")
        assert "ValueError: always here" in (failed.tail or "")
        asked = StopRequest.from_json((two.run_dir / "stop.json").read_bytes())
        assert asked.rank in [agent.rank for agent in two.agents if agent.report.crash_loop]
        assert len(two.agents[0].report.restarts) == 1


def test_failures_of_a_node_that_counts_no_steps_are_distinguished_by_those_of_another(
    tmp_path: Path,
) -> None:
    script = """
if launch == 2:
    sys.exit()
if node == 0:
    at(20 * (launch + 1))
    time.sleep(1000)
report = pathlib.Path(os.environ["REPORTS"]) / "0.json"
until(lambda: (json.loads(report.read_text())["progress"] or {}).get("step") == 20 * (launch + 1))
os.kill(os.getpid(), signal.SIGKILL)
"""
    with gang(tmp_path, script, nodes=2, restarts=Restarts(program=5, node=5)) as two:
        assert two.run(REPORTS=str(two.run_dir / "nodes")) == [0, 0]
        assert [(each.rank, each.step) for each in two.agents[0].report.restarts] == [(1, 20), (1, 40)]


def test_where_nobody_counts_steps_a_newer_checkpoint_shows_that_the_training_got_further(
    tmp_path: Path,
) -> None:
    script = """
if launch < 2:
    save(launch + 1)
    name = f"step-{launch + 1}.txt" + (f".launch-{launch}" if launch else "")
    until((pathlib.Path(os.environ["PLACE"]) / name / "manifest.json").exists)
assert launch > 2, "as always"
"""
    place = str(tmp_path / "kept")
    with gang(tmp_path, script, checkpoints=Checkpoints(uri=place), restarts=Restarts(program=9)) as one:
        assert one.run(PLACE=place) == [1]
        report = one.agents[0].report
        # The third failure is the first one with no newer checkpoint than the one before it.
        assert len(report.restarts) == 2
        assert "crash loop: USER at step 2 for the second time" in (report.message or "")


def test_the_budget_is_what_the_job_allows(tmp_path: Path) -> None:
    with gang(tmp_path, "at(launch)\nraise ValueError('each time elsewhere')\n") as one:
        assert one.run() == [1]
        report = one.agents[0].report
        assert [each.step for each in report.restarts] == [0, 1]
        assert "all 2 of restarts.program are used" in (report.message or "")
        assert not report.crash_loop


def test_without_restarts_nothing_is_launched_again_and_nothing_said_of_it(tmp_path: Path) -> None:
    with gang(tmp_path, "raise ValueError('once')\n", restarts=Restarts()) as one:
        assert one.run() == [1]
        assert one.agents[0].report.message == "ValueError: once"
        assert one.agents[0].stdout.read_text().count("launch") == 1


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_program_goes_on_from_what_was_whole_and_sees_no_half(tmp_path: Path, nodes: int) -> None:
    script = """
at(launch * 10)
if launch == 0 and node == 0:
    save(1)
    until(lambda: pathlib.Path(os.environ["MARK"]).exists())
    (folder / "step-2.txt").write_text("half")
    raise RuntimeError("cut off")
if launch == 0:
    time.sleep(1000)
"""
    mark = tmp_path / "go"
    kept = Checkpoints(uri=str(tmp_path / "kept"))
    with gang(tmp_path, script, nodes=nodes, checkpoints=kept) as some:
        some.start(MARK=str(mark))
        until(lambda: list((tmp_path / "kept").glob("step-1.txt/manifest.json")))
        mark.touch()
        assert [agent.wait() for agent in some.agents] == [0] * nodes
        for agent in some.agents:
            assert f"launch 1 of node {agent.rank} sees ['step-1.txt']" in agent.stdout.read_text()


@pytest.mark.parametrize("nodes", [1, 2])
def test_another_launch_goes_on_also_where_the_job_goes_on_from_no_earlier_attempt(
    tmp_path: Path, nodes: int
) -> None:
    script = """
at(launch)
if launch == 0 and node == 0:
    save(1)
    raise RuntimeError("cut off")
if launch == 0:
    time.sleep(1000)
"""
    place = tmp_path / "kept"
    earlier = tmp_path / "step-9.txt"
    earlier.write_text("of an earlier attempt")
    save_of_it = SaveFacts(step=9, fence=Fence(generation=0, attempt=1), sequence=1, proof="a test")
    publish(earlier, str(place), save_of_it)
    kept = Checkpoints(uri=str(place), resume=False)
    with gang(tmp_path, script, nodes=nodes, checkpoints=kept, attempt=2) as some:
        assert some.run() == [0] * nodes
        for agent in some.agents:
            printed = agent.stdout.read_text()
            assert f"launch 1 of node {agent.rank} sees ['step-1.txt']" in printed
            assert "step-9" not in printed


def test_no_node_sees_a_checkpoint_of_which_another_node_has_no_part(tmp_path: Path) -> None:
    script = """
import pickle
class Storage:
    def __init__(self, name):
        self.relative_path, self.offset, self.length = name, 0, 100
class Metadata:
    pass
at(launch)
def part(step, node):
    place = folder / f"step-{step}" / f"__{node}_0.distcp"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"w" * 100)
if launch == 0:
    part(1, node)
if launch == 0 and node == 0:
    part(2, node)
    metadata = Metadata()
    metadata.storage_data = {rank: Storage(f"__{rank}_0.distcp") for rank in range(2)}
    (folder / "step-2" / ".metadata").write_bytes(pickle.dumps(metadata))
    time.sleep(5)
    raise RuntimeError("cut off")
if launch == 0:
    time.sleep(1000)
"""
    kept = Checkpoints(uri=str(tmp_path / "kept"), required=False)
    with gang(tmp_path, script, nodes=2, checkpoints=kept) as two:
        assert two.run() == [0, 0]
        for agent in two.agents:
            assert f"launch 1 of node {agent.rank} sees []" in agent.stdout.read_text()


def test_the_nodes_of_each_launch_exchange_their_parts_anew(tmp_path: Path) -> None:
    script = """
import pickle
class Storage:
    def __init__(self, name):
        self.relative_path, self.offset, self.length = name, 0, 100
class Metadata:
    pass
at(launch)
place = folder / f"step-{launch + 1}"
place.mkdir()
(place / f"__{node}_0.distcp").write_bytes(bytes([launch]) * 100)
if node == 0:
    metadata = Metadata()
    metadata.storage_data = {rank: Storage(f"__{rank}_0.distcp") for rank in range(2)}
    (place / ".metadata").write_bytes(pickle.dumps(metadata))
if launch < 2 and node == 0:
    time.sleep(1)
    raise RuntimeError(str(launch))
if launch < 2:
    time.sleep(1000)
"""
    place = tmp_path / "kept"
    with gang(tmp_path, script, nodes=2, checkpoints=Checkpoints(uri=str(place), keep=9)) as two:
        assert two.run() == [0, 0]
    for launch, name in enumerate(["step-1", "step-2.launch-1", "step-3.launch-2"]):
        for node in range(2):
            assert (place / name / f"__{node}_0.distcp").read_bytes() == bytes([launch]) * 100
        assert (place / name / "manifest.json").exists()


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_whole_on_the_machine_is_used_before_what_is_in_the_store(tmp_path: Path, nodes: int) -> None:
    script = """
at(launch)
if launch == 0 and node == 0:
    save(1)
    raise RuntimeError("first")
if launch == 1 and node == 0:
    until(pathlib.Path(os.environ["MARK"]).exists)
    raise RuntimeError("second")
if launch < 2:
    time.sleep(1000)
print("it holds", (folder / "step-1.txt").read_text()[:3], flush=True)
"""
    kept, mark = tmp_path / "kept", tmp_path / "go"
    with gang(tmp_path, script, nodes=nodes, checkpoints=Checkpoints(uri=str(kept))) as some:
        for agent in some.start(MARK=str(mark)):
            agent.prints(f"launch 1 of node {agent.rank} sees ['step-1.txt']")
        (kept / "step-1.txt/step-1.txt").write_text("x" * 100)
        mark.touch()
        assert [agent.wait() for agent in some.agents] == [0] * nodes
        assert all("it holds www" in agent.stdout.read_text() for agent in some.agents)


def test_what_was_whole_but_not_sent_yet_is_sent_before_the_next_launch(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    save(1)\n    raise RuntimeError('cut off')\n"
    with gang(tmp_path, script, checkpoints=Checkpoints(uri=str(tmp_path / "kept"))) as one:
        assert one.run() == [0]
        assert "launch 1 of node 0 sees ['step-1.txt']" in one.agents[0].stdout.read_text()
        assert (tmp_path / "kept" / "step-1.txt" / "manifest.json").exists()


def test_no_node_goes_back_before_the_others_have_saved(tmp_path: Path) -> None:
    script = """
at(launch)
mark = pathlib.Path(os.environ["MARK"])
if launch == 0 and node == 0:
    save(1, size=60_000_000)
    mark.touch()
    time.sleep(1000)
if launch == 0:
    until(mark.exists)
    raise RuntimeError("at once")
"""
    with gang(tmp_path, script, nodes=2, checkpoints=Checkpoints(uri=str(tmp_path / "kept"))) as two:
        assert two.run(MARK=str(tmp_path / "saved")) == [0, 0]
        for agent in two.agents:
            assert f"launch 1 of node {agent.rank} sees ['step-1.txt']" in agent.stdout.read_text()


def test_the_checkpoints_of_all_launches_count_on(tmp_path: Path) -> None:
    script = "at(launch)\nsave(launch + 1)\nif launch < 2:\n    raise RuntimeError(str(launch))\n"
    with gang(tmp_path, script, checkpoints=Checkpoints(uri=str(tmp_path / "kept"))) as one:
        assert one.run() == [0]
        assert one.agents[0].report.checkpoint is not None
        assert one.agents[0].report.checkpoint.step == 3


def test_a_hang_ends_the_launch_and_not_the_run(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    time.sleep(1000)\n"
    with gang(tmp_path, script, nodes=2, hang_timeout=2.0) as two:
        assert two.run() == [0, 0]
        (restart,) = two.agents[0].report.restarts
        assert restart.cause is Cause.HANG


def test_a_hang_without_a_budget_ends_the_run(tmp_path: Path) -> None:
    script = "at(launch)\ntime.sleep(1000)\n"
    with gang(tmp_path, script, hang_timeout=1.0, restarts=Restarts(program=9)) as one:
        assert one.run() == [exit_code_of(Cause.HANG)]
        assert "not launched again: restarts.hang is 0" in (one.agents[0].report.message or "")


def test_the_submitters_request_ends_a_later_launch_too(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    raise RuntimeError('once')\ntime.sleep(1000)\n"
    with gang(tmp_path, script, nodes=2) as two:
        agents = two.start()
        for agent in agents:
            agent.prints(f"launch 1 of node {agent.rank}")
        (two.run_dir / "stop.json").write_bytes(StopRequest(cause=Cause.CANCELED, message="enough").to_json())
        assert [agent.wait() for agent in agents] == [STOPPED_CODE] * 2
        assert all("enough" in (agent.report.message or "") for agent in agents)


def test_a_signal_in_a_later_launch_ends_the_node(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    raise RuntimeError('once')\ntime.sleep(1000)\n"
    with gang(tmp_path, script) as one:
        (agent,) = one.start()
        agent.prints("launch 1 of node 0")
        agent.signal(15)
        assert agent.wait() == STOPPED_CODE


def test_nothing_is_launched_again_beside_a_node_that_has_succeeded(tmp_path: Path) -> None:
    script = """
if node == 1:
    until(lambda: pathlib.Path(os.environ["MARK"]).exists())
    raise RuntimeError("late")
"""
    mark = tmp_path / "go"
    with gang(tmp_path, script, nodes=2) as two:
        first, second = two.start(MARK=str(mark))
        assert first.wait() == 0
        mark.touch()
        assert second.wait() == 1
        assert "not launched again: node 0 has ended already" in (second.report.message or "")


def test_a_failure_stays_one_though_another_node_succeeds_in_that_moment(tmp_path: Path) -> None:
    script = "at(1)\nraise ValueError('of the last export')\n"
    with gang(tmp_path, script, nodes=2) as two:
        (first,) = two.start(0)
        first.shows(lambda: first.waits)
        other, now = two.run_dir / "nodes/1.json", time.time()
        joined = NodeReport(
            rank=1,
            phase=Phase.JOINING,
            address="127.0.99.2",
            started_at=now,
            heartbeat_at=now,
        )
        other.write_bytes(joined.to_json())
        until((two.run_dir / "stop.json").exists)
        # It had not read the request yet when its program exited with 0.
        other.write_bytes(replace(joined, phase=Phase.DONE, exit_code=0, heartbeat_at=now + 1).to_json())
        assert first.wait() == 1
        assert (first.report.cause, first.report.restarts) == (Cause.USER, ())
        assert "of the last export; not launched again: node 1 has ended already" in (
            first.report.message or ""
        )


def test_a_node_that_succeeds_joins_another_launch_for_which_it_was_asked(tmp_path: Path) -> None:
    failure = Restart(cause=Cause.USER, message="m", rank=0)
    request = StopRequest(cause=Cause.USER, message="m", rank=0, restarts=(failure,))
    succeeded = Ended(exit_code=0, output="", stop=None, oom_killed=None)
    with gang(tmp_path, "", nodes=2) as two:
        environ = {"OCIDIST_NODE_RANK": "1", "HOME": str(tmp_path)}
        end = GangEnd(NodeContext(two.config, environ, StopSwitch()))
        assert end.agreed(succeeded, follows=False) == succeeded
        assert end.heartbeat.store.read("nodes/1.json") == end.heartbeat.report.to_json()
        assert end.heartbeat.report.phase is Phase.SAVING
        (two.run_dir / "stop.json").write_bytes(request.to_json())
        agreed = GangEnd(NodeContext(two.config, environ, StopSwitch())).agreed(succeeded, follows=False)
        assert agreed.stop is not None
        assert agreed.stop.restarts == (failure,)


def test_both_nodes_failing_at_once_spend_one_restart(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    raise RuntimeError('together')\n"
    with gang(tmp_path, script, nodes=2, restarts=Restarts(program=1)) as two:
        assert two.run() == [0, 0]
        assert len(two.agents[0].report.restarts) == 1
        assert two.agents[0].report.restarts == two.agents[1].report.restarts


def test_a_gang_that_is_launched_again_keeps_beating_for_those_who_wait(tmp_path: Path) -> None:
    script = "at(launch)\nif not launch:\n    raise RuntimeError('once')\ntime.sleep(1000)\n"
    with gang(tmp_path, script) as one:
        (agent,) = one.start()
        agent.prints("launch 1 of node 0")
        before = agent.report.heartbeat_at
        until(lambda: agent.report.heartbeat_at > before)
        assert agent.report.phase == "TRAINING"
        assert agent.report.started_at < time.time()


TRAINS = """
import os, pathlib, signal, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, folder = dist.get_rank(), pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
saved = sorted(folder.glob("step-*.pt"))
state = torch.load(saved[-1]) if saved else {"step": 0, "weights": torch.zeros(4)}
first = state["step"]
for step in range(first + 1, 13):
    gradient = torch.full((4,), float(rank + 1) * step)
    dist.all_reduce(gradient)
    state = {"step": step, "weights": state["weights"] * 0.5 + gradient}
    if step % 3 == 0 and rank == 0:
        torch.save(state, folder / "new.tmp")
        (folder / "new.tmp").rename(folder / f"step-{step:03}.pt")
    if rank == 0:
        print(f"step: {step} ", flush=True)
    if step == 8 and not first and rank == int(os.environ["VICTIM"]):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_final_weights_are_those_of_an_undisturbed_training(tmp_path: Path, victim: int) -> None:
    import torch

    kept = Checkpoints(uri=str(tmp_path / "kept"))
    limits = Limits(stop_grace=5.0, join_timeout=60.0)
    with Gang(
        tmp_path, TRAINS, nodes=2, kind="torchrun", checkpoints=kept, limits=limits, restarts=TWICE
    ) as two:
        assert two.run(VICTIM=str(victim)) == [0, 0]
        assert len(two.agents[0].report.restarts) == 1
        printed = "".join(agent.stdout.read_text() for agent in two.agents)
    weights = torch.zeros(4)
    for step in range(1, 13):
        weights = weights * 0.5 + 3.0 * step
    (last,) = (tmp_path / "kept").glob("step-012.pt.launch-1/step-012.pt")
    assert torch.equal(torch.load(last)["weights"], weights)
    # It went on from step 6, its newest whole checkpoint: of 8 steps, 2 were done twice.
    assert len(re.findall(r"step: 7 ", printed)) == 2
    assert len(re.findall(r"step: 6 ", printed)) == 1
