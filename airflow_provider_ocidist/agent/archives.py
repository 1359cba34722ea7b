"""Archives: unpacks zip and tar; nothing in them lands outside the folder, and nothing fills the disk."""

from __future__ import annotations

import shutil
import stat
import tarfile
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path, PurePosixPath

from airflow_provider_ocidist.agent import disk
from airflow_provider_ocidist.errors import AgentError, Cause

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
RESERVE = 64 << 20
"""Bytes that an archive has to leave free, for the training has to write, too."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder. Raises AgentError for one that is damaged, unsafe or too large."""
    what = f"the archive {archive.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if archive.name.endswith(".zip"):
            _unpack_zip(archive, folder, what)
        else:
            _unpack_tar(archive, folder, what)
    except tarfile.FilterError as error:
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
    if not hasattr(tarfile, "data_filter"):
        raise AgentError(
            f"{what} needs Python 3.11.4 or later to be unpacked safely: choose a newer image, or give a zip",
            cause=Cause.CONFIG,
        )
    free = shutil.disk_usage(folder).free
    with tarfile.open(archive) as content:
        for member in content:
            free -= member.size if member.isfile() else 0
            if free < RESERVE:
                raise disk.full_error(what, folder)
            content.extract(member, folder, filter="data")


def _unsafe(what: str, why: str) -> AgentError:
    return AgentError(f"{what} is refused: {why}", cause=Cause.CONFIG)


def _damaged(what: str, error: Exception) -> AgentError:
    return AgentError(f"{what} cannot be unpacked: {error}", cause=Cause.DATA)
