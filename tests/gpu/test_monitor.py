"""What the agent sees of a GPU: whether it computes, only waits, or does nothing, and whether it is well."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.join.topology import count_devices
from airflow_provider_ocidist.agent.monitor.health import HealthWatch
from airflow_provider_ocidist.agent.monitor.usage import UsageMeter, ask_gpu_usage
from airflow_provider_ocidist.errors import Cause
from airflow_provider_ocidist.job import Limits
from tests.agent.gangs import Gang, until
from tests.gpu.gpus import BEGUN, names, running

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BEGINS = f"""
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print({BEGUN!r}, flush=True)
"""
MULTIPLIES = f"""{BEGINS}
while True:
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
"""
SPINS = f"""{BEGINS}
while True:
    torch.cuda._sleep(1_000_000_000)
    torch.cuda.synchronize()
"""
# The driver shows what was in the second before: that of the preparation must be over.
SLEEPS = f"{BEGINS}time.sleep(1000)\n".replace("print(", "time.sleep(2.5)\nprint(")


def smi() -> str:
    found = shutil.which("nvidia-smi")
    assert found
    return found


def each_gpu(condition: Callable[[tuple[float, ...]], bool]) -> None:
    """Wait until a GPU is seen as it should be: the driver shows the mean of up to a second."""
    until(lambda: any(condition(gpu) for gpu in ask_gpu_usage(smi()).rows), timeout=30)


def test_each_gpu_is_seen_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    found = ask_gpu_usage(smi())
    assert found.is_whole
    assert len(found.rows) == len(names())
    assert all(0 <= used < total for _, _, used, total in found.rows)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_devices({}) == torch.cuda.device_count()


def test_a_gpu_that_computes_is_a_sign_of_life() -> None:
    signs: list[int] = []
    with running(MULTIPLIES) as process:
        each_gpu(lambda gpu: gpu[0] > 50 and gpu[1] > 0)
        meter = UsageMeter(process.pid, lambda _: None, lambda: signs.append(1))
        seen = meter.look()
    assert signs
    assert seen.gpu
    assert seen.gpu_memory
    assert seen.idle == 0.0


@pytest.mark.parametrize("script, share", [(SPINS, 0.5), (SLEEPS, 0.0)], ids=["spins", "sleeps"])
def test_a_gpu_that_spins_or_does_nothing_is_no_sign_of_life(script: str, share: float) -> None:
    signs: list[int] = []
    with running(script) as process:
        each_gpu(lambda gpu: gpu[1] == 0 and (gpu[0] > 50 if share else gpu[0] == 0))
        for _ in range(3):
            meter = UsageMeter(process.pid, lambda _: None, lambda: signs.append(1))
            seen = meter.look()
            assert seen.gpu is not None
            assert seen.gpu >= share
            assert share or seen.gpu < 0.02
            time.sleep(0.5)
    assert not signs


def test_a_gpu_that_works_is_well_by_fields_that_its_driver_knows(tmp_path: Path) -> None:
    watch = HealthWatch([tmp_path], {}, lambda _: None)
    with running(MULTIPLIES):
        each_gpu(lambda gpu: gpu[0] > 50)
        assert watch.look() == ()
    assert watch._fields
    assert len(watch._errors_before) == len(names())


@pytest.mark.parametrize("works, cause", [(True, None), (False, Cause.IDLE)])
def test_a_program_that_only_holds_a_gpu_is_idle_and_one_that_uses_it_is_not(
    tmp_path: Path, works: bool, cause: Cause | None
) -> None:
    # The processor sleeps in both: the GPU is given a second's work at once.
    script = f"""
import time, torch
torch.ones(1, device="cuda")
end = time.monotonic() + (8.0 if {works} else 1000.0)
while time.monotonic() < end:
    if {works}:
        torch.cuda._sleep(1_500_000_000)
    time.sleep(0.8)
"""
    with Gang(tmp_path, script, limits=Limits(idle=4.0, stop_grace=2.0)) as gang:
        gang.run()
        report = gang.agents[0].report
    assert report.cause is cause, report
    assert report.usage
    assert report.usage.gpu_memory
