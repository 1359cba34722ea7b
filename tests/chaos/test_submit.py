"""A worker that dies at any instant of a submission, several times in a row: one gang all the same. No Airflow here.

`CHAOS_SEED` and `CHAOS_SUBMISSIONS` make another or a longer campaign.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.model import codec
from airflow_provider_ocidist.model.run import RunKey
from scripts.emulator_process import EmulatorProcess
from tests.chaos.books import Books
from tests.training_jobs import BACKEND, PROGRAMS

SUBMISSIONS = int(os.environ.get("CHAOS_SUBMISSIONS", "12"))
SEED = int(os.environ.get("CHAOS_SEED") or random.randrange(10_000))
KILLS_AT_MOST = 4
JOB = {
    "name": "killed",
    "nodes": 3,
    "program": {"source": str(PROGRAMS), "script": "steps.py"},
    "launcher": {"kind": "python"},
    "checkpoints": {},
    "backend": BACKEND,
}


@pytest.fixture
def submitter() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.chaos.submitter"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.stdin.close()
    process.wait(timeout=30)
    process.stdout.close()


def send(submitter: subprocess.Popen[str], order: dict[str, Any]) -> dict[str, Any]:
    submitter.stdin.write(json.dumps(order) + "\n")
    submitter.stdin.flush()
    return json.loads(submitter.stdout.readline())


@pytest.mark.timeout(120 + 60 * SUBMISSIONS)
def test_a_worker_that_dies_at_any_instant_of_its_submission_leaves_one_gang(
    submitter: subprocess.Popen[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED)
    kills, phases = 0, dict.fromkeys(("no job", "job only", "some runs", "all runs"), 0)
    with EmulatorProcess(tmp_path / "emulator") as access:
        books = Books(access)
        books.slow_down(0.3)
        books.nodes_never_start()
        for number in range(SUBMISSIONS):
            key = RunKey(dag_id="dag", run_id=uuid.uuid4().hex, task_id="train", generation=2)
            order = {
                "fields": access.connection_fields(),
                "job": JOB,
                "key": codec.encode(key),
                "notes": str(tmp_path / f"{number}.json") if chance.random() < 0.5 else None,
            }
            seconds = send(
                submitter, {**order, "key": codec.encode(_twin(key)), "number": 1, "kill_after": None}
            )
            for attempt in range(1, chance.randint(1, KILLS_AT_MOST) + 1):
                answer = send(
                    submitter,
                    {
                        **order,
                        "number": attempt,
                        "kill_after": chance.uniform(0.02, 1.1) * seconds["seconds"],
                    },
                )
                kills += "killed" in answer
                phases[_phase(books, key)] += "killed" in answer
            last = send(submitter, {**order, "number": KILLS_AT_MOST + 1, "kill_after": None})
            # What was in flight at the last kill has had its effect by then.
            time.sleep(1)
            gangs = books.gangs(key.task_digest)
            assert "job_id" in last, (SEED, number, last)
            assert [(gang.job_id, gang.ranks) for gang in gangs] == [(last["job_id"], ("0", "1", "2"))], (
                SEED,
                number,
                gangs,
            )
        assert books.untagged() == []
    with capsys.disabled():
        print(
            f"\nCHAOS_SEED={SEED}: {kills} kills in {SUBMISSIONS} submissions, after which there was: {phases}"
        )
    assert kills


def _twin(key: RunKey) -> RunKey:
    """Return another task's key: its submission, which nothing disturbs, shows how long one takes now."""
    return RunKey(dag_id=key.dag_id, run_id=key.run_id, task_id="twin", generation=key.generation)


def _phase(books: Books, key: RunKey) -> str:
    gangs = books.gangs(key.task_digest)
    runs = max((len(gang.runs) for gang in gangs), default=0)
    if not gangs:
        return "no job"
    return {0: "job only", JOB["nodes"]: "all runs"}.get(runs, "some runs")
