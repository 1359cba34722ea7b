"""Saves beside the training: copied in memory, then written by torch.distributed.checkpoint.

A training script may use it, under ocidist or without::

    saves = Saves(model, optimizer)
    for step in range(saves.restore() + 1, steps + 1):
        ...
        if step % 100 == 0:
            saves.save(step)
    saves.close()

All processes call all of it, in the same steps. It is tried with PyTorch 2.13, and with 2.11 on
an NVIDIA H200; it uses what 2.4 has.
"""

from __future__ import annotations

import copy
import fcntl
import json
import logging
import operator
import os
import re
import shutil
import time
import uuid
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

logger = logging.getLogger(__name__)

DEFAULT_FOLDER = "checkpoints"
NAME = re.compile(r"step-(\d+)")
UNDER_WAY, FORMER = ".{}.{}.part", ".{}.former"
"""Folders beside a whole checkpoint that is saved once more: of the new one until it is whole, and of the old one."""
HIDDEN = re.compile(r"\.(step-\d+)\.(?:\w+\.)?(part|former)")
METADATA = ".metadata"
"""File that torch.distributed.checkpoint writes last, as `model.dcp` has it: this module imports none of ours."""
HELD_WITHIN = 10.0
"""Seconds for which a folder that another one holds is waited for: what a killed process has forked may outlive it."""
LARGE = 1 << 20
"""Bytes from which on memory is pinned where it lies: torch's own pinned memory takes the next power of two."""
MORE, FORMS = "more", "forms"
"""Entries of a checkpoint: the tensors of further objects, and what their states consist of besides."""
KEPT_KINDS = (Counter, OrderedDict)
"""Kinds of dict that are saved as such; any other is saved as a plain one, for its class may not be there later."""
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

        Raises ValueError for a `keep` below 1, and RuntimeError where another one of this machine writes to the folder.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint must stay")
        self.folder = Path(folder or os.environ.get("OCIDIST_CHECKPOINT_DIR") or DEFAULT_FOLDER)
        self.keep = keep
        self._model, self._optimizer, self._more = model, optimizer, more
        self._group = _own_group()
        self._rank = _rank(self._group)
        self._buffers: _Buffers = {}
        self._gpus: set[torch.device] = set()
        """GPUs that tensors are copied from, which they do beside the program."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="saves")
        self._under_way: tuple[int, Future[None]] | None = None
        self._written: list[int] = []
        """Steps of this process that lie in the folder, the last one last."""
        with self._alone():
            for is_turn in (self._rank == 0, self._rank != 0):
                # What two nodes that share the folder put back at once might get lost.
                if is_turn and _is_first_on_node():
                    self._tidy()
                self._meet()

    def restore(self) -> int:
        """Load the newest whole checkpoint that all processes have; return its step, 0 where there is none.

        Waits for a save under way. Raises RuntimeError where that one has failed.
        """
        self._finish()
        step = max(set.intersection(*self._of_all(set(_whole_steps(self.folder)))), default=0)
        if step == 0:
            return 0
        place = self._place(step)
        there = _contents(place) if self._more else {}
        forms = self._forms(place, there)
        fresh = {name: _fresh_state(each, forms.get(name)) for name, each in self._more.items()}
        # Checkpoints of earlier versions have no forms: there torch takes the fresh state for it.
        formless = {name: state for name, state in fresh.items() if name not in forms}
        state = {**self._main_state(), MORE: {**formless, **_targets(forms, fresh, there)}}
        self._load(state, place)
        joined = {name: _joined(form, state[MORE]) for name, form in forms.items()}
        self._take({**state, MORE: {**state[MORE], **joined}})
        return step

    def save(self, step: int) -> None:
        """Copy the state in memory, and return; it is written while the training goes on.

        Waits for the save before: there is one copy. Raises RuntimeError where that one has failed, and TypeError for
        a step that is no whole number.
        """
        step = operator.index(step)
        self._finish()
        # Of the buffers, those that this save does not use are dropped: keys of a state may be others each time.
        before, self._buffers = self._buffers, {}
        staged = _mapped({**self._state(), "step": step}, partial(self._staged, before))
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
            logger.warning("waited %.1f s for the save of step %d: save less often", waited, step)

    # The state

    def _state(self) -> dict[str, Any]:
        # torch takes the form of a state from the object that it restores, which may have been made just now: an
        # optimizer that has not stepped has no state. So we save the form too.
        tensors: _Tensors = {}
        taken: set[str] = set()
        forms = {name: _form(name, each.state_dict(), tensors, taken) for name, each in self._more.items()}
        return {**self._main_state(), MORE: tensors, FORMS: forms}

    def _main_state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint import state_dict as states

        if self._optimizer is None:
            return {"model": states.get_model_state_dict(self._model)}
        model, optimizer = states.get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _forms(self, place: Path, there: dict[str, Any]) -> dict[str, _Form]:
        """Return the forms of the further objects' states; checkpoints of earlier versions have none."""
        forms: dict[str, Any] = {name: None for name in self._more if f"{FORMS}.{name}" in there}
        if forms:
            self._load({FORMS: forms}, place)
        return forms

    def _load(self, state: dict[str, Any], place: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        load(state, storage_reader=FileSystemReader(place), process_group=self._group)

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
            each.load_state_dict(state[MORE][name])

    def _staged(self, before: _Buffers, path: _Path, value: Any) -> Any:
        """Return a copy of a part; a tensor's lies in a buffer that stays: fresh memory takes ten times as long."""
        import torch

        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        return self._copied(value.detach(), path, before)

    def _copied(self, tensor: torch.Tensor, path: _Path, before: _Buffers) -> torch.Tensor:
        sharded = _sharded()
        if isinstance(tensor, sharded):
            # This process's part; the description says where it belongs.
            part = self._copied(tensor.to_local(), path, before)
            whole: torch.Tensor = sharded(part, tensor._spec, requires_grad=False)  # noqa: SLF001 - torch has no other way
            return whole
        buffer = before.pop(path, None)
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = _buffer_for(tensor)
        self._buffers[path] = buffer
        if tensor.is_cuda:
            self._gpus.add(tensor.device)
        return buffer.copy_(tensor, non_blocking=tensor.is_cuda)

    # Writing, in a thread

    def _write(self, step: int, state: dict[str, Any]) -> None:
        self._by_first(_make, self.folder)
        with self._alone():
            self._write_alone(step, state)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others of the first process's machine from the folder; RuntimeError in all where one writes to it."""
        held = self._by_first(_hold, self.folder)
        try:
            yield
        finally:
            if self._rank == 0 and held is not None:
                _release(held)

    def _write_alone(self, step: int, state: dict[str, Any]) -> None:
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        place = self._place(step)
        begun = self._begun(place)
        try:
            save(state, storage_writer=FileSystemWriter(begun), process_group=self._group)
        except CheckpointException:
            # All processes have it then, and write no more: what there is would keep a full disk full.
            if _is_first_on_node():
                _delete(begun)
            raise
        if begun != place:
            self._by_first(_put_in_place, begun, place)
        if self._rank == 0:
            _announce(place.name, step)
        if _is_first_on_node():
            self._forget_old(step)

    def _begun(self, place: Path) -> Path:
        """Return the folder to write to: beside a whole checkpoint, which stays until the new one is whole.

        Where nodes have disks of their own, no moment is the same on all: there it goes first, as what was cut off.
        """
        beside: str | None = self._by_first(_made_beside, place)
        # The others find a folder of this name only where they see the same disk.
        if beside and all(self._of_all(_sees(place.with_name(beside)))):
            return place.with_name(beside)
        if _is_first_on_node():
            _delete(place)
            if beside:
                _delete(place.with_name(beside))
        self._meet()
        return place

    def _tidy(self) -> None:
        """Put a whole checkpoint back that a process which was killed was just replacing; delete what it has begun."""
        with suppress(OSError):
            for hidden in list(self.folder.iterdir()):
                found = HIDDEN.fullmatch(hidden.name)
                if found and found[2] == "former":
                    _put_back(hidden, self.folder / found[1])
                elif found:
                    _delete(hidden)

    def _forget_old(self, step: int) -> None:
        # Where nodes have disks of their own, the first alone has what shows that a folder is whole.
        self._written = [*(each for each in self._written if each != step), step]
        # What an earlier run has left is older, whatever its steps are.
        before = sorted(set(_whole_steps(self.folder)) - set(self._written))
        for old in [*before, *self._written][: -self.keep]:
            _delete(self._place(old))
        self._written = self._written[-self.keep :]

    def _place(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _by_first(self, act: Callable[..., Any], *arguments: Path) -> Any:
        """Return in all processes what the first one does. Raises RuntimeError in all where it fails."""
        done, error = None, None
        if self._rank == 0:
            try:
                done = act(*arguments)
            except OSError as raised:
                error = str(raised)
        done, error = self._of_all((done, error))[0]
        if error:
            raise RuntimeError(error)
        return done

    def _of_all(self, own: Any) -> list[Any]:
        """Return what each process has, by rank; all wait for one another."""
        if self._group is None:
            return [own]
        import torch.distributed as dist

        found: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(found, own, group=self._group)
        return found

    def _meet(self) -> None:
        if self._group is not None:
            import torch.distributed as dist

            dist.barrier(group=self._group)


# The folder, of which one at a time may change what is in it


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _hold(folder: Path) -> int | None:
    """Return the descriptor by which this process alone holds a folder; None where it cannot be held or is not there.

    The system releases it when the process ends. On a mount it is held on this machine only: a lock that a file server
    keeps might outlive its machine, and would keep the training's next one from the folder.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    ends = time.monotonic() + HELD_WITHIN
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < ends:
                time.sleep(0.05)
                continue
            os.close(descriptor)
            raise OSError(
                f"another Saves writes to {folder}: close it before, or give each training a folder of its own"
            ) from None
        except OSError:
            os.close(descriptor)
            return None
        return descriptor


def _release(held: int) -> None:
    # Processes that were forked meanwhile, as to load data, have it open too.
    fcntl.flock(held, fcntl.LOCK_UN)
    os.close(held)


# Whole folders, and those beside them


def _is_there(path: Path) -> bool:
    """Whether there is a file or folder. Raises OSError where that cannot be seen: `Path.exists` says no then."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_whole(place: Path) -> bool:
    return _is_there(place / METADATA)


def _whole_steps(folder: Path) -> Iterator[int]:
    for path in folder.iterdir() if _is_there(folder) else ():
        name = NAME.fullmatch(path.name)
        if name and _is_whole(path):
            yield int(name[1])


def _sees(folder: Path) -> bool:
    try:
        return _is_there(folder)
    except OSError:
        # The others wait for an answer. This is no other disk; the save will meet the error, too.
        return True


def _delete(folder: Path) -> None:
    """Delete a folder; one that is half deleted counts as whole no longer. What cannot be marked so stays all."""
    try:
        (folder / METADATA).unlink()
    except FileNotFoundError:
        pass
    except OSError:
        return
    shutil.rmtree(folder, ignore_errors=True)


def _made_beside(place: Path) -> str | None:
    """Make a new folder beside a whole checkpoint, and return its name; None where there is none."""
    if not _is_whole(place):
        return None
    beside = place.with_name(UNDER_WAY.format(place.name, uuid.uuid4().hex))
    beside.mkdir()
    return beside.name


def _put_in_place(begun: Path, place: Path) -> None:
    """Let a new checkpoint take the place of the whole one of its step."""
    former = place.with_name(FORMER.format(place.name))
    _delete(former)
    try:
        # Somebody may have deleted it meanwhile.
        with suppress(FileNotFoundError):
            place.rename(former)
        begun.rename(place)
    except OSError:
        _delete(begun)
        raise
    finally:
        _put_back(former, place)


def _put_back(former: Path, place: Path) -> None:
    """Let a whole checkpoint have its place again; delete it where another whole one is there."""
    if _is_whole(former) and not _is_whole(place):
        _delete(place)
        former.rename(place)
    else:
        _delete(former)


# The states of further objects: the form of one is saved as one object, beside it each tensor under its name

_Path = tuple[Any, ...]
"""Keys and indexes that lead to a part of a state."""
_Buffers = dict[_Path, "torch.Tensor"]
"""Memory that tensors are copied to, by their paths."""
_Tensors = dict[str, dict[str, Any]]
"""Tensors by the names of what holds them, and their own: `checkpoints export --key` takes the former."""
_Form = tuple[Any, dict[_Path, tuple[str, str, bool]]]
"""A state without its tensors; of each tensor by its path both names, and whether it is sharded."""


def _form(name: str, state: Any, tensors: _Tensors, taken: set[str]) -> _Form:
    """Return the form of an object's state, and add its tensors to those there are.

    `taken`: the names of these as torch.distributed.checkpoint joins them, which must differ: 1 and "1" are two keys.
    """
    import torch

    named: dict[_Path, tuple[str, str, bool]] = {}

    def without_tensor(path: _Path, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        holder, own = ".".join((name, *map(str, path[:-1]))), str(path[-1]) if path else ""
        while f"{holder}.{own}" in taken:
            own += "_"
        taken.add(f"{holder}.{own}")
        tensors.setdefault(holder, {})[own] = value
        named[path] = holder, own, isinstance(value, _sharded())
        return None

    return _mapped(state, without_tensor), named


def _fresh_state(each: Any, form: _Form | None) -> Any:
    """Return the state of an object that is to be restored, with the tensors that shards need."""
    import torch

    if form and isinstance(each, torch.optim.Optimizer) and any(sharded for *_, sharded in form[1].values()):
        from torch.distributed.checkpoint import state_dict as states

        # As torch does it for the main one, by a step that changes nothing.
        states._init_optim_state(each)  # noqa: SLF001 - its public functions want the model, too
    return each.state_dict()


def _targets(forms: dict[str, _Form], fresh: dict[str, Any], there: dict[str, Any]) -> _Tensors:
    """Return tensors that those of a checkpoint can be read into, by their names."""
    targets: _Tensors = {}
    for name, (_, named) in forms.items():
        own: dict[_Path, Any] = {}
        _mapped(fresh[name], own.setdefault)
        for path, (holder, last, is_sharded) in named.items():
            saved = there[f"{MORE}.{holder}.{last}"]
            target = _target(own.get(path), saved, is_sharded, f"{name}: {path}")
            targets.setdefault(holder, {})[last] = target
    return targets


def _target(own: Any, saved: Any, is_sharded: bool, called: str) -> torch.Tensor:
    """Return an empty tensor as the saved one, where and in shards as the fresh one is.

    Not that one itself: it may be one with the model's, or with another of its state.
    """
    import torch

    dtype = saved.properties.dtype
    fits = isinstance(own, torch.Tensor) and own.shape == saved.size
    if fits and isinstance(own, _sharded()):
        return torch.empty_like(own, dtype=dtype)
    if is_sharded and not fits:
        raise RuntimeError(
            f"{called} was saved in shards, and there is no such tensor to restore it into: "
            "let the new object have it before `restore`, as it had when it was saved"
        )
    return torch.empty(saved.size, dtype=dtype, device=own.device if fits and not own.is_meta else "cpu")


def _joined(form: _Form, tensors: _Tensors) -> Any:
    """Return the state whose form and tensors these are."""
    rest, named = form

    def with_tensor(path: _Path, value: Any) -> Any:
        if path not in named:
            return value
        holder, own, _ = named[path]
        return tensors[holder][own]

    return _mapped(rest, with_tensor)


def _mapped(value: Any, part: Callable[[_Path, Any], Any], path: _Path = ()) -> Any:
    """Return the same collections of what a function makes of each path and part in them."""
    if isinstance(value, dict):
        parts = {name: _mapped(each, part, (*path, name)) for name, each in value.items()}
        if type(value) not in KEPT_KINDS:
            return parts
        kept = type(value)(parts)
        # torch keeps the versions of a model's modules there.
        vars(kept).update(copy.deepcopy(vars(value)))
        return kept
    if not isinstance(value, (list, tuple)):
        return part(path, value)
    made = [_mapped(each, part, (*path, index)) for index, each in enumerate(value)]
    # A named tuple takes its parts one by one.
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)


def _sharded() -> Any:
    """Return the class of sharded tensors."""
    try:
        from torch.distributed.tensor import DTensor
    except ImportError:
        # Up to torch 2.4.
        from torch.distributed._tensor import DTensor  # type: ignore[attr-defined]  # by a star of its own
    return DTensor


def _contents(place: Path) -> dict[str, Any]:
    """Return the description of each tensor and object of a checkpoint, by its flat name."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(place).read_metadata().state_dict_metadata


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


def _rank(group: ProcessGroup | None) -> int:
    if group is None:
        return int(os.environ.get("RANK", "0"))
    import torch.distributed as dist

    # A program may give ranks to `init_process_group` itself, and has no $RANK then.
    return dist.get_rank(group)


def _is_first_on_node() -> bool:
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def _announce(name: str, step: int) -> None:
    """Report to ocidist that a checkpoint is whole."""
    file = os.environ.get("OCIDIST_PROGRESS_FILE")
    if file:
        with Path(file).open("a") as opened:
            opened.write(json.dumps({"checkpoint": name, "step": step}) + "\n")
