"""What a drill does to its own node, and what it undoes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import faults
from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from airflow_provider_ocidist.model.drill import UNDISTURBED, DrillJournal
from airflow_provider_ocidist.model.report import Phase
from airflow_provider_ocidist.model.work_dir import drill_journal_of
from tests.agent.gangs import Gang
from tests.storage.published import publish

BEGINS = """
import json, os, resource, subprocess, sys, time
with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
    progress.write(json.dumps({"step": 1}) + "\\n")
while resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 0:
    time.sleep(0.02)
"""
ANOTHER_WRITES = f"""{BEGINS}
# A loader of data that begins on the full disk, and writes when there is room again.
writes = "import pathlib, time; time.sleep(2.5); pathlib.Path('written').write_text('x' * 100)"
sys.exit(subprocess.run([sys.executable, "-c", writes]).returncode)
"""
FAILS = f"""{BEGINS}
sys.exit(3)
"""
SAVES = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "step-1.txt").write_text("weights")
with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
    progress.write(json.dumps({"step": 1}) + "\\n")
    progress.write(json.dumps({"step": 1, "checkpoint": "step-1.txt"}) + "\\n")
time.sleep(60)
"""
TRAINS = """
import json, os, time
with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
    progress.write(json.dumps({"step": 1}) + "\\n")
time.sleep(20)
"""
RESUMES = """
import json, os, pathlib
found = sorted(path.name for path in pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"]).iterdir())
print("found", *found, flush=True)
with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
    progress.write(json.dumps({"step": 3}) + "\\n")
"""


def stored(root: Path) -> Path:
    """Return a place with the checkpoints of two steps."""
    place = root / "kept"
    for step in (1, 2):
        file = root / f"step-{step}.txt"
        file.write_text(f"weights of {step}")
        publish(file, str(place), step=step)
    return place


def test_a_process_that_has_begun_on_a_full_disk_can_write_when_there_is_room_again(tmp_path: Path) -> None:
    with Gang(tmp_path, ANOTHER_WRITES, attempt=1, limits=Limits(stop_grace=2.0)) as gang:
        assert gang.run(OCIDIST_DRILL="full-disk@training:node=0,step=1,seconds=1") == [0]


def test_a_training_that_fails_on_a_full_disk_is_over_before_there_is_room_again(tmp_path: Path) -> None:
    with Gang(tmp_path, FAILS, attempt=1, limits=Limits(stop_grace=2.0)) as gang:
        # An hour is longer than the gang is waited for.
        assert gang.run(OCIDIST_DRILL="full-disk@training:node=0,step=1,seconds=3600") == [3]


@pytest.mark.parametrize(
    "fault, found",
    [
        ("full-disk@restoring:node=0,step=1,seconds=1", "found step-2.txt"),
        ("corrupt-checkpoint@restoring:node=0,step=1", "found step-1.txt"),
    ],
)
def test_a_fault_of_a_restore_meets_the_attempt_after_the_killed_one(
    tmp_path: Path, fault: str, found: str
) -> None:
    kept = stored(tmp_path)
    # Without restarts the first attempt has ended with the kill.
    checkpoints = Checkpoints(uri=str(kept), required=False)
    with Gang(tmp_path, RESUMES, attempt=2, checkpoints=checkpoints) as gang:
        assert gang.run(OCIDIST_DRILL=fault) == [0]
        assert found in gang.agents[0].stdout.read_text()
        assert f"drill: {'no file' if 'disk' in fault else 'changing one byte'}" in (
            gang.agents[0].stderr.read_text()
        )
        journal = DrillJournal.from_json((gang.run_dir / drill_journal_of(0)).read_bytes())
        met = {"found step-2.txt": (), "found step-1.txt": (f"{kept}/step-2.txt",)}
        assert journal.damaged == met[found]


def test_a_node_that_publishes_nothing_itself_can_damage_what_is_stored(tmp_path: Path) -> None:
    kept = stored(tmp_path)
    checkpoints = Checkpoints(uri=str(kept), required=False)
    with Gang(tmp_path, TRAINS, nodes=2, attempt=1, checkpoints=checkpoints) as gang:
        _, other = gang.start(OCIDIST_DRILL="corrupt-checkpoint@training:node=1,step=1")
        assert other.wait() == -9
    assert (kept / "step-2.txt" / "step-2.txt").read_bytes() != b"weights of 2"


@pytest.mark.parametrize(
    "environ, address", [({}, "127.0.99.1"), ({"OCIDIST_SWITCH": "", "POD_IP": "192.0.2.7"}, "192.0.2.7")]
)
@pytest.mark.parametrize("kind", ["cut-network", "starve-network"])
def test_a_network_that_nodes_share_is_neither_cut_nor_starved(
    tmp_path: Path, kind: str, environ: dict[str, str], address: str
) -> None:
    with Gang(tmp_path, BEGINS, attempt=1) as gang:
        assert gang.run(OCIDIST_DRILL=f"{kind}@training:node=0,step=1,seconds=1", **environ) == [78]
        assert f"the nodes share the network of this machine ({address})" in (
            gang.agents[0].report.message or ""
        )


def test_a_fault_of_an_upload_strikes_when_the_files_are_there_and_the_manifest_is_not(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    with Gang(tmp_path, SAVES, attempt=1, checkpoints=Checkpoints(uri=str(kept))) as gang:
        assert gang.run(OCIDIST_DRILL="kill-node@uploading:node=0,step=1") == [-9]
    names = [path.name for path in kept.rglob("*") if path.is_file()]
    assert "step-1.txt" in names
    assert "manifest.json" not in names


def test_a_fault_of_a_restore_comes_in_the_next_try_where_a_killed_process_costs_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(stored(tmp_path)), required=False)
    # A killed process is charged to the program, or else to the machine: no launch follows in the same try.
    budget = Restarts(hang=1)
    with Gang(tmp_path, RESUMES, attempt=2, checkpoints=checkpoints, restarts=budget) as gang:
        assert gang.run(OCIDIST_DRILL="kill-agent@restoring:node=0,step=1") == [-9]


@pytest.mark.parametrize("restarts", [Restarts(program=1), Restarts(node=1)], ids=["program", "node"])
def test_a_fault_of_a_restore_comes_in_the_same_try_where_another_launch_follows_the_killed_process(
    tmp_path: Path, restarts: Restarts
) -> None:
    checkpoints = Checkpoints(uri=str(stored(tmp_path)), required=False)
    with Gang(tmp_path, TRAINS, attempt=1, checkpoints=checkpoints, restarts=restarts) as gang:
        assert gang.run(OCIDIST_DRILL="kill-agent@restoring:node=0,step=1") == [-9]
        journal = DrillJournal.from_json((gang.run_dir / drill_journal_of(0)).read_bytes())
    assert [each.kind for each in journal.injected] == ["kill-rank", "kill-agent"]


CUTS_NOTHING = """
import sys
from airflow_provider_ocidist.agent.drill import Drill
from airflow_provider_ocidist.agent.stages.context import NodeContext
from airflow_provider_ocidist.agent.stopping import StopSwitch
from airflow_provider_ocidist.job import Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.drill import Fault, When

program = Program(script="program.py")
config = AgentConfig(run_name="run", nodes=1, run_dir=sys.argv[1], program=program, attempt=2)
node = NodeContext(config, {"HOME": sys.argv[1]}, StopSwitch())
fault = Fault.parse("cut-network@restoring:node=0,seconds=1")
drill = Drill(fault, config, node.heartbeat, node.meter, node.access, interface="none0")
drill.reached(When.RESTORING)
print([injected.message for injected in drill._journal.injected])
"""


def test_a_fault_that_could_not_be_inflicted_does_not_count(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CUTS_NOTHING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n", done.stderr


def test_what_reaches_no_process_has_not_happened() -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        for inflict in (faults.freeze, faults.limit_files):
            with pytest.raises(ProcessLookupError):
                inflict([ended.pid], None)


ENDS_LATER = """
import os, signal, subprocess, time
from pathlib import Path
from airflow_provider_ocidist.agent import faults, guard

frozen = subprocess.Popen(["sleep", "60"])
faults.freeze([frozen.pid], 60.0)
def waiting():
    return [pid for pid in guard.descendants(os.getpid()) if b"-CONT" in Path(f"/proc/{pid}/cmdline").read_bytes()]

# Until it has begun its program, a process has the words of this one.
while len(found := waiting()) != 1:
    time.sleep(0.01)
(waits,) = found
print(*{str(Path(f"/proc/{waits}/fd/{number}").readlink()) for number in range(3)})
os.killpg(waits, signal.SIGKILL)
frozen.kill()
"""


def test_what_ends_a_fault_later_holds_no_output_of_its_node_open(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w+") as out:
        subprocess.run([sys.executable, "-c", ENDS_LATER], stdout=out, stdin=out, timeout=60, check=True)
        out.seek(0)
        assert out.read() == "/dev/null\n"


SAVES_AND_GOES_ON = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)

def at(step):
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
        progress.write(json.dumps({"step": step}) + "\\n")

for step in (4, 8):
    file = folder / f".step-{step}.txt"
    file.write_text(str(step))
    file.rename(folder / f"step-{step}.txt")
    at(step + 2)
    while not (pathlib.Path(os.environ["KEPT"]) / f"step-{step}.txt" / "manifest.json").exists():
        time.sleep(0.02)
    # As long as nothing is trained, the drill sees where the training was.
    time.sleep(0.5)
"""


@pytest.mark.parametrize("drills", [True, False])
def test_of_a_training_without_a_fault_its_checkpoints_are_recorded_with_what_was_trained_meanwhile(
    tmp_path: Path, *, drills: bool
) -> None:
    kept = tmp_path / "kept"
    with Gang(tmp_path, SAVES_AND_GOES_ON, attempt=1, checkpoints=Checkpoints(uri=str(kept))) as gang:
        variables = {"OCIDIST_DRILL": UNDISTURBED} if drills else {}
        assert gang.run(KEPT=str(kept), **variables) == [0]
        journal = gang.run_dir / drill_journal_of(0)
        assert journal.exists() is drills
        if drills:
            saves = DrillJournal.from_json(journal.read_bytes()).saves
            assert [(each.launch, each.step, each.reached) for each in saves] == [(0, 4, 6), (0, 8, 10)]


COMPUTES = """
import json, os, pathlib, time

def report(step):
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
        progress.write(json.dumps({"step": step}) + "\\n")

report(1)
journal = pathlib.Path(os.environ["JOURNAL"])
while not (journal.exists() and "starve-node" in journal.read_text()):
    time.sleep(0.02)
# It was there before the fault, so that it is starved from the beginning.
began = last = time.monotonic()
still = 0.0
while last - began < 2.0:
    now = time.monotonic()
    still += now - last if now - last > 0.04 else 0.0
    last = now
print("stood still for", round(still / (last - began), 2), flush=True)
report(2)
"""


@pytest.mark.parametrize("lasts", ["", ",seconds=3600"])
def test_a_starved_node_goes_on_slowly_and_its_fault_ends_with_it(tmp_path: Path, lasts: str) -> None:
    with Gang(tmp_path, COMPUTES, attempt=1) as gang:
        journal = gang.run_dir / drill_journal_of(0)
        fault = f"starve-node@training:node=0,step=1{lasts}"
        assert gang.run(OCIDIST_DRILL=fault, JOURNAL=str(journal)) == [0]
        (node,) = gang.agents
        assert "drill: letting the processes of node 0 run for 20% of the time" in node.stderr.read_text()
        share = re.search(r"stood still for ([0-9.]+)", node.stdout.read_text())
        assert share is not None
        assert float(share[1]) > 0.5
        (injected,) = DrillJournal.from_json(journal.read_bytes()).injected
    assert (injected.kind, injected.step, injected.launch) == ("starve-node", 1, 0)


STEPS = """
import os, time
for step in range(1, 100_000):
    # By the processor, which is what is scarce.
    until = time.process_time() + 0.01
    while time.process_time() < until:
        pass
    print("step", step, flush=True)
    time.sleep(0.02)
"""


def test_a_starved_node_is_named_as_slow_and_nothing_else_happens_to_it(tmp_path: Path) -> None:
    limits = Limits(stop_grace=1.0, join_timeout=60.0)
    with Gang(tmp_path, STEPS, nodes=3, attempt=1, limits=limits) as gang:
        main, _, starved = gang.start(OCIDIST_DRILL="starve-node@training:node=2,step=5")
        main.shows(lambda: "node 2 is slow: " in main.stderr.read_text())
        main.shows(lambda: main.report.slow)
        assert [each.node for each in main.report.slow] == [2]
        assert all(agent.process.poll() is None for agent in gang.agents)
        assert all(
            agent.report.phase is Phase.TRAINING and not agent.report.restarts for agent in gang.agents
        )
        # Starved for ever, it is killed with the others: nothing of it is left.
        starved.process.kill()
