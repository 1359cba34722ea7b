"""Metrics: step, loss, throughput and learning rate in what programs print, or write into a file. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

Metrics = dict[str, Any]
"""Fields of Progress: `step`, `steps`, `loss`, `throughput`, `learning_rate`; only those that were found."""

_NUMBER = rb"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_IS = rb"['\"]?\s*[:=]?\s*['\"]?"
"""Between a name and its value: `loss 2.3`, `loss=2.3`, `loss: 2.3`, `'loss': 2.3`, `"loss": "2.3"`."""
_RATES = (
    rb"(?:train_)?(?:tokens|samples|examples|images|tok|it)(?:/s(?:ec)?|_per_s(?:ec(?:ond)?)?)|tps|throughput"
)

STEP = re.compile(
    rb"(?<![\w.-])(?:global_)?step['\"]?\s*[:=#]?\s*['\"]?(\d{1,15})(?![\w.]*\.\d)(?:\s*(?:/|of)\s*(\d{1,15}))?",
    re.IGNORECASE,
)
LOSS = re.compile(
    rb"(?<!val )(?<!eval )(?<!test )(?<!valid )(?<![\w.-])(?:train[_/ ])?loss" + _IS + _NUMBER, re.IGNORECASE
)
THROUGHPUT = re.compile(rb"(?<![\w.-])(?:" + _RATES + rb")" + _IS + _NUMBER, re.IGNORECASE)
THROUGHPUT_BEHIND = re.compile(
    _NUMBER + rb"\s*(?:tokens|samples|examples|images|tok|it|steps?)/s(?:ec)?\b", re.IGNORECASE
)
SECONDS_EACH = re.compile(_NUMBER + rb"\s*s/it\b")
LEARNING_RATE = re.compile(rb"(?<![\w.-])(?:lr|learning[_ ]rate)" + _IS + _NUMBER, re.IGNORECASE)
BAR = re.compile(
    # tqdm, as Hugging Face and Lightning use it: `  5%|#    | 10/200 [00:05<01:35,  2.00it/s, loss=2.3]`.
    rb"^\s*(?:(?:Epoch|Training|Train|Steps?)\b\s*(\d*)[^|%]*)?\s*\d{1,3}%\|[^|]*\|\s*(\d+)/(\d+)\s\["
)
RICH_BAR = re.compile(rb"^\s*Epoch (\d+)(?:/[\d-]+)?\s+\S*[\xe2\s][^\d]*\s(\d+)/(\d+)\s")
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
HINTS = re.compile(rb"step|loss|%\||epoch", re.IGNORECASE)
"""Without one of these a piece of output holds nothing for us."""


def read_lines(output: bytes) -> list[Metrics]:
    """Return what each line says that speaks of a step, or of what a step has brought.

    Understood are `step 10/300 loss 2.34` and its spellings with `:` and `=`, torchtitan's lines, the dictionaries of
    Hugging Face's Trainer, JSON, and the bars of tqdm and Lightning.
    """
    if not HINTS.search(output):
        return []
    lines = COLOURS.sub(b"", output).replace(b"\r", b"\n").split(b"\n")
    return [found for line in lines if (found := _read_line(line))]


def _read_line(line: bytes) -> Metrics:
    place = _bar(line) or _step(line)
    if not place and not _is_record(line):
        return {}
    found = {
        "loss": _number(LOSS.search(line)),
        "throughput": _throughput(line),
        "learning_rate": _number(LEARNING_RATE.search(line)),
    }
    return known(**place, **found)


def _step(line: bytes) -> Metrics:
    step = STEP.search(line)
    if step is None:
        return {}
    if not (step[2] or LOSS.search(line) or line.lstrip().lower().startswith(b"step")):
        # "going on from step 0" is prose.
        return {}
    return {"step": int(step[1]), "steps": step[2] and int(step[2])}


def _bar(line: bytes) -> Metrics:
    bar = BAR.search(line) or RICH_BAR.search(line)
    if bar is None:
        return {}
    epoch, done, total = int(bar[1] or 0), int(bar[2]), int(bar[3])
    # Lightning begins a bar for each epoch, from 0 on, and does not say how many there will be.
    return {"step": epoch * total + done, "steps": None if bar[1] else total, "of_bar": True}


def _is_record(line: bytes) -> bool:
    """Whether a line is a dictionary with a loss, as Hugging Face's Trainer prints it, without the step."""
    return line.lstrip()[:1] == b"{" and LOSS.search(line) is not None


def _throughput(line: bytes) -> float | None:
    told = _number(THROUGHPUT.search(line) or THROUGHPUT_BEHIND.search(line))
    seconds = _number(SECONDS_EACH.search(line))
    return told if told is not None or not seconds else 1.0 / seconds


def _number(found: re.Match[bytes] | None) -> float | None:
    return float(found[1].replace(b",", b"")) if found else None


def read_record(line: bytes) -> Metrics:
    """Return what one line of the progress file says; nothing if it is not JSON of the right form."""
    try:
        record = json.loads(line)
        fields = {name: kind(record[name]) for name, kind in _KINDS.items() if record.get(name) is not None}
    except (ValueError, TypeError, AttributeError, OverflowError):
        return {}
    return known(**fields)


def announced_in(line: bytes) -> str | None:
    """Return the entry of the checkpoint folder that a line of the progress file names as whole."""
    if b'"checkpoint"' not in line:
        return None
    try:
        name = json.loads(line)["checkpoint"]
    except (ValueError, TypeError, KeyError):
        return None
    return PurePosixPath(name).name or None if isinstance(name, str) else None


_KINDS: dict[str, type[int | float | bool]] = {
    "step": int,
    "steps": int,
    "loss": float,
    "throughput": float,
    "learning_rate": float,
    "complete": bool,
}

TAGS = {
    "loss": re.compile(
        r"^(?:train[_/]?)?loss(?:_epoch|_step|/train)?$|^train/(?:train_)?loss|global_avg_loss$",
        re.IGNORECASE,
    ),
    "throughput": re.compile(r"throughput|tokens_per_sec|samples_per_sec|^tps$", re.IGNORECASE),
    "learning_rate": re.compile(r"(?:^|/)(?:lr|learning_rate)(?:-\w+)?$", re.IGNORECASE),
}
"""Names that loggers give to scalars in TensorBoard's event files."""


def read_scalars(scalars: Iterator[tuple[int, str, float]]) -> Iterator[Metrics]:
    """Yield what TensorBoard's scalars (step, tag, value) say, in their order."""
    for step, tag, value in scalars:
        field = next((field for field, tag_of in TAGS.items() if tag_of.search(tag)), None)
        yield known(step=step, **({field: value} if field else {}))


def known(**fields: Any) -> Metrics:
    # JSON has no NaN: a loss that is one is as good as unknown to whoever reads the report.
    return {name: value for name, value in fields.items() if value is not None and math.isfinite(value)}
