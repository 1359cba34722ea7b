"""Names that programs give their checkpoints, many of them with numbers that ocidist does not recognize as steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Name = Callable[[int], str]
"""Function that returns the name of the save with this number, from 1."""
WORDS = (
    "G",
    "D",
    "net_g",
    "net_d",
    "mymodel",
    "agent",
    "unet",
    "vae-ema",
    "resnet18_head",
    "gpt2",
    "seg.net",
)
EXTENSIONS = (".pt", ".pth", ".ckpt", ".safetensors")


def a_name(dice: random.Random, word: str) -> Name:
    """Return names that are of one series, with a word that no other series has."""
    seed, extension, between = dice.random(), dice.choice(EXTENSIONS), dice.choice(["_", "-"])
    every, digits = dice.choice([1, 10, 1000]), dice.choice([1, 6])

    def number(save: int) -> str:
        return f"{save * every:0{digits}}"

    def unique(save: int) -> str:
        return f"{random.Random(f'{seed} {save}').getrandbits(32):08x}"

    kinds: Sequence[Name] = (
        lambda save: f"{word}{between}{number(save)}{extension}",
        lambda save: f"{number(save)}{between}{word}{extension}",
        lambda save: f"{word}{between}{save}epoch{extension}",
        lambda save: f"{word}{between}{save}k{extension}",
        lambda save: f"{word}{between}{unique(save)}{extension}",
        lambda save: f"{word}{between}step-{number(save)}-{unique(save)}{extension}",
        lambda save: f"{word}{between}epoch_{save // 9}_{number(save)}{extension}",
        lambda save: f"{word}{between}{number(save)}-psnr{30 + save % 7}{extension}",
        lambda save: f"{word}{between}{number(save)}-loss0.{99 - save}{extension}",
        # These are recognized.
        lambda save: f"{word}{between}step-{number(save)}{extension}",
        lambda _: f"{word}-last{extension}",
    )
    return dice.choice(kinds)


def some_names(dice: random.Random) -> list[Name]:
    """Return the names of a program that saves some checkpoints at each of its steps."""
    return [a_name(dice, word) for word in dice.sample(WORDS, dice.choice([1, 1, 2, 2, 3]))]


def of_several_models(dice: random.Random, count: int) -> list[Name]:
    """Return names that differ in a number for the model."""
    word, text = dice.choice(WORDS), dice.choice(["{word}_{model}_{step}.pt", "{step}_{word}-{model}.pt"])
    return [
        lambda save, model=model: text.format(word=word, model=model, step=1000 * save)
        for model in range(count)
    ]
