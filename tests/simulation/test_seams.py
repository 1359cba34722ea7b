"""What each simulated process has of its own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tests.simulation import seams


class Threads:
    """As that of the package: it makes others of its kind, and keeps them."""

    def __init__(self) -> None:
        self.elsewhere: dict[str, Threads] = {}


def test_what_one_process_keeps_no_other_process_and_no_later_schedule_sees():
    module: Any = ModuleType(f"{seams.PACKAGE}.triggers.pools")
    module._cache, module._names, module._threads = {}, [], Threads()
    Threads.__module__ = module.__name__
    found = {entry.name: entry for entry in seams._process_globals(module)}
    assert set(found) == {"_cache", "_names", "_threads"}
    for _ in range(2):
        cache, names, threads = (found[name].make() for name in ("_cache", "_names", "_threads"))
        assert (cache, names, threads.elsewhere) == ({}, [], {})
        cache["key"] = 1
        names.append("name")
        threads.elsewhere["place"] = Threads()
    assert module._threads.elsewhere == {}
