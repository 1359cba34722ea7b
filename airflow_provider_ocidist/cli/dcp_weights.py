"""DCP weights: what a folder of torch.distributed.checkpoint holds, read without running its code."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_ocidist.agent.save import pickles
from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.model import dcp

METADATA_CLASSES = {
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "Metadata",
    "MetadataIndex",
    "StorageMeta",
    "TensorStorageMetadata",
}
"""Classes of torch.distributed.checkpoint.metadata, which hold values only."""
STORAGE_CLASSES = {"_StorageInfo", "_StoragePrefix"}
"""Classes of torch.distributed.checkpoint.filesystem that hold values only."""
DTYPE = 0
"""Place of the dtype in what a tensor's properties keep; their class calls functions, so that it is not made."""


def read(folder: Path) -> dict[str, Any]:
    """Return the state that was saved, nested as it was saved; what only a program's own classes can read is left out.

    torch's own reader unpickles the description and the objects, and thereby calls whatever they name. Raises Unusable
    when it is no such folder or damaged.
    """
    metadata = _metadata(folder)
    try:
        return _nested(_loaded(folder, metadata), metadata.planner_data)
    except Exception as error:  # torch raises anything for a damaged one
        # Of what fails on a rank, torch gives a traceback as the text.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
        raise Unusable(f"{folder.name}: torch cannot load it without running its code ({reason})") from error


def _metadata(folder: Path) -> Any:
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        found = _MetadataUnpickler(io.BytesIO((folder / dcp.METADATA).read_bytes())).load()
    except Exception as error:  # a pickle may raise anything
        raise Unusable(f"{folder.name}: its {dcp.METADATA} cannot be read: {error}") from error
    if not (isinstance(found, Metadata) and isinstance(found.storage_data, dict)):
        raise Unusable(f"{folder.name}: its {dcp.METADATA} is not one of torch.distributed.checkpoint")
    for info in found.storage_data.values():
        path = PurePosixPath(str(getattr(info, "relative_path", "")))
        if path.is_absolute() or ".." in path.parts:
            raise Unusable(f"{folder.name}: its {dcp.METADATA} names a file outside the checkpoint, {path}")
    return found


class _MetadataUnpickler(pickles.InertUnpickler):
    """Makes the classes of torch's description, and `Inert` objects of all others."""

    def find_class(self, module: str, name: str) -> Any:
        import torch
        from torch.distributed.checkpoint import filesystem, metadata

        if module == metadata.__name__ and name in METADATA_CLASSES:
            return getattr(metadata, name)
        if module == filesystem.__name__ and name in STORAGE_CLASSES:
            return getattr(filesystem, name)
        value = getattr(torch, name, None) if module == "torch" else None
        if value is torch.Size or isinstance(value, torch.dtype):
            return value
        return super().find_class(module, name)


def _loaded(folder: Path, metadata: Any) -> dict[str, Any]:
    """Return tensors and objects by their flat names."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(FileSystemReader):
        def read_metadata(self, *_args: Any, **_kwargs: Any) -> Any:
            return metadata

    class Planner(DefaultLoadPlanner):
        def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
            self.state_dict[read_item.dest_index.fqn] = _safely(value)

    state: dict[str, Any] = {
        name: torch.empty(item.size, dtype=_dtype(item.properties))
        if isinstance(item, TensorStorageMetadata)
        else None
        for name, item in metadata.state_dict_metadata.items()
    }
    load(
        state,
        storage_reader=Reader(folder),
        planner=Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
    )
    return state


def _dtype(properties: Any) -> Any:
    """Return the type of a tensor's elements from its properties, whose class was not made."""
    return properties.state[DTYPE]


def _safely(value: io.BytesIO) -> Any:
    """Return an object; None where only its own class could read it: no tensor of a model is kept so."""
    import torch

    try:
        return torch.load(value, map_location="cpu", weights_only=True)
    except Exception:  # noqa: BLE001 - a pickle may raise anything
        return None


def _nested(flat: Mapping[str, Any], paths: Any) -> dict[str, Any]:
    """Return values by the paths that torch has flattened; those of a list have numbers as keys."""
    whole: dict[Any, Any] = {}
    for name, value in flat.items():
        path = paths.get(name) if isinstance(paths, dict) else None
        *above, last = path if isinstance(path, tuple) and path else (name,)
        holder = whole
        for part in above:
            holder = holder.setdefault(part, {})
        holder[last] = value
    return whole
