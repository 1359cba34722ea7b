"""Runtime: processes, threads, clocks and event loops of a simulated world, all in one thread, from one seed.

A simulated thread is a greenlet. It runs until it waits; then whichever is due next goes on, in an order that the seed
decides among equals. Time passes only between two wakings.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import queue as real_queue
import sys
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from types import ModuleType
from typing import Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH = 1_700_000_000.0
"""Unix time at which every world begins: before now, for the file system stamps changes with the real time."""


SHOW_WAKES = bool(os.environ.get("OCIDIST_SIMULATION_WAKES"))
"""Whether every waking stands in the trace: by that one finds why a seed is not the same schedule twice."""


SHORT = 0.5
"""Seconds below which a wait may pass without a look at whether all is over: nobody waits so shortly for ever."""

_set_loop, _get_loop = asyncio._set_running_loop, asyncio._get_running_loop


class Process:
    """A process on a machine: what a kill ends at once, with a clock of its own."""

    def __init__(self, world: World, name: str, skew: float = 0.0, *, runs_package: bool = False) -> None:
        self.world = world
        self.name = name
        self.skew = skew
        """Seconds by which its clock is ahead of the world's."""
        self.runs_package = runs_package
        """Whether it has what the modules of the package keep for a process: models have nothing of that."""
        self.born = world.now
        self.dead = False
        self.frozen_until = 0.0
        self.held: Task | None = None
        """The thread that a signal handler has interrupted."""
        self.globals: dict[int, Any] = {}
        """What it has of the world's `Global`s, by their numbers, while another process runs that has its own."""
        self.is_node = name.startswith("node ")
        self.tasks: list[Task] = []
        self.on_death: list[Callable[[], None]] = []
        self.cut_off: set[str] = set()
        """What it cannot reach: `store`, `service`."""
        world.processes.append(self)

    def spawn(self, target: Callable[..., Any], *args: Any, name: str = "main", delay: float = 0.0) -> Task:
        task = Task(self, target, args, {}, name)
        self.world.wake_at(self.world.now + delay, task.first)
        return task

    def kill(self, why: str = "killed") -> None:
        """End it at once, as SIGKILL does: nothing of it runs any more, no `finally` either."""
        if self.dead:
            return
        self.dead = True
        self.world.note(self.name, why)
        for act in self.on_death:
            act()
        if self.world.current is not None and self.world.current.process is self:
            raise GreenletExit


class Waiter:
    """One wait of one thread."""

    __slots__ = ("done", "reason", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.done = False
        self.reason = False


class Task:
    """A thread of a process."""

    def __init__(
        self, process: Process, target: Callable[..., Any], args: Any, kwargs: Any, name: str
    ) -> None:
        self.process = process
        self.name = name
        self.target, self.args, self.kwargs = target, args, kwargs
        self.finished = False
        self.error: BaseException | None = None
        self.joiners: deque[Waiter] = deque()
        self.loop: Any = None
        # Its end leads to the hub, not to the one that has begun it.
        self.greenlet = greenlet(self._run, parent=process.world.hub)
        self.first = Waiter(self)
        self.locals: dict[int, dict[str, Any]] = {}
        process.tasks.append(self)

    def _run(self) -> None:
        world = self.process.world
        try:
            self.target(*self.args, **self.kwargs)
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
            if not self.process.dead and not world.closed:
                world.crashed(self, error)
        finally:
            self.finished = True
            for waiter in self.joiners:
                world.wake(waiter)

    def join(self, timeout: float | None = None) -> None:
        if not self.finished:
            WORLD.wait(self.joiners, timeout)


class Global(NamedTuple):
    """What each process has of its own in a module."""

    names: dict[str, Any]
    """Those of the module."""
    name: str
    make: Callable[[], Any]
    """Returns what it is at first."""
    on_nodes: bool
    """Whether nodes have it too, and not only Airflow's processes."""


class World:
    """Everything of one schedule: who runs, what is due, what happened."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.now = 0.0
        self.heap: list[tuple[float, int, int, Waiter, bool]] = []
        self.processes: list[Process] = []
        self.current: Task | None = None
        self.closed = False
        self.trace: list[tuple[float, str, str, tuple[Any, ...]]] = []
        self.crashes: list[str] = []
        self.hub = getcurrent()
        self._count = 0
        self._dice = blake2b(f"{seed}/".encode(), digest_size=8)
        self._ties = self.number("ties") or 1
        self._last: Process | None = None
        self._until = 0.0
        self._over: Callable[[], bool] = bool
        """Whether this run is over."""
        self._outcome: bool | None = None
        """Whether it was, once this run is at its end."""
        self._begins: Task | None = None
        """A thread that is due, and has not begun yet."""
        self._globals: list[tuple[int, Global]] = []
        self._globals_of_nodes: list[tuple[int, Global]] = []
        self._holders: dict[int, Process] = {}
        """Whose each of these is now, by their numbers."""
        self._ids = 0

    def give_globals(self, found: Sequence[Global]) -> None:
        """Take what a real process has of its own, each under its number."""
        self._globals = list(enumerate(found))
        self._globals_of_nodes = [each for each in self._globals if each[1].on_nodes]

    # chance: by name, so that dropping one event leaves the others as they are

    def number(self, *key: object) -> int:
        dice = self._dice.copy()
        dice.update("/".join(map(str, key)).encode())
        return int.from_bytes(dice.digest(), "big")

    def chance(self, *key: object) -> float:
        return self.number(*key) / 2**64

    def between(self, least: float, most: float, *key: object) -> float:
        return least + (most - least) * self.chance(*key)

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    # what happened

    def note(self, who: str, text: str, *args: Any) -> None:
        self.trace.append((self.now, who, text, args))

    def crashed(self, task: Task, error: BaseException) -> None:
        import traceback

        where = "".join(traceback.format_exception(error)[-3:])
        self.note(task.process.name, "thread %s ended by %s: %s", task.name, type(error).__name__, error)
        self.crashes.append(f"{task.process.name}/{task.name}: {type(error).__name__}: {error}\n{where}")

    # waiting

    def wake_at(self, at: float, waiter: Waiter, reason: bool = True) -> None:
        self._count += 1
        if SHOW_WAKES:
            self.note(
                waiter.task.process.name,
                "WAKE %s %s at %f",
                waiter.task.name.rstrip("0123456789_"),
                reason,
                at,
            )
        self._ties = (self._ties * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        heapq.heappush(self.heap, (at, self._ties >> 40, self._count, waiter, reason))

    def wake(self, waiter: Waiter) -> None:
        # What is left of an earlier schedule may still be cleared away.
        if not waiter.done and waiter.task.process.world is self:
            self.wake_at(self.now, waiter)

    def wait(self, waiters: deque[Waiter] | None, timeout: float | None) -> bool:
        """Wait until woken (True), or until the time is over (False)."""
        task = self.current
        if task is None:
            raise RuntimeError("only simulated threads can wait")
        if self.closed or task.process.dead:
            raise GreenletExit
        if timeout is not None:
            timeout = max(0.0, timeout)
            if timeout < SHORT and self._passes(task, timeout):
                return False
        return self._wait_for(task, waiters, timeout)

    def _wait_for(self, task: Task, waiters: deque[Waiter] | None, timeout: float | None) -> bool:
        waiter = Waiter(task)
        if waiters is not None:
            waiters.append(waiter)
        if timeout is not None:
            self.wake_at(self.now + timeout, waiter, False)
        self._switch(task)
        if waiters is not None and not waiter.reason:
            try:
                waiters.remove(waiter)
            except ValueError:
                pass
        if self.closed or task.process.dead:
            raise GreenletExit
        return waiter.reason

    def _passes(self, task: Task, seconds: float) -> bool:
        """Let a moment pass at once where nobody else is due in it: this very thread would be the next one."""
        at = self.now + seconds
        heap, process = self.heap, task.process
        if (heap and heap[0][0] <= at) or at > self._until:
            return False
        if process.frozen_until > at or process.held is task:
            return False
        self.now = at
        return True

    def sleep(self, seconds: float) -> None:
        task = self.current
        if task is None or self.closed or task.process.dead or not 0.0 <= seconds < SHORT:
            self.wait(None, seconds)
        elif not self._passes(task, seconds):
            self._wait_for(task, None, seconds)

    def check(self) -> None:
        """End the thread of a process that is dead."""
        if self.closed or (self.current is not None and self.current.process.dead):
            raise GreenletExit

    # running

    def run(self, until: float, over: Callable[[], bool]) -> bool:
        """Run until it is over, or so long; return whether it was over."""
        self._until, self._over, self._outcome = until, over, None
        task = self._next()
        while task is not None:
            task.greenlet.switch()
            if self._outcome is not None:
                return self._outcome
            task, self._begins = self._begins, None
            if task is None:
                # One has come to its end: who waits goes on to the next by itself.
                _set_loop(None)
                self.current = None
                if over():
                    return True
                task = self._next()
        return over()

    def _switch(self, task: Task) -> None:
        """Let the thread that is due next go on, and return when this one is: going over the hub takes two switches."""
        loop = _get_loop()
        task.loop = loop
        if loop is not None:
            _set_loop(None)
        self.current = None
        if self._over():
            self._outcome = True
        elif (following := self._next()) is None:
            self._outcome = self._over()
        elif following is task:
            return
        elif following.greenlet:
            following.greenlet.switch()
            return
        else:
            # A greenlet lies on the stack of the one that begins it, and so ever deeper.
            self._begins = following
        self.hub.switch()

    def _next(self) -> Task | None:
        """Return the thread that is due next, once it is its time; None if none is before the end of this run."""
        heap = self.heap
        while heap:
            at, _, _, waiter, reason = heapq.heappop(heap)
            if waiter.done:
                continue
            task = waiter.task
            process = task.process
            if process.dead:
                continue
            if process.frozen_until > at or process.held is task:
                held_until = max(process.frozen_until, at + 0.05 if process.held is task else 0.0)
                self.wake_at(held_until, waiter, reason)
                continue
            if at > self._until:
                self.wake_at(at, waiter, reason)
                self.now = self._until
                return None
            self.now = max(self.now, at)
            waiter.done, waiter.reason = True, reason
            if process.runs_package and process is not self._last:
                self._change_globals(process)
            self.current = task
            if task.loop is not None:
                _set_loop(task.loop)
            return task
        return None

    def _change_globals(self, process: Process) -> None:
        for number, (names, name, make, _) in self._globals_of_nodes if process.is_node else self._globals:
            holder = self._holders.get(number)
            if holder is process:
                continue
            if holder is not None:
                holder.globals[number] = names[name]
            names[name] = process.globals[number] if number in process.globals else make()
            self._holders[number] = process
        self._last = process

    def close(self) -> None:
        """End all threads."""
        self.closed = True
        for process in self.processes:
            for task in process.tasks:
                if not task.greenlet.dead:
                    self.current = task
                    try:
                        task.greenlet.throw(GreenletExit)
                    except BaseException:
                        pass
                    asyncio._set_running_loop(None)
        self.current = None
        self.heap.clear()


WORLD: World = None


def enter(world: World) -> None:
    global WORLD
    WORLD = world


def _task() -> Task | None:
    return WORLD.current if WORLD is not None else None


# What modules see as `time`


def now_time() -> float:
    # Asked so often that no other function is called for it.
    world = WORLD
    if world is None or world.current is None:
        return real_time.time()
    return EPOCH + world.now + world.current.process.skew


def now_monotonic() -> float:
    # On its own scale, so that code which mixes it with Unix time is found out.
    world = WORLD
    return real_time.monotonic() if world is None or world.current is None else 5000.0 + world.now


def sleep(seconds: float) -> None:
    if _task() is None:
        real_time.sleep(seconds)
    else:
        WORLD.sleep(seconds)


# What modules see as `threading`


class Event:
    def __init__(self) -> None:
        self._flag = False
        self._waiters: deque[Waiter] = deque()

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        while self._waiters:
            WORLD.wake(self._waiters.popleft())

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag:
            WORLD.wait(self._waiters, timeout)
        return self._flag


class Lock:
    def __init__(self) -> None:
        self._owner: Task | object | None = None
        self._waiters: deque[Waiter] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = _task() or self
        if WORLD is not None and WORLD.closed:
            return True
        deadline = None if timeout is None or timeout < 0 or WORLD is None else WORLD.now + timeout
        while self._owner is not None:
            owner = self._owner
            if isinstance(owner, Task) and owner.process.world is not WORLD:
                break  # of a schedule that is over
            if not blocking or task is self:
                return False
            left = None if deadline is None else deadline - WORLD.now
            if left is not None and left <= 0:
                return False
            WORLD.wait(self._waiters, left)
        self._owner = task
        return True

    def release(self) -> None:
        self._owner = None
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done and not waiter.task.process.dead:
                WORLD.wake(waiter)
                break

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        # Nearly always it is free; nothing else happens as often.
        world = WORLD
        if self._owner is None and world is not None and not world.closed and world.current is not None:
            self._owner = world.current
            return True
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        if self._waiters:
            self.release()
        else:
            self._owner = None


class RLock(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world, owner = WORLD, self._owner
        if world is not None and world.current is not None and not world.closed:
            if owner is None:
                self._owner, self._depth = world.current, 1
                return True
            if owner is world.current:
                self._depth += 1
                return True
        elif owner is not None and owner is (_task() or self):
            self._depth += 1
            return True
        if super().acquire(blocking, timeout):
            self._depth = 1
            return True
        return False

    def release(self) -> None:
        self._depth -= 1
        if self._depth <= 0:
            self._owner = None
            if self._waiters:
                super().release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or RLock()
        self._waiters: deque[Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.__enter__())

    def __exit__(self, *details: object) -> None:
        self._lock.__exit__(*details)

    def wait(self, timeout: float | None = None) -> bool:
        depth = getattr(self._lock, "_depth", 1)
        if isinstance(self._lock, RLock):
            self._lock._depth = 1
        self._lock.release()
        try:
            return WORLD.wait(self._waiters, timeout)
        finally:
            if not WORLD.closed:
                self._lock.acquire()
                if isinstance(self._lock, RLock):
                    self._lock._depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else WORLD.now + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - WORLD.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        while self._waiters and n > 0:
            waiter = self._waiters.popleft()
            if not waiter.done:
                WORLD.wake(waiter)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._changed = Condition()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            if self._value <= 0 and not blocking:
                return False
            if self._value <= 0 and not self._changed.wait_for(lambda: self._value > 0, timeout):
                return False
            self._value -= 1
            return True

    def release(self, n: int = 1) -> None:
        with self._changed:
            self._value += n
            self._changed.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Thread:
    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._simulated: Task | None = None
        self._number = next(_numbers)

    def __hash__(self) -> int:
        # Not its address: pools keep their threads in a set.
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def start(self) -> None:
        task = _task()
        if task is None:
            raise RuntimeError("threads begin in simulated processes only")
        self._simulated = Task(task.process, self._begin, (), {}, self.name)
        self._simulated.thread = self
        WORLD.wake_at(WORLD.now, self._simulated.first)

    def _begin(self) -> None:
        self.run()

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        if self._simulated is not None and _task() is not None:
            self._simulated.join(timeout)

    def is_alive(self) -> bool:
        task = self._simulated
        return task is not None and not task.finished and not task.process.dead

    @property
    def ident(self) -> int:
        return id(self)

    native_id = ident

    def setDaemon(self, daemon: bool) -> None:
        self.daemon = daemon


class Timer(Thread):
    def __init__(self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None):
        super().__init__(name="timer", daemon=True)
        self.interval, self.function = interval, function
        self.args, self.kwargs = args or [], kwargs or {}
        self.finished = Event()

    def cancel(self) -> None:
        self.finished.set()

    def run(self) -> None:
        if not self.finished.wait(self.interval):
            self.function(*self.args, **self.kwargs)


_numbers = itertools.count(1)


def number_of(thing: Any) -> int:
    """Return the hash of an object whose own is its address, so that the order of sets is the same each time."""
    try:
        return int(thing._number)
    except AttributeError:
        thing._number = next(_numbers)
        return int(thing._number)


def count_anew() -> None:
    global _numbers
    _numbers = itertools.count(1)


def current_thread() -> Any:
    task = _task()
    if task is None:
        return real_threading.current_thread()
    thread = getattr(task, "thread", None)
    if thread is None:
        thread = task.thread = Thread(name=task.name)
        thread._simulated = task
    return thread


def get_ident() -> int:
    task = _task()
    return real_threading.get_ident() if task is None else id(task)


class Local:
    """`threading.local`: each thread has its own."""

    def __init__(self) -> None:
        object.__setattr__(self, "_outside", {})

    def _own(self) -> dict[str, Any]:
        task = _task()
        if task is None:
            return object.__getattribute__(self, "_outside")
        return task.locals.setdefault(id(self), {})

    def __getattr__(self, name: str) -> Any:
        try:
            return self._own()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._own()[name] = value

    def __delattr__(self, name: str) -> None:
        self._own().pop(name, None)


class SimpleQueue:
    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._waiters: deque[Waiter] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done and not waiter.task.process.dead:
                WORLD.wake(waiter)
                break

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else WORLD.now + timeout
        while not self._items:
            left = None if deadline is None else deadline - WORLD.now
            if not block or (left is not None and left <= 0):
                raise real_queue.Empty
            WORLD.wait(self._waiters, left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


# Event loops


class _Selector:
    """Waits for what asyncio waits for: timers, and calls from other threads."""

    def __init__(self) -> None:
        self._woken = Event()

    def select(self, timeout: float | None) -> list[Any]:
        if timeout != 0:
            self._woken.wait(timeout)
        self._woken.clear()
        return []

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


class Loop(asyncio.BaseEventLoop):
    """asyncio's own loop on the world's clock."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = _Selector()

    def __del__(self, _warn: Any = None) -> None:
        """Warn of nothing: a killed process closes no loop."""

    def time(self) -> float:
        return now_monotonic()

    def _process_events(self, _events: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        if WORLD is not None and not WORLD.closed:
            self._selector.wake()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if executor is None:
            import concurrent.futures

            executor = self.__dict__.setdefault("_own_pool", concurrent.futures.ThreadPoolExecutor(32))
        return super().run_in_executor(executor, func, *args)


# Modules as our package imports them


def _shim(real: ModuleType, **changes: Any) -> ModuleType:
    shim = ModuleType(real.__name__)
    shim.__dict__.update({name: value for name, value in vars(real).items() if not name.startswith("__")})
    shim.__dict__.update(changes)
    return shim


TIME = _shim(
    real_time,
    time=now_time,
    monotonic=now_monotonic,
    perf_counter=now_monotonic,
    sleep=sleep,
    time_ns=lambda: int(now_time() * 1e9),
    monotonic_ns=lambda: int(now_monotonic() * 1e9),
)
THREADING = _shim(
    real_threading,
    Event=Event,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Semaphore=Semaphore,
    BoundedSemaphore=Semaphore,
    Thread=Thread,
    Timer=Timer,
    current_thread=current_thread,
    get_ident=get_ident,
    local=Local,
)
QUEUE = _shim(real_queue, SimpleQueue=SimpleQueue, Queue=SimpleQueue)
SHIMS = {"time": TIME, "threading": THREADING, "queue": QUEUE}


def virtualize(*modules: ModuleType) -> None:
    """Let modules that are imported already see our time, threads and queues."""
    for module in modules:
        for name, shim in SHIMS.items():
            if isinstance(getattr(module, name, None), ModuleType):
                setattr(module, name, shim)


class Importing:
    """While it lasts, what is imported sees our time, threads and queues."""

    def __enter__(self) -> None:
        self._real = {name: sys.modules[name] for name in SHIMS}
        sys.modules.update(SHIMS)

    def __exit__(self, *_: object) -> None:
        sys.modules.update(self._real)
