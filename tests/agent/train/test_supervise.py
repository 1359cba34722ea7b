"""How a training is ended: real processes behind a real guard."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent import guard
from airflow_provider_ocidist.agent.monitor.progress import ProgressMeter
from airflow_provider_ocidist.agent.stopping import Stop, StopSwitch
from airflow_provider_ocidist.agent.train.program_output import ProgramOutput
from airflow_provider_ocidist.agent.train.supervise import Training
from airflow_provider_ocidist.errors import Cause
from tests.agent.gangs import until

SAVES_AT_THE_END = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("step 1/9 loss 2.0", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xc3", 0, 1, "unexpected end of data"),
        RuntimeError("can't start new thread"),
        MemoryError(),
        OSError("Input/output error"),
    ],
    ids=repr,
)
def test_a_training_that_hangs_is_asked_to_end_whatever_becomes_of_its_stacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    # The agent kills all that it has started; in this process that would be the emulator of other tests.
    monkeypatch.setattr(guard, "kill_descendants", lambda _: None)

    def show_stacks(_: int) -> None:
        raise error

    meter, switch = ProgressMeter(tmp_path / "meter"), StopSwitch()
    command = [sys.executable, "-c", SAVES_AT_THE_END]
    training = Training(command, os.environ, tmp_path, ProgramOutput(meter), show_stacks)
    until(lambda: meter.step == 1)
    stop = Stop(message="no step for 60 s", cause=Cause.HANG, stacks=True)
    switch.ask(stop)
    with caplog.at_level(logging.WARNING):
        ended = training.wait(switch, 60.0)
    assert (ended.exit_code, ended.stop) == (7, stop)
    assert f"cannot be shown: {type(error).__name__}: {error}" in caplog.text
