"""Weight files: which files of a fetched checkpoint hold the weights of one model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_ocidist.cli.terminal import Unusable
from airflow_provider_ocidist.model import dcp

SAFETENSORS = ".safetensors"
ENDINGS = (SAFETENSORS, ".pt", ".pth", ".bin", ".ckpt")
BESIDE = ("optim", "sched", "rng", "scaler", "training_args", "random_states", "trainer_state")
"""Parts of names that hold no weights of the model."""
SHARD = re.compile(r"(?P<stem>.+)-\d+-of-(?P<count>\d+)(?P<ending>\.\w+)")
"""One of the files into which Hugging Face's libraries split a model."""
INDEX = ".index.json"
"""Ending of the name of the file that says which tensor is in which file of a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """The files of one model."""

    name: str
    paths: Sequence[Path]
    lacks: str | None = None
    """Shards that are missing, in words; None: all are there."""
    index: Path | None = None


def of_model(fetched: Path, file: str | None) -> Sequence[Path]:
    """Return the file, or all shards, of one model. Raises Unusable where several can be it, or a shard is missing."""
    if fetched.is_file():
        if file not in (None, fetched.name):
            raise Unusable(f"--file {file}: the checkpoint is one file, {fetched.name}")
        return [fetched]
    models = list(_models(fetched))
    if file is not None:
        return _whole(_named(fetched, file, models))
    if any(fetched.rglob("zero_to_fp32.py")) or any(fetched.rglob("*_optim_states.pt")):
        raise Unusable(
            f"{fetched.name}: DeepSpeed has split its weights over the ranks; `ocidist checkpoints fetch` it, "
            "then run the zero_to_fp32.py that DeepSpeed has put into it"
        )
    candidates = [model for model in models if not is_beside_weights(Path(model.name).name)]
    safe = [model for model in candidates if model.name.endswith(SAFETENSORS)]
    found = safe or candidates
    if len(found) != 1:
        names = ", ".join(model.name for model in found) or "none"
        raise Unusable(
            f"{fetched.name}: which file contains the model's weights? --file NAME; there are: {names}"
        )
    return _whole(found[0])


def is_beside_weights(name: str) -> bool:
    """Whether a name, of a file or an entry, is that of what is saved beside the weights."""
    return any(part in name.lower() for part in BESIDE)


def is_of_the_training(name: str) -> bool:
    """Whether a file is one of weights, or of what a training saves beside them: a model is used without it."""
    return name == dcp.METADATA or name.endswith((*ENDINGS, dcp.ENDING, INDEX)) or is_beside_weights(name)


def _named(fetched: Path, file: str, models: Sequence[_Model]) -> _Model:
    """Return the model that a file is, or is a part of: a part alone is no model."""
    path = fetched / file
    if not path.is_file():
        raise Unusable(f"--file {file}: is not in the checkpoint {fetched.name}")
    path = path.resolve()
    for model in models:
        if path in (each.resolve() for each in (*model.paths, *([model.index] if model.index else []))):
            return model
    return _Model(name=file, paths=[fetched / file])


def _whole(model: _Model) -> Sequence[Path]:
    if model.lacks:
        raise Unusable(f"{model.name}: {model.lacks}")
    return model.paths


def _models(fetched: Path) -> Iterator[_Model]:
    """Yield each model: the shards that an index lists or that their names count, else each file alone."""
    files = sorted(path for path in fetched.rglob("*") if path.is_file())
    left = [path for path in files if path.suffix in ENDINGS]
    for index in files:
        names = _listed(index)
        if names:
            paths = [path for path in left if path.parent == index.parent and path.name in names]
            missing = sorted(names - {path.name for path in paths})
            left = [path for path in left if path not in paths]
            yield _Model(
                name=str(index.relative_to(fetched)).removesuffix(INDEX),
                paths=paths,
                lacks=f"{missing[0]} is not there, which {index.name} lists" if missing else None,
                index=index,
            )
    shards: dict[tuple[Path, str, str, str], list[Path]] = {}
    for path in left:
        found = SHARD.fullmatch(path.name)
        key = (found["stem"], found["count"], found["ending"]) if found else (path.name, "1", "")
        shards.setdefault((path.parent, *key), []).append(path)
    for (_, _, count, _), paths in shards.items():
        yield _Model(
            name=str(paths[0].relative_to(fetched)),
            paths=paths,
            lacks=f"only {len(paths)} of {int(count)} parts are there" if len(paths) != int(count) else None,
        )


def _listed(index: Path) -> set[str]:
    """Return the names of a model's files in its index; none where a file is no index."""
    if not index.name.endswith(INDEX):
        return set()
    try:
        return set(map(str, json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return set()
