"""`ocidist init`: write a starting folder."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_ocidist import __version__
from airflow_provider_ocidist.cli.completion import complete_with, kinds_of
from airflow_provider_ocidist.cli.connection import ON_THIS_MACHINE
from airflow_provider_ocidist.cli.terminal import (
    FINE,
    Unusable,
    add_json,
    last_output,
    local_path,
    print_json,
    say,
)

if TYPE_CHECKING:
    from importlib.abc import Traversable

TEMPLATES_FOLDER = "templates"
AS_SCRIPT = ("train.py", '"script": "train.py"')
AS_MODULE = ("train\n  module: true", '"script": "train", "module": true')
"""The program in job.yaml and in compose.yaml; `command` would run a file as it is, and a script is no executable."""
ONE_PROCESS = "processes_per_node: 1  # the program is started once; more if it starts processes itself"
BY_DEFAULT = "# processes_per_node: 4   # by default one for each GPU, or one"
"""Processes in job.yaml: those that the launcher does not start would be waited for."""
LOGINS = ("openmpi-bin", "openssh-server")
"""Debian's packages for what launches by logins."""
WORKER = """\
  worker-{number}:
    <<: *node
    environment: {{<<: *environment, OCIDIST_NODE_RANK: "{rank}"}}
"""


def add_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder to write to (default: this folder)",
    )
    parser.add_argument("--name", help="name of the job (default: that of the folder)")
    parser.add_argument(
        "--nodes", type=int, default=2, metavar="N", help="number of nodes (default: %(default)s)"
    )
    launcher = parser.add_argument(
        "--launcher", default="torchrun", metavar="KIND", help="launcher of the job (default: %(default)s)"
    )
    complete_with(launcher, kinds_of("launchers"))
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    options.folder = local_path(options.folder)
    files = files_for(_values(options))
    written = [str(options.folder / name) for name in _write(options.folder, files, force=options.force)]
    with last_output():
        if options.json:
            print_json(written)
            return FINE
        for path in written:
            say(f"wrote {path}", "green")
        job = options.folder / "job.yaml"
        say(f"next: ocidist check {job}; ocidist plan {job}; ocidist run {job} --wait")
        say(f"without an account: ocidist run {job} {ON_THIS_MACHINE}")
    return FINE


def files_for(values: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by its relative name, with `@NAME@` and the like replaced in the templates."""
    from airflow_provider_ocidist.job_file import json_schema

    files = {
        name: _filled(text.read_text(encoding="utf-8"), values)
        for name, text in _tree(resources.files(__package__) / TEMPLATES_FOLDER, "")
    }
    # Beside the job file, so that editors find it on every machine.
    return {**files, json_schema.SCHEMA_FILE.name: json_schema.SCHEMA_FILE.read_text(encoding="utf-8")}


def _tree(folder: Traversable, place: str) -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for item in folder.iterdir():
        if item.is_file():
            found.append((f"{place}{item.name}", item))
        elif not item.name.startswith("__"):
            found += _tree(item, f"{place}{item.name}/")
    return found


def _filled(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _values(options: argparse.Namespace) -> dict[str, str]:
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.job_file.rules import MAX_NAME
    from airflow_provider_ocidist.model.job import LauncherOptions

    if options.nodes < 1:
        raise Unusable(f"--nodes {options.nodes}: there must be at least one")
    if options.launcher not in (known := kinds.names("launchers")):
        raise Unusable(f"--launcher {options.launcher}: must be one of {', '.join(known)}")
    name = options.name or options.folder.resolve().name
    if len(name) > MAX_NAME:
        allowed = f"{len(name)} characters; {MAX_NAME} are allowed"
        if options.name:
            raise Unusable(f"--name: has {allowed}")
        raise Unusable(
            f"{options.folder}: the name of the job would have {allowed}: give it another with --name"
        )
    in_job, in_compose = AS_MODULE if options.launcher == "command" else AS_SCRIPT
    launcher = kinds.load("launchers", options.launcher).LAUNCHER
    tools = LOGINS if "mpirun" in launcher.tools(LauncherOptions(), 1) else ()
    return {
        "NAME": re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "training",
        "SCRIPT": in_job,
        "PROGRAM": in_compose,
        "TOOLS": "".join(f" {tool}" for tool in tools),
        "PACKAGES": "".join(f" {package}" for package in launcher.requires if package != "torch"),
        "NODES": str(options.nodes),
        "LAUNCHER": options.launcher,
        "PROCESSES": ONE_PROCESS if options.launcher == "command" else BY_DEFAULT,
        "WORKERS": "".join(WORKER.format(number=rank - 1, rank=rank) for rank in range(1, options.nodes)),
        "VERSION": __version__,
    }


def _write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[str]:
    """Write all files or none; return their names."""
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise Unusable(f"{folder / there[0]} exists already: --force overwrites it, or name another folder")
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Unusable(f"{error.filename}: {error.strerror}; name another folder") from error
    return sorted(files)
