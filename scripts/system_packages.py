"""Install what tests need of the system: `python scripts/system_packages.py PACKAGE...`, as root on Debian.

Never fails: a test that lacks its program is skipped and reported, and in CI a skip that is not expected fails the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

LAST_WORDS = 15
"""Lines of apt's that are shown when it fails."""


def missing(packages: Sequence[str]) -> list[str]:
    """Return those that dpkg does not have."""
    if not shutil.which("dpkg-query"):
        return list(packages)
    command = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    installed = {line.split()[0] for line in done.stdout.splitlines() if line.endswith(" installed")}
    return [package for package in packages if package not in installed]


def install(packages: Sequence[str]) -> dict[str, str]:
    """Install packages with apt; return those that it refuses, each with the end of apt's output."""
    apt("update")  # where that fails, what it had before may do
    if not apt("install", *packages):
        return {}
    # One that this release does not have must not block the others.
    words = {package: apt("install", package) for package in packages}
    return {package: why for package, why in words.items() if why}


def apt(verb: str, *packages: str) -> str:
    """Run apt-get; return the end of its output when it fails, else nothing."""
    command = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", verb]
    command += ["--no-install-recommends", *packages] if packages else []
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return "\n".join(done.stdout.splitlines()[-LAST_WORDS:]) if done.returncode else ""


def main(packages: Sequence[str]) -> int:
    lacking = missing(packages)
    if not lacking:
        return 0
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        names = " ".join(lacking)
        print(f"not installed here: {names} (as root on Debian: apt-get install {names})", file=sys.stderr)
    else:
        print(f"installing {' '.join(lacking)}", flush=True)
        refused = install(lacking)
        for package, why in refused.items():
            print(f"apt-get cannot install {package}:\n{why}", file=sys.stderr)
        if not refused:
            return 0
    print("tests that need one of these are skipped; the end of the run counts them", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
