"""What the training prints, on its way through the agent."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.train import supervise
from airflow_provider_ocidist.agent.train.program_output import ProgramOutput


class Pumped:
    """A pipe through which the test speaks as the training does."""

    def __init__(self, folder: Path) -> None:
        self.output = ProgramOutput(ProgressMeter(folder / "meter"))
        source, self.end = os.pipe()
        self.passed_on = folder / "passed-on"
        self.sink = os.open(self.passed_on, os.O_CREAT | os.O_WRONLY)
        self.thread = threading.Thread(target=self.output.pump, args=(source, self.sink))
        self.thread.start()

    def say(self, *pieces: str) -> None:
        for piece in pieces:
            os.write(self.end, piece.encode())

    def close(self) -> str:
        os.close(self.end)
        self.thread.join(10)
        os.close(self.sink)
        return self.passed_on.read_bytes().decode()


def test_a_progress_bar_is_progress_and_no_part_of_the_end(tmp_path: Path) -> None:
    pumped = Pumped(tmp_path)
    said = ["start\n", *(f"\r{step}%|#  | {step}/100 [00:01<00:09, 5.00it/s]" for step in range(1, 51))]
    pumped.say(*said)
    pumped.say("\n", "Traceback ...\n")
    assert pumped.close() == "".join([*said, "\n", "Traceback ...\n"])
    assert pumped.output.end == "start\n50%|#  | 50/100 [00:01<00:09, 5.00it/s]\nTraceback ...\n"
    progress = pumped.output.meter.progress
    assert (progress.step, progress.steps, progress.throughput) == (50, 100, 5.0)


def test_a_bar_without_an_end_is_a_sign_of_life(tmp_path: Path) -> None:
    pumped = Pumped(tmp_path)
    before = pumped.output.meter.progress.updated_at
    pumped.say("\r  1%|  | 1/100 [00:01<00:09, 5.00it/s]\r  2%|  | 2/100 [00:01<00:09, 5.00it/s]")
    while pumped.output.meter.progress.updated_at == before:
        pass
    pumped.close()
    assert pumped.output.meter.progress.step == 2


@pytest.mark.parametrize(
    "files, kills",
    [
        ({"events": "low 0\noom 3\noom_kill 2\n", "vmstat": "oom_kill 9\n"}, 2),
        ({"vmstat": "nr_free_pages 1\noom_kill 9\n"}, 9),
        ({}, None),
    ],
    ids=["container", "machine", "unknown"],
)
def test_kills_for_want_of_memory_are_those_of_our_own_container(
    tmp_path: Path, monkeypatch, files: dict[str, str], kills: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(supervise, "OOM_COUNTERS", (tmp_path / "events", tmp_path / "vmstat"))
    assert supervise._count_oom_kills() == kills
