"""Names of ours in what neither mypy nor `make test` runs: image, examples, templates, documents, the other suites."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUITES = ("chaos", "clients", "containers", "e2e", "examples", "homes", "older", "programs")
PLACES = (
    *(
        "container",
        "dags_examples",
        "benchmarks",
        "scripts",
        "docs",
        "airflow_provider_ocidist/cli/templates",
    ),
    *(f"tests/{suite}" for suite in SUITES),
)
FILES = (
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "pyproject.toml",
    ".ci/run",
    ".ci/nightly",
)
READ = (".md", ".py", ".toml", ".yaml", "Dockerfile")
"""Ends of the names of files that may name ours."""
IMPORT = re.compile(
    r"\bfrom ((?:airflow_provider_ocidist|benchmarks|scripts|tests)(?:\.\w+)*) import (\([^)]*\)|\w[\w, ]*)"
)
DOTTED = re.compile(r"\bairflow_provider_ocidist(?:\.[A-Za-z_]\w*)+")


def unknown_in(text: str) -> list[str]:
    """Return what a text takes from our modules that is not there."""
    taken = [f"{module}.{name}" for module, names in IMPORT.findall(text) for name in _names(names)]
    return [each for each in (*DOTTED.findall(text), *taken) if not is_known(each)]


def _names(imported: str) -> list[str]:
    without_comments = re.sub(r"#.*", "", imported.strip("()"))
    return [name.split()[0] for name in without_comments.split(",") if name.strip()]


def is_known(dotted: str) -> bool:
    """Whether there is such a module, or such a name at the top of a module."""
    place, *parts = map(Path, dotted.split("."))
    place = ROOT / place
    while parts and _is_module(place / parts[0]):
        place /= parts.pop(0)
    if not parts:
        return True
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return file.is_file() and str(parts[0]) in names_at_the_top_of(file)


def _is_module(place: Path) -> bool:
    return place.is_dir() or place.with_suffix(".py").is_file()


@cache
def names_at_the_top_of(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(name for statement in _statements(tree.body) for name in _given_by(statement))


def _statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for each in body:
        yield each
        if isinstance(each, ast.If | ast.Try | ast.ExceptHandler):
            for part in ("body", "handlers", "orelse", "finalbody"):
                yield from _statements(getattr(each, part, ()))


def _given_by(statement: ast.AST) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((each.asname or each.name).partition(".")[0] for each in names)
        case ast.Assign() | ast.AnnAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            found = (each for target in targets for each in ast.walk(target))
            yield from (each.id for each in found if isinstance(each, ast.Name))


def test_every_name_of_ours_that_is_used_elsewhere_is_there() -> None:
    below = (path for place in PLACES for path in (ROOT / place).rglob("*"))
    files = [path for path in below if path.is_file() and path.name.endswith(READ)]
    texts = {path: path.read_text() for path in (*files, *(ROOT / name for name in FILES))}
    assert len(texts) > 100
    unknown = {str(path.relative_to(ROOT)): unknown_in(text) for path, text in texts.items()}
    assert {path: found for path, found in unknown.items() if found} == {}


def test_what_is_not_there_is_found() -> None:
    text = """
from airflow_provider_ocidist.agent.join.topology import (
    GONE,  # no such name
    own_rank,
)
from scripts import keeper, no_such_script
python -m airflow_provider_ocidist.no_such_module
LOGGING=airflow_provider_ocidist.integrations.task_log_settings.LOGGING_CONFIG
"""
    assert unknown_in(text) == [
        "airflow_provider_ocidist.no_such_module",
        "airflow_provider_ocidist.agent.join.topology.GONE",
        "scripts.no_such_script",
    ]
