"""What Airflow reads of us, on the Airflow that is installed: it is valid, it is whole, and nothing in it is missed."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_ocidist.provider_info import PACKAGE, get_provider_info

FOLDER = Path(__file__).resolve().parent.parent / PACKAGE
MEET_AIRFLOW = (
    "decorators",
    "hooks",
    "integrations",
    "operators",
    "plugin",
    "sensors",
    "transfers",
    "triggers",
)
"""The rooms that may import Airflow: pyproject.toml has the contract."""
SCHEMA = Path(airflow.__file__).parent / "provider_info.schema.json"
ASK_AIRFLOW = """
import json, logging, warnings
told = []
class Told(logging.Handler):
    def emit(self, record):
        told.append(f"{record.levelname} {record.getMessage()}")
from airflow.providers_manager import ProvidersManager
logging.getLogger().addHandler(Told(logging.INFO))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    manager = ProvidersManager()
    hook = manager.hooks["oci"]
    form = [name for name in manager.connection_form_widgets if name.startswith("extra__oci__")]
    found = {
        "version": manager.providers["airflow-provider-ocidist"].version,
        "hook": [hook.hook_class_name, hook.hook_name, hook.connection_testable],
        "form": [name.removeprefix("extra__oci__") for name in form],
        "filesystems": list(manager.filesystem_module_names),
        "decorators": list(manager.taskflow_decorators),
        "links": list(manager.extra_links_class_names),
        "triggers": [trigger.trigger_class_name for trigger in manager.trigger],
    }
    from airflow import plugins_manager
    found["plugins"] = [plugin["name"] for plugin in plugins_manager.get_plugin_info()]
found["told"] = told + [str(warning.message) for warning in warned]
print("FOUND", json.dumps(found))
"""


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from strings(item)
        case list() | tuple():
            for item in value:
                yield from strings(item)


OUR_NAMES = sorted({text for text in strings(get_provider_info()) if text.startswith(f"{PACKAGE}.")})


def test_the_schema_of_this_airflow_accepts_it():
    jsonschema.validate(get_provider_info(), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize("name", OUR_NAMES)
def test_every_name_in_it_can_be_imported(name):
    module, _, attribute = name.rpartition(".")
    place = FOLDER.parent / name.replace(".", "/")
    if place.is_dir() or place.with_suffix(".py").exists():
        importlib.import_module(name)
    else:
        assert hasattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers", "hooks"])
def test_no_module_is_forgotten(kind):
    listed = {module for entry in get_provider_info()[kind] for module in entry["python-modules"]}
    ending = kind.removesuffix("s").capitalize()
    # Kubernetes has operators too.
    files = (path for path in FOLDER.glob("**/*.py") if room_of(path) in MEET_AIRFLOW)
    found = {module_of(path).removesuffix(".__init__") for path in files if defines(path, ending)}
    assert found == listed


def test_no_link_is_forgotten():
    links = {
        f"{PACKAGE}.hooks.links.{node.name}"
        for node in ast.walk(ast.parse((FOLDER / "hooks" / "links.py").read_text()))
        if isinstance(node, ast.ClassDef) and any(keyword_of(node, "xcom_key"))
    }
    assert links == set(get_provider_info()["extra-links"])


def connection_type(info, name):
    (found,) = [each for each in info["connection-types"] if each["connection-type"] == name]
    return found


def room_of(path: Path) -> str:
    return path.relative_to(FOLDER).parts[0].removesuffix(".py")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)


def defines(path: Path, ending: str) -> bool:
    """Whether a module defines a public class whose name ends so, and which is no protocol."""
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    names = [each.name for each in classes if "Protocol" not in map(ast.unparse, each.bases)]
    return any(
        name.endswith(ending) and not name.startswith("_") and "Decorated" not in name for name in names
    )


def keyword_of(node: ast.ClassDef, name: str) -> Iterator[bool]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            yield any(isinstance(target, ast.Name) and target.id == name for target in statement.targets)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What Airflow makes of it, in a process of its own: what others import must not help."""
    home = tmp_path_factory.mktemp("home")
    env = {"AIRFLOW_HOME": str(home), "PATH": "/usr/bin:/bin", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", ASK_AIRFLOW]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


def test_airflow_finds_all_of_it(found):
    info = get_provider_info()
    connection = connection_type(info, "oci")
    assert found["version"] in info["versions"]
    assert found["hook"] == [connection["hook-class-name"], connection["hook-name"], True]
    assert set(info["filesystems"]) <= set(found["filesystems"])
    assert {decorator["name"] for decorator in info["task-decorators"]} <= set(found["decorators"])
    assert set(info["extra-links"]) <= set(found["links"])
    assert {module for entry in info["triggers"] for module in entry["python-modules"]} <= set(
        found["triggers"]
    )


@pytest.mark.since_airflow("3.2", "forms are declared by providers")
def test_airflow_shows_every_field_of_the_connection(found):
    connection = connection_type(get_provider_info(), "oci")
    assert found["form"] == list(connection["conn-fields"])


def test_airflow_loads_the_plugin_by_its_entry_point(found):
    assert "ocidist" in found["plugins"]


def test_airflow_warns_of_nothing_in_it(found):
    assert [
        text
        for text in found["told"]
        if "ocidist" in text and "flask_appbuilder" not in text  # 3.1 warns so of every provider without FAB
    ] == []
