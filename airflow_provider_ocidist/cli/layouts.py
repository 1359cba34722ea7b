"""Layouts: a fetched checkpoint as a plain folder, one safetensors file, or a folder for Hugging Face's libraries."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_ocidist.cli import dcp_weights, weight_files
from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.model import dcp

OUTERMOST = "."
"""The key of the tensors that are in no other entry."""
WEIGHTS_FILE = "model.safetensors"


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Yield a new folder beside a target, which is removed at the end. Raises Unusable when the target is there."""
    if target.exists():
        raise Unusable(f"{target}: exists already; name a new path")
    target.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.absolute().parent) as folder:
        yield Path(folder)


def write(fetched: Path, target: Path, *, layout: str, file: str | None, key: str | None) -> Path:
    """Write a fetched checkpoint in a layout, and return the path. Raises Unusable when it has not what that needs."""
    if layout == "folder":
        return Path(shutil.move(fetched, target))
    if layout == "huggingface" and not (fetched.is_dir() and (fetched / "config.json").exists()):
        raise Unusable(
            f"{fetched.name}: has no config.json, and only the training program can write one; "
            "--to safetensors writes the weights alone"
        )
    weights = _weights(fetched, file, key)
    ready = fetched.with_name(".ready")
    if layout == "safetensors":
        _save(weights, ready)
    else:
        ready.mkdir()
        _save(weights, ready / WEIGHTS_FILE)
        for path in fetched.iterdir():
            # Tokenizers and models have files of many names, code among them.
            if path.is_file() and not weight_files.is_of_the_training(path.name):
                shutil.copy2(path, ready)
    return Path(shutil.move(ready, target))


def _save(weights: Mapping[str, Any], target: Path) -> None:
    # Two names of one tensor (tied weights) become two tensors: the format knows no sharing.
    whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    try:
        _safetensors().save_file(whole, target, metadata={"format": "pt"})
    except Exception as error:  # the library has no class for a full disk
        raise Unusable(f"the weights cannot be written: {error}") from error


def _weights(fetched: Path, file: str | None, key: str | None) -> Mapping[str, Any]:
    """Return a model's tensors by name."""
    if file is None and fetched.is_dir() and (fetched / dcp.METADATA).exists():
        _torch()
        return _tensors(dcp_weights.read(fetched), fetched.name, key)
    paths = weight_files.of_model(fetched, file)
    if key is not None and paths[0].suffix == weight_files.SAFETENSORS:
        raise Unusable(f"--key {key}: {paths[0].name} has no entries: name the file with --file")
    whole: dict[str, Any] = {}
    for path in paths:
        part = _tensors_of_file(path, key)
        if twice := whole.keys() & part.keys():
            raise Unusable(
                f"{path.name}: has {min(twice)}, which another part of the model has too; name one with --file"
            )
        whole |= part
    return whole


def _tensors_of_file(path: Path, key: str | None) -> Mapping[str, Any]:
    if path.suffix == weight_files.SAFETENSORS:
        tensors: Mapping[str, Any] = _safetensors().load_file(path)
        return tensors
    return _tensors(_loaded(path), path.name, key)


def _loaded(path: Path) -> Any:
    torch = _torch()
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise Unusable(
            f"{path.name}: torch cannot load it without running its code ({reason}); "
            "save tensors only, or convert it with its own program"
        ) from error


def _tensors(content: Any, name: str, key: str | None) -> Mapping[str, Any]:
    """Return the tensors of a model in what a file holds: the only entry, at any depth, that looks like one."""
    states = dict(_states(content, ""))
    shown = ", ".join(states) or "none"
    if key is not None:
        if key not in states:
            raise Unusable(f"--key {key}: {name} has no such entry of tensors; it has: {shown}")
        return states[key]
    named = {path: state for path, state in states.items() if not weight_files.is_beside_weights(path)}
    models = {
        path: state for path, state in named.items() if any(map(_may_be_weight, state.items()))
    } or named
    if len(models) != 1:
        raise Unusable(f"{name}: which entry contains the model's weights? --key NAME; it has: {shown}")
    return next(iter(models.values()))


def _states(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tensors that each mapping holds under texts, with its path, at every depth."""
    if not isinstance(value, Mapping):
        return
    tensors = {name: each for name, each in value.items() if hasattr(each, "detach")}
    if tensors and all(isinstance(name, str) for name in tensors):
        yield path or OUTERMOST, tensors
    for name, each in value.items():
        yield from _states(each, f"{path}.{name}" if path else str(name))


def _may_be_weight(named: tuple[str, Any]) -> bool:
    """Whether a tensor may be one of a model's weights: programs also keep losses and random states as tensors."""
    name, tensor = named
    return tensor.dim() > 0 and not weight_files.is_beside_weights(name)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise Unusable(
            "torch is not installed here, and only torch reads this checkpoint: pip install torch"
        ) from error
    return torch


def _safetensors() -> Any:
    _torch()
    try:
        import safetensors.torch
    except ImportError as error:
        raise Unusable("safetensors is not installed here: pip install safetensors") from error
    return safetensors.torch
