"""Find an implementation by the name of its module."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

PACKAGE = __package__
DEFAULT_BACKEND = "oci_data_science"
"""Kind of a job that names none, and of a run that is named by its id alone."""
DECLARATION = re.compile(r"^(?:BACKEND|LAUNCHER|DIALECT) = ", re.MULTILINE)
"""Line that makes a module of a family a kind; the other modules are shared by its kinds."""


def names(family: str) -> list[str]:
    """Return the kinds of a family (`backends`, `launchers`, `job_file.dialects`): its modules that declare one."""
    return list(_declared(family))


def load(family: str, kind: str) -> ModuleType:
    """Import the module that implements a kind. Raises LookupError with the nearest name when there is none."""
    known = names(family)
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
        raise LookupError(f"no {family.rpartition('.')[2].removesuffix('s')} of kind {kind!r}{hint}")
    return importlib.import_module(f"{PACKAGE}.{family}.{kind}")


@functools.cache
def _declared(family: str) -> tuple[str, ...]:
    package = importlib.import_module(f"{PACKAGE}.{family}")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(sorted(name for name in found if _is_kind(f"{PACKAGE}.{family}.{name}")))


def _is_kind(module: str) -> bool:
    # Read, not imported: a backend brings the libraries of its service.
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return DECLARATION.search(source) is not None
