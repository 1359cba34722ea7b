"""What the documents say is so: links, commands, YAML, DAGs."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from functools import cache

import pytest
import yaml

import airflow_provider_ocidist
from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.backends import bundle
from airflow_provider_ocidist.backends.capabilities import (
    ChecksBeforehand,
    ListsGangs,
    NamesSecrets,
    OpensById,
    ShowsWhatItCreated,
    Suspends,
)
from airflow_provider_ocidist.backends.oci_data_science import OciDataScienceOptions
from airflow_provider_ocidist.emulator.data_science import shapes
from airflow_provider_ocidist.job import (
    Checkpoints,
    Input,
    LauncherOptions,
    Limits,
    Output,
    Program,
    TrainingJob,
)
from airflow_provider_ocidist.job_file import parsing
from airflow_provider_ocidist.model.run import TrainingResult
from airflow_provider_ocidist.operators import DistributedTrainingOperator
from tests.documents import (
    DOCUMENTS,
    ROOT,
    blocks,
    broken_links,
    links,
    modules_named_in,
    name_of,
    uneven_rows,
)
from tests.train.test_job_files import CHANGES, DRILLED, NEED_GPUS, TRAINED_BY_DAGS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PARTS = {
    "program": Program,
    "launcher": LauncherOptions,
    "inputs": Input,
    "outputs": Output,
    "checkpoints": Checkpoints,
    "limits": Limits,
    "backend": OciDataScienceOptions,
}


def each(*languages: str) -> list:
    return [pytest.param(block.text, id=block.name) for block in blocks(*languages)]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_to_a_file_and_to_a_heading_of_it(path):
    assert broken_links(path.read_text(), path) == []


@pytest.mark.parametrize(
    "link, leads",
    [
        ("README.md", True),
        ("#a-heading-with-code-and-signs", True),
        ("#twice-1", True),
        ("docs/connection.md#policies", True),
        ("dags_examples", True),
        ("https://example.com/nothing#here", True),
        ("absent.md", False),
        ("#no-such-heading", False),
        ("#twice-2", False),
        ("#in-a-block", False),
        ("docs/connection.md#no-such-heading", False),
        ("Makefile#help", False),
    ],
)
def test_a_link_is_broken_where_its_file_or_its_heading_is_not_there(link, leads):
    text = "# A heading, with `code` and signs!\n## Twice\n## Twice\n```bash\n# in a block\n```\n"
    shown = f"{text}See [it]({link}), and not `[this](nowhere.md)`.\n"
    assert broken_links(shown, ROOT / "page.md") == ([] if leads else [link])


DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef

ON_A_NODE = {"ocidist/node.py"}
"""Modules that are named as they are in the artifact."""


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_each_module_that_a_page_names_is_where_it_says(path):
    above = (ROOT, ROOT / "airflow_provider_ocidist", ROOT / "tests", ROOT / "dags_examples", path.parent)
    named = set(modules_named_in(path.read_text())) - ON_A_NODE
    assert {module for module in named if not any((folder / module).is_file() for folder in above)} == set()


def test_each_step_of_the_walks_is_a_function_of_the_module_it_names():
    text = (ROOT / "docs" / "walks.md").read_text()
    steps = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(steps) > 20
    for module, function in steps:
        tree = ast.parse((ROOT / "airflow_provider_ocidist" / module).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, DEFINITION)}, module


def test_a_module_is_named_by_its_folder_and_file():
    text = "`agent/a.py`, `b/test_c.py::test_it`, `watch.py`, `launchers/<kind>.py`\n```text\n`a/b.py`\n```\n"
    assert modules_named_in(text) == ["agent/a.py", "b/test_c.py"]


def test_every_page_is_in_the_index():
    named = {link.partition("#")[0] for link in links((ROOT / "docs" / "README.md").read_text())}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} - named == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_make_commands_exist(path):
    text = path.read_text()
    named = set(re.findall(r"`make ([a-z0-9-]+)", text)) | set(
        re.findall(r"^make ([a-z0-9-]+)", text, re.MULTILINE)
    )
    assert named <= make_targets()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_ocidist_commands_exist(path):
    for command in set(re.findall(r"`ocidist ([a-z-]+)", path.read_text())):
        result = asked_for_help(command)
        assert result.returncode == 0, f"{command}: {result.stderr}"


@cache
def asked_for_help(command):
    arguments = [sys.executable, "-m", "airflow_provider_ocidist.cli", command, "--help"]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_every_make_target_has_a_line_of_help_and_is_phony():
    makefile = (ROOT / "Makefile").read_text()
    documented = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert make_targets() == documented == phony


@pytest.mark.parametrize("text", each("yaml"))
def test_yaml_in_documents_is_a_valid_job(text):
    assert parsing.build(yaml.safe_load(text), base_dir=ROOT / "dags_examples/jobs").name


@pytest.mark.parametrize("text", each("python"))
def test_python_in_documents_uses_what_exists(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("airflow"):
            module = __import__(node.module, fromlist=["_"])
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("text", each("python"))
def test_python_in_documents_runs(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__file__": str(tmp_path / "dag.py")}
    exec(compile(text, "README", "exec"), names)
    if "saves.save(" in text:
        # A folder that was there already would be restored, and nothing would be trained.
        assert (tmp_path / "checkpoints" / "step-300" / ".metadata").exists()


def public_modules() -> set[str]:
    """Return the modules that the map allows users to import from."""
    sentence = (
        (ROOT / "ARCHITECTURE.md")
        .read_text()
        .partition("DAG files\nimport from ")[2]
        .partition("`endings`")[0]
    )
    return set(re.findall(r"`([\w.]+)`", sentence))


def imported_by_documents() -> set[str]:
    """Return what the documents' Python imports of this package, without its name."""
    texts = [block.text.replace(">>> ", "") for block in blocks("python", "pycon")]
    found = re.findall(
        r"^ *from airflow_provider_ocidist(?:\.([\w.]+))? import (\w+)", "\n".join(texts), re.MULTILINE
    )
    return {module or name for module, name in found}


def test_documents_import_only_what_the_map_allows_users_to_import():
    imported, allowed = imported_by_documents(), public_modules()
    assert len(imported) > 6
    assert {
        name for name in imported if not any(f"{name}.".startswith(f"{room}.") for room in allowed)
    } == set()
    for room in allowed:
        __import__(f"airflow_provider_ocidist.{room}")


def test_each_key_of_the_result_is_on_the_page_of_airflow():
    text = (ROOT / "docs" / "airflow.md").read_text().partition("The result has")[2].partition("\n\n")[0]
    keys = {field.name for field in dataclasses.fields(TrainingResult)}
    assert set(re.findall(r"`(\w+)`", text)) == keys | {"checkpoint_uri", "node_hours", "cost"}


def test_example_dags_load():
    folder = ROOT / "dags_examples"
    program = (
        "import json\ntry: from airflow.dag_processing.dagbag import DagBag\n"
        "except ImportError: from airflow.models.dagbag import DagBag  # Airflow 3.1\n"
        f"bag = DagBag({str(folder)!r}); print(); print(json.dumps([bag.import_errors, bag.dag_ids]))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    errors, dags = json.loads(result.stdout.splitlines()[-1])
    assert errors == {}
    assert sorted(dags) == sorted(path.stem for path in folder.glob("*.py"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "dags_examples/jobs").glob("*.yaml")), ids=lambda path: path.name
)
def test_example_jobs_parse(path):
    assert yaml.safe_load(path.read_text())["name"]


def test_locks_hold_names_and_versions_only():
    pin = re.compile(r'^[a-z0-9-]+==[A-Za-z0-9.]+(; python_version == "3\.\d+")?$')
    for path in (ROOT / "requirements").glob("*.txt"):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        assert [line for line in lines if not pin.match(line)] == [], path.name


def test_locks_satisfy_the_package():
    from packaging.requirements import Requirement

    locked = dict(
        line.partition(";")[0].split("==")
        for path in (ROOT / "requirements").glob("constraints*.txt")
        for line in path.read_text().splitlines()
        if "==" in line
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name != project["name"] and (not requirement.marker or requirement.marker.evaluate()):
            name = requirement.name.lower()
            assert name in locked, name
            assert requirement.specifier.contains(locked[name]), requirement


def test_the_version_is_one_and_the_changelog_has_a_place_for_it():
    from importlib.metadata import version

    assert version("airflow-provider-ocidist") == airflow_provider_ocidist.__version__
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def fields_of(kind: type, prefix: str = "") -> set[str]:
    found = set()
    for field in dataclasses.fields(kind):
        inner = PARTS.get(field.name)
        found |= fields_of(inner, f"{field.name}.") if inner else {f"{prefix}{field.name}"}
    return found


def test_every_key_of_a_job_is_documented():
    text = (ROOT / "docs" / "job-file.md").read_text()
    names = {name.rpartition(".")[2] for name in fields_of(TrainingJob)}
    assert {name for name in names if f"{name}`" not in text} == set()


FAILURES = [ROOT / "docs" / "failures.md", *sorted((ROOT / "docs" / "failures").glob("*.md"))]
NAMED_TEST = re.compile(r"`((?:[\w-]+/)*test_\w+\.py)(?:::(\w+))?`")
"""As these pages name tests, relative to tests/: a file, or one test in it."""


def named_tests() -> list[tuple[str, str]]:
    return sorted({found for page in FAILURES for found in NAMED_TEST.findall(page.read_text())})


def test_each_page_of_failures_is_on_their_first_page():
    assert len(FAILURES) > 1
    named = {link.partition("#")[0] for link in links(FAILURES[0].read_text())}
    assert {f"failures/{page.name}" for page in FAILURES[1:]} <= named


@pytest.mark.parametrize("file, name", named_tests(), ids=lambda part: part or "all")
def test_each_test_that_shows_what_happens_is_there(file, name):
    text = (ROOT / "tests" / file).read_text()
    assert not name or re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE)


def test_the_fault_matrix_has_a_test_for_each_row_or_names_what_it_waits_for():
    text = (ROOT / "docs" / "failures" / "matrix.md").read_text()
    rows = re.findall(r"^\| F(\d+) \| (.+) \| (.+) \|(.*)\|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 43))
    for number, _, then, seen in rows:
        assert "::" in seen or "waits for" in then, f"F{number}"


def test_the_sizes_of_what_travels_are_as_documented():
    text = (ROOT / "docs" / "containers.md").read_text()
    agent = int(re.search(r"\(about (\d+) KB\) into the run directory", text)[1])
    boot = int(re.search(r"`OCIDIST_BOOT` \((\d+) KB of", text)[1])
    assert agent == pytest.approx(len(bundle.agent_bundle(None)) / 1000, rel=0.2)
    assert boot == pytest.approx(len(bundle.boot_text()) / 1000, abs=1)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_each_row_of_a_table_has_a_cell_for_each_column(path):
    assert list(uneven_rows(path.read_text())) == []


def test_a_row_with_a_cell_too_many_is_found():
    assert list(
        uneven_rows("| a | b |\n| --- | --- |\n| 1 | `x \\| y` |\n| 1 | x | y |\n\n| c |\n| - |\n")
    ) == ["| 1 | x | y |"]


def test_the_shapes_in_the_documents_are_those_of_the_emulator():
    text = (ROOT / "docs" / "networks.md").read_text()
    table = text.partition("## Shapes")[2].partition("## ")[0]
    named = set(re.findall(r"`((?:VM|BM)\.[\w.-]+)`", table))
    assert len(named) > 8
    assert named <= {shape[0] for shape in shapes.SHAPES}


HOMES = {
    "`ocidist status` by the platform's own id": OpensById,
    "`ocidist list`": ListsGangs,
    "`ocidist suspend`, `ocidist resume`": Suspends,
    "`ocidist diff` with a run": ShowsWhatItCreated,
    "`ocidist preflight`": ChecksBeforehand,
    "asks the platform for the secrets of a run that another process started, to mask them": NamesSecrets,
}


def test_what_each_home_can_do_is_what_its_backend_declares():
    table = [line for line in (ROOT / "docs" / "homes.md").read_text().splitlines() if line.startswith("|")]
    homes = re.findall(r"\[`(\w+)`\]", table[0])
    assert sorted(homes) == kinds.names("backends")
    rows = {label: cells for label, *cells in (line.strip("| ").split(" | ") for line in table[2:])}
    backends = [kinds.load("backends", home).BACKEND for home in homes]
    for label, capability in HOMES.items():
        assert rows[label] == ["yes" if issubclass(each, capability) else "-" for each in backends], label


def test_every_argument_of_the_operator_is_in_its_table():
    text = (ROOT / "docs" / "airflow.md").read_text()
    rows = re.findall(r"^\| (`.*?) \|", text.partition("| argument |")[2].partition("\n\n")[0], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    taken = inspect.signature(DistributedTrainingOperator.__init__).parameters
    assert named == {name for name in taken if name not in ("self", "kwargs")}


def test_the_page_of_launchers_says_what_trains_each_job_file():
    text = (ROOT / "docs" / "launchers.md").read_text()
    rows = re.findall(r"^\| (`\w+\.yaml`.*?) \| (.*?) \|$", text, re.MULTILINE)
    said = {frozenset(re.findall(r"`(\w+\.yaml)`", names)): by for names, by in rows}
    found = ((CHANGES, "test-launchers"), (TRAINED_BY_DAGS, "test-airflow"), (DRILLED, "test-chaos"))
    for files, target in found:
        assert said.pop(frozenset(files)).startswith(f"`make {target}`")
    assert said.pop(frozenset(NEED_GPUS)).startswith("nothing: ")
    assert said == {}
