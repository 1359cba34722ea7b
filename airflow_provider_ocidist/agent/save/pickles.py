"""Pickles: reads pickles of torch or of a program without running their code."""

from __future__ import annotations

import io
import pickle
from functools import cache
from typing import IO, Any

from airflow_provider_ocidist.backports import Self

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
"""First number in torch.save's files before they were zip archives."""
LARGEST = 1 << 30
"""Most bytes of a pickle that are read, since it is held in memory."""
ITEM_SIZES = {
    "ByteStorage": 1,
    "CharStorage": 1,
    "BoolStorage": 1,
    "UntypedStorage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}


class Inert:
    """Stands for an object of any class: keeps its arguments, and runs nothing."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        return super().__new__(cls)

    def __init__(self, *args: Any, **_kwargs: Any) -> None:
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        self.items.append(value)

    def extend(self, values: Any) -> None:
        self.items.extend(values)

    add = append


@cache
def _inert(name: str) -> type[Inert]:
    return type(name, (Inert,), {})


class InertUnpickler(pickle.Unpickler):  # noqa: S301 - no class is ever found, so nothing can be called
    """Reads a pickle into plain values and `Inert` objects; imports and calls nothing that the pickle names."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, tuple[str, int]] = {}
        """Type and number of items of each storage of tensors, by its key."""

    def find_class(self, _module: str, name: str) -> Any:
        return _inert(name.rpartition(".")[2])

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            kind = pid[1].__name__ if isinstance(pid[1], type) else str(pid[1])
            self.storages[str(pid[2])] = (kind, int(pid[4]))
        return Inert(pid)


class Unreadable(Exception):
    """A pickle that only the classes it names could read."""


def load(data: bytes) -> tuple[Any, dict[str, tuple[str, int]]]:
    """Return what a pickle holds, and its storages. Raises ValueError when it is cut off, else Unreadable."""
    unpickler = InertUnpickler(io.BytesIO(data))
    return _next(unpickler), unpickler.storages


def _next(unpickler: InertUnpickler) -> Any:
    try:
        return unpickler.load()
    except Exception as error:  # a pickle may raise anything
        if isinstance(error, EOFError) or "truncated" in str(error):
            raise ValueError(f"its pickle is cut off: {error}") from error
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def require_whole(file: IO[bytes], size: int) -> int:
    """Return the number of pickles, each of which another may follow; 0 for torch's older format, which has an end.

    Raises ValueError unless the file goes to its end; raises as `load`.
    """
    unpickler = InertUnpickler(file)
    count = 1
    if _next(unpickler) == LEGACY_MAGIC:
        count = 0
        _require_whole_legacy(unpickler, file)
    while count and file.tell() < size:
        _next(InertUnpickler(file))
        count += 1
    if file.tell() != size:
        raise ValueError(f"{size - file.tell()} bytes follow its end")
    return count


def _require_whole_legacy(unpickler: InertUnpickler, file: IO[bytes]) -> None:
    for _ in ("protocol", "system", "object"):
        unpickler = InertUnpickler(file)
        _next(unpickler)
    keys = _next(InertUnpickler(file))
    for key in keys if isinstance(keys, list) else ():
        kind, _ = unpickler.storages.get(str(key), ("", 0))
        items = int.from_bytes(_exactly(file, 8), "little")
        _skip(file, items * ITEM_SIZES.get(kind, 1))


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("it ends within its storages")
    return data


def _skip(file: IO[bytes], count: int) -> None:
    if count:
        file.seek(count - 1, io.SEEK_CUR)
        _exactly(file, 1)
