"""Programs that run before the training: their words, their ends, and nothing left of them."""

from __future__ import annotations

import sys
import threading
import time
import uuid

import pytest

from airflow_provider_ocidist.agent.prepare import command
from airflow_provider_ocidist.agent.stopping import Stop, Stopped, StopSwitch
from tests.agent.gangs import processes_with, until


def test_output_and_exit_code_come_back_in_order() -> None:
    seen: list[str] = []
    script = "import sys; print('a', flush=True); print('b', file=sys.stderr); sys.exit(3)"
    done = command.run([sys.executable, "-c", script], {}, StopSwitch(), on_line=seen.append)
    assert (done.exit_code, done.output, seen) == (3, "a\nb", ["a", "b"])


def test_a_node_that_is_to_end_does_not_wait_for_it_and_leaves_nothing() -> None:
    switch, mark = StopSwitch(), uuid.uuid4().hex
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); print('ready', flush=True); time.sleep(60)"
    ready = threading.Event()

    def stop() -> None:
        ready.wait(60)
        switch.ask(Stop(message="enough"))

    stopper = threading.Thread(target=stop)
    stopper.start()
    started = time.monotonic()
    with pytest.raises(Stopped):
        command.run(
            [sys.executable, "-c", script],
            {"MARK": mark, "PATH": "/bin:/usr/bin"},
            switch,
            on_line=lambda _: ready.set(),
        )
    stopper.join()
    assert time.monotonic() - started < 30
    until(lambda: not processes_with(mark), timeout=10)
