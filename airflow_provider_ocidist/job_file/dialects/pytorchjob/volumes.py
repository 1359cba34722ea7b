"""Volumes and where they are mounted."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_ocidist.job_file.dialects.base import Draft, Section
from airflow_provider_ocidist.job_file.dialects.pytorchjob.roles import Role
from airflow_provider_ocidist.job_file.schema import value_shown

OWN = ("/dev/shm", "/tmp", "/dev/infiniband")  # noqa: S108 - folders of the nodes
"""Folders that every node has."""
KEYS = {
    "persistentVolumeClaim": {"claimName", "readOnly"},
    "nfs": {"server", "path", "readOnly"},
    "emptyDir": {"medium", "sizeLimit"},
    "hostPath": {"path", "type"},
}
"""Keys of the kinds of volumes that are known here."""


def put(draft: Draft, roles: list[Role]) -> None:
    """Put the mounts of any node; all nodes get them."""
    found: dict[str, tuple[str, str]] = {}
    for role in roles:
        for path, source, where in _mounts(draft, role):
            if path in found and found[path][0] != source:
                draft.complain(where, f"mounts something else at {path} than {found[path][1]} does")
            found.setdefault(path, (source, where))
    for index, (path, (source, where)) in enumerate(found.items()):
        draft.mapping.setdefault("mounts", []).append({"source": source, "path": path})
        draft.paths[f"mounts.{index}"] = where
        draft.paths[f"mounts.{index}.path"] = f"{where}.mountPath"


def _mounts(draft: Draft, role: Role) -> list[tuple[str, str, str]]:
    """Return path, source and place of each storage mount; unmounted volumes are ignored."""
    volumes = {
        str(item.get("name")): Section(where, item)
        for where, item in draft.listed(role.pod, "volumes")
        if isinstance(item, Mapping)
    }
    mounts = []
    for where, mount in draft.listed(role.container, "volumeMounts"):
        if not isinstance(mount, Mapping) or not isinstance(mount.get("mountPath"), str):
            draft.complain(where, "must be a section with name and mountPath")
            continue
        draft.keys(mount, where, {"name", "mountPath", "readOnly", "subPath"})
        _refuse_read_only(draft, Section(where, mount))
        if not isinstance(mount.get("subPath", ""), str):
            draft.complain(f"{where}.subPath", f"must be text, not {value_shown(mount['subPath'])}")
        volume = volumes.get(str(mount.get("name")))
        if volume is None:
            missing = value_shown(mount.get("name"))
            draft.complain(where, f"there is no volume {missing} in {role.pod.at('volumes')}")
            continue
        source = _source(draft, volume, mount["mountPath"])
        if source is not None:
            below = f"/{mount['subPath'].strip('/')}" if isinstance(mount.get("subPath"), str) else ""
            mounts.append((mount["mountPath"].rstrip("/"), source + below, where))
    return mounts


def _source(draft: Draft, volume: Section, path: str) -> str | None:
    """Return the source to mount; None if the node itself has it, or it is not supported."""
    kinds = [key for key in volume.value if key != "name"]
    kind = kinds[0] if len(kinds) == 1 else None
    value = volume.value.get(kind) if kind else None
    options = value if isinstance(value, Mapping) else {}
    if kind in KEYS:
        _refuse_read_only(draft, draft.section(volume, kind, KEYS[kind]))
    match kind:
        case "persistentVolumeClaim" if isinstance(options.get("claimName"), str):
            # Only the cluster can resolve the claim; a folder that outlives the run replaces it.
            return f"volumes/{options['claimName']}"
        case "nfs" if isinstance(options.get("server"), str) and isinstance(options.get("path"), str):
            return f"{options['server']}:{options['path']}"
        case "hostPath" if str(options.get("path", path)).rstrip("/") != path.rstrip("/"):
            draft.complain(
                volume.at("hostPath.path"), f"is another folder than {path}: a node has its own folders only"
            )
        case "emptyDir" | "hostPath" if path.rstrip("/") in OWN:
            return None
        case "emptyDir":
            draft.complain(
                volume.at("emptyDir"), f"is not made here: let the program make {path}, or use /tmp"
            )
        case "hostPath":
            draft.complain(
                volume.at("hostPath"), "is not supported here: `mounts` has file systems and buckets"
            )
        case "secret" | "configMap" | "projected" | "downwardAPI":
            draft.complain(volume.at(kind), "is not supported here: put files into the code or `inputs`")
        case _:
            draft.complain(volume.path, "is a kind of volume that ocidist does not support: use `mounts`")
    return None


def _refuse_read_only(draft: Draft, section: Section) -> None:
    """Report what only Kubernetes keeps from being written to."""
    if section.value.get("readOnly"):
        draft.complain(section.at("readOnly"), "cannot be kept here, where the program can write: remove it")
