"""Saves beside the training: copied in memory, then written by torch.distributed.checkpoint.

A training script may use it, under ocidist or without::

    saves = Saves(model, optimizer)
    for step in range(saves.restore() + 1, steps + 1):
        ...
        if step % 100 == 0:
            saves.save(step)
    saves.close()

All processes call all of it, in the same steps. It is tried with PyTorch 2.13, and uses what 2.4 has.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import shutil
import time
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d+)")
METADATA = ".metadata"
"""File that torch.distributed.checkpoint writes last, as `model.dcp` has it: this module imports none of ours."""
LARGE = 1 << 20
"""Bytes from which on memory is pinned where it lies: torch's own pinned memory takes the next power of two."""
LONG_WAIT = 1.0
"""Seconds of waiting for the save before, from which on the wait is logged."""


class Saves:
    """The checkpoints `step-<number>` of one training, in a folder of each node."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        keep: int = 2,
        **more: Any,
    ) -> None:
        """Every process makes it, in the same place of the program: it makes a process group of its own.

        `folder`: `$OCIDIST_CHECKPOINT_DIR`, else `checkpoints`. `keep`: how many whole ones stay in it; ocidist keeps
        its own number of them in the store. `more`: objects with `state_dict` and `load_state_dict`, such as a
        scheduler, by the name that they have in the checkpoint.

        Raises ValueError for a `keep` below 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint must stay")
        self.folder = Path(folder or os.environ.get("OCIDIST_CHECKPOINT_DIR") or DEFAULT_FOLDER)
        self.keep = keep
        self._model, self._optimizer, self._more = model, optimizer, more
        self._group = _own_group()
        self._buffers: dict[tuple[object, ...], torch.Tensor] = {}
        self._gpus: set[torch.device] = set()
        """GPUs that tensors are copied from, which they do beside the program."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="saves")
        self._under_way: tuple[int, Future[None]] | None = None
        self._written: list[int] = []
        """Steps of this process that lie in the folder, the last one last."""

    def restore(self) -> int:
        """Load the newest whole checkpoint that all processes have; return its step, 0 where there is none."""
        step = self._newest()
        if step == 0:
            return 0
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        state = {**self._state(), "step": 0}
        load(state, storage_reader=FileSystemReader(self._place(step)), process_group=self._group)
        self._take(state)
        return step

    def save(self, step: int) -> None:
        """Copy the state in memory, and return; it is written while the training goes on.

        Waits for the save before: there is one copy. Raises RuntimeError where that one has failed.
        """
        self._finish()
        staged = self._staged({**self._state(), "step": step}, ())
        for gpu in self._gpus:
            import torch

            torch.cuda.synchronize(gpu)
        self._under_way = step, self._writer.submit(self._write, step, staged)

    def close(self) -> None:
        """Wait until the last save is written. Raises RuntimeError where it has failed.

        Before `destroy_process_group`: the last save uses a group of its own.
        """
        try:
            self._finish()
        finally:
            self._writer.shutdown()
            self._buffers.clear()

    def _finish(self) -> None:
        if self._under_way is None:
            return
        (step, writing), self._under_way = self._under_way, None
        began = time.monotonic()
        from torch.distributed.checkpoint.api import CheckpointException

        try:
            writing.result()
        except (Exception, CheckpointException) as error:
            # Its text is a traceback of each process that failed; torch derives it from BaseException.
            why = str(error).strip().rpartition("\n")[2]
            raise RuntimeError(f"the checkpoint of step {step} was not saved: {why}") from error
        waited = time.monotonic() - began
        if waited > LONG_WAIT:
            logger.warning("waited %.1f s for the save of step %d: save more seldom", waited, step)

    # The state

    def _state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as states

        more = {name: each.state_dict() for name, each in self._more.items()}
        if self._optimizer is None:
            return {"model": states.get_model_state_dict(self._model), "more": more}
        model, optimizer = states.get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer, "more": more}

    def _take(self, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint import state_dict as states

        if self._optimizer is None:
            states.set_model_state_dict(self._model, state["model"])
        else:
            states.set_state_dict(
                self._model,
                self._optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
        for name, each in self._more.items():
            each.load_state_dict(state["more"][name])

    def _staged(self, value: Any, path: tuple[object, ...]) -> Any:
        """Return a copy of a state whose tensors lie in buffers that stay: fresh memory takes ten times as long."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._copied(value.detach(), path)
        if isinstance(value, dict):
            return {name: self._staged(each, (*path, name)) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            parts = [self._staged(each, (*path, index)) for index, each in enumerate(value)]
            # A named tuple takes its parts one by one.
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return copy.deepcopy(value)

    def _copied(self, tensor: torch.Tensor, path: tuple[object, ...]) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        if isinstance(tensor, DTensor):
            # This process's part; the description says where it belongs.
            part = self._copied(tensor.to_local(), path)
            return DTensor(part, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no other way
        buffer = self._buffers.get(path)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = self._buffers[path] = _buffer_for(tensor)
        if tensor.is_cuda:
            self._gpus.add(tensor.device)
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)

    # Writing, in a thread

    def _write(self, step: int, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        place = self._place(step)
        if _is_first_on_node():
            # Parts of a save that was cut off, before the program was launched again.
            shutil.rmtree(place, ignore_errors=True)
        self._meet()
        save(state, storage_writer=FileSystemWriter(place), process_group=self._group)
        if _rank() == 0:
            _announce(place.name, step)
        if _is_first_on_node():
            self._forget_old(step)

    def _forget_old(self, step: int) -> None:
        # Where nodes have disks of their own, the first alone has what shows that a folder is whole.
        self._written = [*(each for each in self._written if each != step), step]
        # What an earlier run has left is older, whatever its steps are.
        before = sorted(set(_whole_steps(self.folder)) - set(self._written))
        for old in [*before, *self._written][: -self.keep]:
            shutil.rmtree(self._place(old), ignore_errors=True)
        self._written = self._written[-self.keep :]

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _newest(self) -> int:
        own = set(_whole_steps(self.folder))
        if self._group is not None:
            import torch.distributed as dist

            of_all: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(of_all, own, group=self._group)
            own = set.intersection(*of_all)
        return max(own, default=0)

    def _meet(self) -> None:
        if self._group is not None:
            import torch.distributed as dist

            dist.barrier(group=self._group)


def _whole_steps(folder: Path) -> Iterator[int]:
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        name = NAME.fullmatch(path.name)
        if name and (path / METADATA).is_file():
            yield int(name[1])


def _own_group() -> ProcessGroup | None:
    """Return a group for the saves alone: a collective of the training must not meet one of theirs."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        # One process is meant.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        return None
    return dist.new_group(backend="gloo")  # type: ignore[no-any-return]  # not annotated


def _buffer_for(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    # A device copies into pinned memory alone without a copy in between.
    is_large = tensor.numel() * tensor.element_size() >= LARGE
    pinned_by_torch = tensor.is_cuda and tensor.numel() > 0 and not is_large
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned_by_torch)
    if tensor.is_cuda and is_large:
        _pin(buffer)
    return buffer


def _pin(buffer: torch.Tensor) -> None:
    import torch

    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # not annotated
    place = buffer.data_ptr()
    code = int(runtime.cudaHostRegister(place, buffer.numel() * buffer.element_size(), 0))
    if code:
        raise RuntimeError(f"no pinned memory for a copy of {tuple(buffer.shape)}: CUDA error {code}")
    # Before its memory is used for anything else. At the end of the process the driver does it.
    unpinned = weakref.finalize(buffer, runtime.cudaHostUnregister, place)
    setattr(unpinned, "atexit", False)  # noqa: B010 - a property, which Python 3.9's types lack


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _is_first_on_node() -> bool:
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _announce(name: str, step: int) -> None:
    """Report to ocidist that a checkpoint is whole."""
    file = os.environ.get("OCIDIST_PROGRESS_FILE")
    if file:
        with Path(file).open("a") as opened:
            opened.write(json.dumps({"checkpoint": name, "step": step}) + "\n")
