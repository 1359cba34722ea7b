"""The user's training program as a model: it steps, saves checkpoints piece by piece, fails, hangs, ends."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.simulation.runtime import EPOCH, Process, Waiter, World

SECRET = "canary-Zx81qLmv0"
"""The value of the job's API_TOKEN, which its program prints."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """How a program behaves; the same on all nodes."""

    layout: str = "pt"
    """`pt`, `rolling` (one name for all), `lightning`, `hf` (folder with proofs), `bin` (folder that proves nothing),
    `dcp` (shards of every node)."""
    steps: int = 12
    step_seconds: float = 4.0
    save_every: int = 3
    write_seconds: float = 3.0
    """For which a save takes."""
    pause: float = 0.0
    """Between two files, or two pieces, of a save."""
    atomic: bool = False
    """Whether a save is renamed into place."""
    keeps: int = 0
    """How many of its own checkpoints it keeps in its folder; 0: all."""
    resumes: bool = True
    """Whether it goes on from what lies in its folder."""
    on_sigterm: str = "dies"
    """`dies`, `saves` (a last checkpoint first), `ignores`, `leaves` (exits with 0)."""
    fails_at: int = 0
    """The step at which a rank raises; 0: never."""
    fails_rank: int = 0
    fails_in_save: bool = False
    """Whether it raises while a save is being written, rather than between two."""
    fails_times: int = 1
    """How many gangs fail like this."""
    fails_later: tuple[int, ...] = ()
    """The steps at which a rank raises in the later launches of such a gang; 0: not in that one."""
    raises: str = "ValueError"
    """What it raises, of FAULTS."""
    full_at: int = 0
    """The save, counted from 1, at which the disk is full."""
    hangs_at: int = 0
    hangs_launches: int = 1
    """The launch, counted from 0, of the first gang from which on none hangs any more."""
    hangs_from: int = 0
    """The first launch that hangs."""
    talks: bool = False
    """Whether it prints lines, and no steps, while it hangs."""
    long_step: int = 0
    """The step that takes `long_seconds`; 0: none does."""
    long_seconds: float = 0.0
    nothing_from: int = 0
    """From this gang on it trains nothing either; 0: never."""
    trains_nothing: bool = False
    """Prints an error and exits with 0."""
    nothing_for: float = 0.0
    """Seconds for which such a program lives."""
    silent: bool = False
    """Prints no steps."""
    last_too: bool = False
    """Saves `last.ckpt` after each checkpoint, and goes on from that name only, as Lightning may."""
    preallocates: bool = False
    """Whether a file has its full size before its content is written; without a pause, writes never rest."""
    goes_on: bool = False
    """Whether it catches what ends a save, as a full disk, and trains on."""
    lingers: float = 0.0
    """Seconds for which the launcher outlives a rank that has raised."""
    helpers: bool = False
    """Whether a process of its own writes each save, while the training goes on; it ends with the save, or some seconds
    later."""
    slow_save: int = 0
    """The save, counted from 1, for which its helper takes until after the last step; 0: none."""
    clock_back_at: int = 0
    """The step of the first gang before which the clock of the main node is set back; 0: never."""


TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>'
ECHO = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.9]:1234"
"""What a rank raises where another is gone."""
LAST = "last.ckpt"
"""The name beside the others under which Lightning keeps the last checkpoint."""
FAULTS = {
    "ValueError": ("program", "ValueError: simulated"),
    "OutOfMemory": ("program", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    "ECC": ("node", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
}
"""What a rank may raise: the budget that pays for another launch, and the last line of the traceback."""
PIECES = 3
"""Into which a file is written, one after another."""
MANY_PIECES = 20
"""Of a file that is written to from one look of the agent to the next."""
PARTS = 3
"""Arrays of an archive, or pickles of one file."""
ENDS_ANYWAY = ("npz", "pkl")
"""Layouts of which a save that an exception ends has an end all the same."""
STATES_NO_STEP = ("rolling", "lightning")
"""Layouts of which the name of a checkpoint states no step."""
RANK = 1
"""The number of the process that trains, below its launcher."""
FIRST_HELPER = 2
SET_BACK_BY = -100.0
"""Seconds by which a clock is set that was ahead."""


class DiskFull(OSError):
    """No space is left for a save, and its program goes on without it."""


@dataclass(frozen=True)
class Fault:
    """What has ended a launch, or would have."""

    launch: int
    budget: str
    rank: int
    said: int | None
    """The step that its rank had reported by then."""
    kind: str
    at: int | None = None
    """The step that its launch had reached: the one that its rank had reported, else that of its checkpoint."""
    machine: Any = field(default=None, compare=False)
    """On which it happened."""
    cut_off: bool = field(default=False, compare=False)
    """Whether that machine reached nobody at that time."""


@dataclass(frozen=True)
class Harm:
    """What was done to a gang that may rightly end it."""

    at: float
    why: str
    passes: bool
    """Whether another launch makes up for it."""


@dataclass(eq=False)
class Save:
    """One version of the model, as the program wrote it: the truth that manifests are held against."""

    gang: int
    """The number of its gang, in order of their creation."""
    number: int
    """Within the gang."""
    step: int
    name: str
    files: dict[str, bytes]
    owners: dict[str, int]
    """Which node writes each file."""
    begun: float
    machines: dict[int, Any] = field(default_factory=dict)
    """By rank: on which machine its program has begun to write its files."""
    done: set[str] = field(default_factory=set)
    complete_at: float | None = None

    @property
    def order(self) -> tuple[int, int]:
        return self.gang, self.number

    @property
    def label(self) -> str:
        return f"save {self.number} of gang {self.gang} (step {self.step}, {self.name})"

    def hashes(self) -> dict[str, str]:
        return {name: hashlib.sha256(data).hexdigest() for name, data in self.files.items()}


class Truth:
    """All versions that any program of the schedule has written or begun."""

    def __init__(self) -> None:
        self.saves: list[Save] = []
        self.by_hash: dict[str, tuple[Save, str]] = {}
        self.by_version: dict[str, Save] = {}

    def add(self, save: Save) -> None:
        self.saves.append(save)
        for name, digest in save.hashes().items():
            self.by_hash[digest] = (save, name)

    def complete_of(self, gang: int) -> list[Save]:
        return [save for save in self.saves if save.gang == gang and save.complete_at is not None]


def _order(save: Save) -> tuple[int, int]:
    return save.order


def without_stale_states(found: Iterable[tuple[Save, str]]) -> list[tuple[Save, str]]:
    """Return the files of a checkpoint, by save and name, without the random states that no process of it has.

    What is saved over a checkpoint of more or fewer nodes leaves theirs: their names are others, and none of the
    processes that have saved reads them (fin1.52).
    """
    files = list(found)
    newest = max((save for save, _ in files), key=_order, default=None)
    return [
        (save, name)
        for save, name in files
        if newest is None or save is newest or "rng_state" not in name or name in newest.files
    ]


class StorageInfo:
    """As torch.distributed.checkpoint pickles where a tensor lies."""

    def __init__(self, name: str, size: int) -> None:
        self.relative_path, self.offset, self.length = name, 0, size


class Metadata:
    """What it writes last of all."""

    def __init__(self, save_id: str, names: list[str], size: int) -> None:
        self.storage_meta = save_id
        self.storage_data = {name: StorageInfo(name, size) for name in names}


def zipped(text: str, size: int) -> bytes:
    """Return what torch.save writes: a zip archive. Made by hand, in a tenth of the time that `zipfile` takes."""
    return _archive(
        {
            b"archive/data.pkl": pickle.dumps({"id": text}),
            b"archive/data/0": _filled(text, size),
            b"archive/version": b"3\n",
        }
    )


def _archive(members: Mapping[bytes, bytes]) -> bytes:
    content, directory = b"", b""
    for name, data in members.items():
        about = struct.pack("<5H3L2H", 20, 0, 0, 0, 33, zlib.crc32(data), len(data), len(data), len(name), 0)
        directory += b"PK\1\2\24\0" + about + struct.pack("<3H2L", 0, 0, 0, 0, len(content)) + name
        content += b"PK\3\4" + about + name + data
    end = struct.pack("<4H2LH", 0, 0, len(members), len(members), len(directory), len(content), 0)
    return content + directory + b"PK\5\6" + end


def _arrays(text: str, size: int) -> bytes:
    """Return what numpy.savez writes."""
    about = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}\n".encode()
    head = b"\x93NUMPY\1\0" + len(about).to_bytes(2, "little") + about
    return _archive({f"w{part}.npy".encode(): head + _filled(f"{text}{part}", size) for part in range(PARTS)})


def _pickles(text: str, size: int) -> bytes:
    """Return several pickles in one file, which are read one after another."""
    return b"".join(pickle.dumps({"id": text, "part": part, "w": "w" * size}) for part in range(PARTS))


def ended_early(data: bytes) -> bytes:
    """Return an archive, or a file of pickles, as an exception leaves it before the last part."""
    file = io.BytesIO(data)
    if data.startswith(b"PK"):
        with zipfile.ZipFile(file) as archive:
            *names, _ = archive.namelist()
            return _archive({name.encode(): archive.read(name) for name in names})
    for _ in range(PARTS - 1):
        pickle.load(file)
    return data[: file.tell()]


def safetensors(text: str, size: int) -> bytes:
    data = _filled(text, size)
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + data


def _filled(text: str, size: int) -> bytes:
    return (text.encode() * (size // len(text) + 1))[:size]


def files_of(
    layout: str, save_id: str, step: int, nodes: int, size: int
) -> tuple[str, dict[str, bytes], dict[str, int]]:
    """Return name, contents and writers of one save."""
    match layout:
        case "pt":
            return f"step-{step:06d}.pt", {"": zipped(save_id, size)}, {"": 0}
        case "rolling":
            return "snapshot.pt", {"": zipped(save_id, size)}, {"": 0}
        case "lightning":
            # The loss falls with the epochs, so its digits say nothing of the order.
            return f"epoch={step}-val_loss={9.9 / (step + 1):.2f}.ckpt", {"": zipped(save_id, size)}, {"": 0}
        case "hf":
            state = json.dumps({"global_step": step, "id": save_id, "best_metric": None, "log_history": []})
            files = {
                "config.json": json.dumps({"model_type": "model", "id": save_id}).encode(),
                "model.safetensors": safetensors(save_id + "m", size),
                "optimizer.pt": zipped(save_id + "o", size * 2),
                "scheduler.pt": zipped(save_id + "s", 200),
                "trainer_state.json": state.encode(),
            }
            owners = dict.fromkeys(files, 0)
            for rank in range(nodes):
                name = f"rng_state_{rank}.pth" if nodes > 1 else "rng_state.pth"
                files[name], owners[name] = zipped(f"{save_id}g{rank}", 300), rank
            return f"checkpoint-{step}", files, owners
        case "last":
            return LAST, {"": zipped(save_id, size)}, {"": 0}
        case "npz":
            return f"step-{step:06d}.npz", {"": _arrays(save_id, size)}, {"": 0}
        case "pkl":
            return f"step-{step:06d}.pkl", {"": _pickles(save_id, size)}, {"": 0}
        case "bin":
            files = {
                "model.bin": _filled(save_id + "m", size),
                "optimizer.bin": _filled(save_id + "o", size * 2),
            }
            return f"checkpoint-{step}", files, dict.fromkeys(files, 0)
        case "dcp":
            files = {f"__{rank}_0.distcp": _filled(f"{save_id}r{rank}", size) for rank in range(nodes)}
            owners = {f"__{rank}_0.distcp": rank for rank in range(nodes)}
            names = sorted(files)
            files[".metadata"] = pickle.dumps(Metadata(save_id, names, size))
            return f"step-{step:06d}", files, {**owners, ".metadata": 0}
    raise LookupError(layout)


def is_looked_for(habits: Habits, name: str) -> bool:
    """Whether the program goes on from an entry of this name."""
    if habits.last_too:
        return name == LAST
    starts = {"rolling": "snapshot.pt", "lightning": "epoch="}
    starts |= dict.fromkeys(("pt", "npz", "pkl", "dcp"), "step-")
    return (
        name.startswith(starts.get(habits.layout, "checkpoint-"))
        and ".part" not in name
        and ".tmp" not in name
    )


def step_in(layout: str, name: str) -> int:
    """Return by what the program itself takes one entry for newer than another."""
    digits = name.replace("=", "-").replace(".", "-").split("-")
    numbers = [int(part) for part in digits if part.isdecimal()]
    return numbers[0] if layout == "lightning" and numbers else (numbers[-1] if numbers else 0)


class Gang:
    """The programs of one gang, which meet, step and fail together."""

    def __init__(
        self, world: World, truth: Truth, number: int, name: str, nodes: int, habits: Habits
    ) -> None:
        self.world, self.truth, self.number, self.name = world, truth, number, name
        self.nodes, self.habits = nodes, habits
        self.programs: dict[int, Program] = {}
        self.met: deque[Waiter] = deque()
        self.broken: str | None = None
        self._broken_now = 0.0
        self.saves = 0
        self.by_step: dict[tuple[int, str], Save] = {}
        """By step and layout."""
        self.exits: dict[int, int] = {}
        """By rank: how the program itself has ended."""
        self.restored: dict[int, Save | None] = {}
        self.trained = False
        self.harm: list[Harm] = []
        self.faults: list[Fault] = []
        self.launch = 0
        self.size = nodes
        """How many nodes take part in this launch."""
        self.broken_at = 0.0
        """When the launch before this one was broken."""
        self.least = nodes
        """The least number of nodes that its job allows to train."""
        self.checkpoints_prefix = self.run_prefix = self.job_id = ""
        self.moved: list[float] = []
        """When a program said something, or a checkpoint was published."""
        self.hung_at: float | None = None
        self.refused = False
        """Whether there was no machine of its shape."""

    def hurt(self, why: str, *, passes: bool = False) -> None:
        self.harm.append(Harm(self.world.now, why, passes))

    def fail(self, program: Program, budget: str, kind: str) -> None:
        """Note a fault of the program for which another launch makes up, where the job allows one."""
        self.hurt(f"{kind} on rank {program.rank}", passes=True)
        # All ranks hang together.
        if budget != "hang" or self.hung_at is None:
            at = self._resumed_at(program) if program.said is None else program.said
            there = program.machine
            self.faults.append(
                Fault(self.launch, budget, program.rank, program.said, kind, at, there, there.unreachable)
            )

    def _resumed_at(self, program: Program) -> int | None:
        """Return the step of the checkpoint that a launch went on from, while no rank of it has reported another."""
        of_launch = [each for each in self.programs.values() if each.launch == self.launch]
        save = self.restored.get(program.rank) if program.machine.machines.scenario.checkpoints else None
        return save.step if save and all(each.said is None for each in of_launch) else None

    def breaks(self, why: str) -> None:
        """Note that the programs cannot go on together."""
        if self.broken is None:
            self.broken, self._broken_now = why, self.world.now

    @property
    def members(self) -> list[int]:
        """The ranks that take part in this launch, in order; of one of fewer nodes those that have begun it."""
        if self.size == self.nodes:
            return list(range(self.nodes))
        return sorted(rank for rank, each in self.programs.items() if each.launch == self.launch)

    def begin_launch(self, number: int, size: int) -> None:
        """Forget how the launch before has ended; called on every node, the first one counts."""
        if number <= self.launch:
            return
        self.launch, self.size, self.broken_at = number, size, self._broken_now
        self.broken = self.hung_at = None
        self.by_step, self.exits, self.restored = {}, {}, {}
        # A machine may have been lost since the launch was broken, which this one does not make up for (q1.638).
        self.harm = [harm for harm in self.harm if not harm.passes or harm.at > self.broken_at]

    def save_at(self, step: int, layout: str) -> Save:
        save = self.by_step.get((step, layout))
        if save is None:
            self.saves += 1
            version = f"<{self.name}#{self.number}.{self.saves}.{step}>"
            size = 600 + self.world.number("size", self.number, self.saves) % 6000
            if layout in ("bin", "dcp", "hf", "npz", "pkl"):
                size = 1500  # the same at every save, as of one model
            members = self.members
            name, files, places = files_of(layout, version, step, len(members), size)
            owners = {file: members[place] for file, place in places.items()}
            save = Save(self.number, self.saves, step, name, files, owners, self.world.now)
            self.truth.add(save)
            self.by_step[step, layout] = save
        return save


class Program:
    """The processes of one node."""

    def __init__(
        self, gang: Gang, machine: Any, rank: int, place: int, folder: Path, output: Any, progress: Path
    ) -> None:
        self.gang, self.machine, self.rank, self.place = gang, machine, rank, place
        self.launch = gang.launch
        self.said: int | None = None
        """The step that it has reported last."""
        self.folder, self.output, self.progress = folder, output, progress
        self.habits = gang.habits
        self.world: World = gang.world
        self.process = Process(self.world, f"program {gang.number}.{rank}", machine.process.skew)
        self.exit_code: int | None = None
        self.signalled: float | None = None
        self.asked_to_end: float | None = None
        """As `signalled`, which is over once it has heeded that."""
        self.has_left = False
        """Whether it has exited with 0 for a signal."""
        self.writers: dict[int, set[str]] = {0: set(), RANK: set()}
        """By living process: the files that it has open for writing. The launcher, 0, has none."""
        self._helpers: list[Any] = []
        """The threads of those that write saves."""
        self._rank_is_gone = False
        self.on_end: list[Any] = []
        self.step = 0
        self.before: list[str] = []
        gang.programs[rank] = self
        gang.moved.append(self.world.now)
        self.process.spawn(self._run, name="training")

    def end(self, code: int) -> None:
        """Be gone, whatever it was doing."""
        if self.exit_code is not None:
            return
        self.exit_code = code
        # That of a lost node that comes back takes no part in the launch that has followed.
        takes_part = self.launch == self.gang.launch
        if takes_part:
            self.gang.exits[self.rank] = code
        self.writers.clear()
        self.world.note(self.process.name, "exits with %d", code)
        for act in self.on_end:
            act()
        if code != 0 and takes_part:
            self.gang.breaks(f"rank {self.rank} exited with {code}")
        if not self.process.dead:
            self.process.kill("is gone")

    def sigterm(self) -> None:
        self.signalled = self.world.now
        self.asked_to_end = self.asked_to_end or self.world.now
        if self.habits.on_sigterm == "dies":
            # torchrun ends its ranks, and exits with 1 itself.
            self.end(1)
        elif self.habits.on_sigterm == "leaves" and self.exit_code is None:
            self.has_left = True
            # The others miss it all the same.
            if self.launch == self.gang.launch:
                self.gang.breaks(f"rank {self.rank} has left")
            self.end(0)

    # inside

    def say(self, text: str) -> None:
        self.gang.moved.append(self.world.now)
        if not self.machine.process.dead:
            self.output._take(text.encode() + b"\n", 1)
            self.machine.machines.service.logged(self.machine.run, text.replace(SECRET, "***"))

    def _run(self) -> None:
        habits, gang = self.habits, self.gang
        self.world.sleep(0.5 + self.world.chance("start", gang.number, self.rank))
        self.say(f"connecting with {SECRET}")
        if habits.trains_nothing or 0 < habits.nothing_from <= gang.number:
            self._nap(habits.nothing_for)
            self.say("error: no such data set; nothing to do")
            self.end(0)
        if not self._meet():
            return
        start = self._restore()
        if start >= habits.steps:
            self.say("already trained")
        for step in range(start + 1, habits.steps + 1):
            self._do_step(step)
        for helper in self._helpers:
            helper.join()
        self.end(0)

    def _meet(self) -> bool:
        """Wait for the programs of all nodes, as a rendezvous does."""
        deadline = self.world.now + 120
        while self._here() < self.gang.size:
            self._look()
            if self.world.now > deadline:
                self.say("torch.distributed.DistNetworkError: The client socket has timed out after 120s")
                self.end(1)
            self.world.sleep(0.5)
        return True

    def _here(self) -> int:
        """Return how many programs of this launch are there."""
        programs = self.gang.programs.values()
        return sum(each.exit_code is None and each.launch == self.launch for each in programs)

    def _restore(self) -> int:
        """Go on from what lies in the folder, as the program's own rule has it."""
        entries: list[Path] = []
        with contextlib.suppress(OSError):
            entries = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        named = [path for path in entries if is_looked_for(self.habits, path.name)]
        newest = max(named, key=lambda path: step_in(self.habits.layout, path.name), default=None)
        if newest is None or not self.habits.resumes:
            self.machine.rules.restored(self.gang, self.rank, None)
            self.gang.restored[self.rank] = None
            return 0
        read: list[tuple[Save, str]] = []
        for path in [newest] if newest.is_file() else sorted(newest.rglob("*")):
            if path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found = self.gang.truth.by_hash.get(digest)
                if found is None:
                    self._bad(f"{newest.name}/{path.name} is no file that any program has written whole")
                    return 0
                read.append(found)
        read = without_stale_states(read)
        (save, *others), names = sorted({save for save, _ in read}, key=_order), {name for _, name in read}
        if others or any("rng_state_" not in name for name in set(save.files) - names):
            self._bad(f"{newest.name} mixes or lacks files: {sorted(names)}")
        self.machine.rules.restored(self.gang, self.rank, save)
        self.gang.restored[self.rank] = save
        self.world.note(self.process.name, "goes on from %s", save.label)
        return save.step

    def _bad(self, what: str) -> None:
        self.world.note(self.process.name, "cannot load: %s", what)
        if self.machine.machines.scenario.checkpoints:
            # Without them the folder is the program's own affair, from launch to launch.
            self.machine.rules.violate("wholeness", f"a retry was offered what is not whole: {what}")
        self.say("RuntimeError: PytorchStreamReader failed reading zip archive")
        self.end(1)

    def _look(self) -> None:
        """Fail with the others, end when asked to."""
        gang = self.gang
        if self.signalled is not None and self.habits.on_sigterm == "saves":
            self._last_save()
        if gang.broken is not None or self.launch < gang.launch:
            self.world.sleep(1.0 + 4.0 * self.world.chance("echo", gang.number, self.rank))
            if self.habits.on_sigterm == "dies" or self.signalled is None:
                self.say(f"{TRACEBACK}\n  loss.backward()\n{ECHO}")
                self.end(1)

    def _last_save(self) -> None:
        self.signalled = None
        if self.step and self.place == 0 and self.habits.layout not in ("dcp", "hf"):
            self._save_all(self.step)
        self.end(1)

    def _do_step(self, step: int) -> None:
        habits, gang = self.habits, self.gang
        self.step = step
        fails = self._fails_at() == step and self.rank == habits.fails_rank % gang.nodes
        if habits.clock_back_at == step and gang.number == self.rank == 0:
            self._set_clock_back()
        hangs = habits.hangs_from <= gang.launch < habits.hangs_launches
        if habits.hangs_at == step and gang.number == 0 and hangs:
            gang.fail(self, "hang", "a hang")
            gang.hung_at = gang.hung_at or self.world.now
            while gang.broken is None and not (self.signalled and habits.on_sigterm == "saves"):
                if habits.talks:
                    self._talk()
                self.world.sleep(1.0)
                self._look()
        self._busy(habits.long_seconds if step == habits.long_step else habits.step_seconds)
        if fails and not habits.fails_in_save:
            self._raise()
        gang.trained = True
        if not habits.silent:
            self.say(f"step {step}/{habits.steps} loss {9.9 / (step + 1):.4f}")
            self.said = step
        if step % habits.save_every == 0 or step == habits.steps:
            if fails:
                into = self.world.between(0.1, 0.95, "raises", gang.number, gang.launch, step)
                # Of two names the last is the one that it goes on from.
                into += habits.last_too
                self.process.spawn(self._raise, name="raises", delay=habits.write_seconds * into)
            if self.place == 0 or habits.layout in ("dcp", "hf"):
                self._save_all(step)
            else:
                # The others wait for the save, as at a barrier.
                self._busy(habits.write_seconds * (2 if habits.last_too else 1))

    def _talk(self) -> None:
        """Print what is no progress of a program that counts steps."""
        if not self.machine.process.dead:
            self.output._take(b"waiting for the others\n", 1)

    def _set_clock_back(self) -> None:
        machines = self.machine.machines
        if machines.faults.fire("clock set back", "clock set back amid saves"):
            machines.set_clock(self.rank, SET_BACK_BY)

    def _fails_at(self) -> int:
        """Return the step at which a rank raises in this launch; 0: none does."""
        habits, gang = self.habits, self.gang
        steps = (habits.fails_at, *habits.fails_later)[gang.launch : gang.launch + 1]
        return steps[0] if steps and gang.number < habits.fails_times else 0

    def _busy(self, seconds: float) -> None:
        end = self.world.now + seconds
        while (left := end - self.world.now) > 0:
            self._look()
            self.world.sleep(min(left, 1.0))
        self._look()

    def _raise(self) -> None:
        budget, text = FAULTS[self.habits.raises]
        self.gang.fail(self, budget, self.habits.raises)
        self.say(f'{TRACEBACK}\n  connect("{SECRET}")')
        self.say(text)
        if self.habits.lingers:
            self._outlive_rank()
        self.end(1)

    def _outlive_rank(self) -> None:
        """Let the rank be gone, and with it what it was writing; its launcher ends some time later."""
        self._rank_is_gone = True
        # Its end closes what it had open.
        del self.writers[RANK]
        self._count("rank dies alone")
        self.world.note(self.process.name, "its rank is gone, the launcher lives")
        self.world.sleep(self.habits.lingers)

    def be_killed(self) -> None:
        """Be ended by the kernel, or by a person, at any moment."""
        if self.exit_code is None:
            self.gang.fail(self, "program", "SIGKILL")
            self.end(-9)

    # saving

    def _save_all(self, step: int) -> None:
        if self.habits.helpers:
            # It begins at once: the order in which saves are begun is that of the steps.
            save = self.gang.save_at(step, self.habits.layout)
            number = FIRST_HELPER + len(self._helpers)
            self.writers[number] = set()
            self._helpers.append(self.process.spawn(self._help, save, number, name="helper"))
            return
        self._save(step, self.habits.layout)
        if self.habits.last_too:
            self._count("last.ckpt beside others")
            self._save(step, "last")

    def _count(self, kind: str) -> None:
        """Count a circumstance that is no fault."""
        self.machine.machines.faults.kinds[kind] += 1

    def _help(self, save: Save, number: int) -> None:
        """Be the process that writes one save."""
        habits = self.habits
        self._count("saved by a helper")
        is_slow = self.gang.number == 0 and save.number == habits.slow_save
        seconds = habits.write_seconds + (habits.steps * habits.step_seconds if is_slow else 0.0)
        self._save(save.step, habits.layout, number, seconds)
        stays = self.world.between(-3.0, 3.0, "helper stays", self.gang.number, save.number)
        self.world.sleep(max(0.0, stays))
        self.writers.pop(number, None)

    def _save(self, step: int, layout: str, writer: int = RANK, seconds: float | None = None) -> None:
        """`writer`: the process that does it. `seconds`: for which that takes; None: as always."""
        save = self.gang.save_at(step, layout)
        save.machines[self.rank] = self.machine
        self.world.note(self.process.name, "saves %s", save.name)
        mine = [name for name in save.files if save.owners[name] == self.rank]
        full = self.habits.full_at and self.gang.saves == self.habits.full_at and self.gang.number == 0
        final = self.folder / save.name
        atomic = self.habits.atomic and self.habits.layout != "dcp"
        place = self.folder / f"{save.name}.tmp" if atomic else final
        self.folder.mkdir(parents=True, exist_ok=True)
        pieces = MANY_PIECES if self.habits.preallocates and not self.habits.pause else PIECES
        each = (self.habits.write_seconds if seconds is None else seconds) / max(1, len(mine) * pieces)
        for name in mine:
            if name == ".metadata":
                # Written last, when the files of all nodes are there.
                while len(save.done) < len(save.files) - 1 and self.gang.broken is None:
                    self.world.sleep(0.2)
                self._look()
            path = place / name if name else place
            is_full = bool(full and name == mine[-1])
            try:
                self._write(path, save.files[name], pieces, each, full=is_full, writer=writer)
            except DiskFull as error:
                self._count("save given up")
                self.say(f"a save has failed, and is left out: OSError: {error}")
                return
            if not atomic:
                self._written(save, name)
            self._nap(self.habits.pause)
        if atomic and mine:
            if final.is_dir() and place.is_dir():
                for path in place.iterdir():
                    path.replace(final / path.name)
                place.rmdir()
            else:
                place.replace(final)
            for name in mine:
                self._written(save, name)
        # All nodes leave a save together.
        while save.complete_at is None:
            self._busy(0.2)
        if self.place == 0 and save.name not in (*self.before, LAST):
            self.before.append(save.name)
        self._delete_old()

    def _written(self, save: Save, name: str) -> None:
        save.done.add(name)
        if save.done == set(save.files):
            save.complete_at = self.world.now
            self.world.note(self.process.name, "%s is whole", save.label)

    def _write(self, path: Path, data: bytes, pieces: int, each: float, *, full: bool, writer: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        real = os.fspath(path)
        self.writers[writer].add(real)
        stamped = [real] if path.parent == self.folder else [real, os.path.dirname(real)]
        ends_early = full and self.habits.layout in ENDS_ANYWAY
        content = ended_early(data) if ends_early else data
        step = -(-len(content) // pieces)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            if self.habits.preallocates:
                self._count("file preallocated")
                os.pwrite(descriptor, bytes(len(data)), 0)
            for at in range(0, len(content), step):
                if full and at and not ends_early:
                    self._meet_full_disk(at, len(data))
                os.write(descriptor, content[at : at + step])
                self._stamp(stamped)
                self._nap(each)
                if self.habits.pause and at == 0 and pieces > 1:
                    self._nap(self.habits.pause)
            if ends_early:
                self._meet_full_disk(len(content), len(data))
        finally:
            os.close(descriptor)
            if writer in self.writers:
                self.writers[writer].discard(real)
        self._stamp(stamped)

    def _meet_full_disk(self, written: int, size: int) -> None:
        """Fail where the disk is full, or raise DiskFull where the program catches that."""
        self.world.note(self.process.name, "no space left on device, after %d of %d bytes", written, size)
        if self.habits.goes_on:
            raise DiskFull(28, "No space left on device")
        self.gang.fail(self, "program", "a full disk")
        self.say("OSError: [Errno 28] No space left on device")
        self.end(1)

    def _stamp(self, paths: list[str]) -> None:
        """Give a file, and the entry that it is in, the time of this world: the file system's own clock is another."""
        now = int((EPOCH + self.world.now + self.process.skew) * 1e9)
        with contextlib.suppress(OSError):
            for path in paths:
                os.utime(path, ns=(now, now))

    def _nap(self, seconds: float) -> None:
        if seconds > 0:
            self.world.sleep(seconds)
            if self._rank_is_gone:
                # What it did is done no further, until its launcher ends too.
                self.world.sleep(10 * self.habits.lingers)
            if self.gang.broken is not None:
                self._look()

    def _delete_old(self) -> None:
        import shutil

        if self.habits.keeps and self.place == 0 and self.habits.layout != "rolling":
            while len(self.before) > self.habits.keeps:
                path = self.folder / self.before.pop(0)
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def habits_from(draw: random.Random) -> Habits:
    """Draw how a program behaves."""
    layout = draw.choice(["pt", "rolling", "lightning", "hf", "hf", "bin", "bin", "dcp"])
    steps = draw.choice([4, 6, 9, 12])
    save_every = draw.choice([1, 2, 3, 4])
    fate = draw.choice(["well"] * 7 + ["fails", "fails in save", "full", "hangs", "nothing", "silent"])
    saves = [step for step in range(1, steps + 1) if step % save_every == 0 or step == steps]
    return Habits(
        layout=layout,
        steps=steps,
        step_seconds=draw.choice([1.0, 3.0, 6.0]),
        save_every=save_every,
        write_seconds=draw.choice([0.3, 2.0, 6.0]),
        pause=draw.choice([0.0, 0.0, 1.5, 4.0]),
        atomic=draw.random() < 0.25,
        keeps=draw.choice([0, 0, 0, 1, 2]),
        resumes=draw.random() < 0.9,
        on_sigterm=draw.choice(["dies", "dies", "saves", "ignores"]),
        fails_at=draw.choice(saves) if fate.startswith("fails") else 0,
        fails_rank=draw.randrange(3),
        fails_in_save=fate == "fails in save",
        fails_times=draw.choice([1, 1, 99]),
        full_at=draw.randrange(1, len(saves) + 1) if fate == "full" else 0,
        hangs_at=draw.choice(saves) if fate == "hangs" else 0,
        trains_nothing=fate == "nothing",
        silent=fate == "silent",
    )
