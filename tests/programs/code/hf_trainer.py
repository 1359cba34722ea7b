"""A Trainer of transformers, as its documents show it; it goes on from the last of its own checkpoints."""

from __future__ import annotations

import os

import death
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

FOLDER = os.environ["OCIDIST_CHECKPOINT_DIR"]


class Dies(TrainerCallback):
    def on_step_end(self, _, state, *__, **___):
        death.at(state.global_step)


set_seed(7)
tokens = torch.randint(0, 50, (256, 12))
config = GPT2Config(
    vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir=FOLDER,
        max_steps=death.STEPS,
        save_steps=death.EVERY,
        logging_steps=2,
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[Dies()],
)
os.makedirs(FOLDER, exist_ok=True)
begun = get_last_checkpoint(FOLDER)
trainer.train(resume_from_checkpoint=begun)
death.show(begun, trainer.model)
