"""Trees of folders that programs have made, which may be nested deeper than Python's stack."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it; what cannot be removed stays."""
    with suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
        return
    subprocess.run(["rm", "-rf", "--", str(folder)], stderr=subprocess.DEVNULL, check=False)
