"""`ocidist drill` cuts a node's network: nodes of torchrun on this machine, each in a network of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.local.networks import why_none
from tests.drilling import drill_folder

pytestmark = [pytest.mark.torch, pytest.mark.slow]

JOB = Path(__file__).parents[2] / "dags_examples" / "jobs" / "drill.yaml"
BRIEFLY = "cut-network@training:node=1,step=60,seconds=5"
FOR_LONGER = "cut-network@training:node=1,step=60,seconds=25"
SAVING_MAIN_NODE = "cut-network@saving:node=0,step=60,seconds=25"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with drill_folder(tmp_path) as path:
        yield path


def test_a_network_that_is_cut_for_a_while_changes_no_weight(folder: Path) -> None:
    if reason := why_none():
        pytest.skip(reason)
    faults = [BRIEFLY, FOR_LONGER, SAVING_MAIN_NODE]
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "drill", str(JOB), "--json"]
    command += [part for fault in faults for part in ("--fault", fault)]
    command += ["--parallel", "3", "--set", f"work_dir={folder / 'work'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    _, briefly, for_longer, main_node = results = json.loads(done.stdout)
    lag = max(each["lag_steps"] for each in results)
    assert "cutting node 1 off from the network, at eth0 for 5 s" in done.stderr
    assert (briefly["lost_steps"], briefly["launches"]) == (0, 1)
    for each in (for_longer, main_node):
        assert each["as_undisturbed"]
        assert each["launches"] > 1
        # A save every 40 steps, and what was trained while one was on its way; every tenth step is reported.
        assert each["lost_steps"] <= 40 + lag + 9
