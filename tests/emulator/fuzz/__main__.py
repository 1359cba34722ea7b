"""make fuzz-emulator: FUZZ_CASES=100000 SEED=7; FIRST=123 FUZZ_CASES=1 repeats one request of a seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.emulator.fuzz.campaign import Broken, Campaign, Watched


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator.fuzz")
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}, {given.cases} requests from {given.first} on", flush=True)
    with tempfile.TemporaryDirectory() as folder, Watched(Path(folder) / "watched") as emulator:
        campaign = Campaign(emulator, seed)
        try:
            campaign.run(given.cases, given.first)
        except Broken as broken:
            print(f"BROKEN {broken}")
            return 1
        grown = (emulator.memory() - emulator.first_bytes) / 2**20
        print(f"answers by status: {dict(sorted(campaign.statuses.items()))}")
        print(
            f"the dearest took {campaign.slowest_s:.2f} s: {campaign.slowest}; memory grew by {grown:.0f} MB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
