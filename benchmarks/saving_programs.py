"""The programs whose saves are timed, each a process of its own: `saving_programs.py KIND ORDER`.

Each prints how long its training stood still for each save, in s; the first save, which allocates, is left out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_ocidist.saves import Saves

if TYPE_CHECKING:
    import torch

LAYERS = 21
WIDTHS = {512: 1443, 8192: 5838}
"""Widths of 21 square layers of float32 whose weights, and Adam's two moments of each, have so many MiB."""

Order = dict[str, Any]
"""`folder`, `saves`, `pause` (s between two), `device` (cpu), `mib` (512), and for the store `uri`, `url`,
`config_file`."""
Save = Callable[[int], object]
"""Saves a step; of what writes on beside the training, it returns the future."""


def training(device: str, mib: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    import torch

    width = WIDTHS[mib]
    with torch.device(device):
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)])
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def helper(order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    return Saves(model, optimizer, folder=order["folder"]).save


def torch_save(order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    import torch

    def save(step: int) -> None:
        with (Path(order["folder"]) / f"step-{step % 2}.pt").open("wb") as file:
            torch.save(state_of(model, optimizer), file)
            file.flush()
            os.fsync(file.fileno())

    return save


def memory_copy(_order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    import torch

    moments = [each for state in optimizer.state.values() for each in state.values()]
    tensors = [each.detach() for each in (*model.parameters(), *moments)]
    # Into pinned memory, from a GPU: into any other it takes several times as long.
    buffers = [torch.empty(each.shape, dtype=each.dtype, pin_memory=each.is_cuda) for each in tensors]

    def save(_step: int) -> None:
        for buffer, tensor in zip(buffers, tensors, strict=True):
            buffer.copy_(tensor, non_blocking=tensor.is_cuda)
        if tensors[0].is_cuda:
            torch.cuda.synchronize()

    return save


def async_save(order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    """Save as torch itself does beside the training, into pinned memory that stays."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import async_save

    writer = FileSystemWriter(order["folder"], cache_staged_state_dict=True)

    def save(step: int) -> object:
        weights, moments = get_state_dict(model, optimizer)
        place = Path(order["folder"]) / f"step-{step % 2}"
        state = {"model": weights, "optimizer": moments}
        return async_save(state, checkpoint_id=place, storage_writer=writer, no_dist=True)

    return save


def watched(_order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    """Save as any script does, into the folder that ocidist watches."""
    import torch

    folder = Path(os.environ["OCIDIST_CHECKPOINT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)

    def save(step: int) -> None:
        torch.save(state_of(model, optimizer), folder / f"step-{step}.pt")
        for old in folder.glob(f"step-{step - 2}.pt"):
            old.unlink()

    return save


def straight(order: Order, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Save:
    """Save as seed 001 does: through fsspec, straight to Object Storage."""
    import fsspec
    import torch

    options = {"config": order["config_file"], "config_kwargs": {"service_endpoint": order["url"]}}

    def save(step: int) -> None:
        with fsspec.open(f"{order['uri']}/snapshot-{step % 2}.pt", "wb", **options) as file:
            torch.save(state_of(model, optimizer), file)

    return save


KINDS = {
    "helper": helper,
    "torch.save": torch_save,
    "copy": memory_copy,
    "async_save": async_save,
    "watched": watched,
    "straight": straight,
}


def _await_written(last: Path) -> None:
    """Wait for the file that is written last: a training saves when the save before has long been written."""
    while not last.exists():
        time.sleep(0.05)


def _await_computed(device: str) -> None:
    """Wait for what the GPU was given to compute: that is no part of a save."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def main() -> None:
    kind, order = sys.argv[1], json.loads(sys.argv[2])
    device = order.get("device", "cpu")
    save = KINDS[kind](order, *training(device, order.get("mib", 512)))
    stalls = []
    for step in range(order["saves"] + 1):
        _await_computed(device)
        began = time.perf_counter()
        written = save(step)
        stalls.append(time.perf_counter() - began)
        if kind == "helper":
            _await_written(Path(order["folder"]) / f"step-{step}" / ".metadata")
        if isinstance(written, Future):
            written.result()
        time.sleep(order["pause"])
    print(json.dumps({"stalls": stalls[1:]}), flush=True)


if __name__ == "__main__":
    main()
