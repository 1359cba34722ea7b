"""What a program saves, and how it ends, while a checkpoint before is being sent."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import uploads
from airflow_provider_ocidist.agent.save.proofs import Moment
from airflow_provider_ocidist.storage import checkpoints
from tests.agent.gangs import until
from tests.agent.save.watched import Watched

soon = partial(until, timeout=20)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    found = Watched(tmp_path)
    yield found
    found.uploader.judge.close()


def put(path: Path, text: str) -> Path:
    """Write a file beside its place and rename it."""
    aside = path.with_name(f"{path.name}.tmp")
    aside.write_text(text)
    return aside.rename(path)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, threading.Event]]:
    """Let each upload wait; the events of each name: it has begun, it may go on."""
    monkeypatch.setattr(uploads, "LOOK_INTERVAL", 0.01)
    events = defaultdict[str, threading.Event](threading.Event)
    send, over = checkpoints._send, threading.Event()

    def waits(source: Any, target: Any, *rest: Any) -> Any:
        name = Path(target.uri).name
        events[f"{name} begins"].set()
        while not over.wait(0.01) and not events[f"{name} may go on"].is_set():
            pass
        return send(source, target, *rest)

    monkeypatch.setattr(checkpoints, "_send", waits)
    yield events
    over.set()


HALF_WRITTEN = """
import sys

file = open(sys.argv[1], "wb", buffering=0)
file.write(b"0" * 5000)
print("begun", flush=True)
for line in sys.stdin:
    file.write(b"1")
"""


def test_what_was_open_when_its_writer_died_is_half_though_another_was_being_sent(
    watched: Watched, slow: dict[str, threading.Event]
) -> None:
    put(watched.folder / "step-1.dat", "x" * 5000)
    slow["step-1.dat may go on"].set()
    watched.start()
    soon(lambda: watched.steps == [1])
    put(watched.folder / "best.bin", "y")
    soon(lambda: any(name.startswith("best.bin") for name in slow))
    half = watched.folder / "step-2.dat"
    command = [sys.executable, "-c", HALF_WRITTEN, str(half)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"begun\n"
        # From here on it is known who writes to it.
        soon(lambda: watched.uploader.judge._left_open.open_in(SimpleNamespace(path=half)))
        writer.kill()
    slow["best.bin.save-2 may go on"].set()
    soon(lambda: len(watched.published) == 2)
    assert watched.end(Moment.CUT_OFF) is None
    assert watched.steps == [1, None]


def test_a_checkpoint_has_the_step_of_its_writing_though_another_was_being_sent(
    watched: Watched, slow: dict[str, threading.Event]
) -> None:
    watched.start()
    watched.meter.saw(b"step 10 loss 1\n")
    put(watched.folder / "first.bin", "x")
    soon(lambda: "first.bin.step-10 begins" in slow)
    put(watched.folder / "snapshot", "of step 10")
    soon(lambda: watched.folder / "snapshot" in watched.uploader.judge._seen)
    watched.meter.saw(b"step 90 loss 1\n")
    slow["first.bin.step-10 may go on"].set()
    soon(lambda: "snapshot.step-10 begins" in slow)
    slow["snapshot.step-10 may go on"].set()
    assert watched.end() is None
    assert watched.steps == [10, 10]


def test_what_is_saved_while_others_are_sent_waits_for_one_of_them_at_most(
    watched: Watched, slow: dict[str, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LONG_UPLOAD", 0.0)
    watched.start()
    put(watched.folder / "step-1.txt", "x")
    soon(lambda: "step-1.txt begins" in slow)
    for name in ("best.bin", "last.bin", "step-2.txt"):
        put(watched.folder / name, name)
    soon(lambda: watched.folder / "step-2.txt" in watched.uploader.judge._seen)
    slow["step-1.txt may go on"].set()
    soon(lambda: "step-2.txt begins" in slow)
    put(watched.folder / "step-3.txt", "of now")
    soon(lambda: watched.folder / "step-3.txt" in watched.uploader.judge._seen)
    for name in ("step-2.txt", "step-3.txt", "last.bin.save-3", "best.bin.save-2"):
        slow[f"{name} may go on"].set()
    soon(lambda: len(watched.published) == 5)
    assert watched.end() is None
    assert watched.steps[:3] == [1, 2, 3]
