"""Fill an environment with what a lock names: `python scripts/environment.py FOLDER LOCK`; the Makefile does.

Run by the Python of .venv; standard library only. pip's output goes to the terminal unchanged.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = ["-r", str(ROOT / "requirements" / "torch.txt")]
LARGE = {"oci", "oci-cli"}
"""Packages with nearly as many files as all the rest, beside which they are unpacked."""
BUILT_WITH_TORCH = {"deepspeed"}
"""Packages that come as source and look for torch at their build: isolated, they would fetch one of their own."""
PIP = ("-m", "pip", "--disable-pip-version-check")
# Modules are compiled when first imported: to compile all of oci, torch and Airflow would take longer than the rest.
INSTALL = ("install", "-q", "--progress-bar", "off", "--no-compile")
ALONE = "--no-deps"
"""A lock leaves nothing to resolve, and so several pips can work side by side."""


class Refused(Exception):
    """The environment is incomplete; pip's output is on the terminal."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment in a folder."""

    folder: Path

    def pip(self, *arguments: str) -> list[str]:
        return [sys.executable, *PIP, "--python", str(self.folder / "bin" / "python"), *arguments]

    def install(self, *arguments: str) -> list[str]:
        return self.pip(*INSTALL, *arguments)

    @property
    def site_packages(self) -> Path:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return self.folder / "lib" / version / "site-packages"


def name_of(requirement: str) -> str:
    return requirement.partition("==")[0].strip()


def lines_of(lock: Path) -> list[str]:
    """Return the requirements of a lock, without its comments."""
    lines = [line.partition("#")[0].strip() for line in lock.read_text().splitlines()]
    return [line for line in lines if line]


def lanes(lock: Sequence[str]) -> Iterator[list[str]]:
    """Yield what one pip each installs at the same time; what is built with torch comes later."""
    rest = [line for line in lock if name_of(line) not in BUILT_WITH_TORCH]
    for lane in (
        [line for line in rest if name_of(line) in LARGE],
        [line for line in rest if name_of(line) not in LARGE],
    ):
        if lane:
            yield lane


def run_all(*commands: Sequence[str], **variables: str) -> None:
    """Run commands side by side, each to its end. Raises Refused when one of them fails."""
    processes = [subprocess.Popen(command, env={**os.environ, **variables}) for command in commands]
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise Refused("pip failed: its output is above")


def install_lock(environment: Environment, lock: Sequence[str], torch: Sequence[str]) -> None:
    """Install what a lock names and, where `torch` has pip's arguments for it, torch with what its build needs."""
    commands = [environment.install(ALONE, *lane) for lane in lanes(lock)]
    if torch:
        commands.append(environment.install(ALONE, *torch))
    run_all(*commands)
    if torch:
        # A build for CUDA depends on NVIDIA's libraries, which no lock names; of one for CPUs nothing is missing now.
        run_all(environment.install("--no-warn-conflicts", *torch))


def install_built(environment: Environment, lock: Sequence[str]) -> None:
    """Install what needs torch at its build."""
    built = [line for line in lock if name_of(line) in BUILT_WITH_TORCH]
    if built:
        run_all(environment.install(ALONE, "--no-build-isolation", *built), DS_BUILD_OPS="0")


def link_torch(owner: Path, environment: Environment, lock: Sequence[str]) -> None:
    """Link torch, and what its build brought along, from our own environment: it is large, and the same for all."""
    locked = {name_of(line) for line in lock}
    for found in with_its_needs("torch", locked):
        for entry in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            link = environment.site_packages / entry
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(Environment(owner).site_packages / entry, link.parent))
    # A program names its Python in its first line.
    _, _, text = (owner / "bin" / "torchrun").read_text().partition("\n")
    torchrun = environment.folder / "bin" / "torchrun"
    torchrun.write_text(f"#!{environment.folder.absolute() / 'bin' / 'python'}\n{text}")
    torchrun.chmod(0o755)


def with_its_needs(name: str, without: set[str]) -> list[Distribution]:
    """Return a package that is installed beside us and all that it needs here, but for those that a lock names."""
    # Not packaging of our own: no lock need be installed for this.
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name

    found: dict[str, Distribution] = {}
    asked: set[tuple[str, str]] = set()
    left = [(name, "")]
    while left:
        each, extra = left.pop()
        if (each, extra) in asked or each in without:
            continue
        asked.add((each, extra))
        try:
            found[each] = distribution(each)
        except PackageNotFoundError:
            continue  # `pip check` names it, if it is needed
        for line in found[each].requires or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                left += [(canonicalize_name(need.name), more) for more in ("", *need.extras)]
    return list(found.values())


def check(environment: Environment) -> None:
    """Raise Refused, with pip's output, when a package lacks what it needs."""
    done = subprocess.run(environment.pip("check"), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"pip check:\n{done.stdout}{done.stderr}".rstrip())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="environment.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("lock", type=Path)
    torch = parser.add_mutually_exclusive_group()
    torch.add_argument("--torch", action="store_true", help="install torch too, with what its build needs")
    torch.add_argument("--torch-from", type=Path, metavar="FOLDER", help="link the torch of this environment")
    parser.add_argument("--torch-index", default="", metavar="URL", help="where pip finds torch")
    parser.add_argument("--ours", action="store_true", help="install this package in place")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    environment, lock = Environment(args.folder), lines_of(args.lock)
    index = ["--index-url", args.torch_index] if args.torch_index else []
    try:
        if args.torch_from:
            link_torch(args.torch_from, environment, lock)
        install_lock(environment, lock, [*index, *TORCH] if args.torch else [])
        install_built(environment, lock)
        if args.ours:
            run_all(environment.install(ALONE, "--no-build-isolation", "-e", str(ROOT)))
        check(environment)
    except Refused as error:
        print(f"{args.folder} is not ready: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
