"""`ocidist run --wait` goes on after the loss of a machine, as a task in Airflow does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_ocidist.model.drill import DRILL_VARIABLE
from airflow_provider_ocidist.model.run import RunRecord
from tests.drilling import a_file, drill_folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with drill_folder(tmp_path) as path:
        yield path


def trained(
    folder: Path, rank: int, step: int = 50, **changes: Any
) -> tuple[subprocess.CompletedProcess[str], RunRecord]:
    """Run a training that loses this node; return how that ended, and what is noted of it."""
    path = a_file(folder, env={DRILL_VARIABLE: f"kill-node@training:node={rank},step={step}"}, **changes)
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "run", str(path), "--wait"]
    done = subprocess.run(
        [*command, "--interval", "0.2"], check=False, capture_output=True, text=True, timeout=300, cwd=folder
    )
    note = yaml.safe_load((folder / "info.yaml").read_text())
    return done, RunRecord.from_json(note["record"])


def test_one_of_two_is_replaced_and_the_note_names_the_new_one(folder: Path) -> None:
    done, record = trained(folder, 1, 10, restarts={"node": 1})
    assert done.returncode == 0, done.stderr
    assert "takes its place" in done.stderr
    assert [each.rank for each in record.ref.replaced] == [1]
    assert record.ref.run_ids[1].endswith("-1.1")


def test_a_gang_of_which_no_node_is_left_is_made_anew(folder: Path) -> None:
    done, record = trained(folder, 0, nodes=1, restarts={"node": 1})
    assert done.returncode == 0, done.stderr
    assert "creating another gang" in done.stderr
    assert record.ref.key.attempt == 2


def test_a_failure_that_a_lost_gang_has_met_ends_the_next_one_at_the_same_step(folder: Path) -> None:
    fails = 'if step == 5 and os.environ["OCIDIST_RESTARTS"] == "0":\n        raise ValueError("a bad batch")\n    '
    saves = "if step % 10 == 0:"
    training = folder / "train.py"
    training.write_text(training.read_text().replace(saves, fails + saves))
    done, record = trained(folder, 0, 8, nodes=1, restarts={"node": 1, "program": 5})
    assert done.returncode == 3, done.stderr
    assert "creating another gang" in done.stderr
    assert "crash loop: USER at step 5 for the second time" in done.stderr
    assert record.ref.key.attempt == 2


def test_without_a_budget_the_run_fails(folder: Path) -> None:
    done, record = trained(folder, 0, nodes=1)
    assert done.returncode == 3
    assert "NODE" in done.stderr
    assert record.ref.key.attempt == 1
