"""Gangs of real agents with real torchrun."""

from __future__ import annotations

import json
import pydoc_data.topics
import signal
from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Checkpoints, LauncherOptions, Limits, Output
from airflow_provider_ocidist.model.report import Phase
from tests.agent.gangs import REPOSITORY, Gang, lines_of, processes_with, until

pytestmark = [pytest.mark.torch, pytest.mark.slow]

GPT = (REPOSITORY / "dags_examples" / "train" / "gpt.py").read_text()
TINY = (
    "--data",
    pydoc_data.topics.__file__,
    "--steps",
    "20",
    "--width",
    "32",
    "--layers",
    "1",
    "--heads",
    "2",
)

FAILS_AMID_COLLECTIVES = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1000):
    dist.all_reduce(torch.ones(1))
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("boom")
    time.sleep(0.05)
"""


def test_two_nodes_train_a_gpt_to_a_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    outputs = (Output(path="outputs", uri=str(tmp_path / "out")),)
    with Gang(
        tmp_path, GPT, nodes=2, kind="torchrun", args=TINY, checkpoints=checkpoints, outputs=outputs
    ) as gang:
        assert gang.run() == [0, 0]
        report = gang.agents[0].report
    assert (report.phase, report.exit_code) == (Phase.DONE, 0)
    assert report.progress
    assert (report.progress.step, report.progress.steps) == (20, 20)
    assert report.checkpoint
    assert report.checkpoint.step == 20
    assert Path(report.checkpoint.uri, "step-000020.pt").stat().st_size > 10_000
    losses = [line["loss"] for line in lines_of(tmp_path / "out" / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 0.3
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["processes"] == 2


WRITES_A_CHECKPOINT = """
import os, pathlib, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    (folder / "step-1.bin").write_bytes(b"weights")
dist.barrier()
dist.destroy_process_group()
"""


def test_the_checkpoint_is_found_where_c10d_has_put_global_rank_0(tmp_path: Path) -> None:
    checkpoints = Checkpoints(uri=str(tmp_path / "safe"))
    with Gang(tmp_path, WRITES_A_CHECKPOINT, nodes=2, kind="torchrun", checkpoints=checkpoints) as gang:
        gang.start(0, FQDN="127.0.99.9")
        gang.start(1, FQDN="127.0.99.10")
        assert [agent.wait() for agent in gang.agents] == [0, 0]
        first, second = (agent.report for agent in gang.agents)
    assert (first.main, second.main) == (False, True)
    assert second.checkpoint
    assert second.checkpoint.step == 1
    assert first.checkpoint is None


def test_the_node_that_failed_first_is_named_by_all(tmp_path: Path) -> None:
    with Gang(tmp_path, FAILS_AMID_COLLECTIVES, nodes=2, kind="torchrun") as gang:
        gang.start()
        until(lambda: "ValueError: boom" in gang.agents[1].stderr.read_text())
        first, second = (agent.wait() for agent in gang.agents)
        # 134: gloo's threads are torn down without an order, and now and then abort the process that has raised.
        assert (first, second in (1, 134)) == (143, True), second
        echo, culprit = (agent.report for agent in gang.agents)
    assert (culprit.cause, culprit.message) == (Cause.USER, "ValueError: boom (rank 1)")
    assert culprit.exit_code == (1 if second == 1 else -signal.SIGABRT)
    assert culprit.tail
    assert "ValueError: boom" in culprit.tail
    assert "ChildFailedError" not in culprit.tail
    assert (echo.cause, echo.message) == (None, "node 1 ended the run (USER): ValueError: boom (rank 1)")


def test_exit_code_and_signal_of_the_program_come_through_torchrun(tmp_path: Path) -> None:
    script = "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(60)"
    launcher = LauncherOptions(kind="torchrun", processes_per_node=2)
    with Gang(tmp_path, script, launcher=launcher) as gang:
        assert gang.run() == [3]
        report = gang.agents[0].report
    assert report.exit_code == 3
    assert report.message == "the program ended with exit code 3 (rank 1)"


def test_killing_the_agent_ends_torchrun_and_its_workers(tmp_path: Path) -> None:
    script = "import time; print('ready'); time.sleep(60)"
    with Gang(tmp_path, script, kind="torchrun") as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGKILL)
        assert until(lambda: not processes_with(gang.name), timeout=30)


def test_sigterm_reaches_the_workers_of_torchrun(tmp_path: Path) -> None:
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved"), sys.exit(0)))
print("ready")
time.sleep(60)
"""
    with Gang(tmp_path, script, kind="torchrun", limits=Limits(stop_grace=15.0)) as gang:
        (agent,) = gang.start()
        agent.prints("ready")
        agent.signal(signal.SIGTERM)
        assert agent.wait() == 143
        assert "saved" in agent.stdout.read_text()
