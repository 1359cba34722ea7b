"""Archives: unpacks zip and tar; writes nothing outside the folder, and does not fill the disk."""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath

from airflow_provider_ocidist.agent.prepare import disk
from airflow_provider_ocidist.errors import AgentError, Cause

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
RESERVE = 64 << 20
"""Bytes that an archive must leave free for the training."""
_LONGEST_PATH = 4_096
"""Most bytes of a path that Linux resolves."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder. Raises AgentError for one that is damaged, unsafe or too large."""
    what = f"the archive {archive.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, folder, what)
        else:
            _unpack_tar(archive, folder, what)
    except getattr(tarfile, "FilterError", ()) as error:
        raise _unsafe(what, str(error)) from error
    except OSError as error:
        if disk.is_full(error):
            raise disk.full_error(what, folder) from error
        raise _damaged(what, error) from error
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        LZMAError,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:
        # RuntimeError: the zip asks for a password. ValueError: a name that no system takes.
        raise _damaged(what, error) from error


def _unpack_zip(archive: Path, folder: Path, what: str) -> None:
    with zipfile.ZipFile(archive) as content:
        members = content.infolist()
        for member in members:
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts:
                raise _unsafe(what, f"{member.filename!r} leads out of its folder")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _unsafe(what, f"{member.filename!r} is a link, which a zip should not carry")
        # zipfile reads no more of a member than it declares, so that this bounds what is written.
        disk.check_room(what, sum(member.file_size for member in members) + RESERVE, folder)
        for member in members:
            target = Path(content.extract(member, folder))
            mode = member.external_attr >> 16
            if mode & stat.S_IXUSR and target.is_file():
                target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def _unpack_tar(archive: Path, folder: Path, what: str) -> None:
    root, free = folder.resolve(), shutil.disk_usage(folder).free
    with tarfile.open(archive) as content:
        # A second check by Python's own filter, which some Python 3.9 lack.
        content.extraction_filter = getattr(tarfile, "data_filter", None)
        for member in content:
            free -= member.size if member.isfile() else 0
            if free < RESERVE:
                raise disk.full_error(what, folder)
            if why := _danger(member, root):
                raise _unsafe(what, f"{member.name!r} {why}")
            content.extract(_plain(member), folder)


def _danger(member: tarfile.TarInfo, root: Path) -> str | None:
    """Return why a member must not be unpacked into a folder, of which links may have been made before it."""
    place = root / member.name.lstrip("/")
    if not _is_inside(place, root):
        return "leads out of its folder"
    if member.issym():
        target = place.parent / member.linkname
        return None if _is_inside(target, root) else "is a link out of its folder"
    if member.islnk():
        target = root / member.linkname
        is_file = target.is_file() and not target.is_symlink()
        return None if is_file and _is_inside(target, root) else "is a link to no file of its folder"
    return None if member.isfile() or member.isdir() else "is a device or a pipe"


def _is_inside(path: Path, root: Path) -> bool:
    # Links in a longer path are not resolved.
    real = path.resolve()
    return len(os.fsencode(real)) < _LONGEST_PATH and real.is_relative_to(root)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member as if this user had made it: no foreign owner, nothing that others may write."""
    member.name = member.name.lstrip("/")
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = 0o755 if member.isdir() or member.mode & stat.S_IXUSR else 0o644
    return member


def _unsafe(what: str, why: str) -> AgentError:
    return AgentError(f"{what} is refused: {why}", cause=Cause.CONFIG)


def _damaged(what: str, error: Exception) -> AgentError:
    return AgentError(f"{what} cannot be unpacked: {error}", cause=Cause.DATA)
