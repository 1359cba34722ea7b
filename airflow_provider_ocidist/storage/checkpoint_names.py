"""Checkpoint names: the series and the step that an entry's name states unambiguously. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from airflow_provider_ocidist.backports import dataclass
from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.model.fence import Fence

UNPROVED = "unproved"
"""Folder beside the published checkpoints for unproved entries; never a checkpoint itself."""
UNFINISHED_ENDINGS = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".crdownload")
"""Endings of the names of entries that are still being written."""
POINTERS = {"latest", "latest_universal", "latest_checkpointed_iteration.txt", "checkpoint"}
"""Names of small files that refer to a checkpoint beside them: DeepSpeed's, Megatron's, TensorFlow's."""
LARGEST_POINTER = 1 << 16
"""Most bytes of such a file; what is larger, or a folder, is a checkpoint that has its name."""
OTHER_FOLDERS = {"lightning_logs", "logs", "runs", "wandb", "tensorboard", "mlruns", "__pycache__"}
NEVER = {"py", "log", "csv", "tsv", "md", "sh", "lock", "out", "err", "png", "html"}
"""Extensions of files that are no checkpoints, whatever number is in their names."""
WEIGHTS_EXTENSIONS = {
    "pt",
    "pth",
    "ptz",
    "ckpt",
    "bin",
    "safetensors",
    "npz",
    "npy",
    "pkl",
    "pickle",
    "keras",
    "h5",
    "hdf5",
}
WEIGHTS_EXTENSIONS |= {
    "tar",
    "gz",
    "zip",
    "msgpack",
    "onnx",
    dcp.ENDING.lstrip("."),
    "model",
    "weights",
    "params",
    "nemo",
    "th",
}

STEPS = {"step": 2, "steps": 2, "gstep": 3, "globalstep": 3, "iter": 1, "iters": 1, "iteration": 1, "ba": 1}
STEPS |= {"iterations": 1, "it": 1, "update": 1, "updates": 1}
"""Words before a step, with a priority: of several in one name, the highest counts."""
PLAIN = 0
"""Priority of a number without such a word."""
EPOCHS = {"epoch", "epochs", "ep"}
SETTING_WORDS = {
    "warmup",
    "max",
    "min",
    "total",
    "num",
    "n",
    "save",
    "eval",
    "accumulation",
    "grad",
    "every",
    "per",
}
SETTING_WORDS |= {"lr", "decay", "stop", "of"}
"""Words that turn a following one into a setting: `max_steps=1000`."""
GLOBAL = "global"
MOST_DIGITS = 18

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_WHOLE = r"[0-9]+(?![0-9A-Za-z]|\.[0-9])"
_EXTENSIONS = re.compile(r"(?:\.[A-Za-z][A-Za-z0-9_]*)+$")
_VERSION = re.compile(r"[-_.]v(?P<version>[0-9]+)$")
_KEYED = re.compile(rf"(?<![A-Za-z])(?P<key>[A-Za-z]+(?:_[A-Za-z]+)*)[-=_:]?(?P<number>{_WHOLE})")
_COUNTED = re.compile(
    r"(?<![A-Za-z0-9.])(?P<number>[0-9]+)[-_]?(?P<key>steps|iters|iterations|epochs)(?![A-Za-z])"
)
_DATE = re.compile(
    r"(?<![0-9])(?:19|20)[0-9]{2}(?P<between>[-_.]?)(?:0[1-9]|1[0-2])(?P=between)(?:0[1-9]|[12][0-9]|3[01])"
    r"(?:[-_T. ]?(?:[01][0-9]|2[0-3])[-_:.]?[0-5][0-9](?:[-_:.]?[0-5][0-9])?)?(?![0-9])"
)
_TIMESTAMP = re.compile(r"(?<![0-9])[0-9]{10,}(?![0-9])")
_METRIC = re.compile(
    rf"(?P<key>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z][A-Za-z0-9]*)*)=(?P<value>-?{_NUMBER})(?![0-9A-Za-z])"
)
_DECIMAL = re.compile(
    r"(?:(?P<key>[A-Za-z]+(?:_[A-Za-z]+)*)[-_:]?)?(?<![0-9.])"
    r"(?P<value>[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)(?![0-9A-Za-z])"
)
_PART = re.compile(
    r"(?:^|[-_.])(?:rank|shard|part|rng_state|worker|proc)[-_]?[0-9]+(?![0-9])|[0-9]+-of-[0-9]+"
)
_FAIRSEQ = re.compile(r"checkpoint_(?P<epoch>[0-9]+)_(?P<step>[0-9]+)")
_PLAIN = re.compile(
    rf"(?:^|(?<=[-_.]))(?:(?:checkpoint|ckpt|chkpt|snapshot|model|weights|state)s?[-_.]?)(?P<number>{_WHOLE})",
    re.IGNORECASE,
)
_ANOTHER = re.compile(r"[-_.][0-9]+(?![0-9A-Za-z])")
_OWNED = r"(?:\.attempt-[0-9]+)?(?:\.launch-[0-9]+)?(?:\.again-[0-9]+)?"
_VERSION_OF_SAVE = re.compile(rf"(?:\.(?:step|save)-[0-9]+)?{_OWNED}")
_OWNER = re.compile(r"\.attempt-(?P<attempt>[0-9]+)(?:\.launch-[0-9]+)?(?:\.again-[0-9]+)?$")


def named_folder(name: str, step: int | None, sequence: int) -> str:
    """Return an entry's name with its step, else its number among the saves, where the name itself has none."""
    placed = place(name)
    if step is None and (placed is None or placed.step is None):
        return f"{name}.save-{sequence}"
    if step is not None and (placed is None or placed.number != step):
        return f"{name}.step-{step}"
    return name


def published_folder(named: str, fence: Fence, count: int = 1) -> str:
    """Return the folder that a launch publishes a checkpoint to; `count`: how often it has published this name."""
    own = f"{named}.attempt-{fence.attempt}" if fence.attempt > 1 else named
    own = f"{own}.launch-{fence.launch}" if fence.launch else own
    return own if count == 1 else f"{own}.again-{count}"


def save_folder(name: str, folder: str) -> str:
    """Return what the folders of all versions of one save of an entry have in common; for others the folder itself.

    The program's step may have moved between two versions.
    """
    is_version = folder.startswith(name) and _VERSION_OF_SAVE.fullmatch(folder, len(name))
    return name if is_version else folder


def publishing_attempt(folder: str) -> int | None:
    """Return the attempt that publishes to a checkpoint's folder; only attempts after 1 are named.

    None: nodes of any attempt write there what nothing proves.
    """
    if folder == UNPROVED:
        return None
    named = _OWNER.search(folder)
    return int(named["attempt"]) if named else 1


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where an entry of the checkpoint folder belongs."""

    series: str
    """Name that successive entries share: without its numbers, or the one name of all."""
    step: int | None = None
    """Step; None if the name states none clearly."""
    is_plain: bool = False
    """Whether the step is a number without a word for a step: it may count something else, or be a seed."""
    epoch: int | None = None
    version: int | None = None
    """Lightning's number for a name that is already taken: `last-v1.ckpt`."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Values that the name gives by their names: `val_loss=0.42`."""

    @property
    def number(self) -> int | None:
        """The step, else the epoch."""
        return self.epoch if self.step is None else self.step


def named_as_a_pointer(name: str, pattern: str | None = None) -> bool:
    """Whether an entry is none by its name alone: a folder, or a file above `LARGEST_POINTER`, is one all the same."""
    return pattern is None and name in POINTERS


@lru_cache(maxsize=4096)
def place(name: str, pattern: str | None = None) -> Placed | None:
    """Return what an entry's name states; None where it is no checkpoint.

    `pattern`: a regular expression for whole names, whose groups `step` and `epoch` are taken; nothing else is a
    checkpoint then. Raises re.error when it is none.
    """
    if not name or name.startswith(".") or name.endswith(UNFINISHED_ENDINGS) or name == UNPROVED:
        return None
    if pattern is not None:
        return _by_pattern(name, pattern)
    if name in POINTERS or name in OTHER_FOLDERS or "tfevents" in name:
        return None
    found = _Reading(name)
    return found.placed()


def _by_pattern(name: str, pattern: str) -> Placed | None:
    match = re.fullmatch(pattern, name)
    if match is None:
        return None
    groups = {group: match[group] for group in ("step", "epoch") if match.re.groupindex.get(group)}
    series = name
    for start, end in sorted((match.span(group) for group in groups if match[group]), reverse=True):
        series = f"{series[:start]}#{series[end:]}"
    return Placed(series=series, step=_whole(groups.get("step")), epoch=_whole(groups.get("epoch")))


class _Reading:
    """A name being parsed: each recognized number is replaced with `#`."""

    def __init__(self, name: str) -> None:
        extensions = _EXTENSIONS.search(name)
        self.extension = extensions[0] if extensions else ""
        self.rest = name[: len(name) - len(self.extension)]
        self.steps: dict[int, set[int]] = {}
        """Steps by how certain it is that the number is a step."""
        self.epochs: set[int] = set()
        self.metrics: dict[str, float] = {}

    def placed(self) -> Placed | None:
        version = self._take_version()
        fairseq = _FAIRSEQ.fullmatch(self.rest)
        if fairseq:
            series = f"checkpoint_#_#{self.extension}"
            return Placed(series=series, step=_whole(fairseq["step"]), epoch=_whole(fairseq["epoch"]))
        self.rest = _KEYED.sub(self._take_keyed, self.rest)
        if not self.steps and not self.epochs:
            self.rest = _COUNTED.sub(self._take_keyed, self.rest)
        if not self.steps and _PART.search(self.rest):
            return None
        self.rest = _DATE.sub("#", self.rest)
        self.rest = _METRIC.sub(self._take_metric, self.rest)
        self.rest = _DECIMAL.sub(self._take_metric, self.rest)
        self.rest = _TIMESTAMP.sub("#", self.rest)
        if not self.steps and not self.epochs:
            self._take_plain()
        found = Placed(
            series=self.rest + self.extension,
            step=_only(self.steps[max(self.steps)]) if self.steps else None,
            is_plain=self.steps.keys() == {PLAIN},
            epoch=_only(self.epochs),
            version=version,
            metrics=self.metrics,
        )
        return found if self._is_checkpoint(found) else None

    def _is_checkpoint(self, found: Placed) -> bool:
        ending = self.extension.rpartition(".")[2].lower()
        if ending in NEVER:
            return False
        return not ending or ending in WEIGHTS_EXTENSIONS or found.number is not None

    def _take_version(self) -> int | None:
        match = _VERSION.search(self.rest)
        if match is None:
            return None
        self.rest = self.rest[: match.start()]
        return _whole(match["version"])

    def _take_keyed(self, match: re.Match[str]) -> str:
        words = match["key"].lower().split("_")
        number = _whole(match["number"])
        start, end = (place - match.start() for place in match.span("number"))
        if number is None or SETTING_WORDS & set(words[:-1]):
            return match[0]
        if words[-1] in EPOCHS:
            self.epochs.add(number)
        elif words[-1] in STEPS:
            certainty = STEPS[words[-1]] + (GLOBAL in words)
            self.steps.setdefault(certainty, set()).add(number)
        else:
            return match[0]
        return f"{match[0][:start]}#{match[0][end:]}"

    def _take_metric(self, match: re.Match[str]) -> str:
        key, value = match["key"], match["value"]
        if key:
            self.metrics[key] = float(value)
        return match[0].removesuffix(value) + "#"

    def _take_plain(self) -> None:
        """Take the number after `checkpoint-`, `model_` and the like, or the whole name."""
        match = re.fullmatch(rf"(?P<number>{_WHOLE})", self.rest) or _PLAIN.search(self.rest)
        if match is None or _ANOTHER.match(self.rest, match.end()):
            return
        number = _whole(match["number"])
        if number is not None:
            self.steps[PLAIN] = {number}
            self.rest = f"{self.rest[: match.start('number')]}#{self.rest[match.end('number') :]}"


def _only(numbers: set[int]) -> int | None:
    return next(iter(numbers)) if len(numbers) == 1 else None


def _whole(text: str | None) -> int | None:
    is_number = text and len(text) <= MOST_DIGITS and re.fullmatch("[0-9]+", text)
    return int(text) if text and is_number else None
