"""Where the platform ends all nodes with the first: who is done waits for those that are not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_provider_ocidist.model.report import Phase
from tests.agent.gangs import Gang, until

WAITS = """
import os, pathlib, sys, time
rank, go = os.environ["RANK"], pathlib.Path(os.environ["GO"])
while rank != {first!r} and not go.exists():
    time.sleep(0.05)
sys.exit({code} if rank == {first!r} else 0)
"""


@pytest.mark.parametrize("ends_others", [True, False])
def test_node_0_leaves_last_where_its_success_ends_the_others(tmp_path: Path, ends_others: bool) -> None:
    go = tmp_path / "go"
    with Gang(tmp_path, WAITS.format(first="0", code=0), nodes=2, ends_others=ends_others) as gang:
        main, other = gang.start(GO=str(go))
        until(lambda: (gang.run_dir / "nodes" / "0.json").exists() and main.report.phase is Phase.DONE)
        if ends_others:
            time.sleep(1.5)
            assert main.process.poll() is None
        else:
            assert main.wait() == 0
            assert other.process.poll() is None
        go.touch()
        assert [main.wait(), other.wait()] == [0, 0]
