"""make fuzz-emulator: FUZZ_CASES=100000 SEED=7 DOOR=oci; FIRST=123 FUZZ_CASES=1 repeats one request of a seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.emulator.fuzz.api import Api, Broken
from tests.emulator.fuzz.campaign import Campaign, Watched
from tests.emulator.fuzz.kubernetes import Kubernetes
from tests.emulator.fuzz.oci import Oci
from tests.emulator.fuzz.runai import Runai

APIS: dict[str, type[Oci | Kubernetes | Runai]] = {api.name: api for api in (Oci, Kubernetes, Runai)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.fuzz")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument(
        "--door", choices=[*APIS, "all"], default="all", help="at which API; all: one after another"
    )
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    names = list(APIS) if given.door == "all" else [given.door]
    return max(fuzz(APIS[name](), seed, given.cases, given.first) for name in names)


def fuzz(api: Api, seed: int, cases: int, first: int) -> int:
    """Run one campaign; return the exit code."""
    print(f"{api.name}: seed {seed}, {cases} requests from {first} on", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Watched(Path(folder) / "watched", api.options) as emulator,
    ):
        campaign = Campaign(emulator, api, seed)
        try:
            campaign.run(cases, first)
        except Broken as broken:
            print(f"BROKEN {broken}")
            print(tail(emulator.log.read_text()))
            return 1
        grown = (emulator.memory() - emulator.first_bytes) / 2**20
        print(f"answers by status: {dict(sorted(campaign.statuses.items()))}")
        print(
            f"the dearest took {campaign.slowest_s:.2f} s: {campaign.slowest}; memory grew by {grown:.0f} MB"
        )
    return 0


def tail(log: str) -> str:
    """Return the end of a log, without what each damaged request adds to it."""
    return "\n".join([line for line in log.splitlines() if "Invalid HTTP request" not in line][-40:])


if __name__ == "__main__":
    sys.exit(main())
