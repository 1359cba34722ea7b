"""The example GPT, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parents[2] / "dags_examples" / "train" / "gpt.py"
TINY = (
    "--width",
    "32",
    "--layers",
    "1",
    "--heads",
    "2",
    "--block-size",
    "16",
    "--batch-size",
    "8",
    "--sample",
    "20",
)


def gpt(
    folder: Path,
    *args: str,
    text: str = "the cat sat on the mat. " * 60,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    (folder / "book.txt").write_text(text)
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--data", "book.txt", *TINY, *args],
        cwd=folder,
        env={**clean, "OMP_NUM_THREADS": "1", **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def summary(folder: Path) -> dict[str, float]:
    return json.loads((folder / "outputs" / "summary.json").read_text())


def test_it_learns_goes_on_and_reports(tmp_path: Path) -> None:
    first = gpt(tmp_path, "--steps", "30", "--checkpoint-every", "10")
    assert first.returncode == 0, first.stderr
    assert "step 30/30 loss " in first.stdout
    assert summary(tmp_path)["val_loss_last"] < summary(tmp_path)["val_loss_first"] - 0.5
    assert len((tmp_path / "outputs" / "sample.txt").read_text()) >= 20
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000010.pt", "step-000020.pt", "step-000030.pt"]

    second = gpt(tmp_path, "--steps", "40")
    assert "from step 30" in second.stdout
    assert summary(tmp_path)["resumed_from"] == 30
    assert (tmp_path / "checkpoints" / "step-000040.pt").exists()
    steps = [
        json.loads(line)["step"] for line in (tmp_path / "outputs" / "metrics.jsonl").read_text().splitlines()
    ]
    assert steps == [1, 10, 20, 30, 31, 40]


def test_it_goes_on_from_the_greatest_step_and_says_where_nothing_was_left(tmp_path: Path) -> None:
    progress, saved = tmp_path / "progress.jsonl", tmp_path / "checkpoints"
    environ = {"OCIDIST_PROGRESS_FILE": str(progress)}
    assert gpt(tmp_path, "--steps", "3", environ=environ).returncode == 0
    assert not progress.exists()
    (saved / "step-000003.pt").rename(saved / "step-1000000.pt")
    for name in ("step-999999.pt", "step-2000000.tmp", "step-3000000.pt.tmp"):
        (saved / name).write_bytes(b"no checkpoint")
    again = gpt(tmp_path, "--steps", "3", environ=environ)
    assert again.returncode == 0, again.stderr
    assert "from step 3" in again.stdout
    assert progress.read_text() == '{"complete": true}\n'


@pytest.mark.parametrize("args, text", [(("--steps", "0"), "a b c " * 500), (("--steps", "5"), "short")])
def test_it_fails_when_there_is_nothing_to_train(tmp_path: Path, args, text) -> None:
    done = gpt(tmp_path, *args, text=text)
    assert done.returncode != 0
    assert "nothing to train" in done.stderr
