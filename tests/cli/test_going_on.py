"""How a training goes on after a run of the command line that was ended, or failed; on this machine, without torch."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.cli import going_on, note
from airflow_provider_ocidist.cli.run import add_run
from airflow_provider_ocidist.errors import BackendError, Cause
from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.report import NodeReport, Phase
from airflow_provider_ocidist.model.run import NodeState, NodeStatus, RunKey, RunRecord, RunRef, RunStatus
from tests.canaries import Canaries, arguments, environment
from tests.drilling import a_file, drill_folder

REF = RunRef(
    backend="local",
    key=RunKey(dag_id="d", run_id="r", task_id="t"),
    nodes=1,
    job_id="job",
    run_ids=("run-0",),
    run_dir="/work",
    submitted_at=0.0,
)
FIRST = "for step in range(done + 1, 61):"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with drill_folder(tmp_path) as path:
        yield path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", *arguments]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, **streams)


def ocidist(folder: Path, *arguments: str, code: int = 0) -> str:
    process = start(folder, *arguments)
    out, err = process.communicate(timeout=150)
    assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
    return out + err


def command_in(shown: str) -> list[str]:
    """Return the words of the command that goes on."""
    (found,) = [line.partition("To go on from it: ")[2] for line in shown.splitlines() if "To go on" in line]
    return shlex.split(found)


def test_a_run_that_is_ended_says_how_to_go_on_and_the_command_does(folder: Path) -> None:
    training = folder / "train.py"
    begins = 'print(f"begins at {done + 1}", flush=True)\n'
    ends = '    if os.path.exists(os.environ["LAST"]) and step > done + 10:\n        break\n'
    loop = FIRST.replace("61", "6001")
    training.write_text(training.read_text().replace(FIRST, f"{begins}{loop}\n{ends}"))
    a_file(folder, nodes=1, env={"LAST": str(folder / "last")})
    secret = f"hunter{random.randrange(10**9)}"
    given = ("--set", f"env.API_TOKEN={secret}", "--set", "limits.max_runtime=2h")
    process = start(folder, "run", "job.yaml", "--wait", "--json", "--interval", "0.2", *given)
    assert process.stdout is not None
    events = map(json.loads, process.stdout)
    assert any(event["event"] == "status" and event["checkpoint_uri"] for event in events)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGTERM
    assert "\ncancelled\nthe training stands at step " in f"\n{err}"
    assert secret not in out + err
    words = command_in(err)
    uri = words[-1].removeprefix("checkpoints.start_from=")
    kept = ["--set", "env.API_TOKEN=...", "--set", "limits.max_runtime=2h"]
    assert words == [
        *("ocidist", "run", "job.yaml", "--wait", *kept),
        *("--info", "next.yaml", "--set", f"checkpoints.start_from={uri}"),
    ]

    refused = ocidist(folder, "run", "job.yaml", "--wait", *given, code=2)
    assert "info.yaml belongs to an earlier run" in refused
    assert command_in(refused) == words
    (folder / "other.json").write_text((folder / "job.yaml").read_text().replace("drilled", "another"))
    assert "To go on" not in ocidist(folder, "run", "other.json", code=2), "it is the run of another job"

    assert "CANCELED: the run was cancelled\nRemedy: run it again\n" in ocidist(folder, "watch", code=3)
    (folder / "last").touch()
    went_on = ocidist(folder, *words[1:])
    (step,) = [int(line.rpartition(" ")[2]) for line in went_on.splitlines() if "begins at" in line]
    assert step > 10
    assert step % 10 == 1, "of a checkpoint, which every tenth step makes"
    assert "succeeded" in went_on


def test_a_training_that_fails_has_a_remedy_and_goes_on_from_its_checkpoint(folder: Path) -> None:
    training = folder / "train.py"
    fails = "    if step == 40:\n        time.sleep(2)\n        sys.exit(3)\n"
    training.write_text(f"import sys\n{training.read_text()}".replace(FIRST, f"{FIRST}\n{fails}"))
    a_file(folder, nodes=1)
    shown = ocidist(folder, "run", "job.yaml", "--wait", "--interval", "0.2", code=3).splitlines()
    (at,) = [place for place, line in enumerate(shown) if line.startswith("USER: ")]
    assert shown[at].count("exit code 3") == 1
    assert shown[at + 1].startswith("Remedy: ")
    assert command_in(shown[at + 2])[-1].startswith("checkpoints.start_from=")


def options_of(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_run(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("seed", [*range(20), None])
def test_the_command_shows_no_secret_of_the_one_before(seed: int | None, tmp_path: Path) -> None:
    seed = random.randrange(10**9) if seed is None else seed
    print(f"seed {seed}")
    rng = random.Random(seed)
    canaries = Canaries(rng)
    plain = ["--set", f"limits.max_runtime={rng.randint(1, 9)}h", "--field", "compartment_id=ocid1.x.oc1..a"]
    plain += ["--set", 'program.args=["--lr", "0.1"]']
    secret = [
        *(word for name, value in environment(canaries).items() for word in ("--set", f"env.{name}={value}")),
        *("--set", f"env={json.dumps(environment(canaries))}"),
        *("--set", f"program.args={json.dumps(arguments(canaries))}"),
        *("--set", f"program.source=https://me:{canaries.secret('source')}@git.example.com/x.git"),
        *("--field", f"client_secret={canaries.secret('field')}"),
        *("--field", f"key_content=-----BEGIN PRIVATE KEY-----\n{canaries.secret('key')}\n-----END-----"),
        *("--field", f"kube_config={json.dumps({'users': [{'user': {'token': canaries.secret('kube')}}]})}"),
        *("--field", f"kube_config=users:\n- user:\n    token: {canaries.secret('yaml')}\n"),
    ]
    pairs = [(given[at], given[at + 1]) for given in (plain, secret) for at in range(0, len(given), 2)]
    rng.shuffle(pairs)
    file = f"https://me:{canaries.secret('file')}@example.com/job.yaml?sig={canaries.secret('query')}"
    options = options_of(
        file, *(word for pair in pairs for word in pair), "--info", str(tmp_path / "info.yaml")
    )
    shown = going_on.command(options, "/work/c/step-8")
    assert canaries.leaked(shown) == []
    words = shlex.split(shown)
    assert {words[at + 1] for at, word in enumerate(words) if word in ("--set", "--field")} == {
        *(value if value in plain else f"{value.partition('=')[0]}=..." for _, value in pairs),
        "checkpoints.start_from=/work/c/step-8",
    }


def test_the_next_note_is_one_that_does_not_exist(tmp_path: Path) -> None:
    options = options_of("job.yaml", "--info", str(tmp_path / "info.yaml"))
    for name in ("next.yaml", "next-2.yaml", "next-3.yaml"):
        words = shlex.split(going_on.command(options, "/c"))
        assert words[words.index("--info") + 1] == str(tmp_path / name)
        (tmp_path / name).touch()


def a_status(state: NodeState, cause: Cause | None = None, **changes: Any) -> RunStatus:
    report = NodeReport(
        rank=0,
        phase=Phase.DONE if cause else Phase.TRAINING,
        address="",
        started_at=0.0,
        heartbeat_at=0.0,
        checkpoint=CheckpointRef(uri="/c/step-8", step=8),
        cause=cause,
        message="boom" if cause else None,
    )
    return RunStatus(nodes=(NodeStatus(rank=0, run_id="run-0", state=state, report=report),), **changes)


def test_of_a_checkpoint_that_cannot_be_used_or_may_not_be_the_last_it_says_so() -> None:
    options = options_of("job.yaml")
    assert "step 8. To go on" in str(going_on.line(options, a_status(NodeState.CANCELED)))
    assert "step 8 (its nodes have not ended, and may save a later one). To go on" in str(
        going_on.line(options, a_status(NodeState.RUNNING))
    )
    damaged = a_status(NodeState.CANCELED, checkpoint_problem="step-8 is damaged")
    assert "To go on" not in str(going_on.line(options, damaged))


class Answers:
    """A backend that answers as a test sets it: an error, a state, or only once it is released."""

    def __init__(self, *answers: Exception | RunStatus) -> None:
        self.answers = list(answers)
        self.released = threading.Event()

    def status(self, _: object) -> list[RunStatus]:
        if not self.answers:
            self.released.wait()
            return []
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [answer]


def test_the_look_waits_for_the_end_of_the_nodes_since_they_may_still_save() -> None:
    ended = a_status(NodeState.CANCELED)
    backend: Any = Answers(BackendError("busy"), a_status(NodeState.RUNNING), ended)
    assert going_on.state_in_time(lambda: backend, REF, awaits_end=True) is ended


def test_a_service_that_does_not_answer_holds_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(going_on, "LIMIT", 0.2)
    backend: Any = Answers()
    running = a_status(NodeState.RUNNING)
    later: Any = Answers(running)
    try:
        assert going_on.state_in_time(lambda: backend, REF, awaits_end=True) is None
        assert going_on.state_in_time(lambda: later, REF, awaits_end=True) is running
    finally:
        backend.released.set()
        later.released.set()


def test_a_look_without_an_answer_does_not_outlive_its_command() -> None:
    program = (
        "import threading\n"
        "from types import SimpleNamespace\n"
        "from airflow_provider_ocidist.cli import going_on\n"
        "going_on.LIMIT = 0.2\n"
        "silent = SimpleNamespace(status=lambda refs: threading.Event().wait())\n"
        "print(going_on.state_in_time(lambda: silent, None, awaits_end=True))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_a_second_ctrl_c_ends_only_the_look() -> None:
    backend: Any = Answers()
    began = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    began.start()
    try:
        assert going_on.state_in_time(lambda: backend, REF, awaits_end=True) is None
    finally:
        backend.released.set()


@pytest.mark.parametrize(
    "status, is_noted",
    [
        (None, True),
        (a_status(NodeState.RUNNING), True),
        (a_status(NodeState.CANCELED), True),
        (a_status(NodeState.RUNNING, Cause.USER), False),
        (a_status(NodeState.CANCELED, Cause.USER), False),
        (a_status(NodeState.SUCCEEDED), False),
    ],
    ids=["unknown", "ending", "cancelled", "failed before", "failed", "succeeded"],
)
def test_a_cancel_is_noted_unless_the_run_had_failed_or_ended_by_itself(
    status: RunStatus | None, is_noted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "info.yaml"
    note.write(path, RunRecord(ref=REF))
    note.note_cancel(path, status, time.time())
    record = note.noted(path)
    assert record is not None
    assert (record.ending is not None) == is_noted
    note.note_cancel(tmp_path / "no" / "note.yaml", status, 0.0)
