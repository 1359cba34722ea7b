"""Seams: where models stand in for what is outside of our code. Everything else is the real code."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import gc
import importlib
import itertools
import logging
import os
import pkgutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.simulation import mutants, quick, runtime
from tests.simulation.scenario import SHARED_FOLDER

PACKAGE = "airflow_provider_ocidist"
NOT_SIMULATED = (
    "emulator",
    "cli",
    "plugin",
    "job_file.dialects",
    "testing",
    "integrations",
)


SHORT_ENDING = 400.0
"""Seconds for which nodes that are to end are waited for, instead of half an hour."""


class Trace(logging.Handler):
    """Brings what the package logs into the trace of the schedule."""

    def emit(self, record: logging.LogRecord) -> None:
        world = runtime.WORLD
        if world is not None and world.current is not None and not world.closed:
            args = record.args if isinstance(record.args, tuple) else ()
            text = str(record.msg)
            if record.exc_info and record.exc_info[1] is not None:
                text, args = f"{text}: %s", (*args, repr(record.exc_info[1]))
            world.note(world.current.process.name, f"{record.levelname.lower()}: {text}", *args)


_installed: SimpleNamespace | None = None


def prepare() -> None:
    """Import what is not ours, with real threads: it is not what is tested."""
    for name in ("oci.retry.retry", "oci.retry.retry_checkers", "oci.retry.retry_sleep_utils"):
        importlib.import_module(name)
    importlib.import_module("airflow.sdk.bases.operator")


def install() -> SimpleNamespace:
    """Import the package with our clock and threads, and put the models at its edges; once in a process."""
    global _installed
    if _installed is not None:
        return _installed
    prepare()
    import oci.retry
    from airflow.sdk.bases.operator import ExecutorSafeguard

    logging.disable(logging.NOTSET)
    # The trace has its own time and place: where in the code a record was made takes longer than all else about it.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    runtime.virtualize(
        concurrent.futures._base,
        importlib.import_module("concurrent.futures.thread"),
        oci.retry.retry,
        oci.retry.retry_checkers,
        oci.retry.retry_sleep_utils,
    )
    concurrent.futures.Future.__hash__ = runtime.number_of
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        del sys.modules[name]
    mutants.mutate(Path(__file__).parents[2] / PACKAGE)
    with runtime.Importing(), quick.PlainDataclasses():
        package = importlib.import_module(PACKAGE)
        quick.install(importlib.import_module(f"{PACKAGE}.model.codec"))
        modules = [package, *_import_all(package)]
    ExecutorSafeguard.test_mode = True
    sys.unraisablehook = _unraisable
    globals_of = [entry for module in modules for entry in _process_globals(module)]
    _patch_clients()
    _patch_agent()
    _patch_airflow()
    for name in ("ocidist", PACKAGE):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.handlers = [Trace()]
    for name in ("oci", "asyncio", "concurrent.futures"):
        logging.getLogger(name).handlers = [logging.NullHandler()]
        logging.getLogger(name).propagate = False
    from tests.simulation.airflow_model import Operators

    # All that is here stays: to look for what a schedule has left behind is then a matter of a millisecond.
    gc.collect()
    gc.freeze()
    _installed = SimpleNamespace(globals=globals_of, operators=Operators())
    return _installed


def _import_all(package: ModuleType) -> list[ModuleType]:
    found = []
    for info in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
        if info.name.removeprefix(f"{PACKAGE}.").startswith(NOT_SIMULATED) or info.name.endswith("__main__"):
            continue
        found.append(importlib.import_module(info.name))
    return found


def _process_globals(module: ModuleType) -> list[runtime.Global]:
    """Return what each real process has of its own: caches that are empty at first, and pools of threads."""
    found: list[runtime.Global] = []
    place = module.__name__.removeprefix(f"{PACKAGE}.")
    if place in PURE:
        return found
    for name, value in vars(module).items():
        if not name.startswith("_") or name.startswith("__"):
            continue
        if (type(value) in (dict, set, list) and not value) or (
            type(value).__module__ == module.__name__ and type(value).__name__ in _OWN_KINDS
        ):
            # Deep: what an object keeps for its process is not shared with other processes, and other schedules.
            make = functools.partial(copy.deepcopy, copy.deepcopy(value))
            found.append(runtime.Global(vars(module), name, make, place.partition(".")[0] not in _OFF_NODES))
    return found


_OFF_NODES = ("gangs", "hooks", "job_file", "operators", "sensors", "triggers")
"""Rooms that do not travel to nodes; what else has something of its own counts as there."""
PURE = ("job_file.schema",)
"""Modules whose caches hold what is the same in every process."""
_OWN_KINDS = {"Threads"}
"""Classes of which a module keeps one object for its process."""


def _patch_clients() -> None:
    from airflow_provider_ocidist.oci_client import clients
    from airflow_provider_ocidist.storage import checkpoints, transfer
    from airflow_provider_ocidist.storage.copying import open_file
    from airflow_provider_ocidist.storage.stores import oci
    from tests.simulation.store import Http

    clients._CLIENTS = {
        "data_science": ("tests.simulation.service", "DataScienceClient"),
        "data_science_runs": ("tests.simulation.service", "DataScienceClient"),
        "logging": ("tests.simulation.service", "LoggingManagementClient"),
        "logging_search": ("tests.simulation.service", "LogSearchClient"),
        "object_storage": ("tests.simulation.store", "ObjectStorageClient"),
    }
    clients.credentials = lambda access: ({"region": access.region or "us-ashburn-1"}, None)
    if hasattr(clients, "_adapter"):
        clients._adapter = lambda *_, **__: None
    oci.http_of = Http
    # Each client sets it anew, which empties what all loggers remember.
    logging.getLogger("oci.circuit_breaker").setLevel = lambda _level: None
    open_file.OpenFile.__hash__ = runtime.number_of
    # Checkpoints of some kilobytes take the way of those of some gigabytes.
    transfer.copy_entries.__kwdefaults__["part_size"] = 4096
    checkpoints.fetch = _stamped(checkpoints.fetch)


def _patch_agent() -> None:
    from airflow_provider_ocidist import kinds
    from airflow_provider_ocidist.agent import guard, node
    from airflow_provider_ocidist.agent.join import topology
    from airflow_provider_ocidist.agent.monitor import health, peers, progress, watches
    from airflow_provider_ocidist.agent.prepare import code, workspace
    from airflow_provider_ocidist.agent.prepare.workspace import Workspace
    from airflow_provider_ocidist.agent.save import far_writers, judging, renames, saving, shard_uploader
    from airflow_provider_ocidist.agent.stages import (
        agreement,
        checkpoint_folder,
        context,
        meeting,
        program_launch,
    )
    from airflow_provider_ocidist.agent.train import activity, supervise
    from airflow_provider_ocidist.backends.oci_data_science import plans, submission
    from airflow_provider_ocidist.gangs import canceller
    from airflow_provider_ocidist.model import masking, run
    from airflow_provider_ocidist.storage import locations
    from airflow_provider_ocidist.triggers import training as triggers
    from tests.simulation.machines import SimulatedOs, here, training_model

    def fetch_code(config: Any, environ: Any, _access: Any, _switch: Any) -> Workspace:
        here().fetch()
        work = Path(environ["HOME"]) / "work"
        return Workspace(code=work, working_dir=work, program=config.program)

    class NoUsage:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def start(self) -> None: ...

        def close(self) -> None: ...

    def make_folder(prefix: str = "", **places: Any) -> str:
        folder = Path(places.get("dir") or here().home) / f"{prefix}own"
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder)

    code.fetch_code = fetch_code
    node.check_tools = lambda *_, **__: None
    program_launch.Training = training_model(program_launch.Training)
    context.tempfile = SimpleNamespace(mkdtemp=make_folder)
    meeting.await_address = lambda *_, **__: here().address
    supervise.os = SimulatedOs()
    watches.UsageMeter = NoUsage
    # It would wait for the kernel, for real; the beats read the same lines.
    progress.ProgressMeter.follow = lambda _meter: None
    # Programs print their steps: there is no such file, and it would be looked for several times a beat.
    progress.ProgressMeter._read_file = lambda _meter: None
    activity.Activity.look = lambda own: own._stages
    judging.files_by_writer = _files_by_writer
    shard_uploader.open_for_writing = far_writers.open_for_writing = _open_for_writing
    for module in (checkpoint_folder, program_launch):
        module.checkpoint_folder = _mounted(module.checkpoint_folder)
    agreement.digest_of = _if_readable(agreement.digest_of)
    renames.Inotify = _kept(renames.Inotify)
    guard.descendants = lambda *_: []
    # What the kernel says of this process and of others is not of this world, and not the same each time.
    guard.awaits_writers = lambda _pid: False
    saving._bytes_read = lambda: 0
    supervise._count_oom_kills = lambda: None
    topology.own_interface = lambda _address: "eth0"
    topology.count_devices = lambda _environ: 0
    peers.host_answers = health.host_answers = lambda address: _machines().answers(address)
    health.disk_fault = lambda _place: None
    submission.agent_bundle = lambda *_: b"agent"
    plans.boot_text = lambda: "boot"
    # What the package consists of, and where it lies, does not change meanwhile.
    kinds.names = functools.cache(kinds.names)
    workspace._package_path = functools.cache(workspace._package_path)
    # Each node searches the same settings for secrets, and finds the same.
    masking.spans_in = _remembered(masking.spans_in)
    # As leases are short here: nodes that never end are waited for often, and for nothing new.
    run.ENDING_LIMIT = canceller.END_WITHIN = triggers.END_WITHIN = SHORT_ENDING
    canceller.Canceller.end.__kwdefaults__["within"] = SHORT_ENDING
    locations._numbers = itertools.count(1)
    locations.os = SimpleNamespace(**{**vars(locations.os), "getpid": lambda: 1})


def _remembered(spans_in: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return a search for secrets that keeps what it has found in a text."""

    @functools.lru_cache(maxsize=4096)
    def found(text: str, of_a_log: bool) -> tuple[Any, ...]:
        return tuple(spans_in(text, of_a_log=of_a_log))

    return lambda text, *, of_a_log: [*found(text, of_a_log)]


def _kept(real: type) -> type:
    """Return `Inotify` with instances that are used again: the kernel takes some 10 ms to close one."""
    free: dict[int, list[Any]] = {}

    class Kept(real):
        def __init__(self) -> None:
            # A forked process has its own: of two processes that read one instance, each gets a part of the events.
            if free.get(os.getpid()):
                self._libc, self._queue = free[os.getpid()].pop()
            else:
                super().__init__()
                # It is closed by nobody, as it is used again.
                self._end.detach()
            self._watches: list[int] = []

        def watch(self, folder: Path, wanted: int) -> bool:
            number = self._libc.inotify_add_watch(self._queue, os.fsencode(folder), wanted)
            self._watches += [number] if number >= 0 else []
            return number >= 0

        def close(self) -> None:
            for number in self._watches:
                self._libc.inotify_rm_watch(self._queue, number)
            while self.read():
                pass
            free.setdefault(os.getpid(), []).append((self._libc, self._queue))

    return Kept


def _stamped(fetch: Callable[..., Path]) -> Callable[..., Path]:
    """Return a fetch whose files are as old as the world says, not as the machine that simulates it does."""

    def fetch_now(*arguments: Any, **options: Any) -> Path:
        final = fetch(*arguments, **options)
        if runtime.WORLD is not None and runtime.WORLD.current is not None:
            now = int(runtime.now_time() * 1e9)
            for path in [final, *final.rglob("*")]:
                os.utime(path, ns=(now, now))
        return final

    return fetch_now


def _machines_here() -> Any:
    """Return the machine of the process that runs now."""
    return runtime.WORLD.current.process.machine


def _mounted(folder_of: Callable[..., Path]) -> Callable[..., Path]:
    """Return where a folder really is: what all nodes share is in one place of the schedule."""

    def found(*arguments: Any) -> Path:
        folder = folder_of(*arguments)
        return _machines().scratch / "shared" / folder.name if os.fspath(folder) == SHARED_FOLDER else folder

    return found


def _if_readable(digest_of: Callable[..., str]) -> Callable[..., str]:
    """Return a look at a shared folder that fails where the node's mount does."""

    def found(*arguments: Any) -> str:
        if _machines().cannot_read(_machines_here().rank):
            raise OSError(116, "Stale file handle")
        return digest_of(*arguments)

    return found


def _open_for_writing(*_: Any, **__: Any) -> frozenset[str]:
    return frozenset().union(*_files_by_writer().values())


def _files_by_writer() -> dict[int, frozenset[str]]:
    program = runtime.WORLD.current.process.machine.program
    if program is None or program.exit_code is not None:
        return {}
    return {number: frozenset(files) for number, files in program.writers.items()}


def _patch_airflow() -> None:
    import airflow.sdk.log
    from airflow.providers.common.compat.sdk import XCom
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    from airflow_provider_ocidist.hooks import oci as hooks
    from airflow_provider_ocidist.operators import training as operators
    from airflow_provider_ocidist.triggers import training
    from tests.simulation.airflow_model import LOG

    airflow.sdk.log.mask_secret = lambda *_, **__: None
    hooks.OciHook.get_connection = classmethod(lambda _cls, _conn_id: Current.connection)
    RuntimeTaskInstance.get_task_states = staticmethod(_task_states)
    XCom.get_one = staticmethod(_xcom)
    operators.DistributedTrainingOperator.log = LOG
    for name in ("DistributedTrainingTrigger", "PauseTrigger"):
        getattr(training, name).log = LOG


def _task_states(**given: Any) -> Any:
    return Current.airflow.get_task_states(**given)


def _xcom(**given: Any) -> Any:
    return Current.airflow.get_xcom(**given)


class Current:
    """What belongs to the schedule that runs."""

    airflow: Any
    connection: Any
    machines: Any


def _machines() -> Any:
    return Current.machines


class Numbers:
    """`uuid` and the like, from the seed."""

    count = itertools.count(1)

    @classmethod
    def uuid4(cls) -> uuid.UUID:
        return uuid.UUID(int=next(cls.count))


def _unraisable(found: Any) -> None:
    """Say nothing of what a coroutine raises that is cleared away after the end of its world."""
    if runtime.WORLD is None or not runtime.WORLD.closed:
        sys.__unraisablehook__(found)


def begin(world: runtime.World) -> None:
    """Make what is random the same for the same seed."""
    import random

    random.seed(world.seed)
    Numbers.count = itertools.count(1)
    uuid.uuid4 = Numbers.uuid4
    from airflow_provider_ocidist.storage import locations

    locations._numbers = itertools.count(1)
    # Its queues hold the threads that wait on them, and by those whole worlds that are over.
    sys.modules["concurrent.futures.thread"]._threads_queues.clear()
    runtime.count_anew()
    asyncio_tasks = sys.modules["asyncio.tasks"]
    asyncio_tasks._task_name_counter = itertools.count(1).__next__
