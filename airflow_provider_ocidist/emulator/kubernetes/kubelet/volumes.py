"""Volumes: folders and files of this machine, at the places where a container sees them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.emulator.kubernetes.kinds import Obj
from airflow_provider_ocidist.emulator.kubernetes.kubelet.environment import expand, field
from airflow_provider_ocidist.emulator.kubernetes.objects import Cluster
from airflow_provider_ocidist.emulator.kubernetes.pod_specs import leads_out

TOKEN_PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a folder


class MountError(Exception):
    """A volume that is not there yet; the text is that of the event FailedMount."""


@dataclass(frozen=True, slots=True)
class Volumes:
    """Makes the volumes of one pod below a folder of its own; claims outlive it in `claims`."""

    cluster: Cluster
    pod: Obj
    folder: Path
    claims: Path

    def make(self) -> dict[str, Path]:
        """Return the folder (or file) of each volume. Raises MountError for one that is not there yet."""
        try:
            return {volume["name"]: self._made(volume) for volume in self.pod["spec"].get("volumes") or ()}
        except OSError as error:
            # Such as a name that is too long for this machine's file system.
            raise MountError(f"MountVolume.SetUp failed: {error.strerror}") from error

    def _made(self, volume: Obj) -> Path:
        folder = self.folder / "volumes" / str(volume["name"])
        if "persistentVolumeClaim" in volume:
            return self._claim(str(volume["persistentVolumeClaim"]["claimName"]))
        if "nfs" in volume:
            return self._export(volume["nfs"])
        if "hostPath" in volume:
            return _host_path(volume["name"], volume["hostPath"])
        folder.mkdir(parents=True, exist_ok=True)
        sources = volume["projected"].get("sources") or () if "projected" in volume else [volume]
        for source in sources:
            self._fill(folder, volume["name"], source)
        return folder

    def _claim(self, name: str) -> Path:
        namespace = self.pod["metadata"]["namespace"]
        claim = self.cluster.find("PersistentVolumeClaim", namespace, name)
        if claim is None:
            raise MountError(f'persistentvolumeclaim "{name}" not found')
        folder = self.claims / str(claim["metadata"]["uid"])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _export(self, source: Obj) -> Path:
        """Return the folder of an NFS server, which all pods share."""
        digest = hashlib.sha256(f"{source['server']}:{source['path']}".encode()).hexdigest()
        folder = self.claims / f"nfs-{digest[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _fill(self, folder: Path, volume: str, source: Obj) -> None:
        if "secret" in source:
            named = source["secret"]
            self._write(folder, volume, "Secret", named.get("secretName") or named.get("name"), named)
        elif "configMap" in source:
            self._write(folder, volume, "ConfigMap", source["configMap"]["name"], source["configMap"])
        elif "downwardAPI" in source:
            for item in source["downwardAPI"].get("items") or ():
                if "fieldRef" in item:
                    _put(folder / item["path"], field(self.pod, item["fieldRef"]["fieldPath"]).encode())

    def _write(self, folder: Path, volume: str, kind: str, name: str, source: Obj) -> None:
        found = self.cluster.find(kind, self.pod["metadata"]["namespace"], name)
        if found is None:
            if source.get("optional"):
                return
            raise MountError(
                f'MountVolume.SetUp failed for volume "{volume}" : {kind.lower()} "{name}" not found'
            )
        files = {**_text_files(found), **_binary_files(found)}
        items: Sequence[Obj] = source.get("items") or [{"key": key, "path": key} for key in files]
        for item in items:
            if item["key"] not in files:
                if source.get("optional"):
                    continue
                why = f"references non-existent {kind.lower()} key: {item['key']}"
                raise MountError(f'MountVolume.SetUp failed for volume "{volume}" : {why}')
            mode = item.get("mode") or source.get("defaultMode") or 0o644
            _put(folder / item["path"], files[item["key"]], int(mode))


def _text_files(obj: Obj) -> dict[str, bytes]:
    data: Mapping[str, str] = obj.get("data") or {}
    return {} if obj["kind"] == "Secret" else {key: value.encode() for key, value in data.items()}


def _binary_files(obj: Obj) -> dict[str, bytes]:
    data = obj.get("data" if obj["kind"] == "Secret" else "binaryData") or {}
    return {key: base64.b64decode(value) for key, value in data.items()}


def _put(path: Path, content: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch()
    path.chmod(mode | 0o200)
    path.write_bytes(content)


def _host_path(volume: str, source: Obj) -> Path:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    if not path.exists():
        why = f"hostPath type check failed: {path} is not a {'directory' if kind == 'Directory' else 'file'}"
        raise MountError(f'MountVolume.SetUp failed for volume "{volume}" : {why}')
    return path


def places(
    container: Obj, volumes: Mapping[str, Path], environment: Mapping[str, str]
) -> Iterable[tuple[str, Path]]:
    """Yield where a container sees which folder or file. Raises MountError for a part that a volume lacks."""
    for mount in container.get("volumeMounts") or ():
        source = volumes[mount["name"]]
        part = expand(mount.get("subPathExpr") or mount.get("subPath") or "", environment)
        if part:
            if leads_out(part):
                raise MountError(f'failed to prepare subPath for volumeMount "{mount["name"]}": {part[:80]}')
            source = source / part
            if not source.exists():
                source.mkdir(parents=True)
        yield mount["mountPath"].rstrip("/") or "/", source
