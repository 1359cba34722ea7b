"""Which Python runs the schedules, and that they are the same under each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.simulation import interpreter

ROOT = Path(__file__).parents[2]


def traces_by(python: str) -> dict[str, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seeds",
            "4",
            "--seed",
            "python",
            "--digests",
            "4",
            "--no-shrink",
        ],
        cwd=ROOT,
        env={**os.environ, interpreter.VARIABLE: python},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(re.findall(r"^trace of (\S+): ([0-9a-f]+)$", done.stdout, re.MULTILINE))


def test_schedules_are_the_same_under_each_python_that_may_run_them():
    shown = [traces_by(python) for python in {sys.executable, interpreter.fastest()}]
    assert all(len(each) == 4 for each in shown)
    assert shown == shown[:1] * len(shown)


def test_the_python_that_is_named_is_taken(monkeypatch):
    monkeypatch.setenv(interpreter.VARIABLE, "/opt/python")
    assert interpreter.fastest() == "/opt/python"


def test_a_python_that_was_built_with_its_optimisations_is_not_replaced(monkeypatch):
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: "'--enable-optimizations' '--with-lto'")
    assert interpreter.fastest() == sys.executable


def test_a_system_python_that_lacks_what_the_schedules_need_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda _name: "")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    lacking = tmp_path / "python"
    lacking.write_text("#!/bin/sh\nexit 1\n")
    lacking.chmod(0o755)
    monkeypatch.setattr(interpreter, "OF_THE_SYSTEM", lacking)
    assert interpreter.fastest() == sys.executable
    lacking.write_text("#!/bin/sh\nexit 0\n")
    assert interpreter.fastest() == str(lacking)
