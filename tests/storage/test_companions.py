"""What belongs to a checkpoint under other names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from airflow_provider_ocidist.model.checkpoint import CheckpointRef
from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.companions import companions, companions_at
from airflow_provider_ocidist.storage.manifests import MANIFEST, VERSION, Manifest, ManifestFile
from airflow_provider_ocidist.storage.retention import Retention, superfluous
from tests.storage.published import publish


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
        # It went on from a number that it had used twice: that names no model.
        (["phi-2.pt", "phi-2.pt", "phi-3.pt", "step-9"], ["phi-3.pt"]),
        (
            ["fold1-epoch=4.ckpt", *(f"fold2-epoch={epoch}.ckpt" for epoch in range(3))],
            ["fold1-epoch=4.ckpt"],
        ),
        (["resnet50_epoch_3.pth", "resnet18_epoch_1.pth", "resnet18_epoch_2.pth"], ["resnet50_epoch_3.pth"]),
        (["ckpt-20261122.pt", "ckpt-loss0.42.pt", "step-9"], []),
        # What has the same number belongs to it, and not what has come after that.
        (["optim_100.pt", "optim_200.pt", "model_100.pt"], ["optim_100.pt"]),
        (["model_100.pt", "model_200.pt", "optim_100.pt"], ["model_100.pt"]),
        (["optim-000100.pt", "optim-000200.pt", "step-100"], ["optim-000100.pt"]),
        (["optim-100-half.pt", "optim-200-half.pt", "step-100"], ["optim-100-half.pt"]),
        (["optim100.pt", "optim200.pt", "optim300.pt", "step-100"], ["optim100.pt"]),
        (["step-100", "step-200", "optim100"], ["step-100"]),
        # One epoch, at several steps.
        (
            ["epoch=4-step=100.ckpt", "epoch=5-step=300.ckpt", "ema-epoch=4-step=200.pt"],
            ["epoch=4-step=100.ckpt"],
        ),
        # A step that is part of its word is one all the same.
        (["step1.ckpt", "step2.ckpt"], []),
        (["epoch3.pt", "step1.ckpt", "step2.ckpt"], ["epoch3.pt"]),
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


@pytest.mark.parametrize("step", [None, 100])
def test_what_was_saved_at_the_same_step_belongs_whatever_its_name_counts(step: int | None) -> None:
    steps = {"dump_7.pt": 100, "dump_9.pt": 120, "best.pt": 100} if step else {}
    manifests = saved("dump_7.pt", "dump_9.pt", "best.pt", steps=steps)
    (found,) = companions(manifests[0], manifests)
    # Where nothing says which step it is, it is the newest.
    assert found.name == ("dump_7.pt" if step else "dump_9.pt")


@pytest.mark.parametrize("named", ["last.ckpt", "export-{}.pt", "optim_{}.pt"])
def test_what_a_later_attempt_has_saved_belongs_to_no_checkpoint_before(named: str) -> None:
    before = saved(named.format(90), named.format(100), "step-100")
    later = saved(named.format(110), "step-110", attempt=2)
    assert [(each.name, each.attempt) for each in companions(before[0], [*later, *before])] == [
        (named.format(100), 1)
    ]
    assert [(each.name, each.attempt) for each in companions(later[0], [*later, *before])] == [
        (named.format(110), 2)
    ]


def test_what_a_later_attempt_calls_by_another_day_takes_no_companion_from_one_before() -> None:
    day = "run-202611{}.pt"
    before = saved(day.format(22), day.format(22), "step-100")
    later = saved(day.format(23), day.format(23), "step-200", attempt=2)
    assert [each.name for each in companions(before[0], [*later, *before])] == [day.format(22)]
    assert [each.name for each in companions(later[0], [*later, *before])] == [day.format(23)]


def test_the_same_number_of_another_attempt_is_not_of_the_same_step() -> None:
    before = saved("optim_100.pt", "optim_200.pt")
    again = saved("model_100.pt", attempt=2)
    assert [each.name for each in companions(again[0], [*again, *before])] == ["optim_200.pt"]


def test_what_another_attempt_has_saved_under_a_name_of_no_series_belongs_to_nothing() -> None:
    before = saved("ckpt-20261122.pt", "ckpt-loss0.42.pt")
    again = saved("step-9", attempt=2)
    assert companions(again[0], [*again, *before]) == []


def test_what_was_saved_at_the_step_of_a_companion_that_was_saved_twice_belongs_too() -> None:
    names = ["ckpt-20261122.pt", "step-100.pt", "step-100.pt", "model_epoch_3.pth"]
    manifests = saved(*names, steps={"ckpt-20261122.pt": 100, "step-100.pt": 100})
    found = companions(manifests[0], manifests)
    assert [(each.name, each.sequence) for each in found] == [("step-100.pt", 3), ("ckpt-20261122.pt", 1)]


LETTERS = "abcdefghijkl"


@pytest.mark.parametrize("pattern", ["{}{}{}.pt", "{}-9.pt"], ids=["without a number", "with numbers"])
def test_of_many_other_names_the_eight_newest_belong(pattern: str) -> None:
    manifests = saved(*(pattern.format(*letter * 3) for letter in LETTERS), "step-100")
    expected = [pattern.format(*letter * 3) for letter in reversed(LETTERS)][:8]
    assert [each.name for each in companions(manifests[0], manifests)] == expected


# In a store


def stored(root: Path, *names: str, attempt: int = 1) -> dict[str, CheckpointRef]:
    """Publish files of these names below `root/kept`, one after the other; return them by name."""
    found = {}
    for name in names:
        (root / name).write_text(f"{name} of attempt {attempt}")
        found[name] = publish(root / name, str(root / "kept"), step=None, fence=Fence(attempt=attempt))
    return found


def test_the_companions_of_a_stored_checkpoint_are_found_the_newest_first(tmp_path: Path) -> None:
    refs = stored(tmp_path, "last.ckpt", "optim_100.pt", "model_100.pt", "optim_200.pt")
    place = str(tmp_path / "kept")
    of_the_newest = companions_at(place, refs["optim_200.pt"])
    assert of_the_newest == [refs["model_100.pt"], refs["optim_100.pt"], refs["last.ckpt"]]
    assert companions_at(place, refs["model_100.pt"]) == [refs["optim_100.pt"], refs["last.ckpt"]]


def test_instead_of_a_damaged_companion_the_one_before_it_is_found(tmp_path: Path) -> None:
    refs = stored(tmp_path, "step-100", "step-200", "best.pt")
    place = str(tmp_path / "kept")
    assert companions_at(place, refs["best.pt"]) == [refs["step-200"]]
    assert companions_at(place, refs["best.pt"], without={refs["step-200"].uri}) == [refs["step-100"]]


def test_what_is_not_stored_or_does_not_count_has_no_companions(tmp_path: Path) -> None:
    refs = stored(tmp_path, "step-100", "best.pt")
    place = str(tmp_path / "kept")
    assert companions_at(place, refs["best.pt"], without={refs["best.pt"].uri}) == []
    next(path for path in Path(refs["best.pt"].uri).iterdir() if path.name != MANIFEST).unlink()
    assert companions_at(place, refs["best.pt"]) == []


def test_of_one_attempt_only_its_own_companions_are_found(tmp_path: Path) -> None:
    before = stored(tmp_path, "step-100", "last.ckpt")
    now = stored(tmp_path, "other.ckpt", "best.pt", attempt=2)
    place = str(tmp_path / "kept")
    assert companions_at(place, now["best.pt"]) == [
        now["other.ckpt"],
        before["last.ckpt"],
        before["step-100"],
    ]
    assert companions_at(place, now["best.pt"], only=Fence(attempt=2)) == [now["other.ckpt"]]
    assert companions_at(place, now["best.pt"], only=Fence(attempt=1)) == [
        before["last.ckpt"],
        before["step-100"],
    ]
