"""ssh: logins from the first node of a gang to the others, for launchers that start processes that way.

Every node has a key of its own, made for this run; the nodes exchange the public halves through the work directory, and
accept nothing else. This file is also run as a plain script, `python -I -S ssh.py`, and imports nothing of the package:

    ssh.py serve FOLDER [COMMAND...]   let the first node in; run COMMAND there, elsewhere the first login's command
    ssh.py session FOLDER              what every login starts
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_ocidist.launchers.base import Placement

TOOLS = ("ssh", "sshd", "ssh-keygen")
KEY_FILE = "key"
LOOK_INTERVAL = 0.1
"""Seconds between two looks for the end of the session."""
DAEMON_FOLDERS = ("/usr/sbin", "/sbin")
"""Folders in which sshd is also looked for when they are not on PATH."""

CLIENT_SETTINGS = """\
Port {port}
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
ConnectionAttempts 60
HostKeyAlgorithms ssh-ed25519
BatchMode yes
LogLevel ERROR
"""
SERVER_SETTINGS = """\
Port {port}
ListenAddress {address}
HostKey {folder}/key
AuthorizedKeysFile {folder}/authorized_keys
AuthenticationMethods publickey
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
DisableForwarding yes
PermitTTY no
UsePAM no
StrictModes no
PidFile none
LogLevel ERROR
ForceCommand {session}
"""


def files(placement: Placement) -> Mapping[str, str]:
    """Return the settings of client and server, and the trusted keys: pure."""
    session = shlex.join([sys.executable, "-I", "-S", __file__, "session", placement.folder])
    values = {
        "address": placement.address,
        "port": port(placement),
        "folder": placement.folder,
        "session": session,
    }
    hosts = zip(placement.addresses, placement.public_keys)
    return {
        "ssh_config": CLIENT_SETTINGS.format_map(values),
        "sshd_config": SERVER_SETTINGS.format_map(values),
        "known_hosts": "".join(f"[{address}]:{port(placement)} {key}\n" for address, key in hosts),
        "authorized_keys": f"restrict {placement.public_keys[0]}\n",
    }


def port(placement: Placement) -> int:
    return placement.master_port + 1


def serving(placement: Placement, command: Sequence[str]) -> list[str]:
    """Return the command of one node: the first runs the launcher's, the others wait for it to log in."""
    first = command if placement.rank == 0 else ()
    return [sys.executable, "-I", "-S", __file__, "serve", placement.folder, *first]


# On the node


def make_key(folder: Path) -> str:
    """Make this node's key, unless an earlier launch has; return its public half."""
    path = folder / KEY_FILE
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def serve(folder: Path, command: Sequence[str]) -> int:
    """Answer logins until the command, or without one the first session, ends; return its exit code."""
    for left in ("ended", "session.group"):
        # Of an earlier launch.
        (folder / left).unlink(missing_ok=True)
    _write_private(folder / "node.json", json.dumps({"pid": os.getpid(), "environment": dict(os.environ)}))
    signal.signal(signal.SIGTERM, lambda number, _: _pass_on(folder, number))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = subprocess.Popen([server_program(), "-D", "-e", "-f", str(folder / "sshd_config")])
    try:
        return _run(command, folder) if command else _await_session(server, folder)
    finally:
        server.terminate()
        server.wait()


def server_program() -> str:
    """Return the path of sshd, which starts itself again by it."""
    places = os.pathsep.join([*DAEMON_FOLDERS, os.environ.get("PATH", os.defpath)])
    return os.path.abspath(shutil.which("sshd", path=places) or "/usr/sbin/sshd")  # noqa: PTH100 - links stay


def _run(command: Sequence[str], folder: Path) -> int:
    environ = {**os.environ, "PDSH_SSH_ARGS_APPEND": f"-F {folder / 'ssh_config'}"}
    return _exit_status(subprocess.Popen(command, env=environ).wait())


def _await_session(server: subprocess.Popen[bytes], folder: Path) -> int:
    ended = folder / "ended"
    while not ended.exists():
        if server.poll() is not None:
            sys.stderr.write(f"sshd ended with {server.returncode} before the first node logged in\n")
            return 1
        time.sleep(LOOK_INTERVAL)
    return int(ended.read_text())


def session(folder: Path) -> int:
    """Run the first node's command, in this node's environment and with this node's output.

    The environment is the node's own: no variable, and no secret, is sent or stored where others can read it.
    """
    node: dict[str, Any] = json.loads((folder / "node.json").read_text())
    for number in (1, 2):
        os.dup2(os.open(f"/proc/{node['pid']}/fd/{number}", os.O_WRONLY), number)
    command = ["/bin/sh", "-c", os.environ["SSH_ORIGINAL_COMMAND"]]
    signal.signal(signal.SIGTERM, lambda *_: None)  # it is for the command, which shares our process group
    _write_private(folder / "session.group", str(os.getpgrp()))
    # As bytes: a login may have a locale that knows ASCII only.
    environ = {_in_bytes(name): _in_bytes(value) for name, value in node["environment"].items()}
    code = _exit_status(subprocess.Popen(command, env=environ).wait())
    _write_private(folder / "ended", str(code))
    return code


def _pass_on(folder: Path, number: int) -> None:
    """Signal the session too: sshd gives each its own process group."""
    try:
        os.killpg(int((folder / "session.group").read_text()), number)
    except (OSError, ValueError):
        (folder / "ended").write_text(str(128 + number))


def _in_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _exit_status(code: int) -> int:
    """Return the same as `exit_status`, which a plain script cannot import."""
    return code if code >= 0 else 128 - code


def _write_private(path: Path, text: str) -> None:
    """Write aside, then rename: a reader sees all or nothing."""
    partial = path.with_suffix(".tmp")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


def main(arguments: Sequence[str]) -> int:
    what, folder, *command = arguments
    return serve(Path(folder), command) if what == "serve" else session(Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
