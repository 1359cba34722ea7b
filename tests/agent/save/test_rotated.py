"""An upload takes longer than the program keeps a checkpoint: the newest that could be sent is in the store, whole."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save import uploads
from airflow_provider_ocidist.storage import checkpoints
from airflow_provider_ocidist.storage.checkpoints import MANIFEST, complete, verify
from tests.agent.save.rotating import KEPT_IN_PLACE, Circumstances, as_text, digests, node
from tests.agent.save.saved import KINDS
from tests.agent.save.watched import Watched

ROOT = Path(__file__).resolve().parents[3]
ROTATED = sorted(set(KINDS) - set(KEPT_IN_PLACE))


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", uploads.LOOK_INTERVAL)
    monkeypatch.setattr(checkpoints, "_send", checkpoints._send)
    monkeypatch.setenv("OCIDIST_PROGRESS_FILE", "")


def drawn_by(seed: int) -> Circumstances:
    dice = random.Random(f"rotated.{seed}")
    kind = dice.choice([*ROTATED, *KEPT_IN_PLACE])
    keeps = dice.choice([1, 1, 2, 3])
    return Circumstances(
        seed=str(seed),
        kind=kind,
        saves=dice.randint(12, 30),
        keeps=keeps,
        takes=dice.randint(keeps + 1, 6),
        waits=dice.choice(["before", "between", "after"]),
        deletes_first=keeps > 1 and dice.random() < 0.5,
    )


def in_the_store(root: Path) -> list[tuple[int, dict[str, bytes]]]:
    """Return step and files of each checkpoint that a restart may choose, the newest first."""
    found = []
    for reference in complete(str(root / "safe")):
        verify(reference.uri)
        folder = Path(reference.uri)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name != MANIFEST
        }
        assert reference.step is not None
        found.append((reference.step, files))
    return found


def is_what_was_saved(root: Path, drawn: Circumstances, step: int, files: dict[str, bytes]) -> bool:
    if drawn.kind != "helper":
        return digests(files) == json.loads((root / "made" / f"{step}.json").read_text())
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load

    state = {"model": {"weight": torch.zeros(4, 8)}}
    load(state, storage_reader=FileSystemReader(root / "safe" / f"step-{step}"), no_dist=True)
    return bool((state["model"]["weight"] == step).all())


def require_the_newest(root: Path, drawn: Circumstances) -> None:
    found = in_the_store(root)
    print(drawn, [step for step, _ in found])
    assert found, "nothing is in the store"
    for step, files in found:
        assert is_what_was_saved(root, drawn, step, files)
    # The last upload that had its time was begun at most this long before the end; each begins with the newest.
    assert found[0][0] >= drawn.saves - 2 * (drawn.takes + 1)


@pytest.mark.parametrize("seed", range(24))
def test_what_is_proved_is_published_though_the_program_has_deleted_it_by_then(
    tmp_path: Path, seed: int
) -> None:
    drawn = drawn_by(seed)
    watched = node(tmp_path, drawn, lambda: require_the_newest(tmp_path, drawn))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "made", "meter", "safe"]
    assert not [path for path in watched.folder.iterdir() if path.name.startswith(".")]


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind, keeps", [("helper", 2), ("trainer", 1), ("lightning", 1), ("helper", 1)])
def test_a_node_that_is_killed_after_thirty_saves_leaves_the_newest_that_could_be_sent(
    tmp_path: Path, killable: list[subprocess.Popen[str]], kind: str, keeps: int
) -> None:
    drawn = Circumstances(seed="1", kind=kind, saves=30, keeps=keeps, takes=3, waits="after")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.agent.save.rotating", str(tmp_path), as_text(drawn)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    killable.append(process)
    assert process.stdout
    assert any(line == "saved\n" for line in process.stdout)
    process.send_signal(signal.SIGKILL)
    process.wait()
    require_the_newest(tmp_path, drawn)
    # A further agent on this disk.
    watched = Watched(tmp_path)
    watched.start()
    assert not list(tmp_path.rglob(".*.held.*"))
    watched.end()


@pytest.mark.parametrize("waits", ["before", "between", "after"])
def test_what_is_overwritten_while_it_is_sent_is_not_published_and_the_log_names_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, waits: str
) -> None:
    drawn = Circumstances("1", "snapshot", saves=12, keeps=1, takes=3, waits=waits, replaces=False)
    node(tmp_path, drawn)
    warned = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and re.search(r"snapshot\.pt .*Remedy: ", record.getMessage())
    ]
    assert len(warned) == 1, "once per so often"
    assert "another name" in warned[0]
    for step, files in in_the_store(tmp_path):
        assert is_what_was_saved(tmp_path, drawn, step, files)
