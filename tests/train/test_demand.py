"""The forecast of the example DAGs, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "dags_examples" / "train" / "demand.py"


def demand(folder: Path, epochs: int) -> str:
    """Train up to an epoch; return what it prints."""
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--data", ".", "--epochs", str(epochs)],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1", "OCIDIST_PROGRESS_FILE": str(folder / "progress.jsonl")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_goes_on_from_the_greatest_epoch_and_says_where_nothing_was_left(tmp_path: Path) -> None:
    progress, saved = tmp_path / "progress.jsonl", tmp_path / "checkpoints"
    hours = [f"2026-01-01T{hour:02d}:00,{hour / 2},{1000 + hour}" for hour in range(24)]
    (tmp_path / "hours.csv").write_text("\n".join(["hour,temperature,demand", *hours]))
    demand(tmp_path, 3)
    assert not progress.exists()
    (saved / "epoch-000003.pt").rename(saved / "epoch-1000000.pt")
    for name in ("epoch-999999.pt", "epoch-2000000.tmp", "epoch-3000000.pt.tmp"):
        (saved / name).write_bytes(b"no checkpoint")
    assert "from epoch 3" in demand(tmp_path, 3)
    assert progress.read_text() == '{"complete": true}\n'
