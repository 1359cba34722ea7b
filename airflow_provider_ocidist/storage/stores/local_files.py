"""Files of this machine: what reading and writing them has in common."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_ocidist.errors import BehindLink, StorageError

READ_SIZE = 256 << 10
"""Most bytes of one read."""
_FULL = {
    errno.ENOSPC: "no space left on the file system",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than this process or file system allows",
}
_PASSING = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
"""Errors of a mount whose server does not answer for a while, or has just been started again."""
_NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""Errors of a file system that keeps nothing back, or cannot be asked to write it now."""


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's errors into one StorageError; absence stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = _FULL.get(error.errno or 0) or (error.strerror or str(error)).lower()
        raise StorageError(f"{path}: {reason}", uri=str(path), retryable=error.errno in _PASSING) from error
    except UnicodeEncodeError as error:
        raise StorageError(f"{str(path)!r}: its name cannot be written here", uri=str(path)) from error


def refuse_links_above(root: Path, name: str) -> None:
    """Raise BehindLink where a folder between a root and a name below it is a symbolic link.

    Written or deleted there, it would be a file of another name, or of another place. The root itself may be a link.
    """
    if link := link_above(root, name):
        raise BehindLink(
            f"refused to write or delete {root / name}: {link} is a link to {Path(link).readlink()}, and "
            "nothing behind a link is changed; remove the link, or name the folder that it leads to",
            uri=str(root / name),
        )


def link_above(root: Path, name: str) -> str | None:
    """Return the first folder between a root and a name below it that is a symbolic link."""
    folder = str(root)
    for part in name.split("/")[:-1]:
        folder = f"{folder}/{part}"
        if os.path.islink(folder):  # noqa: PTH114 - a path for each folder of each small file takes longer
            return folder
    return None


def fsync(path: Path) -> None:
    """Wait until a file or folder is on its disk, unless it is gone. Raises OSError where it is not."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def etag_of(status: os.stat_result) -> str:
    """Return a mark that changes with the file's content: its time, its size and its inode."""
    return f"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"
