"""First process of a node: starts its program, passes signals on, leaves nothing running at the end.

Run as a script by a bare interpreter: `python -I -S node_init.py EMULATOR_PID VIEW COMMAND...`. It adopts every
process that the program leaves behind, also those that made sessions of their own, and ends when the emulator
does, even when that is killed with SIGKILL. SIGTERM goes to the program's process group; SIGUSR1 kills all.
VIEW is JSON, all of it for the program alone: `mounts`, `[[folder or file, place], ...]`, which it sees at their
places; `hostname`, its machine's name; `folder`, where it begins. The last two may be null.
"""

import ctypes
import json
import os
import signal
import stat
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
WATCHED = {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP}


CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
MNT_DETACH = 2
OLD_ROOT = ".ocidist-old-root"
MOUNT_FAILED = 125


def main(emulator: int, view: dict, command: list[str]) -> int:  # type: ignore[type-arg]  # `Any` is in typing, which loads slowly
    """Run the command to its end and return its exit code; 128 + N when signal N killed it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    # The emulator may have died before the line above could ask for its death signal.
    if os.getppid() != emulator:
        return 1
    program = os.fork()
    if program == 0:
        _become(view, command)
    code = _wait_for(program)
    _end_everything(program)
    return code


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except AttributeError:
        """Not Linux: the process group is all that can be ended."""


def _become(view: dict, command: list[str]) -> None:  # type: ignore[type-arg]  # `Any` is in typing, which loads slowly
    os.setsid()
    if view["mounts"]:
        try:
            _isolate(view)
        except OSError as error:
            os.write(2, f"ocidist emulator: cannot mount: {error}\n".encode())
            os._exit(MOUNT_FAILED)
    # After the mounts: rights that come with a namespace of one's own make the system forget it.
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


def _isolate(view: dict) -> None:  # type: ignore[type-arg]  # `Any` is in typing, which loads slowly
    """Give this program a machine name, a view of the file system and a folder of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0:
        # Not root: then with the rights of a user namespace of our own.
        _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWUTS))
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    if view["hostname"]:
        name = view["hostname"].encode()
        _check(libc.sethostname(name, len(name)))
    _mount_all(libc, view["mounts"])
    if view["folder"]:
        os.chdir(view["folder"])


def _mount_all(libc: ctypes.CDLL, mounts: list[list[str]]) -> None:
    """Show folders and files of the machine at their places."""
    _check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    # A folder may lie where another is mounted; what is open can be reached all the same.
    opened = [(os.open(source, os.O_PATH), os.path.realpath(place)) for source, place in mounts]
    ours: set[int] = set()
    for source, place in opened:
        _make_place(libc, place, ours, is_folder=stat.S_ISDIR(os.fstat(source).st_mode))
    for source, place in opened:
        _check(libc.mount(f"/proc/self/fd/{source}".encode(), place.encode(), None, MS_BIND | MS_REC, None))
        os.close(source)
    _leave_old_root(libc)


def _make_place(libc: ctypes.CDLL, place: str, ours: set[int], *, is_folder: bool) -> None:
    """Make an empty folder or file for a mount without a trace of it on the machine: the nearest folder is covered.

    `ours`: the devices of the folders that cover others so far.
    """
    if os.path.isdir(place) if is_folder else os.path.isfile(place):
        covered = place
    else:
        covered = "/mnt" if place.startswith("/mnt/") else os.path.dirname(place)
    while not os.path.isdir(covered) and covered != place:
        covered = os.path.dirname(covered)
    if covered != place and os.stat(covered).st_dev not in ours:
        _cover(libc, covered)
        ours.add(os.stat(covered).st_dev)
    os.makedirs(place if is_folder else os.path.dirname(place), exist_ok=True)
    if not is_folder and not os.path.exists(place):
        os.close(os.open(place, os.O_CREAT | os.O_WRONLY))


def _cover(libc: ctypes.CDLL, folder: str) -> None:
    """Lay a folder of our own over another; what is in that one is still seen there, but for `/mnt`."""
    names = [] if folder == "/mnt" else os.listdir(folder)
    links = {name: os.readlink(f"{folder}/{name}") for name in names if os.path.islink(f"{folder}/{name}")}
    opened = {name: os.open(f"{folder}/{name}", os.O_PATH) for name in names if name not in links}
    # The root cannot be covered; it is replaced, once it is complete somewhere else.
    stage = "/mnt" if folder == "/" else folder
    _check(libc.mount(b"tmpfs", stage.encode(), b"tmpfs", 0, b"mode=755"))
    for name, target in links.items():
        os.symlink(target, f"{stage}/{name}")
    for name, file in opened.items():
        _show(libc, f"/proc/self/fd/{file}", f"{stage}/{name}")
        os.close(file)
    if folder == "/":
        _replace_root(libc, stage)


def _show(libc: ctypes.CDLL, source: str, seen: str) -> None:
    if os.path.isdir(source):
        os.mkdir(seen)
    else:
        os.close(os.open(seen, os.O_CREAT | os.O_WRONLY))
    _check(libc.mount(source.encode(), seen.encode(), None, MS_BIND | MS_REC, None))


def _replace_root(libc: ctypes.CDLL, stage: str) -> None:
    """Make a complete folder the root."""
    os.chdir(stage)
    os.mkdir(OLD_ROOT)
    if libc.pivot_root(b".", OLD_ROOT.encode()) != 0:
        # A root that cannot be moved, such as an initial RAM disk. A program then cannot make user namespaces.
        _check(libc.mount(stage.encode(), b"/", None, MS_MOVE, None))
        os.chroot(".")
    os.chdir("/")


def _leave_old_root(libc: ctypes.CDLL) -> None:
    """Let go of the root that was replaced, if it was; after all mounts, whose sources lie in it."""
    if os.path.isdir(f"/{OLD_ROOT}"):
        libc.umount2(f"/{OLD_ROOT}".encode(), MNT_DETACH)
        os.rmdir(f"/{OLD_ROOT}")


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


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
    """Reap all dead children; return the program's exit code if it is one of them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == program:
            code = exit_status(os.waitstatus_to_exitcode(status))


def exit_status(code: int) -> int:
    """Return an exit code as a shell, and a container, gives it: 128 + N for death by signal N."""
    return code if code >= 0 else 128 - code


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
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    os._exit(main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
