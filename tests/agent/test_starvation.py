"""A process that starves itself and all that it has started: how much they run, and what is left of it at the end."""

from __future__ import annotations

import platform
import subprocess
import sys

from airflow_provider_ocidist.agent import guard
from tests.agent.gangs import until

WATCHES = """
import sys, time

def stood_still(seconds):
    began = last = time.monotonic()
    still = 0.0
    while last - began < seconds:
        now = time.monotonic()
        still += now - last if now - last > 0.04 else 0.0
        last = now
    return still / (last - began)
"""
STARVES = f"""{WATCHES}
import subprocess, threading
from airflow_provider_ocidist.agent import guard, starvation

watches = {WATCHES!r}
asks = watches + "time.sleep(float(sys.argv[1])); print(stood_still(2.0))"
early = subprocess.Popen([sys.executable, "-c", asks, "0"], stdout=subprocess.PIPE, text=True)
lasting = subprocess.Popen(["sleep", "60"])
starvation.starve(6.0)
late = subprocess.Popen([sys.executable, "-c", asks, "1.5"], stdout=subprocess.PIPE, text=True)
print(stood_still(2.0), early.communicate()[0].strip(), late.communicate()[0].strip())
for thread in threading.enumerate():
    if thread.name == "starvation":
        thread.join()
print(guard.state_and_parent(lasting.pid)[0])
lasting.kill()
"""


def test_all_threads_and_processes_stand_still_most_of_the_time_and_go_on_at_the_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVES], capture_output=True, text=True, timeout=120, check=True
    )
    shares, state = done.stdout.splitlines()
    own, *of_others = map(float, shares.split())
    assert len(of_others) == 2
    assert min(of_others) > 0.5, shares
    # PyPy gives its lock to other threads during each call.
    assert own > 0.5 or platform.python_implementation() == "PyPy", shares
    assert state in "SR", "it was not left stopped"


STANDS_STILL = """
import os
from airflow_provider_ocidist.agent import starvation
from airflow_provider_ocidist.agent.guarded import behind_guard

process, leash = behind_guard(["sleep", "60"], os.environ, None)
while not (pids := starvation.starved()):
    pass
print(*pids, process.pid in pids, flush=True)
starvation._stand_still(pids, 60.0)
"""


def test_who_dies_while_they_stand_still_leaves_nothing_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STANDS_STILL], stdout=subprocess.PIPE, text=True
    ) as starving:
        assert starving.stdout is not None
        pid, guard_too = starving.stdout.readline().split()
        until(lambda: guard.state_and_parent(int(pid))[0] == "T")
        starving.kill()
    assert guard_too == "False"
    until(lambda: guard.state_and_parent(int(pid))[0] in "XZ", timeout=60)
