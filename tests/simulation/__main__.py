"""`python -m tests.simulation`: run many schedules, or one, and say what they have shown."""

from __future__ import annotations

import ctypes
import os
import sys

READY = "OCIDIST_SIMULATION_READY"
ADDR_NO_RANDOMIZE = 0x0040000
"""Of `personality`: until Python 3.12 the hash of None is its address, and so the order of sets with it."""

if __name__ == "__main__" and READY not in os.environ:
    # The order of sets is a part of the schedule.
    os.environ |= {"PYTHONHASHSEED": "0", READY: "1"}
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

if __name__ == "__main__":
    from tests.simulation.command import main

    sys.exit(main())
