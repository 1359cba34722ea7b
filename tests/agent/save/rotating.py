"""A node that can be killed: its uploads take as long as several saves, and its program keeps few of them."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.agent.save import uploads
from airflow_provider_ocidist.storage import checkpoints
from tests.agent.gangs import until
from tests.agent.save.saved import KINDS
from tests.agent.save.watched import Watched

KEPT_IN_PLACE = ("last", "snapshot")
"""Kinds with one name for all their saves."""


@dataclass(frozen=True)
class Circumstances:
    """What a test draws."""

    seed: str
    kind: str
    """Of `saved.KINDS`, or `helper` for that of the package."""
    saves: int
    keeps: int
    """How many checkpoints the program keeps."""
    takes: int
    """Saves that the program makes during one upload."""
    waits: str
    """When the store is slow: before, between or after the files."""
    deletes_first: bool = False
    """Whether the program deletes the oldest before it writes the next, as it may with one more to spare."""
    replaces: bool = True
    """Whether a checkpoint of one name is renamed into place; else it is overwritten."""


def digests(content: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


class SlowStore:
    """Takes what it is sent only while the program goes on saving."""

    def __init__(self, drawn: Circumstances) -> None:
        self.drawn = drawn
        self.saved = 0
        """Count of the program's saves."""
        self._goes_on_at: int | None = None
        self.is_over = threading.Event()
        self._send = checkpoints._send

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for further saves."""
        at = self._goes_on_at
        return at is not None and self.saved < at

    def send(self, source: Any, target: Any, entries: Sequence[Any], cancel: Any) -> tuple[Any, ...]:
        middle = {"before": 0, "between": len(entries) // 2, "after": len(entries)}[self.drawn.waits]
        sent = self._send(source, target, entries[:middle], cancel) if middle else ()
        self._goes_on_at = self.saved + self.drawn.takes
        while self.is_waiting and not self.is_over.wait(0.005):
            pass
        self._goes_on_at = None
        return (*sent, *(self._send(source, target, entries[middle:], cancel) if entries[middle:] else ()))


class Program:
    """Saves again and again, and keeps the last ones."""

    def __init__(self, watched: Watched, store: SlowStore) -> None:
        self.watched, self.store, self.drawn = watched, store, store.drawn
        self.made: list[Path] = []

    def run(self, killed: Callable[[], object] = lambda: None) -> None:
        for step in range(1, self.drawn.saves + 1):
            self.save(step)
            self.store.saved = step
            looked = self.watched.looked
            # As much time for the uploader as a save takes, unless it sends.
            until(partial(self._may_go_on, looked))
        killed()

    def _may_go_on(self, looked: int) -> bool:
        return self.store.is_waiting or self.watched.looked > looked + 4

    def save(self, step: int) -> None:
        if self.drawn.deletes_first:
            self.rotate(self.drawn.keeps - 1)
        save = KINDS[self.drawn.kind](step, random.Random(f"{self.drawn.seed}.{step}"))
        note = self.watched.folder.parent / "made" / f"{step}.json"
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps(digests(save.content)))
        folder = self.watched.folder
        for name, data in save.files:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if self.drawn.replaces and len(save.files) == 1:
                place.with_name(f"{place.name}.tmp").write_bytes(data)
                place.with_name(f"{place.name}.tmp").replace(place)
            else:
                place.write_bytes(data)
        if folder / save.name not in self.made:
            self.made.append(folder / save.name)
        self.watched.announce(checkpoint=save.name, step=step)
        self.rotate(self.drawn.keeps)

    def rotate(self, keeps: int) -> None:
        while len(self.made) > keeps:
            old = self.made.pop(0)
            shutil.rmtree(old) if old.is_dir() else old.unlink()


class HelpedProgram(Program):
    """The same, with the package's own helper."""

    def __init__(self, watched: Watched, store: SlowStore) -> None:
        super().__init__(watched, store)
        import torch

        from airflow_provider_ocidist.saves import Saves

        os.environ["OCIDIST_PROGRESS_FILE"] = str(watched.meter.file)
        self.model = torch.nn.Linear(8, 4)
        self.saves = Saves(self.model, folder=watched.folder, keep=self.drawn.keeps)

    def save(self, step: int) -> None:
        import torch

        with torch.no_grad():
            self.model.weight.fill_(step)
        self.saves.save(step)
        self.saves._finish()


def node(root: Path, drawn: Circumstances, killed: Callable[[], object] = lambda: None) -> Watched:
    """Let a program save on a node; `killed` is called when the last save was made, and while the node lives."""
    store, watched = SlowStore(drawn), Watched(root)
    uploads.LOOK_INTERVAL = 0.01
    checkpoints._send = store.send
    try:
        watched.start()
        (HelpedProgram if drawn.kind == "helper" else Program)(watched, store).run(killed)
    finally:
        store.is_over.set()
        watched.end()
        checkpoints._send = store._send
    return watched


if __name__ == "__main__":
    given = Circumstances(**json.loads(sys.argv[2]))

    def wait_for_the_end() -> None:
        print("saved", flush=True)
        threading.Event().wait()

    node(Path(sys.argv[1]), given, wait_for_the_end)


def as_text(drawn: Circumstances) -> str:
    return json.dumps(asdict(drawn))
