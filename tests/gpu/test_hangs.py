"""A collective of NCCL that waits for a rank: the hang is found though the GPU is busy, and NCCL shows where."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.flight_records import stuck_collective
from airflow_provider_ocidist.agent.monitor.usage import GPU_MEMORY_AT_WORK, ask_gpu_usage
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Limits, Restarts
from tests.agent.gangs import Gang
from tests.gpu.gpus import sharing
from tests.gpu.test_monitor import smi

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TWO_RANKS = """
import datetime, os, pathlib, time, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=float(os.environ.get("LIMIT", "600"))))
rank, launch = dist.get_rank(), int(os.environ["OCIDIST_RESTARTS"])
x = torch.ones(1 << 20, device="cuda")

def asleep_here():
    time.sleep(1000)

def waits_here():
    dist.all_reduce(x)
    pathlib.Path("waits").touch()
    return x.sum().item()

dist.all_reduce(x)
torch.cuda.synchronize()
print("step 1\\nstep 2", flush=True)
if rank == 1 and launch == 0:
    asleep_here()
print("sum", waits_here(), flush=True)
dist.destroy_process_group()
"""


HANGS_SOON = Limits(stop_grace=1.0, join_timeout=60.0, hang_timeout=8.0)


def gang_of_two(tmp_path: Path, *, limits: Limits = HANGS_SOON, restarts: Restarts | None = None) -> Gang:
    return Gang(tmp_path, TWO_RANKS, nodes=2, limits=limits, restarts=restarts or Restarts())


def start(gang: Gang, **environ: str) -> None:
    for rank in range(2):
        gang.start(rank, **sharing(rank), **environ)


def test_where_each_rank_stands_is_kept_with_the_collective_in_which_one_waits_for_the_other(
    tmp_path: Path,
) -> None:
    with gang_of_two(tmp_path) as two:
        start(two)
        two.agents[0].shows((two.code(0) / "waits").exists)
        two.agents[0].shows(_the_gpu_is_busy_and_its_memory_is_not)
        assert [agent.wait() for agent in two.agents] == [75, 143]
        report, said = two.agents[0].report, two.agents[0].stderr.read_text()
        stands = [each for agent in two.agents for each in agent.report.stack_positions or ()]
        record = two.run_dir / "stacks" / "launch-0" / "nccl-rank-0"
        stuck = stuck_collective(record) or ""
    assert report.cause is Cause.HANG
    assert [stands[rank].at[0].partition(" ")[0] for rank in range(2)] == ["waits_here", "asleep_here"]
    assert (
        "nccl:all_reduce number 2 is scheduled, sizes [[1048576]], called in waits_here (program.py:" in stuck
    )
    assert f"rank 0, by its flight record: {stuck}" in said


def _the_gpu_is_busy_and_its_memory_is_not() -> bool:
    gpu, memory = ask_gpu_usage(smi()).rows[0][:2]
    assert memory < GPU_MEMORY_AT_WORK  # else the wait would be a sign of life
    return gpu > 90


def test_a_training_that_hung_in_a_collective_is_launched_again_and_ends(tmp_path: Path) -> None:
    with gang_of_two(tmp_path, restarts=Restarts(hang=1)) as two:
        start(two)
        assert [agent.wait() for agent in two.agents] == [0, 0]
        (restart,) = two.agents[0].report.restarts
        assert "sum" in two.agents[0].stdout.read_text()
    assert restart.cause is Cause.HANG


def test_what_nccls_watchdog_ends_is_a_hang_with_its_record_kept(tmp_path: Path) -> None:
    limits = Limits(stop_grace=1.0, join_timeout=60.0)
    with gang_of_two(tmp_path, limits=limits) as two:
        start(two, LIMIT="5")
        for agent in two.agents:
            agent.wait()
        report = two.agents[0].report
        kept = two.run_dir / "stacks" / "launch-0" / "nccl-rank-0"
        assert "nccl:all_reduce number 2" in (stuck_collective(kept) or "")
    assert report.cause is Cause.HANG, report
    assert "Watchdog caught collective operation timeout" in (report.message or "")
