"""The rows that `make bench` can measure: each is the `ROW` of a module of this folder."""

from __future__ import annotations

import importlib
import pkgutil
import re

import benchmarks
from benchmarks.comparison import Comparison


def order(name: str) -> tuple[int, int, str]:
    """Return where a row stands: the numbered ones first, by their number."""
    found = re.fullmatch(r"P(\d+)[a-z]?", name)
    return (0, int(found[1]), name) if found else (1, 0, name)


def known_rows() -> dict[str, Comparison]:
    """Return every comparison of this folder, by name."""
    modules = [
        importlib.import_module(f"benchmarks.{item.name}")
        for item in pkgutil.iter_modules(benchmarks.__path__)
    ]
    found = [module.ROW for module in modules if hasattr(module, "ROW")]
    return {row.name: row for row in sorted(found, key=lambda row: order(row.name))}
