"""Count for a while, then write one checkpoint; fails, or lies, when asked to. Needs no torch."""

import argparse
import os
import pathlib
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=1.0)
parser.add_argument("--fail-rank", type=int, default=-1)
parser.add_argument("--no-checkpoint", action="store_true")
parser.add_argument("--farewell", type=float, help="seconds to go on after SIGTERM")
parser.add_argument(
    "--mark", help="folder that gets one file for each start of each rank; MARK.end ends the steps early"
)
args = parser.parse_args()

rank = int(os.environ["RANK"])
if args.farewell:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(time.sleep(args.farewell)))
mark = end = None
if args.mark:
    folder = pathlib.Path(args.mark)
    folder.mkdir(parents=True, exist_ok=True)
    where = os.environ.get("JOB_RUN_OCID") or os.environ["HOSTNAME"]
    mark, end = folder / f"{rank}-{where[-12:]}", folder.with_name(f"{folder.name}.end")
    mark.touch()
FEWEST = 5  # steps; sensors of the tests wait for a later one
steps = max(1, int(args.seconds * 2))
for step in range(1, steps + 1):
    print(f"step {step}/{steps} loss {1 / step:.4f}", flush=True)
    if step == 1 and rank == args.fail_rank:
        raise ValueError("boom")
    if end and step > FEWEST and end.exists():
        break
    time.sleep(args.seconds / steps)
if mark:
    mark.write_text(str(step))
if rank == 0 and not args.no_checkpoint:
    folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"step-{step:06d}.bin").write_bytes(b"weights " * 1000)
if word := os.environ.get("WORD"):
    pathlib.Path("outputs").mkdir(exist_ok=True)
    pathlib.Path("outputs", word).write_bytes(pathlib.Path("data", "text").read_bytes())
sys.exit(0)
