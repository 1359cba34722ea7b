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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_ocidist.emulator.nodes import compiled
from airflow_provider_ocidist.emulator.nodes.processes import NodeCommand

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
    """Folder made for this run and removed after it."""
    service_environment: Mapping[str, str]
    user_environment: Mapping[str, str]
    arguments: str
    artifact: Artifact | None
    container: Mapping[str, Any] | None
    """OCIR_CONTAINER environment, if the job has one."""
    token: str
    session_key: Path
    region: str
    endpoint: str
    proxy_url: str
    ca_file: Path
    mounts: Mapping[str, Path]
    """Folders of this machine by the place where the node is to see them."""
    private_mounts: bool
    """Whether this machine can show them at these very places; else they are at the same places below `mount_root`."""
    conda: Mapping[str, Path]
    images: Mapping[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def mount_root(self) -> Path:
        return self.folder / "mounted"

    @property
    def python(self) -> Path:
        """The interpreter of the job's conda environment if it is known here, else the emulator's own."""
        variables = ("CONDA_ENV_SLUG", "CONDA_ENV_OBJECT_NAME")
        names = [self.user_environment.get(variable, "") for variable in variables]
        folders = [self.conda[name] for name in names if name in self.conda]
        return folders[0] / "bin" / "python" if folders else Path(sys.executable)


def prepare(spec: NodeSpec) -> NodeCommand:
    """Lay out the node's folder and return its command. Raises NodeError."""
    spec.home.mkdir(parents=True)
    write_token(spec.folder, spec.token)
    folder, arguments = _program(spec)
    if not spec.private_mounts:
        _link_mounts(spec)
    return NodeCommand(
        arguments=arguments,
        folder=folder,
        environment=environment(spec),
        mounts=spec.mounts if spec.private_mounts else {},
    )


def _link_mounts(spec: NodeSpec) -> None:
    for place, folder in spec.mounts.items():
        link = spec.mount_root / place.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)


def write_token(folder: Path, token: str) -> None:
    """Place a node's resource principal token, or replace it: a concurrent reader sees one or the other."""
    fresh = folder / "rpst.fresh"
    fresh.touch(stat.S_IRUSR | stat.S_IWUSR)
    fresh.write_text(token)
    fresh.replace(folder / "rpst")


def _program(spec: NodeSpec) -> tuple[Path, list[str]]:
    """Return the working directory and the arguments."""
    extra = split(spec.arguments)
    if spec.container is not None:
        return spec.home, [*container_command(spec.container, spec.images), *extra]
    if spec.artifact is None:
        raise NodeError("Job run could not start: the job has no artifact.")
    folder = spec.home / "decompressed_artifact"
    folder.mkdir()
    entrypoint = _unpack(spec.artifact, folder, spec.user_environment.get("JOB_RUN_ENTRYPOINT"))
    return folder, [*interpreter(entrypoint, spec.python), str(entrypoint), *extra]


def split(arguments: str) -> list[str]:
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise NodeError(f"Job run could not start: commandLineArguments: {error}.") from error


def container_command(container: Mapping[str, Any], images: Mapping[str, str]) -> list[str]:
    """Return entrypoint + cmd: the emulator pulls no images, it runs them as a process of this host."""
    entrypoint = container.get("entrypoint") or split(images.get(container["image"], ""))
    command = [*entrypoint, *(container.get("cmd") or ())]
    if not command:
        raise NodeError(
            "Job run could not start: the emulator does not pull images, so a container job needs entrypoint"
            f" or cmd, which run as a process of this machine; or start it with --image {container['image']}=COMMAND."
        )
    return [str(word) for word in command]


def interpreter(entrypoint: Path, python: Path) -> list[str]:
    if entrypoint.suffix == ".py":
        return [str(python)]
    return ["bash"] if entrypoint.suffix == ".sh" else []


def _unpack(artifact: Artifact, folder: Path, entrypoint: str | None) -> Path:
    """Place the artifact in the folder and return the file to run."""
    if not artifact.name.endswith(ARCHIVES):
        path = folder / artifact.name
        shutil.copyfile(artifact.path, path)
        path.chmod(0o755)
        return path
    extract(artifact, folder)
    compiled.lend(folder)
    if not entrypoint:
        raise NodeError("Job run could not start: JOB_RUN_ENTRYPOINT is required for an archive.")
    path = (folder / entrypoint).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        raise NodeError(f"Job run could not start: the artifact contains no file {entrypoint!r}.")
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
        raise NodeError(f"Job run could not start: the artifact contains the unsafe path {name!r}.")


def environment(spec: NodeSpec) -> dict[str, str]:
    """Return all variables of the node: the machine's, the service's, then the user's on top."""
    return {
        **machine_environment(spec),
        **resource_principal(spec),
        **client_environment(spec),
        **mount_environment(spec),
        **spec.service_environment,
        **spec.user_environment,
    }


def machine_environment(spec: NodeSpec) -> dict[str, str]:
    """A fresh machine has no variable of the shell that started the emulator."""
    path = os.pathsep.join([str(spec.python.parent), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": path,
        "HOME": str(spec.home),
        "LANG": "C.UTF-8",
        # Lines of stdout and stderr then come when they were written, in their order.
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "127.0.0.0/8,127.0.0.1,localhost",
        "no_proxy": "127.0.0.0/8,127.0.0.1,localhost",
        **socket_interface(),
    }


def socket_interface() -> dict[str, str]:
    """All of 127.0.0.0/8 is on Linux's `lo`, which lists one address only: a search there finds none of ours."""
    return (
        dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo") if sys.platform == "linux" else {}
    )


def mount_environment(spec: NodeSpec) -> dict[str, str]:
    hidden = spec.mounts and not spec.private_mounts
    return {"OCIDIST_MOUNT_ROOT": str(spec.mount_root)} if hidden else {}


def resource_principal(spec: NodeSpec) -> dict[str, str]:
    return {
        "OCI_RESOURCE_PRINCIPAL_VERSION": "2.2",
        "OCI_RESOURCE_PRINCIPAL_RPST": str(spec.folder / "rpst"),
        "OCI_RESOURCE_PRINCIPAL_PRIVATE_PEM": str(spec.session_key),
        "OCI_RESOURCE_PRINCIPAL_REGION": spec.region,
    }


def client_environment(spec: NodeSpec) -> dict[str, str]:
    """On a real node clients find the service by region; here the proxy brings them to us.

    The command line and `oci://` URLs need no proxy: their endpoint can be set.
    """
    return {
        "HTTPS_PROXY": spec.proxy_url,
        "REQUESTS_CA_BUNDLE": str(spec.ca_file),
        "OCI_CLI_ENDPOINT": spec.endpoint,
        "OCI_CLI_AUTH": "resource_principal",
        "OCIFS_IAM_TYPE": "resource_principal",
        "FSSPEC_OCI": json.dumps({"config_kwargs": {"service_endpoint": spec.endpoint}}),
    }
