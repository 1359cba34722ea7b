"""What a node of a job run finds when it starts: its files, its environment, its command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_ocidist.emulator.nodes.processes import Command

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


class NodeError(Exception):
    """The node cannot start; the text becomes the run's lifecycleDetails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """The job's code as uploaded."""

    path: Path
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """All that decides how a node starts."""

    folder: Path
    """Made for this run and removed after it."""
    service_environment: Mapping[str, str]
    user_environment: Mapping[str, str]
    arguments: str
    artifact: Artifact | None
    container: Mapping[str, Any] | None
    """The OCIR_CONTAINER environment, if the job has one."""
    token: str
    session_key: Path
    region: str
    endpoint: str

    @property
    def home(self) -> Path:
        return self.folder / "home"


def prepare(spec: NodeSpec) -> Command:
    """Lay out the node's folder and return its command. Raises NodeError."""
    spec.home.mkdir(parents=True)
    (spec.folder / "rpst").write_text(spec.token)
    (spec.folder / "rpst").chmod(stat.S_IRUSR | stat.S_IWUSR)
    folder, arguments = _program(spec)
    return Command(arguments=arguments, folder=folder, environment=environment(spec))


def _program(spec: NodeSpec) -> tuple[Path, list[str]]:
    """Return the working directory and the arguments."""
    extra = split(spec.arguments)
    if spec.container is not None:
        return spec.home, [*container_command(spec.container), *extra]
    if spec.artifact is None:
        raise NodeError("Job run could not start: the job has no artifact.")
    folder = spec.home / "decompressed_artifact"
    folder.mkdir()
    entrypoint = _unpack(spec.artifact, folder, spec.user_environment.get("JOB_RUN_ENTRYPOINT"))
    return folder, [*interpreter(entrypoint), str(entrypoint), *extra]


def split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise NodeError(f"Job run could not start: commandLineArguments: {error}.") from error


def container_command(container: Mapping[str, Any]) -> list[str]:
    """Return entrypoint + cmd: the emulator pulls no images, it runs them as a process of this host."""
    command = [*(container.get("entrypoint") or ()), *(container.get("cmd") or ())]
    if not command:
        raise NodeError(
            "Job run could not start: the emulator does not pull images, so a container job needs"
            " entrypoint or cmd, which run as a process of this machine."
        )
    return [str(word) for word in command]


def interpreter(entrypoint: Path) -> list[str]:
    if entrypoint.suffix == ".py":
        return [sys.executable]
    return ["bash"] if entrypoint.suffix == ".sh" else []


def _unpack(artifact: Artifact, folder: Path, entrypoint: str | None) -> Path:
    """Place the artifact in the folder and return the file to run."""
    if not artifact.name.endswith(ARCHIVES):
        path = folder / artifact.name
        shutil.copyfile(artifact.path, path)
        path.chmod(0o755)
        return path
    extract(artifact, folder)
    if not entrypoint:
        raise NodeError("Job run could not start: JOB_RUN_ENTRYPOINT is required for an archive.")
    path = (folder / entrypoint).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise NodeError(f"Job run could not start: the artifact holds no file {entrypoint!r}.")
    return path


def extract(artifact: Artifact, folder: Path) -> None:
    """Unpack an archive; refuse one that would write outside the folder. Raises NodeError."""
    try:
        if artifact.name.endswith(".zip"):
            _extract_zip(artifact.path, folder)
        else:
            with tarfile.open(artifact.path) as archive:
                archive.extractall(folder, filter="data")
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        raise NodeError(f"Job run could not start: the artifact cannot be unpacked: {error}.") from error


def _extract_zip(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            check_member(member.filename)
            target = Path(archive.extract(member, folder))
            # ZipFile forgets permissions, and programs in an archive are meant to be run.
            mode = member.external_attr >> 16
            if mode & 0o111 and target.is_file():
                target.chmod(mode & 0o777 | stat.S_IRUSR | stat.S_IWUSR)


def check_member(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise NodeError(f"Job run could not start: the artifact holds the unsafe path {name!r}.")


def environment(spec: NodeSpec) -> dict[str, str]:
    """Return all variables of the node: the machine's, the service's, then the user's on top."""
    return {
        **machine_environment(spec),
        **resource_principal(spec),
        **client_environment(spec.endpoint),
        **spec.service_environment,
        **spec.user_environment,
    }


def machine_environment(spec: NodeSpec) -> dict[str, str]:
    """A fresh machine knows nothing of the shell that the emulator was started from."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "HOME": str(spec.home),
        "LANG": "C.UTF-8",
        # Lines of stdout and stderr then come when they were written, in their order.
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "127.0.0.0/8,127.0.0.1,localhost",
        "no_proxy": "127.0.0.0/8,127.0.0.1,localhost",
    }


def resource_principal(spec: NodeSpec) -> dict[str, str]:
    return {
        "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
        "OCI_RESOURCE_PRINCIPAL_RPST": str(spec.folder / "rpst"),
        "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM": str(spec.session_key),
        "OCI_RESOURCE_PRINCIPAL_REGION": spec.region,
    }


def client_environment(endpoint: str) -> dict[str, str]:
    """On a real node clients find the service by region; here these bring the CLI and `oci://` URLs to us."""
    return {
        "OCI_CLI_ENDPOINT": endpoint,
        "OCI_CLI_AUTH": "resource_principal",
        "OCIFS_IAM_TYPE": "resource_principal",
        "FSSPEC_OCI": json.dumps({"config_kwargs": {"service_endpoint": endpoint}}),
    }


def merge_environment(layers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables of a job overlaid by those of its run."""
    return {str(name): str(value) for layer in layers for name, value in layer.items()}
