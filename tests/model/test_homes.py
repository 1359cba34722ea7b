"""The nouns of each home stand in one table; the rooms that know no home take them from there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from airflow_provider_ocidist import kinds
from airflow_provider_ocidist.model.homes import OTHER, WORDS, cancel_command, how_to_end, place_in, words_of
from airflow_provider_ocidist.model.run import RunKey, RunRef

PACKAGE = Path(kinds.__file__).parent
ROOMS = (
    "cli",
    "gangs",
    "hooks",
    "integrations",
    "model",
    "operators",
    "plugin",
    "sensors",
    "triggers",
    "work_dir",
)
MODULES = ("decorators.py", "transfers.py")
NOUNS = (
    "job run",
    "log group",
    "Data Science",
    "console",
    "kubectl",
    "PyTorchJob",
    "TrainJob",
    "pod",
    "OCID",
)
OF_ONE_HOME = {
    "model/homes.py": "the table",
    "hooks/links.py": "the links are OCI's, and have no address at other homes",
    "model/masking/names.py": "names of variables",
    "cli/note.py": "the help names each form of an id",
}


def generic() -> Iterator[Path]:
    yield from (PACKAGE / name for name in MODULES)
    for room in ROOMS:
        yield from sorted((PACKAGE / room).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def nouns_in(tree: ast.AST) -> list[str]:
    """Return the texts with a noun of one home that a module may print: all but its docstrings."""
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents
    ]
    noun = re.compile(rf"\b(?:{'|'.join(NOUNS)})s?\b")
    return [text for text in texts if noun.search(text)]


def comparisons_in(tree: ast.AST) -> list[str]:
    """Return the comparisons of a module with the name of a kind."""
    known = set(kinds.names("backends")) - {"local"}  # which is a kind of place, too
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and any(
            isinstance(part, ast.Constant) and part.value in known for part in (node.left, *node.comparators)
        )
    ]


def test_every_home_has_its_words() -> None:
    assert sorted(WORDS) == kinds.names("backends")
    assert words_of("of-tomorrow") is OTHER


def test_no_room_that_knows_no_home_prints_the_nouns_of_one() -> None:
    found = {str(path.relative_to(PACKAGE)): nouns_in(parsed(path)) for path in generic()}
    assert {name: texts for name, texts in found.items() if texts and name not in OF_ONE_HOME} == {}


def test_no_room_that_knows_no_home_compares_with_the_name_of_one() -> None:
    found = {str(path.relative_to(PACKAGE)): comparisons_in(parsed(path)) for path in generic()}
    assert {name: each for name, each in found.items() if each} == {}


def test_the_default_kind_stands_in_one_place() -> None:
    files = (path for path in PACKAGE.rglob("*.py") if f'"{kinds.DEFAULT_BACKEND}"' in path.read_text())
    named = {
        str(path.relative_to(PACKAGE))
        for path in files
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and node.value == kinds.DEFAULT_BACKEND
    }
    table, own, dialect = "model/homes.py", "oci_data_science/options.py", "dialects/ads/infrastructure.py"
    assert named == {"kinds.py", table, f"backends/{own}", f"job_file/{dialect}"}


def test_what_is_looked_for_would_be_found() -> None:
    tree = ast.parse(
        '"""Of a pod."""\nif ref.backend != "runai":\n    log.info(f"the pod {name} of {ref}")\n'
    )
    assert nouns_in(tree) == ["the pod "]
    assert comparisons_in(tree) == ["ref.backend != 'runai'"]


def test_the_page_takes_the_nouns_of_a_home_from_the_view() -> None:
    scripts = sorted((PACKAGE / "plugin" / "static").glob("*.js"))
    assert len(scripts) > 5
    said = [
        line for script in scripts for line in script.read_text().splitlines() if not line.startswith("//")
    ]
    assert [line for line in said if re.search(r"\b[Jj]ob runs?\b|\bOCID\b|\b[Pp]ods?\b", line)] == []


@pytest.mark.parametrize(
    "kind, resource_id, place",
    [
        ("oci_data_science", "ocid1.datasciencejob.oc1.iad.x", ("oc1", "iad")),
        ("oci_data_science", "job", ()),
        ("local", "/srv/v1.2/ocidist.runs/dag-train-a1", ()),
        ("runai", "ocid1.not.of.ours", ()),
    ],
)
def test_only_ids_of_a_known_form_name_a_region(kind: str, resource_id: str, place: tuple[str, ...]) -> None:
    assert place_in(kind, resource_id) == place


@pytest.mark.parametrize(
    "kind, job_id, conn_id, options",
    [
        ("oci_data_science", "ocid1.datasciencejob.oc1.iad.x", None, ""),
        ("pytorchjob", "team/x", None, "--backend pytorchjob "),
        ("runai", "7f-3a", None, "--backend runai "),
        ("local", "'/srv/my work/x'", None, "--backend local "),
        ("oci_data_science", "ocid1.datasciencejob.oc1.fra.x", "oci_fra", "--conn-id=oci_fra "),
        ("trainjob", "team/x", "prod/oke:1", "--conn-id=prod/oke:1 --backend trainjob "),
        ("trainjob", "team/x", "-(fra)", "'--conn-id=-(fra)' --backend trainjob "),
    ],
)
def test_the_command_that_ends_a_gang_names_its_home_and_connection_where_those_are_not_the_usual_ones(
    kind: str, job_id: str, conn_id: str | None, options: str
) -> None:
    key = RunKey(dag_id="dag", run_id="run", task_id="train")
    ref = RunRef(
        backend=kind,
        key=key,
        nodes=1,
        job_id=job_id.strip("'"),
        run_ids=("a",),
        run_dir="/x",
        submitted_at=0.0,
        conn_id=conn_id,
    )
    assert cancel_command(ref) == f"ocidist cancel {options}{job_id}"


SENTENCES = {
    "oci_data_science": "ocidist cancel a and ocidist cancel b, or in the console (Data Science, Jobs, job runs)",
    "pytorchjob": "ocidist cancel --backend pytorchjob a and ocidist cancel --backend pytorchjob b, "
    "or by deleting the PyTorchJob with kubectl",
    "trainjob": "ocidist cancel --backend trainjob a and ocidist cancel --backend trainjob b, "
    "or by deleting the TrainJob with kubectl",
    "runai": "ocidist cancel --backend runai a and ocidist cancel --backend runai b, or in Run:ai, under Workloads",
    "local": "ocidist cancel --backend local a and ocidist cancel --backend local b, or on its machine, with kill",
    "of-tomorrow": "ocidist cancel --backend of-tomorrow a and ocidist cancel --backend of-tomorrow b, "
    "or at the service",
}
WHERE = {
    "oci_data_science": "delete it in the console (Data Science, Jobs, job runs)",
    "pytorchjob": "delete it with kubectl",
    "trainjob": "delete it with kubectl",
    "runai": "delete it in Run:ai, under Workloads",
    "local": "delete it on its machine, with kill",
    "of-tomorrow": "delete it at the service",
}


@pytest.mark.parametrize("kind", SENTENCES)
def test_what_may_live_can_be_ended_by_a_command_for_each_gang_or_where_its_home_shows_it(kind: str) -> None:
    key = RunKey(dag_id="dag", run_id="run", task_id="train")
    first = RunRef(backend=kind, key=key, nodes=1, job_id="a", run_ids=("x",), run_dir="/x", submitted_at=0.0)
    assert how_to_end(first, replace(first, job_id="b")) == SENTENCES[kind]
    one = SENTENCES[kind].partition(" and ")[0] + ", or " + SENTENCES[kind].partition(", or ")[2]
    assert how_to_end(first) == one
    assert f"delete it {words_of(kind).where}" == WHERE[kind]


def test_each_home_has_its_sentences() -> None:
    assert sorted(SENTENCES) == sorted(WHERE) == sorted([*WORDS, "of-tomorrow"])
