"""Interpreter: which Python runs the schedules, where the machine has more than one of the same version."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

VARIABLE = "OCIDIST_SIMULATION_PYTHON"
"""Names another one."""
OF_THE_SYSTEM = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
NEEDED = "import ctypes, greenlet, pydantic_core, sqlite3, ssl"
"""What it has to be able to import: its own parts that a build may lack, and what is compiled."""


def fastest() -> str:
    """Return the path of the Python that takes least time for a schedule, as far as its build shows.

    One that was built from source without its optimisations takes a fourth more than a distribution's.
    """
    if named := os.environ.get(VARIABLE):
        return named
    is_optimised = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    if is_optimised or Path(sys.base_prefix) == Path("/usr") or not OF_THE_SYSTEM.is_file():
        return sys.executable
    asked = subprocess.run(
        [OF_THE_SYSTEM, "-c", NEEDED],
        env=environment_of(str(OF_THE_SYSTEM)),
        capture_output=True,
        check=False,
    )
    return sys.executable if asked.returncode else str(OF_THE_SYSTEM)


def environment_of(python: str) -> dict[str, str]:
    """Return the environment in which a Python finds what is installed for this one."""
    if python == sys.executable:
        return {**os.environ}
    places = [sysconfig.get_path("purelib"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
