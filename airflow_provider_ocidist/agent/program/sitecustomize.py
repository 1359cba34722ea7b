"""Lets this Python show where its threads are when the agent asks; then runs the environment's own sitecustomize.

It runs at the start of every Python of the training, whatever its version: it imports little, and nothing of ours. Only
a program that imports ocifs, and whose job stores its checkpoints in Object Storage, imports `checkpoint_paths`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would double the start-up time
RENAMED = (2, 10)
"""Version of torch that warns of the flight recorder's older variables (tried with 2.13)."""
KEPT = "2000"
"""Number of collectives that the flight recorder keeps, as torch's own pages advise."""
TORCHRUN = "torch.distributed.run"


def show_stacks_on_request(file: str, number: int) -> None:
    import faulthandler

    # One for each process: a late answer must not be taken for that of the next one that the agent asks.
    sink = os.open(f"{file}.{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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


class OcifsImport:
    """Finds ocifs as Python would; once it is loaded, its checkpoints are directed to the checkpoint folder."""

    def find_spec(self, name: str, *_: object) -> "ModuleSpec | None":
        if name != "ocifs.core":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_direct(module: "ModuleType") -> None:
                load(module)
                direct_to_folder(module)

            spec.loader.exec_module = load_and_direct  # type: ignore[method-assign]  # this module has it alone
        return spec


def direct_to_folder(ocifs: "ModuleType") -> None:
    """Let checkpoints that the program writes with ocifs land in the checkpoint folder."""
    environ = os.environ
    try:
        import_ours()
        from pathlib import Path

        from airflow_provider_ocidist.agent.program.checkpoint_paths import adopt
        from airflow_provider_ocidist.agent.program.checkpoint_places import Places

        folder, pattern = Path(environ["OCIDIST_CHECKPOINT_DIR"]), environ.get("OCIDIST_CHECKPOINT_PATTERN")
        adopt(ocifs, Places(folder, environ["OCIDIST_CHECKPOINT_URI"], pattern))
    except Exception as error:
        print(f"ocidist: what ocifs writes goes straight to the store: {error!r}", file=sys.stderr)


def import_ours() -> None:
    """Import our package from where this file is; it may not be on the path of another Python than the agent's."""
    if "airflow_provider_ocidist" in sys.modules:
        return
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    spec = PathFinder.find_spec("airflow_provider_ocidist", [HERE + "/../../.."])
    if spec is not None and spec.loader is not None:
        module = sys.modules[spec.name] = module_from_spec(spec)
        spec.loader.exec_module(module)


def end_soon_after_an_error() -> None:
    """Let torchrun leave out the teardown of its modules once it has failed: the other nodes wait for its end."""
    import atexit

    # Those that are there already, as from a `.pth` file, would run after ours, and so never.
    if not atexit._ncallbacks():  # noqa: SLF001 - Python has no other way
        atexit.register(leave_after_an_error)


def leave_after_an_error() -> None:
    """End a torchrun whose error nothing has caught, with the status that Python has for it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    error, trace = getattr(sys, "last_type", None), getattr(sys, "last_traceback", None)
    if getattr(spec, "name", None) != TORCHRUN or error is None or trace is None:
        return
    # An error that was only printed, by a library, does not begin there; an interrupt ends by its signal.
    if issubclass(error, Exception) and trace.tb_frame.f_code.co_name == "_run_module_as_main":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


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
    if "OCIDIST_CHECKPOINT_URI" in os.environ:
        sys.meta_path.insert(0, OcifsImport())
    if "RANK" not in os.environ:
        end_soon_after_an_error()
except (OSError, ValueError, KeyError, RuntimeError, AttributeError, ImportError):
    # The training does not depend on it.
    pass
run_the_next()
