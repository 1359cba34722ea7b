"""A program that writes checkpoints slowly, in pieces, and ends as it is asked to; and a look at what was published."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.agent.save.saved import KINDS, Save

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

plan = json.loads(Path(sys.argv[1]).read_text())
rank = int(os.environ.get("RANK", "0"))
folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)


def end():
    print("the end", flush=True)
    how = plan["end"]
    if how == "raise":
        raise RuntimeError("boom")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "wait":
        while True:
            time.sleep(60)
    sys.exit(0)


if rank:
    while not (folder.parent / "the end").exists():
        time.sleep(0.05)
    end()

written = 0
for save in plan["saves"]:
    for number_of_file, (path, source) in enumerate(save["files"]):
        data = Path(source).read_bytes()
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        renamed = place.with_name(place.name + ".tmp") if save["rename"] and place.parent == folder else place
        with renamed.open("wb", buffering=0) as file:
            for number in range(0, len(data), save["piece"]):
                piece = data[number : number + save["piece"]]
                left = plan["bytes"] - written
                file.write(piece[: max(0, left)])
                written += len(piece)
                if written > plan["bytes"]:
                    if plan["far"]:
                        (folder.parent / "the end").touch()
                        time.sleep(60)
                    end()
                time.sleep(save["pause"])
        if renamed != place:
            renamed.rename(place)
        if save["after"] is None or number_of_file in save["after"]:
            time.sleep(save["between"])
    print("saved", save["name"], flush=True)
    with open(os.environ["OCIDIST_PROGRESS_FILE"], "a") as file:
        if save["announce"]:
            file.write(json.dumps({"checkpoint": save["name"]}) + "\\n")
    time.sleep(save["rest"])
end()
"""


def plan_of(
    root: Path,
    saves: Sequence[Save],
    *,
    end: str = "exit",
    limit: int | None = None,
    far: bool = False,
    **changes: Any,
) -> Path:
    """Write down what the program is to do, and return where.

    It rests for `between` seconds after each file of a save, or after those whose numbers are in `after`.
    `limit`: after how many bytes it ends in the midst of writing; `far`: by the hand of rank 1, while rank 0 writes on.
    """
    root.mkdir(parents=True, exist_ok=True)
    how = {"piece": 1 << 20, "pause": 0.0, "between": 0.0, "after": None, "rest": 0.0}
    how |= {"rename": False, "announce": False}
    told = []
    for number, save in enumerate(saves):
        files = []
        for place, (path, data) in enumerate(save.files):
            source = root / f"{number}-{place}"
            source.write_bytes(data)
            files.append((path, str(source)))
        told.append({**how, "name": save.name, "files": files, **changes})
    plan = root / "plan.json"
    left = limit if limit is not None else 1 << 60
    plan.write_text(json.dumps({"saves": told, "end": end, "bytes": left, "far": far}))
    return plan


def some_saves(kind: str, count: int, random_: random.Random) -> list[Save]:
    return [KINDS[kind](100 * number, random_) for number in range(1, count + 1)]


def size_of(save: Save) -> int:
    return sum(len(data) for _, data in save.files)


def published(safe: Path) -> Iterator[tuple[dict[str, Any], dict[str, bytes]]]:
    """Yield each checkpoint that is offered: its manifest, and its files."""
    for place in sorted(safe.glob("*/manifest.json")):
        manifest = json.loads(place.read_text())
        yield (
            manifest,
            {item["path"]: (place.parent / item["path"]).read_bytes() for item in manifest["files"]},
        )


def require_whole(safe: Path, saves: Sequence[Save]) -> list[int]:
    """Fail unless all that is offered is one of the saves, whole; return which of them are there."""
    found = []
    for manifest, files in published(safe):
        matching = [number for number, save in enumerate(saves) if save.content == files]
        assert matching, (
            f"{manifest['name']} is published with { ({name: len(data) for name, data in files.items()}) }, "
            f"saved were {[{name: len(data) for name, data in save.content.items()} for save in saves]}"
        )
        found += matching
    return sorted(found)


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
