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
import json, os, pathlib, socket, time

rank, others = int(os.environ["OCIDIST_NODE_RANK"]), []
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

# As ranks of torch, all begin together, and none ends before the main one: on a busy machine one node starts
# seconds after the other, which would have ended before its fault strikes.
if rank == 0:
    with socket.create_server(place) as server:
        others = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
else:
    while True:
        try:
            main = socket.create_connection(place, 1)
            break
        except OSError:
            time.sleep(0.05)
    main.settimeout(None)

folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
newest = max(folder.glob("step-*.txt"), default=None)
done, total = json.loads(newest.read_text())[:2] if newest else (0, 0)
for step in range(done + 1, 61):
    total = (total * 31 + step) % 1_000_003
    time.sleep(0.05)
    if rank != 0:
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
for each in others:
    each.sendall(b"done")
# A rank whose main rank is lost waits until its node ends it.
while rank != 0 and main.recv(4) != b"done":
    time.sleep(1)
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
    last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    assert done.stdout, f"exit code {done.returncode} without a result: {last}\n{done.stderr[-6000:]}"
    results: list[dict[str, Any]] = json.loads(done.stdout)
    print(done.stderr[-6000:])
    assert [each["fault"] for each in results] == [None, *faults]
    assert done.returncode == 0, results
    return results
