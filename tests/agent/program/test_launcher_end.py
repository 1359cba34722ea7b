"""A torchrun that has failed ends without the teardown of its modules: the other nodes wait for its end."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import venv
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.stacks import PROGRAM_FOLDER
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.model.report import NodeReport
from tests.agent.gangs import Gang

OF_USER = """
import atexit, os

MARKS, WHO = os.environ["MARKS"], "rank" if "RANK" in os.environ else "launcher"

class Last:
    def __del__(self, create=os.open, name=f"{MARKS}/{WHO}-teardown", flags=os.O_CREAT):
        create(name, flags)

def exits():
    os.open(f"{MARKS}/{WHO}-exit", os.O_CREAT)

last = Last()
atexit.register(exits)
"""
"""A user's `sitecustomize`, which ours runs: it shows how far the exit of each Python of the training has come."""
SCRIPTS = {
    "fails": "raise ValueError('boom')",
    "succeeds": "",
    "is stopped": "import time\nprint('trains', flush=True)\ntime.sleep(1000)",
}


def marks_of(gang: Gang, ends: str, marks: Path) -> tuple[NodeReport, set[str]]:
    """Train with torchrun to an end; return the report, and how far each exit has come."""
    marks.mkdir()
    with gang:
        gang.code(0).mkdir(parents=True)
        (gang.code(0) / "sitecustomize.py").write_text(OF_USER)
        (agent,) = gang.start(MARKS=str(marks))
        if ends == "is stopped":
            agent.prints("trains")
            agent.signal(signal.SIGTERM)
        agent.wait()
        return agent.report, {each.name for each in marks.iterdir()}


@pytest.mark.torch
@pytest.mark.parametrize("ends", SCRIPTS)
def test_only_a_torchrun_that_ends_by_an_error_leaves_out_the_teardown_of_its_modules(
    tmp_path: Path, ends: str
) -> None:
    gang = Gang(tmp_path, SCRIPTS[ends], kind="torchrun")
    report, marks = marks_of(gang, ends, tmp_path / "marks")
    # All that is to run at its exit has run, in any case; and a process of the training ends as it always did.
    assert {"launcher-exit"} <= marks
    assert ("launcher-teardown" in marks) == (ends == "succeeds")
    assert ends == "is stopped" or {"rank-exit", "rank-teardown"} <= marks
    if ends == "fails":
        assert (report.exit_code, report.cause) == (1, Cause.USER)
        assert "ValueError: boom" in (report.message or "")
        assert "ValueError: boom" in (report.tail or "")
    if ends == "succeeds":
        assert report.exit_code == 0


RAISES = "raise ValueError('boom')"
PRINTS = f"""
try:
    {RAISES}
except ValueError:
    sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
"""
"""What a library leaves that prints an error and goes on."""


@pytest.mark.skipif(
    platform.python_implementation() != "CPython",
    reason="only CPython frees at once what nothing refers to",
)
@pytest.mark.parametrize(
    "module, body, code, in_pth, is_torn_down",
    [
        ("torch.distributed.run", RAISES, 1, False, False),
        ("torch.distributed.run", RAISES, 1, True, True),
        ("torch.distributed.run", "sys.exit(3)", 3, False, True),
        ("torch.distributed.run", "raise KeyboardInterrupt", -signal.SIGINT, False, True),
        ("torch.distributed.run", PRINTS, 0, False, True),
        ("train", RAISES, 1, False, True),
    ],
)
def test_a_python_ends_as_it_always_did_where_anything_but_its_teardown_could_be_lost(
    tmp_path: Path, module: str, body: str, code: int, in_pth: bool, is_torn_down: bool
) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    (packages,) = (tmp_path / "env" / "lib").glob("*/site-packages")
    (tmp_path / "of_environment.py").write_text(OF_USER.replace("launcher", "environment"))
    if in_pth:
        (packages / "of_environment.pth").write_text("import of_environment\n")
    main = packages.joinpath(*module.split(".")).with_suffix(".py")
    main.parent.mkdir(parents=True, exist_ok=True)
    main.write_text(f"import sys\n{OF_USER}\n{body}\n")
    done = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-m", module],
        env={"PYTHONPATH": f"{PROGRAM_FOLDER}{os.pathsep}{tmp_path}", "MARKS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert ("ValueError: boom" in done.stderr) == (body == RAISES)
    marks = {each.name for each in tmp_path.iterdir()}
    assert "launcher-exit" in marks
    assert ("launcher-teardown" in marks) == is_torn_down
    assert ("environment-exit" in marks) == in_pth
