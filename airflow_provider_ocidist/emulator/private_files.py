"""Private files: only their owner may read them, and each is written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader never sees half of it. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
