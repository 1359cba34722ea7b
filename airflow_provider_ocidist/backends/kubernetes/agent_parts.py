"""The agent in a ConfigMap, one for each version of it, for images that have nothing but Python. Pure."""

from __future__ import annotations

import base64
import functools
import hashlib
from typing import Any

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.backends.bundle import BLOCK_SIGNALS, OLDEST_PYTHON, agent_bundle
from airflow_provider_ocidist.backends.kubernetes.names import MANAGER, OURS

FOLDER = "/ocidist"
"""Folder with the ConfigMap's files on a node."""
VOLUME = "ocidist-agent"
ARCHIVE, START = "agent.zip", "start.py"
LARGEST = 1_000_000
"""Most bytes of a ConfigMap, base64 included: Kubernetes takes 1 MiB in all (its documentation, ConfigMaps)."""
START_SCRIPT = f"""\
import sys
if sys.version_info < {OLDEST_PYTHON}:
    sys.exit("ocidist: the python3 of this image is %d.%d, the agent needs %d.%d or later: choose another image"
        % (sys.version_info[:2] + {OLDEST_PYTHON}))
{BLOCK_SIGNALS}import tempfile, zipfile
home = os.environ.get("HOME", "")
folder = tempfile.mkdtemp(prefix="ocidist-agent-", dir=home if home and os.access(home, os.W_OK) else None)
zipfile.ZipFile(os.path.join(os.path.dirname(os.path.abspath(__file__)), "{ARCHIVE}")).extractall(folder)
os.execv(sys.executable, [sys.executable, os.path.join(folder, "ocidist", "node.py")])
"""
COMMAND = ("python3", f"{FOLDER}/{START}")
WAIT = """\
import socket, sys, time
while True:
    try:
        socket.getaddrinfo(sys.argv[1], None)
        break
    except OSError:
        time.sleep(2)
"""
"""Ends as soon as a name resolves; runs in an image with any Python 3."""


@functools.cache
def archive() -> str:
    """Return the agent as base64 text."""
    return base64.b64encode(agent_bundle(None)).decode()


def config_map() -> dict[str, Any]:
    """Return the ConfigMap of this version's agent; its name is made of its content, so all gangs share it."""
    content = archive()
    digest = hashlib.sha256((content + START_SCRIPT).encode()).hexdigest()[:12]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"ocidist-agent-{digest}",
            "labels": {MANAGER: OURS, "app.kubernetes.io/version": __version__},
        },
        "immutable": True,
        "data": {START: START_SCRIPT},
        "binaryData": {ARCHIVE: content},
    }


def volume(name: str) -> dict[str, Any]:
    """Return the volume of a pod that holds the ConfigMap of this name."""
    return {"name": VOLUME, "configMap": {"name": name}}


MOUNT = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
