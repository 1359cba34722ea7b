"""What the name of an entry says: its series, its step where that is certain, and nothing that it does not say."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import pytest

from airflow_provider_ocidist.model.fence import Fence
from airflow_provider_ocidist.storage.checkpoint_names import (
    Placed,
    place,
    published_folder,
    publishing_attempt,
    save_folder,
)

SEED = int(os.environ.get("NAMES_SEED", "20261122"))


def at(
    step: int | None = None, epoch: int | None = None, version: int | None = None
) -> tuple[int | None, ...]:
    return step, epoch, version


LAYOUTS = {
    # Hugging Face, and Accelerate
    "checkpoint-500": at(500),
    "checkpoint_7": at(7),
    # Lightning
    "epoch=3-step=200.ckpt": at(200, 3),
    "epoch=3-step=200-v1.ckpt": at(200, 3, 1),
    "epoch=3-val_loss=0.42.ckpt": at(None, 3),
    "epoch=03-val_acc=91-step=00200.ckpt": at(200, 3),
    "last.ckpt": at(),
    "last-v1.ckpt": at(None, None, 1),
    "last-v12.ckpt": at(None, None, 12),
    # DeepSpeed, Megatron, NeMo
    "global_step100": at(100),
    "iter_0000100": at(100),
    "megatron_gpt--val_loss=2.34-step=100-consumed_samples=800.0-last.ckpt": at(100),
    # torchtitan, LitGPT, Composer, MMEngine, Detectron, Ultralytics, fairseq, TF
    "step-100": at(100),
    "step-00000100": at(100),
    "ep1-ba100.pt": at(100, 1),
    "iter_100.pth": at(100),
    "epoch_12.pth": at(None, 12),
    "epoch10.pt": at(None, 10),
    "model_0004999.pth": at(4999),
    "checkpoint_3_5000.pt": at(5000, 3),
    "model.ckpt-500": at(500),
    # our own examples
    "step-000100.pt": at(100),
    "step_100.tar.gz": at(100),
    "1000": at(1000),
    "100.pt": at(100),
    "100steps.pt": at(100),
    "3-epochs.pt": at(None, 3),
    "ckpt.100.pt": at(100),
    # one name for all of them
    "ckpt.pt": at(),
    "snapshot.pt": at(),
    "best_model.safetensors": at(),
    "best": at(),
    # what stands there beside the step, or instead of it
    "model_epoch_3_loss_0.45.pt": at(None, 3),
    "checkpoint-30-20261122": at(30),
    "checkpoint-30-2026-11-22": at(30),
    "checkpoint-20261122": at(),
    "checkpoint-20261122-153001.pt": at(),
    "step-5-2026-11-22T15-30-01.pt": at(5),
    "ckpt_1763800000.pt": at(),
    "resnet50.pt": at(),
    "gpt2-step-40.pt": at(40),
    "llama-7b-step-40": at(40),
    "model-lr1e-4-step-40": at(40),
    "run_seed_42.pt": at(),
    "warmup_steps_500.pt": at(),
    "max_steps=1000-step=20.pt": at(20),
    "step-20-of-1000.pt": at(20),
    "ckpt_v2.1.pt": at(),
    "loss=3.ckpt": at(),
    "weights.03-0.45.keras": at(3),
    "step=1.5.pt": at(),
    "step_100_step_200.pt": at(),
    "checkpoint-30-40": at(),
    "step-5-rank_0.pt": at(5),
    "step=5-global_step=100.ckpt": at(100),
    "step=99999999999999999999999.pt": at(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_known_layouts_are_read(name: str) -> None:
    found = place(name)
    assert found is not None
    assert (found.step, found.epoch, found.version) == LAYOUTS[name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".hidden-5.pt",
        "step-5.pt.tmp",
        "step-5.part",
        "step-5.temp",
        "train.py",
        "zero_to_fp32.py",
        "latest",
        "latest_checkpointed_iteration.txt",
        "latest_universal",
        "checkpoint",
        "events.out.tfevents.1763800000.host.12.0",
        "train.log",
        "metrics-5.csv",
        "step-5.csv",
        "config.json",
        "notes.txt",
        "rank_0.pt",
        "model-00001-of-00005.safetensors",
        "rng_state_1.pth",
        "unproved",
    ],
)
def test_what_is_no_checkpoint_of_its_own_has_no_place(name: str) -> None:
    assert place(name) is None


WEIGHTS = {
    "torch": "pt pth ptz th tar zip pt.gz pkl pickle distcp",
    "Lightning, NeMo": "ckpt nemo",
    "Hugging Face": "bin safetensors msgpack",
    "Keras, numpy": "keras h5 hdf5 weights.h5 npz npy",
    "others": "onnx model weights params gz",
}


@pytest.mark.parametrize("ending", [each for text in WEIGHTS.values() for each in text.split()])
@pytest.mark.parametrize("stem", ["best", "My-Model"])
def test_a_file_of_weights_needs_no_number(stem: str, ending: str) -> None:
    for name in (f"{stem}.{ending}", f"{stem}.{ending.upper()}"):
        assert _placed(name).number is None


@pytest.mark.parametrize(
    "ending", ["py", "log", "csv", "tsv", "md", "sh", "lock", "out", "err", "png", "html"]
)
def test_a_number_makes_no_checkpoint_of_another_file(ending: str) -> None:
    assert place(f"step-5.{ending}") is None
    assert place(f"plots-step-5.{ending.upper()}") is None


@pytest.mark.parametrize(
    "name", ["lightning_logs", "logs", "runs", "wandb", "tensorboard", "mlruns", "__pycache__"]
)
def test_folders_of_trackers_are_none(name: str) -> None:
    assert place(name) is None


STEPS = "step steps iter iters iteration iterations it update updates ba gstep globalstep global_step"


@pytest.mark.parametrize("word", STEPS.split())
def test_every_word_for_a_step_is_known(word: str) -> None:
    for name in (f"{word}-7.pt", f"run_{word}=7", f"{word.title()}7.ckpt", f"epoch-3-{word}_7.pt"):
        assert _placed(name).step == 7, name


@pytest.mark.parametrize("word", ["epoch", "epochs", "ep"])
def test_every_word_for_an_epoch_is_known(word: str) -> None:
    for name in (f"{word}-7.pt", f"run_{word}=7.pt", f"{word.title()}7.ckpt"):
        assert (_placed(name).step, _placed(name).epoch) == (None, 7), name


@pytest.mark.parametrize("less, more", [("iter", "step"), ("step", "gstep")])
def test_of_several_words_for_a_step_the_clearest_counts(less: str, more: str) -> None:
    assert _placed(f"{less}-5-{more}-7.pt").step == _placed(f"{more}-7-{less}-5.pt").step == 7


SETTING_WORDS = "warmup max min total num n save eval accumulation grad every per lr decay stop of"


@pytest.mark.parametrize("word", SETTING_WORDS.split())
def test_a_setting_of_steps_is_no_step(word: str) -> None:
    assert _placed(f"run-{word}_steps_500.pt").step is None
    assert _placed(f"run-{word}_steps_500-step-7.pt").step == 7


def test_a_number_without_a_word_counts_only_where_no_other_is_named() -> None:
    assert (_placed("model_5.pt").step, _placed("model_5.pt").epoch) == (5, None)
    for name in ("model_5_epoch_3.pt", "epoch_3_model_5.pt", "model-5-epoch=3.ckpt"):
        assert (_placed(name).step, _placed(name).epoch) == (None, 3), name
    assert _placed("step_7_model_5.pt").step == 7


@pytest.mark.parametrize(
    "name, is_plain",
    [
        *(
            (name, True)
            for name in ("ckpt_1337.pt", "checkpoint-500", "model_0004999.pth", "1000", "state-7")
        ),
        *((name, False) for name in ("step-5.pt", "global_step100", "iter_100.pth", "step-5-model_7.pt")),
        *((name, False) for name in ("epoch_12.pth", "last.ckpt", "100steps.pt", "checkpoint_3_5000.pt")),
    ],
)
def test_a_number_without_a_word_for_a_step_is_known_as_such(name: str, is_plain: bool) -> None:
    assert _placed(name).is_plain is is_plain


def test_a_pattern_leaves_no_doubt_of_a_step() -> None:
    found = place("ckpt_1337.pt", r"ckpt_(?P<step>\d+)\.pt")
    assert found is not None
    assert (found.step, found.is_plain) == (1337, False)


@pytest.mark.parametrize(
    "names",
    [
        ["last.ckpt", "last-v1.ckpt", "last-v2.ckpt"],
        ["step-000100.pt", "step-000200.pt"],
        ["epoch=3-step=200.ckpt", "epoch=4-step=300.ckpt", "epoch=4-step=300-v1.ckpt"],
        ["epoch=3-val_loss=0.42.ckpt", "epoch=4-val_loss=1.42.ckpt"],
        ["checkpoint-30-20261122", "checkpoint-60-20261123"],
        ["checkpoint-500", "checkpoint-1000"],
        ["model_epoch_3_loss_0.45.pt", "model_epoch_13_loss_0.5.pt"],
    ],
)
def test_names_that_differ_in_numbers_alone_are_one_series(names: list[str]) -> None:
    assert len({_placed(name).series for name in names}) == 1


def test_names_that_differ_in_words_are_series_of_their_own() -> None:
    names = ["last.ckpt", "best.ckpt", "last.pt", "step-5.pt", "epoch-5.pt", "checkpoint-5", "resnet50.pt"]
    assert len({_placed(name).series for name in names}) == len(names)


def test_metrics_in_a_name_can_be_compared() -> None:
    assert _placed("epoch=3-val_loss=0.42-acc=91.ckpt").metrics == {"val_loss": 0.42, "acc": 91.0}
    assert _placed("model_epoch_3_loss_0.45.pt").metrics == {"loss": 0.45}


@dataclass(frozen=True)
class Said:
    """A piece of a name, and what it says."""

    text: str
    step: int | None = None
    epoch: int | None = None


def _step(seed: random.Random) -> Said:
    number = seed.choice([0, 1, seed.randrange(100), seed.randrange(10**6), 20261122])
    digits = str(number).zfill(seed.choice([1, 4, 8, 10]))
    key = seed.choice(["step", "global_step", "Step", "iter", "train_step", "iteration", "update"])
    return Said(f"{key}{seed.choice('=-_')}{digits}", step=number)


def _epoch(seed: random.Random) -> Said:
    number = seed.randrange(1000)
    return Said(f"{seed.choice(['epoch', 'Epoch', 'ep'])}{seed.choice('=-_')}{number}", epoch=number)


def _metric(seed: random.Random) -> Said:
    name = seed.choice(
        ["val_loss", "loss", "acc", "val_acc", "ppl", "lr", "train_loss_step_mean", "f1", "mAP"]
    )
    value = seed.choice(
        [
            f"{seed.uniform(0, 99):.{seed.randrange(1, 6)}f}",
            f"{seed.uniform(0, 1):.2e}",
            str(seed.randrange(99)),
        ]
    )
    return Said(f"{name}{'=' if value.isdigit() else seed.choice('=_')}{value}")


def _date(seed: random.Random) -> Said:
    year, month, day = seed.randrange(2001, 2099), seed.randrange(1, 13), seed.randrange(1, 29)
    hour, minute, second = seed.randrange(24), seed.randrange(60), seed.randrange(60)
    separator = seed.choice(["", "-", "_"])
    date = separator.join((f"{year}", f"{month:02}", f"{day:02}"))
    time = seed.choice(
        [
            "",
            f"-{hour:02}{minute:02}{second:02}",
            f"_{hour:02}-{minute:02}-{second:02}",
            f"T{hour:02}{minute:02}",
        ]
    )
    return Said(date + time)


def _word(seed: random.Random) -> Said:
    return Said(
        seed.choice(
            [
                "resnet50",
                "gpt2",
                "llama-7b",
                "best",
                "run",
                "bf16",
                "x4",
                "seed-42",
                "fold_3",
                "v2",
                "3f2a9c1",
            ]
        )
    )


@pytest.mark.parametrize("number", range(20))
def test_only_what_is_called_a_step_is_one(number: int) -> None:
    seed = random.Random(SEED + number)
    for _ in range(200):
        kinds = [_metric, _date, _word]
        pieces = [seed.choice(kinds)(seed) for _ in range(seed.randrange(4))]
        pieces += [_step(seed)] if seed.random() < 0.5 else []
        pieces += [_epoch(seed)] if seed.random() < 0.5 else []
        seed.shuffle(pieces)
        version = seed.choice([None, None, 1, 23])
        stem = seed.choice(["-", "_", "--"]).join(["model", *(piece.text for piece in pieces)])
        name = (
            stem
            + (f"-v{version}" if version else "")
            + seed.choice([".ckpt", ".pt", ".tar.gz", ".safetensors"])
        )
        steps = [piece.step for piece in pieces if piece.step is not None]
        epochs = [piece.epoch for piece in pieces if piece.epoch is not None]
        found = place(name)
        assert found is not None, (SEED + number, name)
        assert found.step == (steps[0] if steps else None), (SEED + number, name)
        assert found.epoch == (epochs[0] if epochs else None), (SEED + number, name)
        assert version is None or found.version == version, (SEED + number, name)


@pytest.mark.parametrize("number", range(5))
def test_any_name_at_all_is_placed_or_not_without_an_error(number: int) -> None:
    seed = random.Random(SEED + number)
    alphabet = "stepochv0123456789=-_. \u0663é"
    for _ in range(2000):
        name = "".join(seed.choice(alphabet) for _ in range(seed.randrange(30)))
        found = place(name)
        if found is not None:
            assert found.step is None or str(found.step) in name, (SEED + number, name)


def test_a_pattern_says_what_the_name_alone_does_not() -> None:
    pattern = r"mymodel_(?P<step>\d+)\.(pt|bin)|final"
    assert place("mymodel_100.pt") == Placed(series="mymodel_100.pt")
    assert place("mymodel_100.pt", pattern) == Placed(series="mymodel_#.pt", step=100)
    assert place("mymodel_200.pt", pattern) == Placed(series="mymodel_#.pt", step=200)
    assert place("final", pattern) == Placed(series="final")
    assert place("resnet_100.pt", pattern) is None
    assert place(".mymodel_100.pt.tmp", pattern) is None
    assert place("e3_100", r"e(?P<epoch>\d+)_(?P<step>\d+)") == Placed(series="e#_#", step=100, epoch=3)
    assert place("e3_x", r"e(?P<epoch>\d+)_(?P<step>\w+)") == Placed(series="e#_#", epoch=3)


def _placed(name: str) -> Placed:
    found = place(name)
    assert found is not None
    return found


def test_a_series_is_a_name_with_a_sign_for_each_of_its_numbers() -> None:
    for name, series in (
        ("step-70.pt", "step-#.pt"),
        ("step_7.pt", "step_#.pt"),
        ("step=7.ckpt", "step=#.ckpt"),
    ):
        found = place(name)
        assert found is not None
        assert found.series == series
    found = place("run12-at345.pt", r"run(?P<epoch>\d+)-at(?P<step>\d+)\.pt")
    assert found is not None
    assert (found.series, found.epoch, found.step) == ("run#-at#.pt", 12, 345)


@pytest.mark.parametrize(
    "fence, count, folder",
    [
        (Fence(attempt=1), 1, "step-1"),
        (Fence(attempt=2), 1, "step-1.attempt-2"),
        (Fence(attempt=3), 2, "step-1.attempt-3.again-2"),
        (Fence(attempt=1, launch=2), 1, "step-1.launch-2"),
        (Fence(attempt=12, launch=1), 3, "step-1.attempt-12.launch-1.again-3"),
    ],
)
def test_each_launch_publishes_to_a_folder_of_its_own_that_names_its_attempt(
    fence: Fence, count: int, folder: str
) -> None:
    assert published_folder("step-1", fence, count) == folder
    assert publishing_attempt(folder) == fence.attempt


@pytest.mark.parametrize("name", ["epoch_3", "last.ckpt", "a+b", "x.step-5"])
def test_the_folders_of_a_saves_versions_have_its_name_in_common(name):
    for named in (name, f"{name}.step-1500", f"{name}.save-3"):
        for fence in (Fence(attempt=1), Fence(attempt=12), Fence(attempt=2, launch=34)):
            for count in (1, 2, 999):
                assert save_folder(name, published_folder(named, fence, count)) == name


@pytest.mark.parametrize(
    "folder",
    [
        "epoch_3.step-9-keep",
        "epoch_3.step-",
        "epoch_3.step-9.step-9",
        "epoch_3.again-2.step-9",
        "epoch_30.step-9",
        "epoch_3-copy",
        "my-epoch_3",
        "epoch_4",
        "epoch_3.again-2 (copy)",
    ],
)
def test_a_folder_that_is_named_otherwise_is_no_version(folder):
    assert save_folder("epoch_3", folder) == folder
