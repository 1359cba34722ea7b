"""accelerate's command line."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from airflow_provider_ocidist.job import LauncherOptions, Program
from airflow_provider_ocidist.launchers.accelerate import LAUNCHER
from airflow_provider_ocidist.launchers.base import Placement, ProcessFailure

TOPOLOGY = Placement(
    rank=1,
    nodes=2,
    processes_per_node=4,
    master_address="10.0.0.9",
    address="10.0.0.10",
    addresses=("10.0.0.9", "10.0.0.10"),
    rendezvous_id="run-a1",
    join_timeout=600.0,
    cores=8,
    gpus=4,
)
PROGRAM = Program(script="train.py", args=("--num_processes", "3"))
SINGLE_PROCESS_FAILED = """\
Traceback (most recent call last):
  File "/code/train.py", line 1, in <module>
ValueError: boom
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/env/accelerate/commands/launch.py", line 1423, in <module>
    main()
subprocess.CalledProcessError: Command '['/env/bin/python', 'train.py']' {end}.
"""


def command(*args: str, placement: Placement = TOPOLOGY) -> list[str]:
    return LAUNCHER.command(PROGRAM, LauncherOptions(args=args), placement)


def flags(*args: str) -> set[str]:
    return {part.partition("=")[0] for part in command(*args)[3:-3] if part.startswith("--")}


def test_each_node_gets_its_own_rank() -> None:
    assert command() == [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes=8",
        "--num_machines=2",
        "--machine_rank=1",
        "--main_process_ip=10.0.0.9",
        "--main_process_port=29400",
        "--rdzv_conf=timeout=600",
        "--deepspeed_multinode_launcher=standard",
        "--multi_gpu",
        "train.py",
        "--num_processes",
        "3",
    ]


@pytest.mark.parametrize("flag", ["--num_processes", "--num-processes"])
@pytest.mark.parametrize("joined", [True, False])
def test_the_users_arguments_win_in_every_spelling(flag: str, joined: bool) -> None:
    args = (f"{flag}=6",) if joined else (flag, "6")
    assert "--num_processes=8" not in command(*args)
    assert command(*args)[-len(args) - 3 : -3] == list(args)


def test_the_machines_of_a_configuration_file_are_overridden_and_nothing_else() -> None:
    built = flags("--config_file=ours.yaml")
    assert {"--num_processes", "--num_machines", "--machine_rank", "--main_process_ip"} < built
    assert "--multi_gpu" not in built


@pytest.mark.parametrize(
    "flag", ["--use_fsdp", "--use_deepspeed", "--cpu", "--multi-gpu", "--use-deep", "--multi"]
)
def test_what_kind_of_training_it_is_remains_the_users_word(flag: str) -> None:
    assert command(flag).count("--multi_gpu") == 0


def test_a_single_process_needs_no_group() -> None:
    alone = replace(TOPOLOGY, rank=0, nodes=1, processes_per_node=1)
    assert "--multi_gpu" not in command(placement=alone)


@pytest.mark.parametrize("gpus, told", [(0, "true"), (4, None), (None, None)])
def test_accelerate_gets_a_variable_where_there_is_no_gpu(gpus, told) -> None:
    assert LAUNCHER.defaults(replace(TOPOLOGY, gpus=gpus)).get("ACCELERATE_USE_CPU") == told


def test_one_plain_process_on_each_node_still_belongs_to_the_group() -> None:
    told = LAUNCHER.environment(TOPOLOGY)
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("1", "2", "0")
    assert (told["MASTER_ADDR"], told["PET_LOCAL_ADDR"]) == ("10.0.0.9", "10.0.0.10")


def test_global_rank_0_is_on_the_first_node_unless_c10d_numbers_them() -> None:
    assert LAUNCHER.main_node(LauncherOptions(), TOPOLOGY) == 0
    c10d = LauncherOptions(args=("--rdzv_backend", "c10d"))
    assert LAUNCHER.main_node(c10d, TOPOLOGY) == 1  # as text, "10" comes before "9"
    assert "--rdzv_conf=is_host=false,join_timeout=600,read_timeout=600" in command(*c10d.args)


@pytest.mark.parametrize(
    "end, code", [("returned non-zero exit status 3", 3), ("died with <Signals.SIGKILL: 9>", -9)]
)
def test_the_failure_of_a_single_process_is_read_from_its_traceback(end: str, code: int) -> None:
    output = SINGLE_PROCESS_FAILED.format(end=end)
    assert LAUNCHER.first_failure(output) == ProcessFailure(rank=None, exit_code=code)
    assert LAUNCHER.user_output(output).splitlines()[-1] == "ValueError: boom"
