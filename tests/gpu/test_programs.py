"""Programs as users have them, on the GPU: what `ocidist init` writes, and a Trainer of transformers in bf16."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_ocidist.job import Checkpoints, Limits, Restarts
from tests.agent.gangs import REPOSITORY, Gang

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAMS = REPOSITORY / ".venv-programs" / "bin" / "python"


def ocidist(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "airflow_provider_ocidist.cli", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_init_writes_trains_on_every_gpu_of_this_machine(tmp_path: Path) -> None:
    import torch

    ocidist(tmp_path, "init", ".", "--nodes", "1")
    here = ("--set", "backend.kind=local", "--set", f"work_dir={tmp_path / 'work'}")
    printed = ocidist(tmp_path, "run", "job.yaml", *here, "--wait")
    count = torch.cuda.device_count()
    assert f"rank 0 of {count} on cuda:0, beginning after step 0" in printed
    assert len(re.findall(r"rank \d+ of \d+ on cuda:\d+", printed)) == count
    assert "step 200/200 loss" in printed
    (node,) = json.loads(ocidist(tmp_path, "status", "info.yaml", "--json"))["nodes"]
    assert node["state"] == "SUCCEEDED", node


TRAINER = """
import os, signal, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint
folder, launch = os.environ["OCIDIST_CHECKPOINT_DIR"], int(os.environ["OCIDIST_RESTARTS"])

class Dies(TrainerCallback):
    def on_step_end(self, _, state, *__, **___):
        if state.global_step == 6 and launch == 0:
            os.kill(os.getpid(), signal.SIGKILL)

set_seed(7)
tokens = torch.randint(0, 50, (256, 12))
config = GPT2Config(
    vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    output_dir=folder, max_steps=12, save_steps=4, logging_steps=2, per_device_train_batch_size=4, bf16=True,
    report_to="none", disable_tqdm=True,
)
rows = [{"input_ids": row, "labels": row} for row in tokens]
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows, callbacks=[Dies()])
os.makedirs(folder, exist_ok=True)
begun = get_last_checkpoint(folder)
print("begun from", begun and os.path.basename(begun), "on", arguments.device, flush=True)
trainer.train(resume_from_checkpoint=begun)
print("bf16", trainer.accelerator.mixed_precision, "ended after", trainer.state.global_step, flush=True)
"""


@pytest.mark.parametrize("kind", ["torchrun", "accelerate"])
def test_a_trainer_in_bf16_that_was_killed_goes_on_from_its_last_checkpoint(
    tmp_path: Path, kind: str
) -> None:
    python = sys.executable if importlib.util.find_spec("transformers") else str(PROGRAMS)
    with Gang(
        tmp_path,
        TRAINER,
        kind=kind,
        python=python,
        checkpoints=Checkpoints(uri=str(tmp_path / "kept")),
        restarts=Restarts(program=1, node=1),
        limits=Limits(stop_grace=5.0, join_timeout=60.0),
    ) as one:
        assert one.run(HF_HUB_OFFLINE="1") == [0], one.agents[0].stderr.read_text()
        printed, report = one.agents[0].stdout.read_text(), one.agents[0].report
    assert re.findall(r"begun from (\S+) on (cuda)", printed) == [("None", "cuda"), ("checkpoint-4", "cuda")]
    assert "bf16 bf16 ended after 12" in printed
    assert report.checkpoint
    assert report.checkpoint.step == 12
