"""P13m: P13b with a checkpoint folder in the node's memory."""

from __future__ import annotations

from benchmarks.transfer import FAST
from benchmarks.watched_saves import WatchedSaves


class SavesInMemory(WatchedSaves):
    name = "P13m"
    title = f"{WatchedSaves.title} in memory"
    saves_to = FAST


ROW = SavesInMemory()
