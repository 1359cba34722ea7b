"""Build a node's image with podman, buildah or docker, whichever is here. Standard library only; run by `make image`.

Proxies and pip's settings come from the environment, under the names that every program reads. pip's reach the build
as a secret, proxies as the arguments that every tool knows: the image holds none of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("podman", "buildah", "docker")
NAME = "ocidist-node"
BASE = "debian:bookworm-slim"
PACKAGED = "localhost/ocidist-base:bookworm"
"""The base that is made from Debian's packages, where no registry can be reached."""
PIP_SETTINGS = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "TRUSTED_HOST", "DEFAULT_TIMEOUT")
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
CERTIFICATES = "/run/ca.crt"
"""Path at which the build sees the file that PIP_CERT names."""


class CannotBuild(Exception):
    """One line with the cause and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Build:
    """What to build, and with what."""

    tool: str
    device: str = "cpu"
    """`cpu` or `gpu`."""
    base: str = BASE
    name: str = NAME

    @property
    def tag(self) -> str:
        local = "" if "/" in self.name else "localhost/"
        return f"{local}{self.name}:{self.device}"

    def command(self, folder: Path, environ: Mapping[str, str]) -> list[str]:
        """Return the command; `folder` receives what it needs as files."""
        version = version_of_package()
        tags = [self.tag, f"{self.tag.rpartition(':')[0]}:{version}-{self.device}"]
        labels = {"version": version, "revision": revision(), "base.name": self.base}
        arguments = {"BASE": self.base, "DEVICE": self.device}
        arguments |= {name: environ[name] for name in PROXIES if environ.get(name)}
        return [
            self.tool,
            "build",
            *self._dialect(environ),
            *pip_secrets(folder, environ),
            *[f"--build-arg={name}={value}" for name, value in arguments.items()],
            *[f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items()],
            *[f"--tag={tag}" for tag in tags],
            f"--file={ROOT / 'container' / 'Dockerfile'}",
            str(ROOT),
        ]

    def _dialect(self, environ: Mapping[str, str]) -> list[str]:
        folders = [place for place in environ.get("PIP_FIND_LINKS", "").split() if Path(place).is_dir()]
        if self.tool == "docker":
            if folders:
                raise CannotBuild(
                    f"docker's build cannot see {folders[0]}, which PIP_FIND_LINKS names: "
                    "name an index (PIP_EXTRA_INDEX_URL) or build with podman"
                )
            return []
        # In a chroot a build needs neither cgroups nor limits, which some CI machines refuse. HEALTHCHECK is docker's.
        return ["--isolation=chroot", "--format=docker", *[f"--volume={path}:{path}:ro" for path in folders]]


def pip_secrets(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Write pip's settings into `folder` and return the arguments that show them to the build."""
    lines = [
        f"{name.removeprefix('DEFAULT_').lower().replace('_', '-')} = {environ[f'PIP_{name}']}\n"
        for name in PIP_SETTINGS
        if environ.get(f"PIP_{name}")
    ]
    certificates = environ.get("PIP_CERT")
    if certificates:
        lines.append(f"cert = {CERTIFICATES}\n")
    file = folder / "pip.conf"
    file.touch(mode=0o600)
    file.write_text("[global]\n" + "".join(lines))
    return [
        f"--secret=id=pip.conf,src={file}",
        *([f"--secret=id=ca,src={certificates}"] if certificates else []),
    ]


def version_of_package() -> str:
    text = (ROOT / "airflow_provider_ocidist" / "__init__.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found, "the package has no version"
    return found[1]


def revision() -> str:
    """Return the commit; `unknown` where this is no checkout."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def base_from_packages(tool: str) -> str:
    """Return the name of the base made of Debian's packages, once it is there."""
    if tool == "buildah":
        raise CannotBuild("buildah imports no archives: to make the base, apt-get install podman")
    if shutil.which("mmdebstrap") is None:
        raise CannotBuild("a base is made from packages with mmdebstrap: apt-get install mmdebstrap")
    if subprocess.run([tool, "image", "inspect", PACKAGED], capture_output=True, check=False).returncode == 0:
        return PACKAGED
    sources = Path("/etc/apt/sources.list.d/debian.sources")
    with tempfile.TemporaryDirectory() as folder:
        archive = f"{folder}/base.tar"
        command = ["mmdebstrap", "--quiet", "--variant=apt", "--include=ca-certificates"]
        command += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        # This machine's own mirror, where it has one.
        subprocess.run(
            [*command, "bookworm", archive, *([str(sources)] if sources.is_file() else [])], check=True
        )
        subprocess.run([tool, "import", archive, PACKAGED], check=True, stdout=subprocess.DEVNULL)
    return PACKAGED


def build(plan: Build, environ: Mapping[str, str] = os.environ) -> str:
    """Build the image and return its tag. Raises CannotBuild or CalledProcessError."""
    with tempfile.TemporaryDirectory(prefix="ocidist-image-") as folder:
        subprocess.run(plan.command(Path(folder), environ), env=dict(environ), check=True)
    return plan.tag


def size_of(tool: str, tag: str) -> int:
    """Return an image's size in bytes, all its layers together."""
    command = [tool, "image", "inspect", "--format", "{{.Size}}", tag]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--base", default=BASE, help="an image, or `packages`: make one with mmdebstrap, no registry needed"
    )
    parser.add_argument("--name", default=NAME)
    parser.add_argument("--tool", choices=TOOLS, default=next(filter(shutil.which, TOOLS), None))
    options = parser.parse_args()
    started = time.monotonic()
    try:
        if options.tool is None:
            raise CannotBuild(f"none of {', '.join(TOOLS)} is here: apt-get install podman")
        base = base_from_packages(options.tool) if options.base == "packages" else options.base
        tag = build(Build(tool=options.tool, device=options.device, base=base, name=options.name))
    except (CannotBuild, subprocess.CalledProcessError) as error:
        print(f"no image: {error}", file=sys.stderr)
        return 1
    size = "" if options.tool == "buildah" else f"{size_of(options.tool, tag) / 1e6:.0f} MB, "
    print(f"{tag}: {size}built in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
