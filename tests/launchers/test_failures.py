"""Real launchers whose program fails: what they print is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions
from tests.agent.gangs import Gang
from tests.launchers.nodes import PYTHON

pytestmark = [pytest.mark.launchers, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(600)]

FAILS = """
import os, sys, time
if os.environ["RANK"] == "1":
    {how}
time.sleep(120)
"""


def test_the_exit_code_comes_through_deepspeed(tmp_path: Path) -> None:
    launcher = LauncherOptions(kind="deepspeed", processes_per_node=2)
    with Gang(tmp_path, FAILS.format(how="sys.exit(3)"), python=PYTHON, launcher=launcher) as gang:
        assert gang.run() == [3]
        report = gang.agents[0].report
    assert (report.exit_code, report.cause) == (3, Cause.USER)
    assert report.message == "the program ended with exit code 3"
    assert report.tail == ""


def test_rank_and_exit_code_come_through_accelerate(tmp_path: Path) -> None:
    launcher = LauncherOptions(kind="accelerate", processes_per_node=2)
    with Gang(tmp_path, FAILS.format(how="sys.exit(3)"), python=PYTHON, launcher=launcher) as gang:
        assert gang.run() == [3]
        assert gang.agents[0].report.message == "the program ended with exit code 3 (rank 1)"


def test_a_single_process_of_accelerate_fails_with_its_own_words(tmp_path: Path) -> None:
    launcher = LauncherOptions(kind="accelerate", processes_per_node=1)
    with Gang(tmp_path, "raise ValueError('boom')", python=PYTHON, launcher=launcher) as gang:
        assert gang.run() == [1]
        report = gang.agents[0].report
    assert report.message == "ValueError: boom"
    assert "CalledProcessError" not in (report.tail or "")
