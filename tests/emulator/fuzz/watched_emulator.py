"""The emulator, started so that it notes every file that it touches outside of its state folder.

python -m tests.emulator.fuzz.watched_emulator NOTES STATE [arguments of the emulator]
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from typing import Any

PR_SET_PDEATHSIG = 1
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
    "sqlite3.connect": (0,),
}
"""Events of Python's audit, and which of their arguments are places that change."""
ALLOWED = ("/dev/null", "/proc/")


def watch(notes: int, state: str, allowed: tuple[str, ...] = ALLOWED) -> None:
    def changed(event: str, details: tuple[Any, ...]) -> list[Any]:
        if event == "open":
            path, _, flags = details
            return [path] if isinstance(flags, int) and flags & WRITES else []
        return [details[number] for number in CHANGES.get(event, ())]

    def note(event: str, details: tuple[Any, ...]) -> None:
        for place in changed(event, details):
            if isinstance(place, int):
                continue
            path = os.fsdecode(place)
            # A relative one is relative to a folder that was opened, and may only not leave it.
            inside = ".." not in path.split("/") if not path.startswith("/") else is_inside(path, state)
            if not inside and not path.startswith(allowed):
                os.write(notes, f"{event} {path!r}\n".encode())

    sys.addaudithook(note)


def is_inside(path: str, folder: str) -> bool:
    plain = os.path.normpath(path)
    return plain == folder or plain.startswith(f"{folder}/")


def main() -> int:
    from airflow_provider_ocidist.emulator import command

    notes, state, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        # It ends with the campaign, however that ends.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.dont_write_bytecode = True
    # What it makes for a moment, such as a folder to try a mount at. The campaign looks whether that is gone.
    passing = f"{tempfile.gettempdir()}/"
    watch(os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.path.abspath(state), (*ALLOWED, passing))
    return command.main(["--state", state, *arguments])


if __name__ == "__main__":
    sys.exit(main())
