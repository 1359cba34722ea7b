"""Train in small steps from wherever a checkpoint says, and touch a file as long as this process lives."""

import argparse
import json
import os
import pathlib
import re
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--mark", required=True, help="folder that gets one file for each process")
args = parser.parse_args()

rank = int(os.environ["RANK"])
folder = pathlib.Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
folder.mkdir(parents=True, exist_ok=True)
steps = [int(found[1]) for path in folder.iterdir() if (found := re.search(r"step-(\d+)", path.name))]
resumed = max(steps, default=0)
mark = pathlib.Path(args.mark)
mark.mkdir(parents=True, exist_ok=True)
beat = mark / f"{os.environ['JOB_RUN_OCID']}.{rank}.json"
# Whole at once: somebody looks while we write.
draft = beat.with_suffix(".draft")
draft.write_text(
    json.dumps({"run": os.environ["JOB_RUN_OCID"], "rank": rank, "at": time.time(), "resumed": resumed})
)
draft.rename(beat)

for step in range(resumed + 1, args.steps + 1):
    for _ in range(5):
        time.sleep(0.1)
        os.utime(beat)
    print(f"step {step}/{args.steps} loss {1 / step:.4f}", flush=True)
    if rank == 0 and (step % 4 == 0 or step == args.steps):
        (folder / f"step-{step:06d}.bin").write_bytes(os.urandom(4096))
beat.with_suffix(".end").touch()
