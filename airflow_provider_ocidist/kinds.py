"""Find an implementation by the name of its module."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

PACKAGE = __package__
SHARED = {
    "base",
    "bundle",
    "capabilities",
    "command_line",
    "connection_fields",
    "kubernetes",
    "node_config",
    "prices",
    "recorded_gangs",
    "run_dir_files",
    "ssh",
}
"""Modules of a family that its kinds share."""


def names(family: str) -> list[str]:
    """Return the kinds of a family (`backends`, `launchers`, `job_file.dialects`): its modules that declare one."""
    package = importlib.import_module(f"{PACKAGE}.{family}")
    return sorted(
        module.name for module in pkgutil.iter_modules(package.__path__) if module.name not in SHARED
    )


def load(family: str, kind: str) -> ModuleType:
    """Import the module that implements a kind. Raises LookupError with the nearest name when there is none."""
    known = names(family)
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
        raise LookupError(f"no {family.rpartition('.')[2].removesuffix('s')} of kind {kind!r}{hint}")
    return importlib.import_module(f"{PACKAGE}.{family}.{kind}")
