"""First process of a node: starts its program, passes signals on, leaves nothing running at the end.

Run as a script by a bare interpreter: `python -I -S node_init.py EMULATOR_PID COMMAND...`. It adopts every
process that the program leaves behind, also those that made sessions of their own, and ends when the emulator
does, even when that is killed with SIGKILL. SIGTERM goes to the program's process group; SIGUSR1 kills all.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCHED = {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP}


def main(emulator: int, command: list[str]) -> int:
    """Run the command to its end and return its exit code; 128 + N when signal N killed it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    # The emulator may have died before the line above could ask for its death signal.
    if os.getppid() != emulator:
        return 1
    program = os.fork()
    if program == 0:
        _become(command)
    code = _wait_for(program)
    _end_everything(program)
    return code


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except AttributeError:
        """Not Linux: the process group is all that can be ended."""


def _become(command: list[str]) -> None:
    os.setsid()
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Python ignores these two, and what is ignored stays so in the program.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    # Empty, not what it was before: the emulator itself may block signals.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvp(command[0], command)  # noqa: S606 - there is to be no shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _wait_for(program: int) -> int:
    while True:
        received = signal.sigwait(WATCHED)
        if received == signal.SIGCHLD:
            code = _reap(program)
            if code is not None:
                return code
        else:
            _pass_on(program, signal.SIGKILL if received == signal.SIGUSR1 else received)


def _reap(program: int) -> int | None:
    """Bury all dead children; return the program's exit code if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == program:
            exit_code = os.waitstatus_to_exitcode(status)
            code = exit_code if exit_code >= 0 else 128 - exit_code


def _end_everything(program: int) -> None:
    """Kill until no child is left; grandchildren become children as their parents die."""
    _kill_group(program)
    while True:
        for pid in _children():
            _kill(pid)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _pass_on(program: int, number: int) -> None:
    try:
        os.killpg(program, number)
    except ProcessLookupError:
        # It starts right now and has not made its group yet; it is not reaped, so the id is still its own.
        os.kill(program, number)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        """The program was the last of its group."""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        """It ended by itself."""


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123 - pathlib loads slowly
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), sys.argv[2:]))
