"""`make` fills an environment by real pip from indexes of our own: torch of any build, and why it fails."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TORCH = "2.13.0"
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "ours"
version = "1"
"""
BACKEND = """
import zipfile
def build_editable(folder, settings=None, metadata=None):
    with zipfile.ZipFile(f"{folder}/ours-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("ours-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: ours\\nVersion: 1\\n")
        wheel.writestr("ours-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("ours-1.dist-info/RECORD", "")
    return "ours-1-py3-none-any.whl"
"""


@dataclass(frozen=True)
class Index:
    """A package index in a folder."""

    folder: Path

    @property
    def url(self) -> str:
        return f"{self.folder.as_uri()}/"

    def add(self, name: str, version: str, *, needs: Sequence[str] = (), script: str = "") -> None:
        """Put a wheel there, with a module of its name that imports what it needs."""
        module, stem = name.replace("-", "_"), f"{name.replace('-', '_')}-{version}"
        place = self.folder / name
        place.mkdir(parents=True, exist_ok=True)
        metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        metadata += [f"Requires-Dist: {need}" for need in needs]
        wanted = [need.partition(";")[0].partition("[")[0].strip().replace("-", "_") for need in needs]
        files = {
            f"{module}/__init__.py": "".join(f"import {need}\n" for need in wanted if need),
            f"{stem}.dist-info/METADATA": "\n".join(metadata) + "\n",
            f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        if script:
            files[f"{stem}.dist-info/entry_points.txt"] = f"[console_scripts]\n{script} = {module}:main\n"
        record = "".join(f"{file},,\n" for file in files) + f"{stem}.dist-info/RECORD,,\n"
        with zipfile.ZipFile(place / f"{stem}-py3-none-any.whl", "w") as wheel:
            for file, content in {**files, f"{stem}.dist-info/RECORD": record}.items():
                wheel.writestr(file, content)
        links = "".join(f'<a href="{each.name}">{each.name}</a>\n' for each in sorted(place.glob("*.whl")))
        (place / "index.html").write_text(f"<html><body>{links}</body></html>")


@dataclass(frozen=True)
class Checkout:
    """A checkout with the Makefile and its scripts, whose locks name only what the test's index has."""

    folder: Path
    index: Index

    def lock(self, name: str, *requirements: str) -> None:
        (self.folder / "requirements" / f"{name}.txt").write_text("\n".join(["# a lock", *requirements, ""]))

    def make(self, target: str, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
        environ |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": self.index.url}
        command = ["make", f"PYTHON={sys.executable}", *options, target]
        command += [f"{name}={value}" for name, value in variables.items()]
        return subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, timeout=240, check=False
        )

    def imports(self, environment: str, *modules: str) -> str:
        """Return what an environment's Python says to an import: nothing when it works."""
        python = self.folder / environment / "bin" / "python"
        program = "".join(f"import {module}\n" for module in modules)
        done = subprocess.run([python, "-I", "-c", program], capture_output=True, text=True, check=False)
        return done.stderr


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip alone, as the Makefile makes it: once, as that takes seconds."""
    folder = tmp_path_factory.mktemp("empty")
    shutil.copy(ROOT / "Makefile", folder)
    command = ["make", f"PYTHON={sys.executable}", ".venv/bin/python"]
    # The constraints, of which the Makefile reads Airflow's version, are not there: that is said, and no fault.
    subprocess.run(command, cwd=folder, check=True, timeout=240, capture_output=True)
    return folder / ".venv"


@pytest.fixture
def checkout(tmp_path: Path, empty_environment: Path) -> Checkout:
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    (folder / "requirements").mkdir()
    for name in ("Makefile", "scripts/environment.py", "scripts/system_packages.py"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(empty_environment, folder / ".venv", symlinks=True)
    shutil.copytree(empty_environment, folder / ".venv-clients", symlinks=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    index = Index(tmp_path / "index")
    made = Checkout(folder, index)
    made.lock("pip", "pip")
    made.lock("torch", f"torch=={TORCH}")
    for name in ("oci", "airflow", "sympy"):
        index.add(name, "1.0")
    made.lock("constraints", "oci==1.0", "airflow==1.0", "sympy==1.0")
    made.lock("clients", "oci==1.0", "sympy==1.0")
    return made


def needs_of_a_build(chance: random.Random) -> Mapping[str, list[str]]:
    """Return packages that a build of torch may bring along, each with what it needs in turn; `torch` itself, too."""
    names = [f"nvidia-part-{number}" for number in range(chance.randint(1, 5))]
    needs: dict[str, list[str]] = {
        name: chance.sample(names[place + 1 :], chance.randint(0, len(names) - place - 1))
        for place, name in enumerate(names)
    }
    wanted = {need for each in needs.values() for need in each}
    roots = [name for name in names if name not in wanted]
    system = chance.choice(["", '; platform_system == "Linux"'])
    return {**needs, "torch": ["sympy", *(f"{name}{system}" for name in roots)]}


def test_torch_works_wherever_it_is_installed_or_linked_whatever_its_build_needs(checkout: Checkout) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    needs = needs_of_a_build(random.Random(seed))
    for name, needed in needs.items():
        version = TORCH if name == "torch" else "13.0"
        checkout.index.add(name, version, needs=needed, script="torchrun" if name == "torch" else "")
    done = checkout.make(".venv-clients/.ready")
    assert done.returncode == 0, done.stderr
    modules = [name.replace("-", "_") for name in needs]
    assert checkout.imports(".venv", "oci", "airflow", *modules) == ""
    assert checkout.imports(".venv-clients", "oci", *modules) == ""
    first, *_ = (checkout.folder / ".venv-clients/bin/torchrun").read_text().splitlines()
    assert first == f"#!{checkout.folder}/.venv-clients/bin/python"
    again = checkout.make(".venv-clients/.ready")
    assert (again.returncode, "installing" in again.stdout) == (0, False)


def test_a_variable_names_the_index_that_torch_comes_from(checkout: Checkout, tmp_path: Path) -> None:
    checkout.index.add("torch", TORCH, needs=["nvidia-cudnn"], script="torchrun")
    checkout.index.add("nvidia-cudnn", "9.0")
    other = Index(tmp_path / "cpu")
    other.add("torch", f"{TORCH}+cpu", needs=["sympy"], script="torchrun")
    done = checkout.make(".venv/.ready", TORCH_INDEX=other.url)
    assert done.returncode == 0, done.stderr
    assert list(checkout.folder.glob(f".venv/lib/*/site-packages/torch-{TORCH}+cpu.dist-info"))
    assert checkout.imports(".venv", "torch", "airflow") == ""
    assert "No module named 'nvidia_cudnn'" in checkout.imports(".venv", "nvidia_cudnn")


def lose_a_package(checkout: Checkout) -> str:
    checkout.lock("constraints", "oci==1.0", "airflow==1.0", "sympy==1.0", "gone==3.1")
    return "No matching distribution found for gone==3.1"


def lose_what_torch_needs(checkout: Checkout) -> str:
    checkout.index.add("torch", TORCH, needs=["sympy", "nvidia-cudnn"])
    return "No matching distribution found for nvidia-cudnn"


def lose_what_a_package_needs(checkout: Checkout) -> str:
    checkout.index.add("airflow", "1.0", needs=["flask>=2"])
    return "airflow 1.0 requires flask, which is not installed"


@pytest.mark.parametrize("lose", [lose_a_package, lose_what_torch_needs, lose_what_a_package_needs])
def test_when_it_fails_pip_says_why_and_the_environment_is_not_ready(
    checkout: Checkout, lose: Callable[[Checkout], str]
) -> None:
    checkout.index.add("torch", TORCH, needs=["sympy"], script="torchrun")
    words = lose(checkout)
    done = checkout.make(".venv/.ready")
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
    assert not (checkout.folder / ".venv/.ready").exists()


def test_an_environment_of_another_checkout_that_a_link_leads_to_stays_as_it_is(
    checkout: Checkout, tmp_path: Path
) -> None:
    checkout.index.add("torch", TORCH, needs=["sympy"], script="torchrun")
    # As it is when work begins in a second checkout: its files are newer.
    uses: list[str] = []
    for linked in (".venv", ".venv-clients"):
        theirs, link = tmp_path / f"theirs{linked}", checkout.folder / linked
        shutil.move(link, theirs)
        link.symlink_to(theirs)
        before = sorted((path, path.lstat().st_mtime_ns) for path in theirs.rglob("*"))
        refused = checkout.make(f"{linked}/.ready", *uses)
        assert refused.returncode != 0
        assert (
            f"{linked} is a link to an environment of another checkout, and stays as it is" in refused.stderr
        )
        assert f"make -o {linked}/.ready uses it" in refused.stderr
        assert sorted((path, path.lstat().st_mtime_ns) for path in theirs.rglob("*")) == before
        uses += ["-o", f"{linked}/.ready"]
        (theirs / ".ready").touch()
        used = checkout.make(f"{linked}/.ready", *uses)
        assert (used.returncode, "installing" in used.stdout) == (0, False), used.stderr
