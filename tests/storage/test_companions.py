"""What belongs to a checkpoint under other names."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.companions import companions
from airflow_provider_ocidist.storage.manifests import VERSION, Manifest, ManifestFile
from airflow_provider_ocidist.storage.retention import Retention, superfluous


def saved(*names: str, steps: dict[str, int] | None = None, attempt: int = 1) -> list[Manifest]:
    """Return manifests of what was saved in this order, the newest first."""
    made = [
        Manifest(
            version=VERSION,
            name=name,
            step=(steps or {}).get(name),
            created_at=0.0,
            files=(ManifestFile(path=name, size=1, sha256="a"),),
            attempt=attempt,
            sequence=number,
        )
        for number, name in enumerate(names, 1)
    ]
    return made[::-1]


@pytest.mark.parametrize(
    "names, expected",
    [
        (["model_100.pt", "optim_100.pt"], ["model_100.pt"]),
        # Until its other half is there, the pair before is what a program can resume from.
        (["model_100.pt", "optim_100.pt", "model_200.pt"], ["optim_100.pt", "model_100.pt"]),
        (["model_100.pt", "optim_100.pt", "model_200.pt", "optim_200.pt"], ["model_200.pt"]),
        # A program may resume from one series only, and saves another more often.
        (["checkpoint-500", "export-510", "export-520"], ["checkpoint-500"]),
        (["step=400.ckpt", "epoch=3-val_loss=0.42.ckpt"], ["step=400.ckpt"]),
        (["model_100.pt", "optim_100.pt", "export-110"], ["optim_100.pt", "model_100.pt"]),
        (
            ["step-8-a1b2c3.pt", "step-9-d4e5f6.pt", "export-10-9f8e7d", "export-11-7a6b5c"],
            ["step-9-d4e5f6.pt"],
        ),
        (["last.ckpt", "epoch=3-step=200.ckpt"], ["last.ckpt"]),
        (["epoch=3-step=200.ckpt", "last.ckpt"], ["epoch=3-step=200.ckpt"]),
        # A program may resume from its steps only.
        (["step-100.pt", "best.pt"], ["step-100.pt"]),
        (["step-100.pt", "step-200.pt", "best.pt", "best.pt", "best.pt"], ["step-200.pt"]),
        (["model_100.pt", "optim_100.pt", "last.pt", "best.pt"], ["last.pt", "optim_100.pt", "model_100.pt"]),
        (["step-100.pt", "best_0.91.pt", "best_0.93.pt"], ["step-100.pt"]),
        (["步-100.pt", "步-200.pt", "best.pt"], ["步-200.pt"]),
        (["best.pt", "step-100.pt"], ["best.pt"]),
        (["last.ckpt", "epoch=2-step=100.ckpt", "last.ckpt", "epoch=3-step=200.ckpt"], ["last.ckpt"]),
        (["step-1", "step-2", "step-3"], []),
        (["model.safetensors", "optimizer.pt", "scheduler.pt"], ["optimizer.pt", "model.safetensors"]),
        (["resnet18_last.pth", "resnet18_epoch_3.pth"], ["resnet18_last.pth"]),
        (["gpt2-last", "checkpoint-18"], ["gpt2-last"]),
        (["t5-3b", "t5-3b-head.pt", "step-3"], ["t5-3b-head.pt", "t5-3b"]),
        # Two models of one program.
        (
            ["resnet50_epoch_3.pth", "resnet50_last.pth", "resnet18_last.pth", "resnet18_epoch_3.pth"],
            ["resnet18_last.pth", "resnet50_last.pth", "resnet50_epoch_3.pth"],
        ),
        # The model's number is no step.
        (
            ["resnet18_epoch_17.pth", "head_epoch_17.pth", "head_epoch_18.pth"],
            ["head_epoch_17.pth", "resnet18_epoch_17.pth"],
        ),
        (["optim100.pt", "optim200.pt", "optim300.pt", "model_400.pt"], ["optim300.pt"]),
        (["phi-2.pt", "step-1", "phi-2.pt", "step-2"], ["phi-2.pt"]),
        (
            ["fold1-epoch=4.ckpt", *(f"fold2-epoch={epoch}.ckpt" for epoch in range(3))],
            ["fold1-epoch=4.ckpt"],
        ),
        (["resnet50_epoch_3.pth", "resnet18_epoch_1.pth", "resnet18_epoch_2.pth"], ["resnet50_epoch_3.pth"]),
        (["ckpt-20261122.pt", "ckpt-loss0.42.pt", "step-9"], []),
    ],
)
def test_what_belongs_to_the_newest(names: list[str], expected: list[str]) -> None:
    manifests = saved(*names)
    assert [each.name for each in companions(manifests[0], manifests)] == expected


@pytest.mark.parametrize("seed", range(20))
def test_what_a_program_always_calls_by_one_name_belongs_to_each_of_its_steps(seed: int) -> None:
    random = Random(seed)
    model = random.choice(["resnet18", "gpt2", "t5-3b", "opt-125m", "vit_b16", "wav2vec2", "model", "net"])
    steady = f"{model}{random.choice(['_last', '-last', '.best', '_final', ''])}{random.choice(['.pt', '.ckpt', ''])}"
    numbered = random.choice(
        ["step-{}", "checkpoint_{}.pt", f"{model}_epoch_{{}}.pth", f"{model}-step={{}}.ckpt"]
    )
    steps = range(random.randint(1, 60), 90, random.randint(1, 20))
    names = [name for step in steps for name in (steady, numbered.format(step))]
    manifests = saved(*names)
    found = companions(manifests[0], manifests)
    assert [(each.name, each.sequence) for each in found] == [(steady, len(names) - 1)]


def test_of_a_name_without_a_number_the_newest_version_belongs() -> None:
    manifests = saved("last.ckpt", "step-1.ckpt", "last.ckpt", "step-2.ckpt")
    (found,) = companions(manifests[0], manifests)
    assert found.sequence == 3


def test_keeping_one_keeps_what_belongs_to_it() -> None:
    manifests = saved("model_100.pt", "optim_100.pt", "model_200.pt", "optim_200.pt")
    gone = superfluous(manifests, Retention(keep=1), Fence(attempt=1))
    assert [each.name for each in gone] == ["optim_100.pt", "model_100.pt"]


def test_what_has_another_name_each_time_is_not_kept_for_ever() -> None:
    manifests = saved(*(f"ckpt-{letter * 3}.pt" for letter in "abcdefghijklmnopqrstuvwxyz"))
    gone = superfluous(manifests, Retention(keep=2), Fence(attempt=1))
    assert 10 < len(gone) < 24


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("best", ["best.pt", "best_{}.pt", "best-acc=0.9{}.ckpt"])
def test_saves_of_one_name_delete_no_last_step(keep: int, best: str) -> None:
    names = ["step-100.pt", best.format(0), "step-200.pt", *(best.format(number) for number in range(1, 6))]
    steps = {"step-100.pt": 100, "step-200.pt": 200}
    manifests = saved(*names, steps=steps)
    gone = superfluous(manifests, Retention(keep=keep), Fence(attempt=1))
    assert [each.sequence for each in manifests if each not in gone] == [*range(8, 8 - keep, -1), 3]


def test_what_was_saved_at_its_step_is_kept_beside_each_save_of_one_name() -> None:
    manifests = [
        replace(each, step=(each.sequence + 1) // 2 * 100) for each in saved(*["step-{}", "last"] * 3)
    ]
    manifests = [replace(each, name=each.name.format(each.step)) for each in manifests]
    gone = superfluous(manifests, Retention(keep=2), Fence(attempt=1))
    assert [each.name for each in manifests if each not in gone] == ["last", "step-300", "last", "step-200"]


@pytest.mark.parametrize("seed", range(20))
def test_no_series_that_is_saved_more_often_deletes_the_last_of_another(seed: int) -> None:
    print("seed", seed)
    dice = Random(seed)
    patterns = dice.sample(
        ["checkpoint-{}", "export-{}.pt", "step={}.ckpt", "epoch={}-val_loss=0.4{}.ckpt", "ema_{}.pt"], 3
    )
    often = [dice.randint(1, 12) for _ in patterns]
    names = [
        pattern.format(step, step % 10)
        for step in range(1, 60)
        for pattern, every in zip(patterns, often)
        if step % every == 0
    ]
    for keep in (1, 2, 3):
        kept: list[Manifest] = []
        for number in range(1, len(names) + 1):
            now = [saved(*names[:number])[0], *kept]
            gone = superfluous(now, Retention(keep=keep), Fence(attempt=1))
            kept = [each for each in now if each not in gone]
        for pattern in patterns:
            start = pattern.partition("{")[0]
            last = next(name for name in reversed(names) if name.startswith(start))
            assert last in [each.name for each in kept]
        assert len(kept) <= keep + 2 * len(patterns)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_versions_of_one_save_count_once_and_only_the_last_of_them_stays(keep: int) -> None:
    once = saved(*(f"step-{number}" for number in range(1, 6)))
    twice = [replace(each, created_at=at) for each in once for at in (1.0, 0.0)]
    gone = superfluous(twice, Retention(keep=keep), Fence(attempt=1))
    kept = [(each.name, each.created_at) for each in twice if each not in gone]
    assert kept == [(f"step-{number}", 1.0) for number in range(5, 5 - keep, -1)]
