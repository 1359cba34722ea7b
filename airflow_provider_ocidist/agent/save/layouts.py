"""Layouts: whether a folder holds a complete checkpoint, by the layouts of frameworks."""

from __future__ import annotations

import json
import logging
import re
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from airflow_provider_ocidist.agent.save import pickles
from airflow_provider_ocidist.agent.save.entries import Files
from airflow_provider_ocidist.agent.save.formats import (
    NOTHING,
    WHOLE,
    FormatResult,
    Reading,
    broken,
    is_unfinished,
    read_file,
)
from airflow_provider_ocidist.agent.save.shards import ZERO_RANK
from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.model.amounts import names_text

logger = logging.getLogger(__name__)

TRAINER_STATE = "trainer_state.json"
"""File that Hugging Face's Trainer writes last, or just before the random generators' states."""
LATEST = "latest"
"""File that DeepSpeed writes last, with the name of the checkpoint just written."""
UNIVERSAL = re.compile(r"(.*/)?zero/optimizer_state\.pt")
"""File that DeepSpeed's `ds_to_universal` writes after all parameters, to resume with any number of processes."""
LATEST_UNIVERSAL = "latest_universal"
WEIGHTS_INDEX = re.compile(r".*\.index\.json")
NUMBERED = re.compile(r"(?P<stem>.*-)(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\..*)")
MODEL_STATES = re.compile(r"(.*/)?(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt")
"""Files with the model's states; the second form is of ZeRO's third stage, which shards the model too."""
ZERO_STATES = re.compile(
    r"(.*/)?(?P<kind>(?:bf16_|fp16_)?zero_pp_rank_)\d+(?P<part>_mp_rank_\d+\w*_optim_states\.pt)"
)
RANDOM_STATES = re.compile(r"(?P<stem>rng_state|random_states)_(?P<rank>\d+)(?P<end>\.pth|\.pkl)")
FIRST_RANDOM_STATE, SECOND_RANDOM_STATE = "rng_state_0.pth", "rng_state_1.pth"
TRAINER_WEIGHTS = re.compile(
    r"((model|adapter_model|pytorch_model|tf_model|flax_model).*\.(safetensors|bin|h5|msgpack)(\.index\.json)?"
    r"|(pytorch_model_fsdp|global_step).*)"
)
TRAINER_OPTIMIZER = re.compile(r"optimizer|global_step")

Elsewhere = Callable[[str], bool]
"""Function that returns whether a file that is not here may lie on another node."""


def none_elsewhere(_name: str) -> bool:
    """Return False: all that belongs to an entry is here."""
    return False


def read_folder(folder: Path, files: Files, elsewhere: Elsewhere = none_elsewhere) -> Reading:
    """Return the reading of a folder with these files, by formats and layouts.

    Raises OSError when something cannot be read.
    """
    if not files:
        return broken("it contains no file")
    unfinished = next((name for name in files if any(map(is_unfinished, name.split("/")))), None)
    if unfinished:
        return broken(f"{unfinished} has a name of an unfinished file")
    readings = {name: read_file(folder / name) for name in files}
    faults = {name: found for name, found in readings.items() if found.says is FormatResult.BROKEN}
    for name, found in sorted(faults.items(), key=lambda item: item[1].is_doubtful):
        return broken(f"{name}: {found.why}", is_doubtful=found.is_doubtful)
    whole = {name: found for name, found in readings.items() if found.says is FormatResult.WHOLE}
    return replace(
        read_layout(folder, files, elsewhere),
        files=frozenset(name for name, found in whole.items() if not found.is_cut_short),
        members={name: found.members[Path(name).name] for name, found in whole.items() if found.is_cut_short},
    )


def read_layout(folder: Path, files: Files, elsewhere: Elsewhere = none_elsewhere) -> Reading:
    """Return the reading of a folder by its file names and metadata; raises as `read_folder`.

    Other nodes may hold some of the files, but not the metadata.
    """
    try:
        readings = [look(folder, files, elsewhere) for look in _LAYOUTS]
    except pickles.Unreadable:
        return NOTHING
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        return broken(f"the references among its files cannot be read: {error}")
    except OSError:
        raise
    except Exception as error:  # as in `read_file`: one odd entry must not stop the other uploads
        logger.debug("%s cannot be looked through: %s: %s", folder, type(error).__name__, error)
        return NOTHING
    missing = next((found for found in readings if found.says is FormatResult.BROKEN), None)
    return missing or next((found for found in readings if found.says is FormatResult.WHOLE), NOTHING)


def _missing(names: Collection[str], files: Files, elsewhere: Elsewhere) -> Reading | None:
    absent = sorted(name for name in set(names) - set(files) if not elsewhere(name))
    if not absent:
        return None
    return broken(f"{names_text(absent)} missing")


def _indexed(folder: Path, files: Files, elsewhere: Elsewhere) -> Reading:
    """Weights in several files with an index, or with their count in the names."""
    wanted: set[str] = set()
    for name in files:
        place = PurePosixPath(name)
        if WEIGHTS_INDEX.fullmatch(place.name):
            shards = json.loads((folder / name).read_bytes()).get("weight_map", {}).values()
            wanted |= {str(place.with_name(shard)) for shard in shards}
        if found := NUMBERED.fullmatch(place.name):
            stem, count, end = found["stem"], found["count"], found["end"]
            # Weights are numbered from 1; data sets, and files made for TensorFlow, from 0.
            first = 0 if str(place.with_name(f"{stem}00000-of-{count}{end}")) in files else 1
            wanted |= {
                str(place.with_name(f"{stem}{number:05}-of-{count}{end}"))
                for number in range(first, int(count) + first)
            }
    return _missing(wanted, files, elsewhere) or NOTHING


# torch.distributed.checkpoint


def _distributed(folder: Path, files: Files, elsewhere: Elsewhere) -> Reading:
    parts = [PurePosixPath(name) for name in files if name.endswith(dcp.ENDING)]
    for part in parts:
        metadata = str(part.with_name(dcp.METADATA))
        if lost := _missing([metadata], files, elsewhere):
            return lost
    for name in files:
        if PurePosixPath(name).name == dcp.METADATA:
            fault = _dcp_fault(folder, name, files, elsewhere)
            if fault:
                return fault
    if dcp.METADATA not in files:
        return NOTHING
    if any(files[str(part)].modified_ns > files[dcp.METADATA].modified_ns for part in parts):
        # The metadata is the last save's: the next is overwriting it.
        return NOTHING
    # Lightning's FSDP writes the rest of its state afterwards.
    return _missing(["meta.pt"], files, elsewhere) or WHOLE if folder.name.endswith(".ckpt") else WHOLE


def _dcp_fault(folder: Path, name: str, files: Files, elsewhere: Elsewhere) -> Reading | None:
    for part, end in dcp_files((folder / name).read_bytes()).items():
        place = str(PurePosixPath(name).with_name(part))
        if lost := _missing([place], files, elsewhere):
            return lost
        if place in files and files[place].size < end:
            return broken(f"{place} has {files[place].size} of {end} bytes")
    return None


def dcp_files(metadata: bytes) -> dict[str, int]:
    """Return the files that a `.metadata` names, each with the bytes that it has at least."""
    value, _ = pickles.load(metadata)
    ends: dict[str, int] = {}
    for item in _states(value.state.get("storage_data") or {}):
        part = str(item["relative_path"])
        ends[part] = max(ends.get(part, 0), int(item["offset"]) + int(item["length"]))
    return ends


def _states(storage_data: Any) -> Iterator[dict[str, Any]]:
    values = storage_data.values() if isinstance(storage_data, dict) else []
    for value in values:
        if isinstance(value.state, dict) and "relative_path" in value.state:
            yield value.state


# DeepSpeed


def _deepspeed(folder: Path, files: Files, elsewhere: Elsewhere) -> Reading:
    models = {name: found for name in files if (found := MODEL_STATES.fullmatch(name))}
    if not models:
        zero = any(map(ZERO_STATES.fullmatch, files))
        return (_missing(["mp_rank_00_model_states.pt"], files, elsewhere) or NOTHING) if zero else NOTHING
    first = min(models)
    tag = (folder / first).parent
    if lost := _missing(deepspeed_files(first, folder / first, files), files, elsewhere):
        # In MiCS a setting decides which processes save; it is not here if it was given as a file.
        return replace(lost, is_doubtful=_may_be_one_of_groups(first, folder / first, files))
    if any(map(UNIVERSAL.fullmatch, files)):
        return WHOLE if _is_latest(tag, files[first].modified_ns, LATEST_UNIVERSAL) else NOTHING
    # Hugging Face writes the rest of its state afterwards; Lightning does not.
    is_all = tag == folder or folder.name.endswith(".ckpt")
    # Other processes may finish their parts after `latest`; each part's own format shows whether it is complete.
    return WHOLE if is_all and _is_latest(tag, files[first].modified_ns) else NOTHING


def has_all_parts(folder: Path, files: Collection[str]) -> bool:
    """Whether these files hold all parts that the model's first part counts; False without one.

    Raises OSError when it cannot be read.
    """
    models = [name for name in files if MODEL_STATES.fullmatch(name)]
    try:
        return bool(models) and deepspeed_files(min(models), folder / min(models), files) <= set(files)
    except (pickles.Unreadable, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return False


def deepspeed_files(model_states: str, place: Path, names: Collection[str]) -> set[str]:
    """Return the names of all parts, on all nodes, as the first part counts them; `names` show the naming."""
    found = ZERO_STATES.fullmatch
    zero = next((match for name in sorted(names) if (match := found(name))), None)
    state = _torch_dict(place)
    models = _whole_number(state.get("mp_world_size")) or 1
    parts = _whole_number(state.get("dp_world_size")) or 1
    # With MiCS each group of processes has all parts, and the first group saves them.
    parts = min(parts, _group_size(state) or parts)
    wanted = {
        ZERO_RANK.sub(str(data), _with_part(model_states, model))
        for data in range(parts)
        for model in range(models)
    }
    if zero:
        wanted |= {
            f"{zero[1] or ''}{zero['kind']}{data}{_with_part(zero['part'], model)}"
            for data in range(parts)
            for model in range(models)
        }
    return wanted


def _with_part(name: str, part: int) -> str:
    return re.sub(r"(?<=mp_rank_)\d+", lambda found: f"{part:0{len(found[0])}}", name)


def _group_size(state: Mapping[str, Any]) -> int | None:
    settings = state.get("ds_config")
    zero = settings.get("zero_optimization") if isinstance(settings, dict) else None
    size = _whole_number(zero.get("mics_shard_size")) if isinstance(zero, dict) else None
    return size if size is not None and size > 0 else None


def _may_be_one_of_groups(first: str, place: Path, names: Collection[str]) -> bool:
    """Whether the parts here may be all of one group, whose size is not in the settings."""
    state = _torch_dict(place)
    parts = _whole_number(state.get("dp_world_size")) or 1
    if isinstance(state.get("ds_config"), dict) or not ZERO_RANK.search(first):
        return False
    models, optimizers = _ranks(MODEL_STATES, names), _ranks(ZERO_STATES, names)
    return models == optimizers == set(range(len(models))) and parts % len(models) == 0


def _ranks(kind: re.Pattern[str], names: Collection[str]) -> set[int]:
    found = [ZERO_RANK.search(name) for name in names if kind.fullmatch(name)]
    return {int(rank[0]) for rank in found if rank}


def _whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _torch_dict(place: Path) -> dict[str, Any]:
    """Return the dictionary in a file of torch.save; empty where it holds none."""
    if not zipfile.is_zipfile(place):
        return {}
    with zipfile.ZipFile(place) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
        value = pickles.load(archive.read(name))[0] if name else None
    return value if isinstance(value, dict) else {}


def _is_latest(tag: Path, written: int, pointer: str = LATEST) -> bool:
    latest = tag.with_name(pointer)
    try:
        return latest.read_text().strip() == tag.name and latest.stat().st_mtime_ns >= written
    except (OSError, UnicodeDecodeError):
        return False


# Hugging Face


def _trainer(folder: Path, files: Files, elsewhere: Elsewhere) -> Reading:
    if TRAINER_STATE not in files:
        return NOTHING
    if not isinstance(json.loads((folder / TRAINER_STATE).read_bytes()).get("global_step"), int):
        return NOTHING
    random_states = {name for name in files if name.startswith("rng_state")}
    wanted = _earlier_ranks(random_states)
    if {"optimizer.pt", "scheduler.pt"} & set(files):
        wanted |= {"scheduler.pt"} | (set() if random_states else {"rng_state.pth"})
        # With FSDP it is a folder, with DeepSpeed in its own.
        wanted |= set() if any(map(TRAINER_OPTIMIZER.match, files)) else {"optimizer.pt"}
    # Without it DeepSpeed's other files are not found.
    wanted |= {LATEST} if any(name.startswith("global_step") for name in files) else set()
    wanted |= {
        f"{found['stem'][:-1]}{found['end']}.index.json" for found in map(NUMBERED.fullmatch, files) if found
    }
    # All of these are the main node's, also the states of its own ranks, which are the first.
    if lost := _missing(wanted, files, none_elsewhere) or _misled(folder, files):
        return lost
    others = set(files) - random_states - {TRAINER_STATE}
    is_last = all(files[name].modified_ns <= files[TRAINER_STATE].modified_ns for name in others)
    if random_states == {FIRST_RANDOM_STATE} and not elsewhere(SECOND_RANDOM_STATE):
        # A rank alone has no number: another is still to write its own, after this one's state.
        return NOTHING
    return WHOLE if is_last and any(map(TRAINER_WEIGHTS.fullmatch, others)) else NOTHING


def _misled(folder: Path, files: Files) -> Reading | None:
    """Return a broken reading if `latest` names a folder that is missing."""
    if LATEST not in files:
        return None
    tag = (folder / LATEST).read_text(errors="replace").strip()
    return (
        None
        if any(name.startswith(f"{tag}/") for name in files)
        else broken(f"{LATEST} names {tag!r}, which is not there")
    )


def _accelerate(_folder: Path, files: Files, _elsewhere: Elsewhere) -> Reading:
    """`save_state` writes the states of the random generators last but for the program's own objects: no proof."""
    names = {name for name in files if name.startswith("random_states_")}
    return _missing(_earlier_ranks(names), files, none_elsewhere) or NOTHING


def _earlier_ranks(names: Collection[str]) -> set[str]:
    """Return the names of the files of all ranks below the highest that is there."""
    wanted: set[str] = set()
    for name in names:
        if found := RANDOM_STATES.fullmatch(name):
            wanted |= {f"{found['stem']}_{rank}{found['end']}" for rank in range(int(found["rank"]))}
    return wanted


_LAYOUTS: tuple[Callable[[Path, Files, Elsewhere], Reading], ...] = (
    _indexed,
    _distributed,
    _deepspeed,
    _trainer,
    _accelerate,
)
