"""The walls of the house: who imports whom, and what reading a DAG file must not load."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from airflow_provider_ocidist.backends.bundle import AGENT_PARTS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_ocidist"


def in_a_new_interpreter(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


# All in one copy of the package, which takes the linter seconds to read; `make check` runs it on the package itself.
BREAKS = [
    (
        "model/run.py",
        f"from {PACKAGE}.storage import locations",
        "Data goes down",
        f"{PACKAGE}.model.run -> {PACKAGE}.storage.locations",
    ),
    (
        "emulator/context.py",
        f"from {PACKAGE} import errors",
        "Data goes down",
        f"{PACKAGE}.emulator.context -> {PACKAGE}.errors",
    ),
    ("new_room/__init__.py", "", "Data goes down", "new_room"),
    (
        "backends/base.py",
        f"from {PACKAGE}.emulator import access",
        "Only the command line",
        f"{PACKAGE}.backends.base -> {PACKAGE}.emulator.access",
    ),
    (
        "gangs/watch.py",
        "def f():\n    import airflow.sdk",
        "Only Airflow's face",
        f"{PACKAGE}.gangs.watch -> airflow",
    ),
    (
        "gangs/verdict.py",
        f"def f():\n    from {PACKAGE}.gangs import watch",
        "No two modules",
        f"No cycles are allowed in {PACKAGE}.gangs.",
    ),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The linter's words on a package with all the breaks."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copy(ROOT / "pyproject.toml", folder)
    left_out = shutil.ignore_patterns("__pycache__", "static", "templates")
    shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=left_out)
    for module, line, _, _ in BREAKS:
        place = folder / PACKAGE / module
        place.parent.mkdir(exist_ok=True)
        with place.open("a") as file:
            file.write(f"\n{line}\n")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "COLUMNS": "500"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout
    return done.stdout.partition("Broken contracts")[2]


@pytest.mark.parametrize("contract, words", [each[2:] for each in BREAKS])
def test_each_contract_sees_what_breaks_it(broken: str, contract: str, words: str):
    assert contract in broken
    assert words in broken


# One interpreter for all, because Airflow itself takes seconds to import; each module is imported in a fork of its own.
IN_A_DAG_FILE = (
    "operators",
    "decorators",
    "transfers",
    "sensors",
    "triggers",
    "hooks",
    "hooks.links",
    "job",
    "provider_info",
)
IMPORT_EACH = f"""
import os, sys
import airflow.sdk
for module in {IN_A_DAG_FILE}:
    if os.fork() == 0:
        __import__("{PACKAGE}." + module)
        print(module, *sorted({{name.partition(".")[0] for name in sys.modules}}))
        sys.exit()
    assert os.wait()[1] == 0, module
"""


def test_operators_can_be_imported_where_airflow_has_no_retry_policies():
    program = f"""
import sys
sys.modules["airflow.sdk.definitions.retry_policy"] = None
from {PACKAGE}.operators import DistributedTrainingOperator, EndTrainingOperator
from {PACKAGE}.operators.training import RETRIES
import {PACKAGE}.decorators, {PACKAGE}.transfers
print(RETRIES)
"""
    assert in_a_new_interpreter(program).split() == ["None"]


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The libraries that are there after each module's import."""
    lines = [line.split() for line in in_a_new_interpreter(IMPORT_EACH).splitlines()]
    return {line[0]: set(line[1:]) for line in lines if line}


@pytest.mark.parametrize("module", IN_A_DAG_FILE)
def test_reading_a_dag_file_loads_no_heavy_library(module, loaded):
    assert PACKAGE in loaded[module]
    assert (
        not {"oci", "ocifs", "torch", "kubernetes", "ads", "pandas", "starlette.testclient"} & loaded[module]
    )


def test_reading_a_dag_file_loads_none_of_what_only_a_running_task_needs():
    faces = ", ".join(f"{PACKAGE}.{face}" for face in ("operators", "sensors", "triggers", "hooks"))
    loaded_then = in_a_new_interpreter(f"import airflow.sdk, sys, {faces}; print(*sys.modules)").split()
    own = {name.removeprefix(f"{PACKAGE}.") for name in loaded_then if name.startswith(f"{PACKAGE}.")}
    assert not {"model.masking", "model.run", "model.job", "backends", "job_file", "storage"} & own


def test_the_package_itself_imports_nothing():
    program = f"import sys; before = set(sys.modules); import {PACKAGE}; print(*(set(sys.modules) - before))"
    assert set(in_a_new_interpreter(program).split()) == {PACKAGE}


def test_the_command_line_starts_without_airflow_and_oci():
    program = f"import sys, {PACKAGE}.cli; print(*sys.modules)"
    assert not {"airflow", "oci", "torch", "starlette"} & set(in_a_new_interpreter(program).split())


EXCEPTION = re.compile(r"# ?(?:noqa\b(?:: ?[A-Z]+\d+(?:, ?[A-Z]+\d+)*)?|type: ?ignore\b(?:\[[^]]*\])?)")


def without_a_reason(source: str) -> Iterator[str]:
    """Yield the comments that except a line from a check and do not say why, in a word at least."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_exception = token.type == tokenize.COMMENT and EXCEPTION.match(token.string)
        if is_exception and not re.search(r"[A-Za-z]{2}", EXCEPTION.sub("", token.string)):
            yield f"{token.start[0]}: {token.string}"


@pytest.mark.parametrize(
    "comment, is_bare",
    [
        ("# noqa", True),
        ("# noqa: S311", True),
        ("# noqa: PTH100, PTH118 -", True),
        ("# type: ignore[misc]", True),
        ("# type: ignore[misc]  # noqa: S311", True),
        ("# noqa: S311 - jitter", False),
        ("# type: ignore[misc]  # found by its name", False),
        ("# another comment", False),
    ],
)
def test_an_exception_from_a_check_is_bare_without_a_reason(comment: str, is_bare: bool):
    assert bool(list(without_a_reason(f"x = 1  {comment}\n"))) == is_bare


@pytest.mark.parametrize("folder", [PACKAGE, "benchmarks", "dags_examples", "scripts", "tests"])
def test_every_exception_from_a_check_has_its_reason(folder: str):
    texts = {file: file.read_text() for file in sorted((ROOT / folder).rglob("*.py"))}
    assert texts
    excepted = {file: text for file, text in texts.items() if EXCEPTION.search(text)}
    bare = [
        f"{file.relative_to(ROOT)}:{each}"
        for file, text in excepted.items()
        for each in without_a_reason(text)
    ]
    assert bare == []


def rooms() -> set[str]:
    """Return the packages and modules of the house."""
    found = (ROOT / PACKAGE).iterdir()
    return {path.stem for path in found if path.suffix == ".py" or (path / "__init__.py").exists()} - {
        "__init__"
    }


def project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"])


MAP = (ROOT / "ARCHITECTURE.md").read_text()
ELSEWHERE = {"emulator", "provider_info", "job", "endings", "retries", "watchers"}
"""Rooms that the map describes beside its table."""


def rows_of_the_map() -> list[tuple[int, list[str], str]]:
    """Return each row's layer, rooms and sentence."""
    table = MAP.partition("| layer | room | it is |")[2].partition("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    return [(int(layer), re.findall(r"`(\w+)/?`", names), text.strip()) for layer, names, text in cells]


def layers() -> list[list[str]]:
    """Return the rooms of each layer of the contract, the highest first."""
    (found,) = [each["layers"] for each in project()["importlinter"]["contracts"] if "layers" in each]
    return [layer.split(" | ") for layer in found]


def test_the_map_has_a_row_for_each_room_with_its_layer_in_the_contract():
    named = [(room, layer) for layer, names, _ in rows_of_the_map() for room in names]
    assert sorted(room for room, _ in named) == sorted(rooms() - ELSEWHERE)
    assert {room for room in ELSEWHERE if f"`{room}" not in MAP} == set()
    number = {room: above for above, layer in enumerate(reversed(layers()), 1) for room in layer}
    assert named == [(room, number[room]) for room, _ in named]
    assert [layer for _, layer in named] == sorted((layer for _, layer in named), reverse=True)


def test_the_map_is_one_page_of_short_rows():
    assert len(MAP.splitlines()) <= 115
    assert [text for _, _, text in rows_of_the_map() if len(text) > 160 or ". " in text] == []


def test_what_travels_to_nodes_is_linted_for_their_python():
    paths = project()["ruff"]["per-file-target-version"]
    own = {path.removeprefix(f"{PACKAGE}/").removesuffix("/**") for path in paths if path.startswith(PACKAGE)}
    assert own == {*AGENT_PARTS, "cli/templates"}
    # They may import one another only: what a node does not have cannot be imported there.
    names = {part.removesuffix(".py") for part in AGENT_PARTS} - {"__init__"}
    below = [room for layer in layers() for room in layer]
    assert set(below[below.index("agent") :]) - {"emulator"} == names


TESTS = Path(__file__).parent
VOCABULARY = {"backports", "emulator", "errors", "job", "job_file", "kinds", "model", "testing"}
"""What a test of any room says its inputs and expectations in."""


def packages(folder: Path) -> set[str]:
    return {each.parent.name for each in folder.glob("*/__init__.py")}


def test_the_tests_of_a_room_with_packages_are_in_folders_of_their_names():
    for room in ("agent", "backends"):
        folders = {each.name for each in (TESTS / room).iterdir() if any(each.glob("test_*.py"))}
        assert folders <= packages(ROOT / PACKAGE / room), room
    # A module of a package is tested beside its package, and not a floor above.
    for file in (TESTS / "agent").glob("test_*.py"):
        named = file.stem.removeprefix("test_")
        assert not list((ROOT / PACKAGE / "agent").glob(f"*/{named}.py")), file.name


def test_each_room_has_its_tests():
    tested = {each.stem.removeprefix("test_") for each in TESTS.iterdir() if any(each.glob("**/test_*.py"))}
    tested |= {each.stem.removeprefix("test_") for each in TESTS.glob("test_*.py")}
    assert packages(ROOT / PACKAGE) - tested == set()


OF_OURS = re.compile(rf"^ *(?:from {PACKAGE}\.|from {PACKAGE} import |import {PACKAGE}\.)(\w+)", re.MULTILINE)


def test_a_test_that_goes_through_six_rooms_is_a_walk():
    rooms_of = {
        file: set(OF_OURS.findall(file.read_text())) - VOCABULARY for file in TESTS.glob("*/**/test_*.py")
    }
    assert {file for file, met in rooms_of.items() if len(met) >= 6} <= set((TESTS / "walks").iterdir())


SAME_NAMES = {"Call", "Problem"}
"""Public classes that have a namesake in a stand-in: that shares no code with us, and has the words of its service."""


def test_no_two_public_classes_share_a_name():
    modules: dict[str, list[str]] = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(), re.MULTILINE):
            modules.setdefault(name, []).append(str(file.relative_to(ROOT / PACKAGE)))
    shared = {name: found for name, found in modules.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in SAME_NAMES} == {}
    assert shared.keys() >= SAME_NAMES, "an exception that is none any more"
