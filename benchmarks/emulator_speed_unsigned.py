"""P19b: as P19, where the emulator was started with `--no-signatures`, and so does as little for them as moto does."""

from __future__ import annotations

from benchmarks.emulator_speed import MIX, EmulatorSpeed


class UnsignedEmulatorSpeed(EmulatorSpeed):
    name = "P19b"
    title = f"the same with --no-signatures; {MIX}"
    options = ("--no-signatures",)


ROW = UnsignedEmulatorSpeed()
