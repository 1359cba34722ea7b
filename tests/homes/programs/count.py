"""Count to four, with a checkpoint at two and at four; what the arguments ask for happens at three, the first time."""

import argparse
import json
import os
import pathlib
import sys
import time

STEPS, EVERY, EVENTFUL = 4, 2, 3
parser = argparse.ArgumentParser()
parser.add_argument("--fails", action="store_true", help="the last rank raises")
parser.add_argument("--waits", help="folder: each rank puts its process id there, and waits for a file `go`")
args = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
begun = max((int(path.stem.rpartition("-")[2]) for path in folder.glob("step-*.bin")), default=0)
print(f"rank {rank} of {world}, from step {begun}", flush=True)


def wait(place: pathlib.Path) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / str(rank)).write_text(str(os.getpid()))
    for _ in range(2400):
        if (place / "go").exists():
            return
        time.sleep(0.1)
    sys.exit("nothing has happened")


for step in range(begun + 1, STEPS + 1):
    print(f"step {step}/{STEPS} loss {1 / step:.4f}", flush=True)
    if step == EVENTFUL and begun == 0:
        if args.fails and rank == world - 1:
            raise ValueError("boom")
        if args.waits:
            wait(pathlib.Path(args.waits))
    if rank == 0 and step % EVERY == 0:
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f"step-{step:06}.tmp"
        draft.write_bytes(b"weights " * 1000)
        draft.rename(saved := draft.with_suffix(".bin"))
        # The program waits for its checkpoint: a machine without a free instance of inotify would not see the rename.
        with pathlib.Path(os.environ["OCIDIST_PROGRESS_FILE"]).open("a") as progress:
            progress.write(json.dumps({"checkpoint": saved.name}) + "\n")
    # A node that ends first is waited for: who fails is then the one that the test has chosen.
    time.sleep(120 if args.fails and begun == 0 and step == EVENTFUL else 0.1)
