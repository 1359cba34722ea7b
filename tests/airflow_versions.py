"""Which tests meet Airflow, and which of those ask for a newer one than is installed."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib
ROOT = Path(__file__).resolve().parent.parent
INSTALLED = version("apache-airflow-core")
DIRECTLY = re.compile(r"\b(from|import) airflow\b|local_airflow|LocalAirflow")
OUR_MODULES = re.compile(r"airflow_provider_ocidist(?:\.| import )([a-z]\w*)")


def mark_by_version(items: list[pytest.Item]) -> None:
    """Mark what meets Airflow as `airflow`; skip what says `since_airflow(minor, reason)` where Airflow is older."""
    for item in items:
        if meets_airflow(item.path):
            item.add_marker("airflow")
        for mark in item.iter_markers("since_airflow"):
            minor, reason = mark.args
            if parts(INSTALLED) < parts(minor):
                item.add_marker(pytest.mark.skip(reason=f"Airflow {minor}: {reason}; this is {INSTALLED}"))


def parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


@cache
def meets_airflow(file: Path) -> bool:
    """Return whether a file of tests imports Airflow, starts it, or imports those of our modules that do."""
    text = file.read_text()
    return bool(DIRECTLY.search(text) or set(OUR_MODULES.findall(text)) & face())


@cache
def face() -> set[str]:
    """Return the rooms that may import Airflow."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Only Airflow's face imports Airflow"
    )
    return {name.partition(".")[2] for name in contract["allowed_importers"]} | {"provider_info"}
