"""What nodes need not compile: the agent that is here too, and nothing that differs from it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from airflow_provider_ocidist.backends.bundle import ROOT, agent_bundle
from airflow_provider_ocidist.emulator.nodes.machine import Artifact, NodeError, _unpack

PACKAGE = "airflow_provider_ocidist"
STARTS = f"import {PACKAGE}.agent.start as begun; print(begun.__file__); print(begun.run_node.__code__.co_filename)"


def unpacked(folder: Path, bundle: bytes) -> Path:
    """Return the folder of a node with this artifact, which has no file to run."""
    archive, home = folder / "agent.zip", folder / "node"
    archive.write_bytes(bundle)
    home.mkdir()
    with pytest.raises(NodeError, match="contains no file 'nothing'"):
        _unpack(Artifact(path=archive, name=archive.name), home, "nothing")
    return home / ROOT


def node(place: Path, program: str = STARTS) -> subprocess.CompletedProcess[str]:
    """Run a program as a node's Python does, and let that list what it compiles."""
    return subprocess.run(
        [sys.executable, "-v", "-S", "-P", "-c", program],
        env={"PYTHONPATH": str(place), "PATH": os.environ["PATH"]},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )


def compiled_by(done: subprocess.CompletedProcess[str], place: Path) -> set[str]:
    """Return the modules below a folder that Python has compiled."""
    lines = [line.removeprefix("# code object from ").strip("'") for line in done.stderr.splitlines()]
    return {
        Path(line).relative_to(place).as_posix()
        for line in lines
        if line.startswith(f"{place}/") and line.endswith(".py")
    }


def test_a_node_starts_the_agent_of_its_own_folder_and_compiles_none_of_it(tmp_path: Path) -> None:
    place = unpacked(tmp_path, agent_bundle(None))
    done = node(place)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [str(place / PACKAGE / "agent" / "start.py")] * 2
    assert compiled_by(done, place) == set()


def test_a_module_that_differs_in_anything_is_the_artifacts_own(tmp_path: Path) -> None:
    seed = random.randrange(10_000)
    print("seed", seed)
    draw = random.Random(seed)
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as changed:
        other = f"{PACKAGE}/{draw.choice(['errors', 'model/run', 'storage/checkpoints', 'agent/node'])}.py"
        with zipfile.ZipFile(whole(tmp_path)) as archive:
            for name in archive.namelist():
                # As long as ours: a length is soon the same.
                is_it = name == f"{ROOT}/{other}"
                content = archive.read(name)
                changed.writestr(name, content[:-1] + b"#" if is_it else content)
    place = unpacked(tmp_path, (tmp_path / "changed.zip").read_bytes())
    done = node(place)
    assert done.returncode == 0, done.stderr[-2000:]
    assert compiled_by(done, place) == {other}


def whole(folder: Path) -> Path:
    path = folder / "whole.zip"
    path.write_bytes(agent_bundle(None))
    return path


def test_a_source_that_a_node_changes_is_compiled_as_it_is_then(tmp_path: Path) -> None:
    place = unpacked(tmp_path, agent_bundle(None))
    errors = place / PACKAGE / "errors.py"
    stamp = errors.stat().st_mtime_ns
    errors.write_text("CHANGED = 1\n")
    os.utime(errors, ns=(stamp, stamp))
    done = node(place, f"from {PACKAGE}.errors import CHANGED; print(CHANGED)")
    assert done.stdout == "1\n", done.stderr[-2000:]


@pytest.mark.parametrize("name", [f"{ROOT}/{PACKAGE}/errors.py/", f"{ROOT}/{PACKAGE}/__pycache__"])
def test_an_artifact_in_which_a_name_of_ours_is_something_else_is_unpacked_all_the_same(
    tmp_path: Path, name: str
) -> None:
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        archive.writestr(f"{ROOT}/{PACKAGE}/kinds.py", "")
        archive.writestr(name, "")
    unpacked(tmp_path, (tmp_path / "odd.zip").read_bytes())
