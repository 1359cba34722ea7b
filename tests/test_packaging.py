"""The wheel and the source archive: what is in them, what they say of themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_ocidist"
BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
build_wheel(sys.argv[1])
build_sdist(sys.argv[1])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder with both, built from this checkout."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> zipfile.ZipFile:
    (file,) = built.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def metadata(wheel) -> Metadata:
    """Raises where an index would refuse it."""
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Metadata.from_email(wheel.read(name), validate=True)


def sources() -> set[str]:
    files = (
        path for path in (ROOT / PACKAGE).rglob("*") if path.is_file() and "__pycache__" not in path.parts
    )
    return {os.fspath(path.relative_to(ROOT)) for path in files}


def test_the_wheel_holds_the_package_as_it_is_and_nothing_else(wheel):
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == sources()


def test_what_is_no_python_is_there_too():
    kinds = {Path(name).suffix or Path(name).name for name in sources()}
    assert {".json", ".yaml", ".html", ".js", ".css", ".svg", "Dockerfile", ".typed"} <= kinds


def test_the_source_archive_can_be_tested(built):
    (file,) = built.glob("*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", "pyproject.toml", "tests/conftest.py"}
    assert needed | {"scripts/local_airflow.py", "requirements/constraints.txt"} | sources() <= names


def test_its_metadata_is_that_of_an_airflow_provider(wheel, metadata):
    assert {"Framework :: Apache Airflow", "Framework :: Apache Airflow :: Provider"} <= set(
        metadata.classifiers
    )
    assert metadata.description_content_type == "text/markdown"
    assert metadata.description.startswith("# ")
    (points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    sections = wheel.read(points).decode()
    for group in ("apache_airflow_provider", "airflow.plugins", "console_scripts", "pytest11"):
        assert f"[{group}]" in sections


def test_no_extra_is_there_for_nothing_and_torch_is_in_none(metadata):
    assert set(metadata.provides_extra) == {
        "bench",
        "demo",
        "dev",
        "emulator",
        "export",
        "kubernetes",
        "test",
    }
    assert "torch" not in {requirement.name for requirement in metadata.requires_dist}
