"""A process whose log lines go to Airflow's supervisor, as a triggerer's do; the test is the supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow.sdk.execution_time.supervisor import _configure_logs_over_json_channel

from airflow_provider_ocidist.triggers import threads


@dataclass
class Supervisor:
    """The end of the channel that Airflow's supervisor has."""

    logs: socket.socket
    answers: int
    read: bytearray = field(default_factory=bytearray)

    def wait_for_a_line(self) -> None:
        """Return once there is something to read; leave it there."""
        self.logs.recv(1, socket.MSG_PEEK)

    def read_all(self) -> None:
        """Read until the other process has ended."""
        while part := self.logs.recv(4096):
            self.read += part

    def answer(self) -> Any:
        """Return what the work in the other process returned."""
        with open(self.answers, "rb", closefd=False) as answers:
            found = json.loads(answers.read())
        if isinstance(found, dict) and "raised" in found:
            raise AssertionError(found["raised"])
        return found


@contextlib.contextmanager
def supervised(work: Callable[[], Any]) -> Iterator[Supervisor]:
    """Do `work` in a process of its own, which logs through Airflow's channel; what it returns is JSON."""
    ours, theirs = socket.socketpair()
    answers, answer = os.pipe()
    child = os.fork()
    if child == 0:
        _work_and_exit(work, theirs, answer, unneeded=(ours.detach(), answers))
    theirs.close()
    os.close(answer)
    try:
        yield Supervisor(ours, answers)
    finally:
        ours.close()
        os.close(answers)
        os.waitpid(child, 0)


@contextlib.contextmanager
def reading(supervisor: Supervisor) -> Iterator[None]:
    """Read all lines in the background, as a supervisor on a quiet machine does."""
    thread = threading.Thread(target=supervisor.read_all)
    thread.start()
    yield
    thread.join()


def _work_and_exit(
    work: Callable[[], Any], channel: socket.socket, answer: int, unneeded: tuple[int, ...]
) -> None:
    try:
        for descriptor in unneeded:
            os.close(descriptor)
        _configure_logs_over_json_channel(channel.detach())
        # No thread outlives a fork.
        threads._threads = threads.Threads()
        found = work()
    except BaseException:
        found = {"raised": traceback.format_exc()}
    os.write(answer, json.dumps(found).encode())
    os._exit(0)
