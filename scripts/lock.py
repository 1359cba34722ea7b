"""Write the version locks under requirements/: what pip resolves to now, for this Python. Run by `make lock`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
ELSEWHERE = {"airflow-provider-ocidist", "torch"}
"""Packages that are not locked here: ourselves, and what requirements/torch.txt holds."""
OF_A_BUILD = re.compile(r"(nvidia|cuda)-.+|triton")
"""Packages that torch's build for CUDA brings along: with them the locks would hold for no other build."""

HEADER = """\
# {what}, on Python {python}. Written by `make lock`; not edited.
# Names and versions only: no address of an index or of a file, so it means the same everywhere.
"""


CLIENTS = ["oci-cli", "oracle-ads[opctl]"]
"""Real clients that tests hold against the emulator; they clash with Airflow."""

OLDER_AIRFLOWS: dict[str, list[str]] = {"3.1": [], "3.2": ["fastapi<0.137", "svcs<26"]}
"""Minors that are supported besides the one in constraints.txt; `make test-matrix` tests the newest patch of each.

With each, what its own requirements leave out. Airflow 3.2.2 does not start with FastAPI 0.165 ("needs a discriminator
field"), a bound that 3.3 has set; with svcs 26 its `dags test` fails ("no attribute 'svcs_registry'").
"""

BUILD = ["editables", "hatchling"]
"""Packages that install us in place, in an environment that is not isolated."""

LAUNCHERS = ["accelerate", "deepspeed", "ninja", "scikit-learn", "setuptools", "wheel"]
"""Packages that nodes need besides torch to train the examples, and to build DeepSpeed."""

PROGRAMS = ["accelerate", "lightning", "setuptools", "torchtitan==0.2.2", "transformers"]
"""Programs of others that are trained, killed and resumed. torchtitan 0.3 does not train on processors."""

OF_NEWER_PYTHONS = {"libcst": ("pyyaml-ft", '8.0.0; python_version == "3.13"')}
"""What a package needs besides on a newer Python, where the locks hold too; pip resolves for the one that runs it."""


def resolve(
    requirements: list[str], options: Sequence[str] = (), *, torch: bool = True
) -> list[dict[str, Any]]:
    """Return what pip would install into an empty environment, with our torch or without any."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), *options, *requirements]
        command += ["-r", str(FOLDER / "torch.txt")] if torch else []
        subprocess.run(command, check=True)
        return list(json.loads(report.read_text())["install"])


def ours(extras: str) -> list[str]:
    return ["-e", f"{ROOT}[{extras}]"]


def pins(requirements: list[str], options: Sequence[str] = (), *, torch: bool = True) -> dict[str, str]:
    """Return version by name, names as indexes spell them, versions without a local build tag."""
    found = {}
    for package in resolve(requirements, options, torch=torch):
        name = re.sub(r"[-_.]+", "-", package["metadata"]["name"]).lower()
        found[name] = package["metadata"]["version"].partition("+")[0]
    return {
        name: version
        for name, version in found.items()
        if name not in ELSEWHERE and not OF_A_BUILD.fullmatch(name)
    }


def write(name: str, what: str, versions: dict[str, str]) -> None:
    python = ".".join(map(str, sys.version_info[:2]))
    newer = dict(needed for package, needed in OF_NEWER_PYTHONS.items() if package in versions)
    lines = [f"{package}=={version}\n" for package, version in sorted({**versions, **newer}.items())]
    (FOLDER / name).write_text(HEADER.format(what=what, python=python) + "".join(lines))
    print(f"requirements/{name}: {len(lines)} packages")


def main() -> None:
    write("constraints.txt", "All that `pip install -e .[dev]` needs, torch excepted", pins(ours("dev")))
    for minor, bounds in OLDER_AIRFLOWS.items():
        versions = pins([*ours("test"), f"apache-airflow~={minor}.0", *bounds, *BUILD])
        write(
            f"airflow-{minor}.txt",
            f"The tests' needs beside the newest Airflow {minor}, torch excepted",
            versions,
        )
    write("mutants.txt", "What makes the mutants of `make mutants`", pins(["mutmut"], torch=False))
    write("clients.txt", "The clients of OCI that clash with Airflow, torch excepted", pins(CLIENTS))
    # In isolation DeepSpeed, which comes as source only, would fetch a torch for CUDA to list its dependencies.
    launchers = pins(LAUNCHERS, ["--no-build-isolation"])
    write("launchers.txt", "Launchers and what the examples need, torch excepted", launchers)
    write("programs.txt", "Programs that nobody here wrote, torch excepted", pins(PROGRAMS))


if __name__ == "__main__":
    main()
