"""What needs a GPU; where there is none, each test is skipped and says so."""

from __future__ import annotations

import pytest

from tests.gpu.gpus import names


@pytest.fixture(scope="session", autouse=True)
def _a_gpu_that_torch_can_use() -> None:
    if not names():
        pytest.skip("no GPU here: nvidia-smi lists none")
    import torch

    if not torch.cuda.is_available():
        pytest.fail(f"torch {torch.__version__} cannot use the GPU that nvidia-smi lists", pytrace=False)
