"""What nodes of this machine need not compile: the agent, of which each has a copy of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from airflow_provider_ocidist.backends.bundle import PACKAGE, ROOT, agent_bundle
from airflow_provider_ocidist.backends.local import compiled


def starts(place: Path) -> str:
    """Start the agent from a folder; return what Python says of the modules that it compiles or finds compiled."""
    done = subprocess.run(
        [sys.executable, "-v", "-S", "-P", "-c", f"import {PACKAGE.name}.agent.__main__"],
        env={"PYTHONPATH": str(place), "PATH": os.environ["PATH"]},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stderr


def test_a_node_compiles_only_what_differs_from_what_is_here(tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(agent_bundle(None))).extractall(tmp_path)
    package = tmp_path / ROOT / PACKAGE.name
    changed = package / "errors.py"
    changed.write_text(changed.read_text()[:-1] + "#")
    compiled.lend(package)
    said = starts(tmp_path / ROOT)
    begun = [line for line in said.splitlines() if line.startswith(f"# code object from '{package}")]
    assert begun == [f"# code object from '{changed}'"]
    assert f"# code object from '{package / 'agent' / 'node.py'}'" not in said
    assert f"import '{PACKAGE.name}.agent.node'" in said
