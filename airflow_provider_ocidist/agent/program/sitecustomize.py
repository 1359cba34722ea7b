"""Lets this Python show where its threads are when the agent asks; then runs the environment's own sitecustomize.

It runs at the start of every Python of the training, whatever its version: it imports little, and nothing of ours.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the start-up time
RENAMED = (2, 10)
"""Version of torch that warns of the flight recorder's older variables (tried with 2.13)."""
KEPT = "2000"
"""Number of collectives that the flight recorder keeps, as torch's own pages advise."""


def show_stacks_on_request(file: str, number: int) -> None:
    import faulthandler

    # One for all processes of the node: the agent asks them one after another.
    sink = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    faulthandler.register(number, file=sink, all_threads=True)


def record_collectives(folder: str) -> None:
    """Let NCCL keep its last collectives, and write them when one times out or when the agent asks."""
    is_old = torch_version() < RENAMED
    size = "TORCH_NCCL_TRACE_BUFFER_SIZE" if is_old else "TORCH_FR_BUFFER_SIZE"
    place = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" if is_old else "TORCH_FR_DUMP_TEMP_FILE"
    os.environ.setdefault(size, KEPT)
    os.environ.setdefault(place, folder + "/nccl_trace_rank_")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", folder + "/pipe_rank_")


def torch_version() -> "tuple[int, ...]":
    """Return major and minor of torch without an import of it; 0 where there is none."""
    for folder in sys.path:
        try:
            with open(folder + "/torch/version.py") as file:  # noqa: PTH123 - pathlib loads slowly
                text = file.read().partition("__version__ = ")[2]
            return tuple(int(part) for part in text.strip("'\"").split(".")[:2])
        except (OSError, ValueError):
            continue
    return (0,)


def run_the_next() -> None:
    """Run the `sitecustomize` that ours hides."""
    from importlib.machinery import PathFinder

    others = [folder for folder in sys.path if os.path.abspath(folder) != HERE]  # noqa: PTH100 - the same
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    if "OCIDIST_STACK_FILE" in os.environ:
        show_stacks_on_request(os.environ["OCIDIST_STACK_FILE"], int(os.environ["OCIDIST_STACK_SIGNAL"]))
    if "OCIDIST_FLIGHT_RECORDS" in os.environ and "RANK" in os.environ:
        record_collectives(os.environ["OCIDIST_FLIGHT_RECORDS"])
except (OSError, ValueError, KeyError, RuntimeError, AttributeError, ImportError):
    # The training does not depend on it.
    pass
run_the_next()
