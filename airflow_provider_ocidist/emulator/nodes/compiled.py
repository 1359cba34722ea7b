"""Compiled code for nodes: modules that are here too, byte for byte, need not be compiled on each of them anew."""

from __future__ import annotations

import functools
import importlib.util
import marshal
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

PACKAGE = Path(__file__).parents[2]
CHECKED = (0b11).to_bytes(4, "little")
"""Mark of compiled code that holds only beside a source of the same content, whenever that was written (PEP 552)."""


def lend(folder: Path) -> None:
    """Place compiled code of this package beside the sources of the same names in an unpacked artifact.

    A real node compiles the agent on a machine of its own; here each would take a quarter of a second of the cores that
    all share. A node whose source or Python is another one compiles by itself.
    """
    for root in folder.glob(f"*/{PACKAGE.name}"):
        for source in root.rglob("*.py"):
            own = PACKAGE / source.relative_to(root)
            # Where a file is in the place of a folder, it is the node that meets it.
            with suppress(OSError):
                content = _compiled(own, own.stat().st_mtime_ns)
                place = Path(importlib.util.cache_from_source(str(source)))
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(content)


@functools.lru_cache(maxsize=1024)
def _compiled(own: Path, _changed_at: int) -> bytes:
    """Return the compiled code of a module, as Python keeps it."""
    code = SourceFileLoader(own.stem, str(own)).get_code(own.stem)
    head = importlib.util.MAGIC_NUMBER + CHECKED + importlib.util.source_hash(own.read_bytes())
    return head + marshal.dumps(code)
