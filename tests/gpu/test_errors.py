"""Real errors of torch, CUDA and NCCL, as a real agent reports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.diagnose.symptoms import symptom_of
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import LauncherOptions, Limits
from tests.agent.gangs import Gang
from tests.gpu.gpus import names, sharing

pytestmark = [pytest.mark.torch, pytest.mark.slow]

TOO_MUCH = 'torch.empty(1 << 50, dtype=torch.uint8, device="cuda")'
NO_SUCH_GPU = 'torch.ones(1, device="cuda:99")'
ANY_GPU = 'torch.ones(1, device="cuda")'
WRONG_INDEX = """
table = torch.nn.Embedding(10, 4).cuda()
print(table(torch.tensor([11], device="cuda")).sum().item())
"""


@pytest.mark.parametrize(
    "script, environ, cause, words",
    [
        (TOO_MUCH, {}, Cause.OOM, "CUDA out of memory"),
        (NO_SUCH_GPU, {}, Cause.CONFIG, "invalid device ordinal"),
        (ANY_GPU, {"CUDA_VISIBLE_DEVICES": ""}, Cause.CONFIG, "No CUDA GPUs are available"),
        (WRONG_INDEX, {}, Cause.USER, "device-side assert"),
    ],
    ids=["memory", "number", "none", "assert"],
)
def test_an_error_of_cuda_is_reported_with_its_cause(
    tmp_path: Path, script: str, environ: dict[str, str], cause: Cause, words: str
) -> None:
    with Gang(tmp_path, f"import torch\n{script}\n") as gang:
        assert gang.run(**environ) == [1]
        report, log = gang.agents[0].report, gang.agents[0].stderr.read_text()
    assert report.cause is cause
    assert words in (report.message or "")
    symptom = symptom_of(report.message or "")
    assert symptom
    assert f"Remedy: {symptom.remedy}" in log


SAME_GPU = """
import torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda"))
"""


def test_processes_that_share_a_gpu_are_reported_as_that(tmp_path: Path) -> None:
    both = LauncherOptions(kind="torchrun", processes_per_node=len(names()) + 1)
    with Gang(tmp_path, SAME_GPU, launcher=both) as gang:
        assert gang.run() == [1]
        report = gang.agents[0].report
    assert report.cause is Cause.CONFIG
    assert "NCCL error" in (report.message or "")


ONE_DIES = """
import os, torch, torch.distributed as dist
torch.cuda.set_device(0)
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
if dist.get_rank() == 1:
    raise ValueError("the one that is to blame")
dist.all_reduce(x)
print(x.sum().item())
"""


def test_the_node_that_failed_is_blamed_and_not_the_one_that_nccl_keeps_waiting(tmp_path: Path) -> None:
    with Gang(tmp_path, ONE_DIES, nodes=2, limits=Limits(stop_grace=1.0, join_timeout=60.0)) as two:
        for rank in range(2):
            two.start(rank, **sharing(rank))
        codes = [agent.wait() for agent in two.agents]
        reports = [agent.report for agent in two.agents]
    assert codes[1] == 1
    assert reports[1].cause is Cause.USER
    assert "the one that is to blame" in (reports[1].message or "")
    assert reports[0].cause in (None, Cause.NODE, Cause.USER), reports[0]
