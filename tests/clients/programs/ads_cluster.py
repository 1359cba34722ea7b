"""Stands for an image of `ads opctl distributed-training`: what its run.py does for PyTorch, less its waits.

It knows the variables and files of ADS's contract alone.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import fsspec

told = os.environ
work = f"{told['OCI__WORK_DIR'].rstrip('/')}/{told['JOB_OCID']}"
address = told.get("FQDN", "127.0.0.1")
code = pathlib.Path(told.get("OCI__CODE_DIR", "code")).absolute()
if told.get("OCI__RUNTIME_TYPE") == "remote":
    fsspec.open(told["OCI__RUNTIME_URI"]).fs.get(told["OCI__RUNTIME_URI"], f"{code}/", recursive=True)

own = "MAIN" if told["OCI__MODE"] == "MAIN" else f"WORKER_{told['JOB_RUN_OCID']}"
content = {"MASTER_ADDR": address} if told["RANK"] == "0" else {"OCI__WORKER_IP": address}
with fsspec.open(f"{work}/{own}_config.json", "w") as file:
    json.dump(content, file)
files = fsspec.open(work).fs
deadline = time.monotonic() + float(told.get("OCI__TIMEOUT", 600))
while not files.exists(f"{work}/MAIN_config.json"):
    if time.monotonic() > deadline:
        sys.exit(1)
    files.invalidate_cache()
    time.sleep(0.5)
with fsspec.open(f"{work}/MAIN_config.json") as file:
    main = json.load(file)

ranks = {
    "MASTER_PORT": "29400",
    "WORLD_SIZE": str(int(told["OCI__WORKER_COUNT"]) + 1),
    "NODE_RANK": told["RANK"],
    "LOCAL_RANK": "0",
}
command = [sys.executable, code / told["OCI__ENTRY_SCRIPT"], *told.get("OCI__ENTRY_SCRIPT_ARGS", "").split()]
failed = subprocess.run(command, env={**told, **main, **ranks}, check=False).returncode
# Whatever the program's own code was.
sys.exit(1 if failed else 0)
