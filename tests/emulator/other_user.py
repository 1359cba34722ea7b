"""Another user of this machine, who asks the emulator."""

from __future__ import annotations

import os
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
PROGRAM = (
    "import http.client, os, sys; 'modules are out of reach later'.encode('idna')\n"
    "os.setuid(65534)\n"
    "connection = http.client.HTTPConnection(sys.argv[1])\n"
    "connection.request(sys.argv[2], sys.argv[3])\n"
    "print(connection.getresponse().status)\n"
)


def status_for_another_user(url: str, path: str, method: str = "GET") -> int:
    """Return what another user's request is answered with."""
    command = [sys.executable, "-c", PROGRAM, urlsplit(url).netloc, method, path]
    return int(subprocess.check_output(command, text=True))
