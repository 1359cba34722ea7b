"""The commands in docs/command-line.md, as they stand there, against the emulator."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.emulator_process import Access

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
BASH = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.torch
def test_the_documented_walk_ends_with_a_checkpoint(tmp_path: Path, emulator: Access) -> None:
    pytest.importorskip("argcomplete")
    environ = {**os.environ, **emulator.airflow_env()}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    script = "set -eu\n" + "".join(BASH.findall(DOCUMENT.read_text()))
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for part in (
        "job.yaml: ok (spirals: 2 nodes, torchrun, on oci_data_science)",
        "topology multi_node",
        "0 failed",
        "step 200/200 loss",
        "succeeded; newest checkpoint: oci://",
        "otherJobRunIds:",
        "no difference",
        "0 damaged",
        "would be deleted; --yes deletes",
        "model.safetensors",
    ):
        assert part in done.stdout
    right = re.search(r"([\d.]+)% of the points are classified correctly", done.stdout)
    assert right is not None
    assert float(right[1]) > 80
