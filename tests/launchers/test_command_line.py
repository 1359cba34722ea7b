"""Command lines are taken apart as the launchers themselves do it."""

from __future__ import annotations

import pytest

from airflow_provider_ocidist.launchers import command_line
from airflow_provider_ocidist.launchers.command_line import CommandLine


@pytest.mark.parametrize(
    "line, launcher, flags, script, module",
    [
        ("torchrun --local-addr h.py train.py -m 1", "torchrun", "--local-addr h.py", "train.py", False),
        ("torchrun --standalone -m pkg.train -m 1", "torchrun", "--standalone", "pkg.train", True),
        ("torchrun --nnodes=2 -- train.sh -m 1", "torchrun", "--nnodes=2", "train.sh", False),
        ("torchrun -r3 -t0:1 train.py -m 1", "torchrun", "-r3 -t0:1", "train.py", False),
        ("torchrun --stand --redir 3 train.py -m 1", "torchrun", "--stand --redir 3", "train.py", False),
        ("deepspeed -ilocalhost:0 train.py -m 1", "deepspeed", "-ilocalhost:0", "train.py", False),
        ("accelerate launch --multi -q t.py -m 1", "accelerate", "--multi -q", "t.py", False),
        ("python3.11 -u train.py -m 1", "python", "", "train.py", False),
        ("python -m accelerate.commands.launch --cpu t.py -m 1", "accelerate", "--cpu", "t.py", False),
    ],
)
def test_a_flag_takes_its_value_with_it_whatever_that_looks_like(
    line: str, launcher: str, flags: str, script: str, module: bool
) -> None:
    found = command_line.parse(line.split())
    assert found == CommandLine(
        launcher=launcher, flags=tuple(flags.split()), script=script, module=module, args=("-m", "1")
    )


@pytest.mark.parametrize(
    "line, problem",
    [
        ("", "is empty"),
        ("NCCL_DEBUG=INFO torchrun a.py", "begins with an assignment"),
        ("torchrun --nnodes a.py", "names no program after torchrun"),
        ("python -m torch.distributed.launch a.py", "write torchrun"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        command_line.parse(line.split())


@pytest.mark.parametrize("operator", ["&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"])
def test_an_operator_is_refused_where_it_is_not_quoted(operator: str) -> None:
    for line in (
        f"torchrun a.py {operator} tee log",
        f"torchrun a.py '{operator}' {operator} log",
        f"torchrun a.py \\\n{operator} tee log",
        f"torchrun a.py \\\n  --lr 1 {operator}\\\n tee log",
    ):
        with pytest.raises(ValueError, match="no shell reads it"):
            command_line.refuse_operators(line)
    for quoted in (
        f"'{operator}'",
        f'"{operator}"',
        f"'a {operator} b'",
        f'"\\" {operator} b"',
        "".join(f"\\{c}" for c in operator),
    ):
        command_line.refuse_operators(f"torchrun a.py --sep {quoted} -x")


def test_flags_are_found_and_left_out_by_their_names() -> None:
    flags = ("--nproc_per_node", "2", "--standalone", "--nnodes=3")
    expected = {"nproc-per-node": "2", "standalone": "", "nnodes": "3"}
    assert command_line.values(flags, "torchrun") == expected
    assert command_line.without_flags(flags, "torchrun", {"nproc-per-node"}) == ("--standalone", "--nnodes=3")
