"""podman on machines that are containers themselves: a configuration and a network of its own, which leave no trace."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import uuid
from pathlib import Path

from airflow_provider_ocidist.backports import Self
from tests.containers.hosts import run

PACKAGES = "podman runc netavark aardvark-dns iptables mmdebstrap podman-compose iproute2"
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=20000:20000"]
log_driver = "k8s-file"
[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


def why_not() -> str | None:
    """Return what this machine lacks for containers."""
    if os.geteuid() != 0:
        return "containers with addresses of their own need root"
    lacking = [
        tool
        for tool in ("podman", "podman-compose", "mmdebstrap", "iptables", "ip")
        if not shutil.which(tool)
    ]
    return f"{', '.join(lacking)} missing: apt-get install {PACKAGES}" if lacking else None


class Podman:
    """podman in a network namespace, whose bridges and firewall rules go when it goes; images are the machine's."""

    def __init__(self, folder: Path) -> None:
        self.name = f"oc{uuid.uuid4().hex[:6]}"
        self.file = folder / "containers.conf"
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # The limits that podman would set are refused without CAP_SYS_RESOURCE; crun refuses hybrid cgroups.
        runtime = "runc" if shutil.which("runc") else "crun"
        self.file.write_text(CONFIGURATION.format(files=files, runtime=runtime))
        self.environ = {**os.environ, "CONTAINERS_CONF": str(self.file)}

    def __enter__(self) -> Self:
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        left = self.call("ps", "--all", "--quiet", "--filter", f"name=^{self.name}").stdout.split()
        if left:
            self.call("rm", "--force", "--time=0", *left)
        for kind in ("network", "volume"):
            names = self.call(kind, "ls", "--format={{.Name}}").stdout.split()
            for name in names:
                if name.startswith(self.name):
                    self.call(kind, "rm", "--force", name)
        run("ip", "netns", "del", self.name)

    def call(
        self, *arguments: str, tool: str = "podman", timeout: float = 300, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of podman, whatever comes of it."""
        return subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.name}", tool, *arguments],
            env=self.environ | environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def __call__(self, *arguments: str, **options: str) -> str:
        """Run a command of podman that must succeed; return what it printed."""
        done = self.call(*arguments, **options)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def start(self, image: str, *options: str) -> str:
        """Start a container and return its name; it goes with the others when the context is left."""
        name = f"{self.name}-{uuid.uuid4().hex[:6]}"
        self("run", "--detach", f"--name={name}", *options, image)
        return name
