"""`ocidist drill` on this machine, with a training that needs no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.agent.gangs import processes_with

TRAINING = """
import json, os, pathlib, time
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
newest = max(folder.glob("step-*.txt"), default=None)
done, total = json.loads(newest.read_text())[:2] if newest else (0, 0)
for step in range(done + 1, 61):
    total = (total * 31 + step) % 1_000_003
    time.sleep(0.05)
    if os.environ["OCIDIST_NODE_RANK"] != "0":
        continue
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as progress:
        progress.write(json.dumps({"step": step, "steps": 60}) + "\\n")
    if step % 10 == 0:
        draft = folder / ".draft"
        with draft.open("w") as file:
            file.write(json.dumps([step, total]))
            file.flush()
            time.sleep(0.1)
        draft.rename(folder / f"step-{step:03}.txt")
"""


@contextmanager
def drill_folder(path: Path) -> Iterator[Path]:
    """Give a folder with the training, and see that no process of it is left."""
    (path / "train.py").write_text(TRAINING)
    yield path
    deadline = time.monotonic() + 60
    while (left := processes_with(str(path))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, 9)
    assert not left


def a_file(folder: Path, **changes: Any) -> Path:
    job = {
        "name": "drilled",
        "nodes": 2,
        "program": {"source": ".", "script": "train.py"},
        "launcher": {"kind": "python"},
        "checkpoints": {},
        "work_dir": str(folder / "work"),
        "limits": {"lost_timeout": "10s", "hang_timeout": "10s", "join_timeout": "60s", "stop_grace": "2s"},
        "backend": {"kind": "local"},
        **changes,
    }
    path = folder / "job.yaml"
    path.write_text(json.dumps(job))
    return path


def drill(path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command; `env` has the connection, if there is one."""
    command = [sys.executable, "-m", "airflow_provider_ocidist.cli", "drill", str(path), *arguments]
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
        cwd=path.parent,
        env={**os.environ, **env},
    )


def drilled(path: Path, *faults: str, options: Sequence[str] = (), **env: str) -> list[dict[str, Any]]:
    named = [part for fault in faults for part in ("--fault", fault)]
    done = drill(path, "--json", *named, *options, **env)
    assert done.stdout, done.stderr[-3000:]
    results: list[dict[str, Any]] = json.loads(done.stdout)
    print(done.stderr[-6000:])
    assert [each["fault"] for each in results] == [None, *faults]
    assert done.returncode == 0, results
    return results
