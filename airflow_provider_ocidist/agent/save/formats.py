"""Formats: whether a file is complete, by its own format."""

from __future__ import annotations

import ast
import json
import logging
import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from airflow_provider_ocidist.agent.save import pickles
from airflow_provider_ocidist.backports import StrEnum
from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.storage.checkpoint_names import UNFINISHED_ENDINGS

logger = logging.getLogger(__name__)

ZIPPED = (".pt", ".pth", ".ptz", ".npz", ".zip", ".keras")
"""Extensions of files that are an archive, or a pickle of torch's older format."""
NEVER_EMPTY = (
    *ZIPPED,
    ".bin",
    ".ckpt",
    ".safetensors",
    dcp.ENDING,
    ".npy",
    ".pkl",
    ".json",
    ".h5",
    ".msgpack",
    ".gguf",
)
"""Extensions of files that are never empty."""
SEEK_HOLE = getattr(os, "SEEK_HOLE", 4)
"""Constant of Linux; PyPy lacks the name."""
LONGEST_HEADER = 100_000_000
"""Most bytes of JSON that are read into memory to check a file."""
CUT_WITHIN_A_LETTER = ("unexpected end of data", "truncated data")
"""Reasons of a decoder for a text that ends within a letter."""
NUMPY = b"\x93NUMPY"
"""First bytes of an array of numpy."""
LOCAL_HEADER = 30
"""Bytes of the header before each member of an archive, without its name and extra field."""


class FormatResult(StrEnum):
    """A format's result for a file or folder."""

    WHOLE = "whole"
    """All that belongs to the file is there."""
    BROKEN = "broken"
    """Something of the file is missing."""
    NOTHING = "nothing"
    """The format does not show whether anything is missing."""


Members = frozenset[tuple[str, int]]
"""Names of what a file without a certain end consists of, each with its bytes, or `PROVED`."""
PROVED = -1
"""Mark in place of the bytes of a member that is whole by its own format: its size may vary from save to save."""


@dataclass(frozen=True)
class Reading:
    """The result of a format's check, and its reason."""

    says: FormatResult
    why: str = ""
    files: frozenset[str] = frozenset()
    """Files of a folder that are whole by their own formats."""
    is_doubtful: bool = False
    """Whether, if broken, a complete file may look the same, so that the program's announcement overrides it."""
    is_cut_short: bool = False
    """Whether, if whole, a file may look the same that an exception amid its save has closed."""
    is_by_length: bool = False
    """Whether, if whole, its length alone shows it: it may have had that before its content was written."""
    members: Mapping[str, Members] = field(default_factory=dict)
    """Members of each file that may be cut short, by the file's name."""


WHOLE, NOTHING = Reading(FormatResult.WHOLE), Reading(FormatResult.NOTHING)


def broken(why: str, *, is_doubtful: bool = False) -> Reading:
    return Reading(FormatResult.BROKEN, why, is_doubtful=is_doubtful)


def is_unfinished(name: str) -> bool:
    """Whether a name marks an entry that is still being written."""
    return name.endswith(UNFINISHED_ENDINGS) or ".tmp-" in name or name.startswith(("tmp-", ".tmp"))


def read_file(path: Path) -> Reading:
    """Return what the format of a file shows. Raises OSError when the file cannot be read."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return broken("it is empty") if path.name.endswith(NEVER_EMPTY) else NOTHING
        if _has_hole(file, size):
            # Some file systems make holes of written zeros, and some programs leave them where zeros belong.
            return broken("it has a hole that was never written", is_doubtful=True)
        check = _check_for(path.name, file.read(8))
        file.seek(0)
        if check is None:
            why = "it is neither an archive of torch nor a pickle"
            return broken(why, is_doubtful=True) if _is_zipped(path) else NOTHING
        try:
            check(file, size)
        except _MayBeCutShort as found:
            return Reading(FormatResult.WHOLE, is_cut_short=True, members={path.name: found.members})
        except _CUT_OFF as error:
            return broken(str(error) or type(error).__name__)
        except OSError:
            raise
        except Exception as error:  # any content: one odd file must not stop the other uploads
            logger.debug("%s cannot be looked through: %s: %s", path, type(error).__name__, error)
            return NOTHING
    return replace(WHOLE, is_by_length=check in _BY_LENGTH)


def _is_zipped(path: Path) -> bool:
    return path.name.endswith(ZIPPED)


def _has_hole(file: IO[bytes], size: int) -> bool:
    try:
        return os.lseek(file.fileno(), 0, SEEK_HOLE) < size
    except OSError:
        # Not every file system supports SEEK_HOLE.
        return False
    finally:
        file.seek(0)


class _CannotTell(Exception):
    """The format is known, but this file is too large to check, or has no definite end."""


class _MayBeCutShort(Exception):
    """The file has an end, which is written also where an exception ends the save."""

    def __init__(self, members: Members) -> None:
        super().__init__()
        self.members = members


_CUT_OFF = (ValueError, KeyError, TypeError, EOFError, IndexError, SyntaxError, zipfile.BadZipFile)

Check = Callable[[IO[bytes], int], None]
"""Function that raises ValueError, KeyError or TypeError unless a file of this size is whole."""


def _check_for(name: str, begin: bytes) -> Check | None:
    if name.endswith(".safetensors"):
        return _check_safetensors
    if name.endswith(".json"):
        return _check_json
    return next((check for magic, check in _MAGICS.items() if begin.startswith(magic)), None)


def _check_json(file: IO[bytes], size: int) -> None:
    if size > LONGEST_HEADER:
        raise _CannotTell
    try:
        value = json.loads(file.read())
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" or _goes_on(error):
            # JSON lines, or settings with comments, which some name so: their end cannot be checked.
            raise _CannotTell from error
        raise
    except UnicodeDecodeError as error:
        if error.reason in CUT_WITHIN_A_LETTER:
            raise
        raise _CannotTell from error
    if not isinstance(value, (dict, list)):
        # The first digits of a number are a number too.
        raise _CannotTell


def _goes_on(error: json.JSONDecodeError) -> bool:
    """Whether a text goes on after what is no JSON: one that was cut off ends within the word that cannot be read."""
    # Named by where it begins: CPython says so of a string, PyPy also of an array and of an object.
    if error.msg.startswith("Unterminated"):
        return False
    return re.search(r"[\s\]}]", error.doc[error.pos :]) is not None


def _check_safetensors(file: IO[bytes], size: int) -> None:
    length = int.from_bytes(file.read(8), "little")
    if 8 + length > min(size, LONGEST_HEADER):
        raise ValueError(f"its header of {length} bytes is not all there")
    header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    _require_size(size, 8 + length + max(ends, default=0))


def _require_size(size: int, wanted: int) -> None:
    if size != wanted:
        raise ValueError(f"it has {size} of {wanted} bytes")


def _check_pickle(file: IO[bytes], size: int) -> None:
    if size > pickles.LARGEST:
        raise _CannotTell
    if count := pickles.require_whole(file, size):
        raise _MayBeCutShort(frozenset((str(number), PROVED) for number in range(count)))


def _check_npy(file: IO[bytes], size: int) -> None:
    file.seek(6)
    width = 2 if file.read(2)[0] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    header = ast.literal_eval(file.read(length).decode("latin-1").strip())
    item = re.search(r"\d+$", header["descr"]) if isinstance(header["descr"], str) else None
    if item is None or "O" in header["descr"]:
        # Records, times and objects: their size does not follow from the header alone.
        raise _CannotTell
    # The unit of text is four bytes.
    each = int(item[0]) * (4 if "U" in header["descr"] else 1)
    _require_size(size, 8 + width + length + each * math.prod(header["shape"]))


def _check_zip(file: IO[bytes], _size: int) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        for member in members:
            _require_member(file, member, archive.start_dir)
        roots = [member.filename for member in members if member.filename.endswith("/data.pkl")]
        if len(roots) != 1:
            raise _MayBeCutShort(frozenset(_measured(archive, member) for member in members))
        _require_storages(archive, roots[0], {member.filename for member in members})


def _require_member(file: IO[bytes], member: zipfile.ZipInfo, end: int) -> None:
    file.seek(member.header_offset)
    header = file.read(LOCAL_HEADER)
    if header[:4] != b"PK\x03\x04":
        raise ValueError(f"{member.filename} is not where its directory says")
    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if member.header_offset + LOCAL_HEADER + lengths + member.compress_size > end:
        raise ValueError(f"{member.filename} is cut off")


def _measured(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[str, int]:
    """Return a member's name and bytes. Raises as `Check` where it is an array that was cut off."""
    try:
        with archive.open(member) as file:
            if file.read(len(NUMPY)) == NUMPY:
                _check_npy(file, member.file_size)
                return member.filename, PROVED
    except (OSError, *_CUT_OFF):
        raise
    except (
        Exception
    ) as error:  # encrypted, of an unknown compression, or an array whose size its header lacks
        logger.debug("%s cannot be looked through: %s: %s", member.filename, type(error).__name__, error)
    return member.filename, member.file_size


def _require_storages(archive: zipfile.ZipFile, name: str, names: set[str]) -> None:
    """Raise ValueError if tensors are missing: an archive that an exception cut short still has an end."""
    if archive.getinfo(name).file_size > pickles.LARGEST:
        raise _CannotTell
    root = name.removesuffix("data.pkl")
    for key, (_, items) in pickles.load(archive.read(name))[1].items():
        if items and f"{root}data/{key}" not in names and f"{root}.data/{key}" not in names:
            raise ValueError(f"its tensor data/{key} is missing")


_BY_LENGTH = (_check_safetensors, _check_npy)
_MAGICS: dict[bytes, Check] = {
    b"PK\x03\x04": _check_zip,
    b"PK\x05\x06": _check_zip,
    **{bytes([0x80, protocol]): _check_pickle for protocol in range(2, 6)},
    NUMPY: _check_npy,
}
