"""Metrics: step, loss, throughput and learning rate from programs' output or a file. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

Metrics = dict[str, Any]
"""The fields of Progress that were found: `step`, `steps`, `loss`, `throughput`, `learning_rate`. Of lines also:

`epoch`, with `epochs` and `length` where the line has them: the step is counted within the epoch, of `length` steps;
`of_bar`: the step is that of a progress bar; `shown_again`: of one that was cleared to print something;
`record`: a dictionary without a step, printed so.
"""

_NUMBER = rb"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
_IS = rb"['\"]?\s*[:=]?\s*['\"]?"
"""Text between a name and its value: `loss 2.3`, `loss=2.3`, `loss: 2.3`, `'loss': 2.3`, `"loss": "2.3"`."""
_RATES = (
    rb"(?:train_)?(?:tokens|samples|examples|images|tok|it)(?:/s(?:ec)?|_per_s(?:ec(?:ond)?)?)|tps|throughput"
)

_WHOLE = rb"([1-9]\d{0,2}(?:(?:,\d{3}){1,4}|(?:_\d{3}){1,4})(?![,_]?\d)|\d{1,15})"
"""A count: `1999`, `1,999`, `1_999`.

A list such as `step 3,145 ms` is taken for one too. That is the lesser harm: its number still changes with each step,
while of `step 1,999` the first part alone would stay the same for a thousand steps, as those of a hang.
"""
STEP = re.compile(
    rb"(?<![\w.-])(?:global_)?step['\"]?\s*[:=#]?\s*['\"]?"
    + _WHOLE
    + rb"(?![\w.]*\.\d)(?:\s*(?:/|of)\s*"
    + _WHOLE
    + rb")?",
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
ANY_BAR = re.compile(rb"\d%\|[^|\r\n]*\|\s*(\d+)/(\d+)\s\[")
RICH_BAR = re.compile(rb"^\s*Epoch (\d+)(?:/[\d-]+)?\s+\S*[\xe2\s][^\d]*\s(\d+)/(\d+)\s")
_COUNT = rb"\s*[:=#]?\s*['\"\[(]*\s*" + _WHOLE + rb"(?!\d*\.\d)(?:\s*(?:/|of)\s*" + _WHOLE + rb")?"
EPOCH = re.compile(rb"(?<![\w.-])epoch['\"]?" + _COUNT, re.IGNORECASE)
WITHIN_EPOCH = re.compile(rb"(?<![\w.-])(?:iter(?:ation)?|batch|step)['\"]?" + _COUNT, re.IGNORECASE)
ITERATION = re.compile(rb"(?<![\w.-])iter(?:ation)?['\"]?" + _COUNT, re.IGNORECASE)
EPOCH_AND_COUNT = re.compile(
    # `Epoch: [0][ 10/5005]  Loss 6.9`, as torchvision's programs print it, and `[1,  2000] loss: 2.1`.
    rb"epoch:?\s*\[(?P<epoch>\d{1,9})\]\s*\[\s*(?P<count>\d{1,15})/(?P<length>\d{1,15})\]"
    rb"|\[\s*(?P<epoch_of_pair>\d{1,9}),\s*(?P<count_of_pair>\d{1,15})\]\s*loss:",
    re.IGNORECASE,
)
ANSI_COLOURS = re.compile(rb"\x1b\[[0-9;]*m")
LINE_PREFIXES = re.compile(rb"(?m)^(?:\[[A-Za-z_][\w-]*?\d+\]:){1,2}")
"""Marks by which torchrun names a line's process: `[default0]:`."""
UP = b"\x1b[A"
"""Sequence by which tqdm returns from a bar below another."""
HINTS = re.compile(rb"step|loss|%\||epoch", re.IGNORECASE)
"""Texts without which output holds no metrics."""
CLEARED = re.compile(rb"(?:^|[\r\n]) +[\r\n]")
"""Blanks by which tqdm clears a bar."""
PRINTED_RECORD = re.compile(rb"['\"](?:\w+_)?(?:loss|runtime)['\"]:")


class OutputReader:
    """Reads one stream of output, piece by piece."""

    def __init__(self) -> None:
        self._is_cleared = False
        """Whether a bar was cleared, and no other printed since."""

    def read(self, output: bytes) -> list[Metrics]:
        """Return the metrics of each line that has a step or a step's results.

        Understood are `step 10/300 loss 2.34` and its spellings with `:` and `=`, iterations, alone or within epochs,
        torchtitan's lines, the dictionaries of Hugging Face's Trainer, JSON, and the bars of tqdm and Lightning.
        """
        if not (HINTS.search(output) or CLEARED.search(output)):
            return []
        lines = LINE_PREFIXES.sub(b"", ANSI_COLOURS.sub(b"", output)).replace(b"\r", b"\n").split(b"\n")
        return [found for line in lines if (found := self._read(line))]

    def peek(self, rest: bytes, steps: int | None) -> Metrics:
        """Return the metrics of a line without an end, if it is the bar of `steps` steps, shown again.

        A bar's line ends when the next is shown, perhaps minutes later.
        """
        if not (self._is_cleared and rest.endswith(b"]")):
            return {}
        found = _read_line(ANSI_COLOURS.sub(b"", rest))
        if not found.get("of_bar") or found.get("steps") != steps:
            return {}
        self._is_cleared = False
        return {**found, "shown_again": True}

    def _read(self, line: bytes) -> Metrics:
        if line and not line.strip(b" "):
            self._is_cleared = True
            return {}
        found = _read_line(line)
        if found.get("of_bar") and self._is_cleared:
            found["shown_again"] = True
            self._is_cleared = False
        return found


def last_bar(output: bytes) -> tuple[bytes, bytes] | None:
    """Return count and total of the last of tqdm's bars in some output, whatever it counts."""
    found: list[tuple[bytes, bytes]] = ANY_BAR.findall(output) if b"%|" in output else []
    return found[-1] if found else None


def _read_line(line: bytes) -> Metrics:
    place = _bar(line) or _within_epoch(line) or _step(line)
    is_record = not place and _is_record(line)
    if not place and not is_record and not _is_of_epoch(line):
        return {}
    found = {
        # At its end the Trainer prints the mean of all steps.
        "loss": None if is_record and b"train_runtime" in line else _number(LOSS.search(line)),
        "throughput": _throughput(line),
        "learning_rate": _number(LEARNING_RATE.search(line)),
        "record": is_record or None,
    }
    return finite_values(**place, **found)


def _within_epoch(line: bytes) -> Metrics:
    """Return epoch and count of a line that has both, or the count of iterations, and a loss beside."""
    if LOSS.search(line) is None:
        return {}
    both = EPOCH_AND_COUNT.search(line)
    if both:
        named = {name: number and int(number) for name, number in both.groupdict().items()}
        epoch, count = named["epoch"], named["count"]
        return {
            "step": named["count_of_pair"] if count is None else count,
            "epoch": named["epoch_of_pair"] if epoch is None else epoch,
            "length": named["length"],
        }
    epoch_at, count_at = EPOCH.search(line), WITHIN_EPOCH.search(line)
    if epoch_at and count_at:
        (epoch, epochs), (count, length) = _counts(epoch_at), _counts(count_at)
        return {"step": count, "epoch": epoch, "epochs": epochs, "length": length}
    alone = ITERATION.search(line)
    return dict(zip(("step", "steps"), _counts(alone))) if alone else {}


def _counts(found: re.Match[bytes]) -> tuple[int, int | None]:
    """Return a count, and the number of all where the line has it."""
    count, total = found.groups()
    return _whole(count), None if total is None else _whole(total)


def _whole(digits: bytes) -> int:
    return int(re.sub(rb"[,_]", b"", digits))


def _is_of_epoch(line: bytes) -> bool:
    """Whether a line has the loss of an epoch, or of a part of it, without a step."""
    return EPOCH.search(line) is not None and LOSS.search(line) is not None


def _step(line: bytes) -> Metrics:
    step = STEP.search(line)
    if step is None:
        return {}
    if not (step[2] or LOSS.search(line) or line.lstrip().lower().startswith(b"step")):
        # "going on from step 0" is prose.
        return {}
    return dict(zip(("step", "steps"), _counts(step)))


def _bar(line: bytes) -> Metrics:
    bar = BAR.search(line) or RICH_BAR.search(line)
    if bar is None or (line.endswith(UP) and not bar[1]):
        # A bar below another, if not of an epoch, is an evaluation's.
        return {}
    epoch, done, total = int(bar[1] or 0), int(bar[2]), int(bar[3])
    # Lightning begins a bar for each epoch, from 0 on, without the number of epochs.
    return {"step": epoch * total + done, "steps": None if bar[1] else total, "of_bar": True}


def _is_record(line: bytes) -> bool:
    """Whether a line is a dictionary as Hugging Face's Trainer prints it, without the step."""
    text = line.strip()
    return text[:1] == b"{" and text[-1:] == b"}" and PRINTED_RECORD.search(text) is not None


def _throughput(line: bytes) -> float | None:
    throughput = _number(THROUGHPUT.search(line) or THROUGHPUT_BEHIND.search(line))
    seconds = _number(SECONDS_EACH.search(line))
    return throughput if throughput is not None or not seconds else 1.0 / seconds


def _number(found: re.Match[bytes] | None) -> float | None:
    return float(found[1].replace(b",", b"")) if found else None


def read_record(line: bytes) -> Metrics:
    """Return the metrics of one line of the progress file; none if it is not valid JSON."""
    try:
        record = json.loads(line)
        fields = {name: kind(record[name]) for name, kind in _KINDS.items() if record.get(name) is not None}
        return finite_values(**fields)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def announced_in(line: bytes) -> str | None:
    """Return the checkpoint folder's entry that a line of the progress file announces as whole."""
    if b'"checkpoint"' not in line:
        return None
    try:
        name = json.loads(line)["checkpoint"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return PurePosixPath(name).name or None if isinstance(name, str) else None


_KINDS: dict[str, type[int | float | bool]] = {
    "step": int,
    "steps": int,
    "loss": float,
    "throughput": float,
    "learning_rate": float,
    "complete": bool,
    "rank": int,
    "seconds": float,
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
    """Yield the metrics of TensorBoard's scalars (step, tag, value), in order."""
    for step, tag, value in scalars:
        field = next((field for field, tag_of in TAGS.items() if tag_of.search(tag)), None)
        yield finite_values(step=step, **({field: value} if field else {}))


def finite_values(**fields: Any) -> Metrics:
    # JSON has no NaN: such a loss is left out of the report.
    return {name: value for name, value in fields.items() if value is not None and math.isfinite(value)}
