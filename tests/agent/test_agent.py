"""The whole agent, as real processes with the plain `python` launcher."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.bundle import NODE_SCRIPT
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, Input, LauncherOptions, Limits, Output, Program
from airflow_provider_ocidist.model.agent_config import AgentConfig
from airflow_provider_ocidist.model.report import Phase, StopRequest
from airflow_provider_ocidist.storage.checkpoints import newest
from tests.agent.gangs import REPOSITORY, Gang, processes_with, until
from tests.storage.published import publish

TRAINS = """
import os, pathlib, sys, time
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
print(f"rank {rank} of {world} at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
if rank == "0":
    for step in (1, 2):
        print(f"step {step}/2 loss {3 - step}.5")
        (folder / f"step-{step}.txt").write_text(f"weights of {step}")
    pathlib.Path("outputs").mkdir()
    pathlib.Path("outputs/summary.json").write_text("{}")
"""

WAITS_FOR_SIGTERM = """
import os, pathlib, signal, sys, time
def save(*_):
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    (folder / "step-7.tmp").write_text("last weights")
    (folder / "step-7.tmp").rename(folder / "step-7.txt")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready")
time.sleep(60)
"""

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print("ready")
time.sleep(60)
"""


GOES_ON = """
import os, pathlib
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
first = max(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.txt"))
print("goes on from", first)
if STEPS and os.environ["RANK"] == "0":
    (folder / f"step-{first + STEPS}.txt").write_text("weights")
"""


def test_two_nodes_meet_train_and_report(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    outputs = (Output(path="outputs", uri=str(tmp_path / "out")),)
    with Gang(tmp_path, TRAINS, nodes=2, checkpoints=checkpoints, outputs=outputs) as gang:
        assert gang.run() == [0, 0]

        main, other = (agent.report for agent in gang.agents)
        printed = [agent.stdout.read_text().splitlines()[0] for agent in gang.agents]
    assert [line.split(" at ")[0] for line in printed] == ["rank 0 of 2", "rank 1 of 2"]
    assert printed[0].split(" at ")[1] == printed[1].split(" at ")[1]
    assert (main.phase, main.exit_code, main.cause, main.address) == (Phase.DONE, 0, None, "127.0.99.1")
    assert (other.phase, other.exit_code, other.address) == (Phase.DONE, 0, "127.0.99.2")
    assert main.finished_at
    assert main.progress
    assert (main.progress.step, main.progress.steps, main.progress.loss) == (2, 2, 1.5)
    assert main.checkpoint
    assert (main.checkpoint.step, main.checkpoint.loss) == (2, 1.5)
    assert json.loads(Path(main.checkpoint.uri, "manifest.json").read_text())["step"] == 2
    assert main.outputs == (str(tmp_path / "out"),)
    assert (tmp_path / "out" / "summary.json").read_text() == "{}"


def test_a_second_attempt_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path / "first", TRAINS, checkpoints=checkpoints) as first:
        assert first.run() == [0]
    shows = "import os; print(sorted(os.listdir(os.environ['OCIDIST_CHECKPOINT_DIR'])))"
    with Gang(tmp_path / "second", shows, nodes=2, checkpoints=checkpoints) as second:
        assert second.run() == [0, 0]
        assert [agent.stdout.read_text() for agent in second.agents] == ["['step-2.txt']\n"] * 2
        report = second.agents[0].report
    assert report.checkpoint
    assert report.checkpoint.step == 2


def test_the_exit_code_of_the_program_comes_back(tmp_path: Path) -> None:
    with Gang(tmp_path, "raise SystemExit(3)") as gang:
        assert gang.run() == [3]
        report = gang.agents[0].report
    assert (report.exit_code, report.cause) == (3, Cause.USER)
    assert report.message == "the program ended with exit code 3"


def test_the_last_line_of_the_traceback_is_the_message(tmp_path: Path) -> None:
    with Gang(tmp_path, "print('hello')\nraise ValueError('bad weights')") as gang:
        assert gang.run() == [1]
        report = gang.agents[0].report
        said = [
            line for line in gang.agents[0].stderr.read_text().splitlines() if line.startswith("ocidist: ")
        ]
    assert report.message == "ValueError: bad weights"
    assert report.tail
    assert 'program.py", line 2' in report.tail
    (failure,) = [line for line in said if "failed" in line]
    assert failure.startswith(
        "ocidist: ERROR: node 0 of 1 failed: USER: ValueError: bad weights [exit code 1]. Remedy: "
    )


def test_a_program_killed_by_a_signal_ends_as_a_shell_would_say_it(tmp_path: Path) -> None:
    with Gang(tmp_path, "import os; os.kill(os.getpid(), 11)") as gang:
        assert gang.run() == [128 + 11]
        report = gang.agents[0].report
    assert (report.exit_code, report.cause) == (-11, Cause.USER)
    assert report.message == "the program was killed by SIGSEGV"


def test_a_failing_node_stops_the_others_in_seconds(tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1': raise ValueError('boom')\ntime.sleep(60)"
    with Gang(tmp_path, script, nodes=3) as gang:
        assert gang.run() == [143, 1, 143]
        reports = [agent.report for agent in gang.agents]
    # From the failure on: how long three agents take to start is not what this is about.
    failed_at, *ends = (reports[rank].finished_at for rank in (1, 0, 2))
    assert failed_at
    assert max(ends) - failed_at < 10
    assert [report.cause for report in reports] == [None, Cause.USER, None]
    assert reports[0].message == "node 1 ended the run (USER): ValueError: boom"
    assert reports[0].exit_code == -signal.SIGTERM


def test_a_node_that_never_comes_is_named(tmp_path: Path) -> None:
    limits = Limits(join_timeout=5.0)
    with Gang(tmp_path, "print('never')", nodes=3, limits=limits) as gang:
        codes = [agent.wait() for agent in gang.start(0, 2)]
        assert sorted(codes) in ([69, 69], [69, 143])
        messages = [agent.report.message or "" for agent in gang.agents]
        causes = {agent.report.cause for agent in gang.agents}
        printed = gang.agents[0].stdout.read_text()
    assert all("node 1 of 3 not here after" in message for message in messages)
    assert Cause.NODE in causes
    assert printed == ""


def test_nodes_start_within_a_second_of_the_last_ones_arrival(tmp_path: Path) -> None:
    """Beside what a Python takes to start here: the programs of three nodes start at once on two cores."""
    # The quickest of three, on a machine that may have others to serve.
    found = [
        _seconds_until_all_have_started(tmp_path / str(number)) - 2 * _start_of_python()
        for number in range(3)
    ]
    assert min(found) < 1.0


def _start_of_python() -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - began


def _seconds_until_all_have_started(folder: Path) -> float:
    folder.mkdir()
    with Gang(folder, "import time; print(time.time())", nodes=3) as gang:
        gang.start(0, 2)
        time.sleep(1.5)
        gang.start(1)
        assert [agent.wait() for agent in gang.agents] == [0, 0, 0]
        last = gang.agents[-1].report.started_at
        return max(float(agent.stdout.read_text()) for agent in gang.agents) - last


def test_a_hang_is_ended_and_the_stacks_are_shown(tmp_path: Path) -> None:
    script = "import time\ndef stuck_here():\n    time.sleep(60)\nprint('step 5')\nstuck_here()"
    limits = Limits(hang_timeout=4.0, stop_grace=2.0)
    with Gang(tmp_path, script, nodes=2, limits=limits) as gang:
        assert gang.run() == [75, 143]
        reports = [agent.report for agent in gang.agents]
        errors = [agent.stderr.read_text() for agent in gang.agents]
    assert [report.cause for report in reports] == [Cause.HANG, None]
    assert reports[0].message
    assert "the last step was 5" in reports[0].message
    assert all("in stuck_here" in text for text in errors)


def test_one_silent_node_is_no_hang_while_another_speaks(tmp_path: Path) -> None:
    script = """
import os, time
for _ in range(50):
    if os.environ["RANK"] == "1":
        print("still here")
    time.sleep(0.2)
"""
    with Gang(tmp_path, script, nodes=2, limits=Limits(hang_timeout=7.0)) as gang:
        assert gang.run() == [0, 0]


def test_a_node_that_hangs_when_the_main_node_is_done_is_ended_too(tmp_path: Path) -> None:
    script = "import os, time\nprint('step 5')\ntime.sleep(60 * int(os.environ['RANK']))"
    with Gang(tmp_path, script, nodes=2, limits=Limits(hang_timeout=4.0, stop_grace=2.0)) as gang:
        assert gang.run() == [0, 75]
        assert gang.agents[1].report.cause is Cause.HANG


def test_sigterm_passes_down_and_the_last_checkpoint_is_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, WAITS_FOR_SIGTERM, checkpoints=checkpoints) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        report = agent.report
    assert (report.cause, report.message) == (None, "this node was stopped by SIGTERM")
    assert report.checkpoint
    assert Path(report.checkpoint.uri, "step-7.txt").read_text() == "last weights"


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Gang(tmp_path, STUBBORN, limits=Limits(stop_grace=1.0)) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        assert processes_with(gang.name) == []


def test_sigterm_while_waiting_for_the_others_ends_the_node(tmp_path: Path) -> None:
    with Gang(tmp_path, "print('never')", nodes=2) as gang:
        (agent,) = gang.start(0)
        until(lambda: agent.waits)
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        assert agent.report.phase is Phase.DONE


def test_the_submitter_can_stop_a_run(tmp_path: Path) -> None:
    with Gang(tmp_path, "import time; print('ready'); time.sleep(60)") as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        request = StopRequest(cause=Cause.CANCELED, message="the task was cleared")
        (gang.run_dir / "stop.json").write_bytes(request.to_json())
        assert agent.wait() == 143
        assert agent.report.message == "the submitter ended the run (CANCELED): the task was cleared"


def test_killing_the_agent_leaves_no_process(tmp_path: Path) -> None:
    with Gang(tmp_path, STUBBORN) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        assert len(processes_with(gang.name)) == 4
        agent.signal(signal.SIGKILL)
        until(lambda: not processes_with(gang.name), timeout=30)


def test_killing_the_guard_leaves_no_process(tmp_path: Path) -> None:
    with Gang(tmp_path, STUBBORN) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        (guard,) = [pid for pid in processes_with("agent/guard.py") if pid in processes_with(gang.name)]
        os.kill(guard, signal.SIGKILL)
        assert agent.wait() == 137
        assert processes_with(gang.name) == []


def test_what_the_program_leaves_behind_is_ended(tmp_path: Path) -> None:
    script = STUBBORN.replace("time.sleep(60)\n", "\n")
    with Gang(tmp_path, script) as gang:
        assert gang.run() == [0]
        assert processes_with(gang.name) == []


def test_an_outage_of_the_run_directory_does_not_end_the_training(tmp_path: Path) -> None:
    script = "import pathlib, time\nprint('ready')\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)"
    with Gang(tmp_path, script) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        away = gang.run_dir.with_name("away")
        gang.run_dir.rename(away)
        gang.run_dir.write_text("no folder")
        until(lambda: "cannot be written" in agent.stderr.read_text())
        gang.run_dir.unlink()
        away.rename(gang.run_dir)
        (gang.code(0) / "go").touch()
        assert agent.wait() == 0
        assert agent.report.phase is Phase.DONE


def test_lines_on_one_stream_do_not_cut_through_a_traceback_on_the_other(tmp_path: Path) -> None:
    script = """
import sys, time
for line in ("Traceback (most recent call last):", '  File "a.py", line 1, in <module>', "ValueError: boom"):
    print(line, file=sys.stderr, flush=True)
    time.sleep(0.1)
    print("epoch 1", flush=True)
    time.sleep(0.1)
sys.exit(1)
"""
    with Gang(tmp_path, script) as gang:
        assert gang.run() == [1]
        assert gang.agents[0].report.message == "ValueError: boom"


def test_output_passes_through_unchanged_and_unthrottled(tmp_path: Path) -> None:
    with Gang(tmp_path, "for number in range(300000): print('line', number)") as gang:
        started = time.monotonic()
        assert gang.run(PYTHONUNBUFFERED="") == [0]
        assert time.monotonic() - started < 20
        assert gang.agents[0].stdout.read_text() == "".join(f"line {number}\n" for number in range(300000))


def test_arguments_reach_the_program_as_they_are(tmp_path: Path) -> None:
    args = ("--text", "a b; echo $HOME `id` 'x'", "", "*")
    with Gang(tmp_path, "import sys; print(sys.argv[1:])", args=args) as gang:
        assert gang.run() == [0]
        assert gang.agents[0].stdout.read_text() == f"{list(args)}\n"


def test_the_program_sees_its_own_variables_and_not_ours(tmp_path: Path) -> None:
    script = (
        "import os; print(os.environ['LR'], os.environ['OMP_NUM_THREADS'], 'OCIDIST_CONFIG' in os.environ)"
    )
    with Gang(tmp_path, script) as gang:
        assert gang.run(LR="0.1", OMP_NUM_THREADS="7") == [0]
        assert gang.agents[0].stdout.read_text() == "0.1 7 False\n"


def test_the_program_imports_from_its_folder_and_from_the_root_of_the_code(tmp_path: Path) -> None:
    program = Program(script="train/main.py", working_dir="train")
    with Gang(tmp_path, "NAME = 'root'", program=program) as gang:
        (gang.code(0) / "train").mkdir(parents=True)
        (gang.code(0) / "train" / "near.py").write_text("NAME = 'near'")
        script = "import os, near, program; print(near.NAME, program.NAME, os.path.basename(os.getcwd()))"
        (gang.code(0) / "train" / "main.py").write_text(script)
        assert gang.run() == [0]
        assert gang.agents[0].stdout.read_text() == "near root train\n"


def test_progress_comes_from_the_file_too(tmp_path: Path) -> None:
    script = """
import json, os
with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
    file.write(json.dumps({"step": 4, "steps": 9, "loss": 1.25}) + "\\n")
"""
    with Gang(tmp_path, script) as gang:
        assert gang.run() == [0]
        progress = gang.agents[0].report.progress
    assert progress
    assert (progress.step, progress.steps, progress.loss) == (4, 9, 1.25)


def test_inputs_are_there_before_the_program_starts(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("A")
    inputs = (
        Input(source=f"{tmp_path}/data/", target="corpus"),
        Input(source=f"{tmp_path}/data/a.txt", target="single/b.txt"),
    )
    script = "print(open('corpus/a.txt').read(), open('single/b.txt').read())"
    with Gang(tmp_path, script, inputs=inputs) as gang:
        assert gang.run() == [0]
        assert gang.agents[0].stdout.read_text() == "A A\n"


@pytest.mark.parametrize(
    "changes, code, cause, says",
    [
        pytest.param(
            {"program": Program(script="absent.py")},
            78,
            Cause.CONFIG,
            "'absent.py' is not in",
            id="no script",
        ),
        pytest.param(
            {"kind": "torchrum"}, 78, Cause.CONFIG, "did you mean 'torchrun'", id="no such launcher"
        ),
        pytest.param(
            {"inputs": (Input(source="/absent/data/", target="data"),)},
            74,
            Cause.DATA,
            "/absent/data/ cannot be fetched",
            id="no input",
        ),
        pytest.param(
            {"outputs": (Output(path="model", uri="/absent"),)},
            65,
            Cause.USER,
            "required output model",
            id="no output",
        ),
        pytest.param(
            {"checkpoints": Checkpoints(uri="safe")},
            65,
            Cause.USER,
            "wrote no checkpoint",
            id="no checkpoint",
        ),
    ],
)
def test_a_fault_is_reported_with_its_cause(tmp_path: Path, changes, code, cause, says) -> None:
    with Gang(tmp_path, "print('trained')", **changes) as gang:
        assert gang.run() == [code]
        report = gang.agents[0].report
        last = gang.agents[0].stderr.read_text().splitlines()[-1]
    assert report.cause is cause
    assert says in (report.message or "")
    assert says in last
    assert "Remedy:" in last


def test_a_run_without_a_checkpoint_says_into_which_folder_to_save(tmp_path: Path) -> None:
    with Gang(tmp_path, "print('trained')", checkpoints=Checkpoints(path="here", uri="safe")) as gang:
        gang.run()
        remedy = gang.agents[0].stderr.read_text().splitlines()[-1]
    assert re.search(r"save into the folder \$OCIDIST_CHECKPOINT_DIR \(here /.*/here\)", remedy)
    assert "checkpoints.required: false" in remedy


def test_a_fault_before_the_start_stops_the_other_nodes(tmp_path: Path) -> None:
    with Gang(tmp_path, "print('never')", nodes=2) as gang:
        gang.start(0)
        (gang.root / "node-1").mkdir()
        gang.start(1, OCIDIST_CODE_DIR=str(tmp_path))
        assert [agent.wait() for agent in gang.agents] == [143, 78]
        assert gang.agents[0].stdout.read_text() == ""


def test_a_missing_optional_output_is_no_failure(tmp_path: Path) -> None:
    outputs = (Output(path="extra", uri=str(tmp_path / "out"), required=False),)
    with Gang(tmp_path, "print('trained')", outputs=outputs) as gang:
        assert gang.run() == [0]


def test_half_a_checkpoint_of_a_killed_program_is_never_published(tmp_path: Path) -> None:
    script = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
file = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"], "step-5.bin").open("wb", buffering=0)
print("ready")
while True:
    file.write(b"x" * 100)
    time.sleep(0.1)
"""
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, script, checkpoints=checkpoints, limits=Limits(stop_grace=1.0)) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        assert agent.report.checkpoint is None
    assert newest(str(tmp_path / "safe")) is None


def test_a_node_without_configuration_says_so() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "OCIDIST_CONFIG"}
    command = [sys.executable, "-m", "airflow_provider_ocidist.agent"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "OCIDIST_CONFIG is not set" in done.stderr


def test_it_runs_from_an_artifact_with_the_code_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    ignored = shutil.ignore_patterns("__pycache__", "emulator", "backends", "plugin", "job_file")
    shutil.copytree(
        REPOSITORY / "airflow_provider_ocidist", root / "airflow_provider_ocidist", ignore=ignored
    )
    (root / "code").mkdir()
    (root / "code" / "near.py").write_text("NAME = 'near'")
    (root / "code" / "program.py").write_text(
        "import os, near\nprint(near.NAME + os.environ['RANK'] + '\\n', end='')"
    )
    (root / "node.py").write_text(NODE_SCRIPT)
    config = AgentConfig(
        run_name="artifact",
        nodes=1,
        run_dir=str(tmp_path / "run"),
        program=Program(script="program.py"),
        launcher=LauncherOptions(kind="python", processes_per_node=2),
    )
    environ = {"PATH": os.environ["PATH"], **config.to_env()}
    command = [sys.executable, "-I", str(root / "node.py")]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["near0", "near1"]


@pytest.fixture
def other_run(tmp_path: Path) -> str:
    """Return the checkpoint of another run, of step 20."""
    (tmp_path / "step-20.txt").write_text("weights")
    return publish(tmp_path / "step-20.txt", str(tmp_path / "other"), step=20).uri


def test_a_run_goes_on_from_the_checkpoint_of_another_until_it_has_one_of_its_own(
    tmp_path: Path, other_run: str
) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"), start_from=other_run)
    for attempt, (first, last) in enumerate([(20, 25), (25, 30)]):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with Gang(folder, f"STEPS = 5\n{GOES_ON}", nodes=2, checkpoints=checkpoints) as gang:
            assert gang.run() == [0, 0], gang.agents[0].stderr.read_text()
            assert f"goes on from {first}" in gang.agents[1].stdout.read_text()
            assert gang.agents[0].report.checkpoint.step == last


def test_the_checkpoint_that_a_run_started_from_does_not_pass_for_its_own(
    tmp_path: Path, other_run: str
) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"), start_from=other_run)
    with Gang(tmp_path, f"STEPS = 0\n{GOES_ON}", nodes=1, checkpoints=checkpoints) as gang:
        assert gang.run() != [0]
        assert "wrote no checkpoint" in gang.agents[0].report.message
