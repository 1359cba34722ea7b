"""A torchrun that has failed ends without the teardown of its modules: the other nodes wait for its end."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

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
