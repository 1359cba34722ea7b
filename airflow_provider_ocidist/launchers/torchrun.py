"""torchrun: one elastic agent for each node, joining on the main node."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.launchers.base import (
    Launcher,
    Placement,
    ProcessFailure,
    file_in,
    given_flags,
    is_given,
    program_command,
    value_of,
)
from airflow_provider_ocidist.model.job import LauncherOptions, Program

STATIC_FLAGS = ("master-addr", "master-port", "node-rank")
"""Flags that only the static rendezvous uses: any of them selects it."""
SHORT_OPTIONS = {"r": "redirects", "t": "tee"}
ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (\d+)(?: \(local_rank: (\d+)\))?.*?exitcode\s*: (-?\d+)",
    re.DOTALL,
)
OWN_REPORT = re.compile(r"^E\d{4} [^\n]*torch/distributed/elastic/[^\n]* failed \(exitcode", re.MULTILINE)


class Torchrun(Launcher):
    """`python -m torch.distributed.run`; the interpreter that runs the agent is the one that trains."""

    requires = ("torch",)

    def command(self, program: Program, options: LauncherOptions, placement: Placement) -> list[str]:
        given = given_flags(options.args)
        ours = {**_processes(placement), **_rendezvous(placement, given), **_logs(self, options, placement)}
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *[f"--{name}={value}" for name, value in ours.items() if not _is_given(name, given)],
            *options.args,
            *program_command(program),
        ]

    def is_elastic(self, options: LauncherOptions) -> bool:
        return not is_given("nnodes", given_flags(options.args))

    def log_folder(self, options: LauncherOptions, placement: Placement) -> str | None:
        return kept_logs(options.args, placement)

    def hides_output(self, options: LauncherOptions) -> bool:
        given = given_flags(options.args, SHORT_OPTIONS, joined=True)
        return bool(_streams(given, "redirects")) and not _streams(given, "tee")

    def main_node(self, options: LauncherOptions, placement: Placement) -> int:
        given = given_flags(options.args)
        of_ones_own = is_given("local-addr", given) or is_given("standalone", given)
        if of_ones_own or _rendezvous_kind(given) != "c10d":
            return 0
        return first_in_c10d(placement)

    def defaults(self, placement: Placement) -> dict[str, str]:
        return {**super().defaults(placement), **one_store_each()}

    def first_failure(self, output: str) -> ProcessFailure | None:
        return root_cause(output)

    def user_output(self, output: str) -> str:
        return without_report(output)


def kept_logs(args: Sequence[str], placement: Placement) -> str | None:
    """Return where torchrun keeps its processes' output, if the flags request it."""
    given = given_flags(args, SHORT_OPTIONS, joined=True)
    if not (_streams(given, "redirects") or _streams(given, "tee")):
        return None
    return value_of("log-dir", given) or file_in(placement, "logs")


def _streams(given: Mapping[str, str], flag: str) -> str:
    """Return the streams and processes that a flag names, empty for none: `3`, `0:1,1:2`."""
    value = value_of(flag, given) or "0"
    return "" if value == "0" else value


def _logs(launcher: Torchrun, options: LauncherOptions, placement: Placement) -> dict[str, str]:
    folder = launcher.log_folder(options, placement)
    return {"log-dir": folder} if folder else {}


def _rendezvous_kind(given: Mapping[str, str]) -> str:
    """Return the kind of rendezvous; a flag of the static one selects it."""
    return value_of("rdzv-backend", given) or (
        "static" if any(is_given(flag, given) for flag in STATIC_FLAGS) else "c10d"
    )


def first_in_c10d(placement: Placement) -> int:
    """Return the node that c10d gives global rank 0.

    It assigns ranks in the order of the nodes' names, as text, not by the ranks we gave them
    (torch.distributed.elastic.rendezvous.dynamic_rendezvous, _mark_rendezvous_complete).
    """
    return min(range(placement.nodes), key=lambda rank: placement.addresses[rank])


def c10d_settings(placement: Placement) -> str:
    """Return the c10d rendezvous settings of one node."""
    timeout = max(1, round(placement.join_timeout))
    # By default torchrun treats any loopback address as its own, and several nodes would host the store.
    is_host = str(placement.rank == 0).lower()
    return f"is_host={is_host},join_timeout={timeout},read_timeout={timeout}"


def static_settings(placement: Placement) -> str:
    """Return the same for the static rendezvous, with fixed ranks."""
    return f"timeout={max(1, round(placement.join_timeout))}"


def one_store_each() -> dict[str, str]:
    """Return the setting without which one fault costs several restarts and a replaced node stays out."""
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def root_cause(output: str) -> ProcessFailure | None:
    """Return the first failed process from torchrun's own report."""
    found = ROOT_CAUSE.search(output)
    if found is None:
        return None
    local_rank = int(found[2]) if found[2] else None
    return ProcessFailure(rank=int(found[1]), exit_code=int(found[3]), local_rank=local_rank)


def without_report(output: str) -> str:
    """Return output without torchrun's own report of a failure."""
    report = OWN_REPORT.search(output)
    return output[: report.start()] if report else output


def _processes(placement: Placement) -> dict[str, str]:
    return {
        "nnodes": str(placement.nodes),
        "nproc-per-node": str(placement.processes_per_node),
        "max-restarts": "0",
    }


def _rendezvous(placement: Placement, given: Mapping[str, str]) -> dict[str, str]:
    # c10d identifies nodes by host name and process id, which containers on one host share.
    common = {"rdzv-id": placement.rendezvous_id, "local-addr": placement.address}
    kind = _rendezvous_kind(given)
    if kind == "static" and not is_given("rdzv-endpoint", given):
        return {
            "rdzv-backend": "static",
            "master-addr": placement.master_address,
            "master-port": str(placement.master_port),
            "node-rank": str(placement.rank),
            "rdzv-conf": static_settings(placement),
            **common,
        }
    if kind == "static":
        return {"node-rank": str(placement.rank), "rdzv-conf": static_settings(placement), **common}
    if kind != "c10d" or is_given("rdzv-endpoint", given):
        # The user's own rendezvous endpoint: which node hosts it is unknown here.
        return {"rdzv-backend": "c10d", **common}
    return {
        "rdzv-backend": "c10d",
        "rdzv-endpoint": f"{placement.master_address}:{placement.master_port}",
        "rdzv-conf": c10d_settings(placement),
        **common,
    }


def _is_given(name: str, given: Mapping[str, str]) -> bool:
    alone = name.startswith("rdzv-") or name == "nnodes"
    return is_given(name, given) or (alone and is_given("standalone", given))


LAUNCHER = Torchrun()
