"""Parses a command line: the launcher, its flags, the program and its arguments. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from airflow_provider_ocidist.backports import dataclass

PYTHON = re.compile(r"python(3(\.\d+)?)?")
SWITCHES = {
    # torch/distributed/run.py
    "torchrun": frozenset({"no-python", "run-path", "standalone", "virtual-local-rank"}),
    # deepspeed/launcher/runner.py
    "deepspeed": frozenset(
        {
            "bind-cores-to-rank",
            "elastic-training",
            "force-multi",
            "no-local-rank",
            "no-python",
            "no-ssh",
            "no-ssh-check",
            "q",
            "quiet",
            "save-pid",
        }
    ),
    # accelerate/commands/launch.py, of version 0.20 too
    "accelerate": frozenset(
        {
            "aim",
            "cpu",
            "debug",
            "downcast-bf16",
            "dynamo-use-dynamic",
            "dynamo-use-fullgraph",
            "dynamo-use-regional-compilation",
            "enable-cpu-affinity",
            "fp8-use-autocast-during-eval",
            "ipex",
            "multi-gpu",
            "no-python",
            "no-tpu-cluster",
            "q",
            "quiet",
            "same-network",
            "tpu",
            "tpu-cluster",
            "tpu-use-sudo",
            "use-deepspeed",
            "use-fsdp",
            "use-megatron-lm",
            "use-mps-device",
            "use-parallelism-config",
            "use-xpu",
        }
    ),
}
"""Flags of the launchers that take no value, besides the one for modules."""
MODULE = {"m", "module"}
ATTACHED = re.compile(r"-[A-Za-z].")
"""A short flag with its value, as in `-r3`: none of these launchers has a long one with one dash."""
MODULES = {
    "torch.distributed.run": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Kinds of launchers by the module that `python -m` runs."""
OLD_LAUNCHER = "torch.distributed.launch"
SHELL_WORDS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"}
QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
"""Parts of a text that a shell takes as they are written, as far as operators go."""


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line in the terms of our job."""

    launcher: str
    """Kind of the launcher; `command`: the program is an executable."""
    flags: tuple[str, ...] = ()
    """Flags of the launcher."""
    script: str
    module: bool = False
    args: tuple[str, ...] = ()


def joined_lines(text: str) -> str:
    """Join lines that end in a backslash, as a shell does."""
    return text.replace("\\\n", " ").strip()


def without_quoted(text: str) -> str:
    """Return a command with a letter in place of each part that is quoted, or follows a backslash."""
    return QUOTED.sub("q", joined_lines(text))


def refuse_operators(text: str) -> None:
    """Raise ValueError for a command, as it is written, whose words include operators; a quoted one is plain text."""
    for word in without_quoted(text).split():
        if word in SHELL_WORDS:
            raise ValueError(
                f"contains {word!r}, but no shell reads it: put a script into the code, or call bash"
            )


def parse(words: Sequence[str]) -> CommandLine:
    """Parse the words of a command line, each as it reaches a program. Raises ValueError that says what is wrong."""
    if not words:
        raise ValueError("is empty: name the program")
    first, *rest = words
    _refuse_assignment(first)
    name = posixpath.basename(first)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _launched("accelerate", rest[1:])
    if name in ("torchrun", "deepspeed"):
        return _launched(name, rest)
    if PYTHON.fullmatch(name):
        return _python(first, rest)
    return CommandLine(launcher="command", script=first, args=tuple(rest))


def values(flags: Sequence[str], launcher: str) -> Mapping[str, str]:
    """Return the values of a launcher's flags by their names, as `nproc-per-node`; a switch has an empty one."""
    found: dict[str, str] = {}
    for flag, value in _pairs(flags, launcher):
        found[_name(flag)] = value
    return found


def without_flags(flags: Sequence[str], launcher: str, names: set[str]) -> tuple[str, ...]:
    """Return a launcher's flags less those of these names."""
    kept: list[str] = []
    for flag, value in _pairs(flags, launcher):
        if _name(flag) not in names:
            kept += [flag] if "=" in flag or not _takes_value(flag, launcher) else [flag, value]
    return tuple(kept)


def _pairs(flags: Sequence[str], launcher: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if "=" in flag:
            pairs.append((flag, flag.partition("=")[2]))
        else:
            pairs.append((flag, rest.pop(0) if _takes_value(flag, launcher) and rest else ""))
    return pairs


def _refuse_assignment(first: str) -> None:
    if re.match(r"[A-Za-z_]\w*=", first):
        name = first.partition("=")[0]
        raise ValueError(f"begins with an assignment, but no shell reads it: put {name} into the environment")


def _launched(launcher: str, words: Sequence[str]) -> CommandLine:
    """Split `[flags] script [arguments]`; the flags stay the user's, and win over ours."""
    flags: list[str] = []
    rest = list(words)
    module = False
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        flag = rest.pop(0)
        if flag == "--":
            break
        if _name(flag) in MODULE:
            module = True
            continue
        flags.append(flag)
        if "=" not in flag and _takes_value(flag, launcher) and rest:
            flags.append(rest.pop(0))
    if not rest:
        raise ValueError(f"names no program after {launcher} and its flags")
    return CommandLine(
        launcher=launcher, flags=tuple(flags), script=rest[0], module=module, args=tuple(rest[1:])
    )


def _python(interpreter: str, words: Sequence[str]) -> CommandLine:
    """Split `[-u] script [arguments]`; an interpreter with other flags is an executable like any other."""
    # Output is always unbuffered here.
    rest = list(words[1:] if words[:1] == ["-u"] else words)
    if not rest:
        raise ValueError(f"names no program after {interpreter}")
    module = rest[0] == "-m"
    if module and len(rest) == 1:
        raise ValueError("names no module after -m")
    if module and rest[1] == OLD_LAUNCHER:
        raise ValueError(f"calls {OLD_LAUNCHER}, which no longer exists: write torchrun")
    if module and rest[1] in MODULES:
        return _launched(MODULES[rest[1]], rest[2:])
    if rest[0].startswith("-") and not module:
        return CommandLine(launcher="command", script=interpreter, args=tuple(rest))
    script, *args = rest[1:] if module else rest
    return CommandLine(launcher="python", script=script, module=module, args=tuple(args))


def _takes_value(flag: str, launcher: str) -> bool:
    """Whether the next word is the value of a flag, in which is none; argparse takes any clear beginning of a name."""
    if ATTACHED.match(flag):
        return False
    name, switches = _name(flag), SWITCHES.get(launcher, frozenset()) | MODULE
    is_begun = flag.startswith("--") and any(switch.startswith(name) for switch in switches)
    return name not in switches and not is_begun


def _name(flag: str) -> str:
    return flag.lstrip("-").partition("=")[0].replace("_", "-")
