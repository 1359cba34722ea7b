"""What tests need of the system: root gets all that apt has, others learn what to install, and neither is a failure."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "system_packages.py"
DPKG = """#!{python} -IS
import pathlib, sys
for name in sorted(set(pathlib.Path({state!r}).read_text().split()) & set(sys.argv)):
    print(name, "installed")
"""
APT = """#!{python} -IS
import pathlib, sys
state = pathlib.Path({state!r})
if "install" in sys.argv:
    packages = sys.argv[sys.argv.index("--no-install-recommends") + 1 :]
    for name in packages:
        if name not in {available!r}:
            print("E: Unable to locate package", name)
            sys.exit(100)
    state.write_text(state.read_text() + " " + " ".join(packages))
"""


@pytest.mark.parametrize("number", range(4))
def test_all_that_apt_has_is_installed_and_the_rest_is_named(tmp_path: Path, number: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    wanted = [f"package-{each}" for each in range(chance.randint(1, 5))]
    installed, available = ({name for name in wanted if chance.random() < share} for share in (0.3, 0.7))
    state = tmp_path / "installed"
    state.write_text(" ".join(installed))
    for name, text in (("dpkg-query", DPKG), ("apt-get", APT)):
        program = tmp_path / name
        program.write_text(text.format(python=sys.executable, state=str(state), available=available))
        program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *wanted],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    root = os.geteuid() == 0
    missing = set(wanted) - installed
    assert set(state.read_text().split()) == installed | (missing & available if root else set())
    left = missing - available if root else missing
    assert {name for name in wanted if name in done.stderr} == left
    assert ("skipped" in done.stderr) == bool(left)
    if root:
        assert done.stderr.count("Unable to locate package") == len(left)
