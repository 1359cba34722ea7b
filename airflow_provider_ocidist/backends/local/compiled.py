"""The agent's compiled code, which nodes of this machine need not make anew, each in a folder of its own."""

from __future__ import annotations

import functools
import importlib.util
import marshal
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

from airflow_provider_ocidist.backends.bundle import PACKAGE

CHECKED = (0b11).to_bytes(4, "little")
"""Mark of compiled code that holds only beside a source of the same content, whenever that was written (PEP 552)."""


def lend(package: Path) -> None:
    """Place compiled code of this package beside the sources of a node's; what does not fit them is overlooked."""
    for source in package.rglob("*.py"):
        # A node compiles by itself what it is not lent.
        with suppress(OSError):
            content = _compiled(own := PACKAGE / source.relative_to(package), own.stat().st_mtime_ns)
            place = Path(importlib.util.cache_from_source(str(source)))
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)


@functools.lru_cache(maxsize=1024)
def _compiled(own: Path, _changed_at: int) -> bytes:
    """Return the compiled code of a module, as Python keeps it."""
    code = SourceFileLoader(own.stem, str(own)).get_code(own.stem)
    head = importlib.util.MAGIC_NUMBER + CHECKED + importlib.util.source_hash(own.read_bytes())
    return head + marshal.dumps(code)
