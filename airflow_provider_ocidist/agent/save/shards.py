"""Shards: the files of a checkpoint that several nodes wrote, by its names and metadata. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePosixPath

from airflow_provider_ocidist.errors import IncompleteCheckpoint
from airflow_provider_ocidist.model import dcp
from airflow_provider_ocidist.storage.checkpoints import ManifestFile

DISTCP = re.compile(dcp.PART.encode())
SHARD = re.compile(
    rf"""
    {dcp.PART}                                                   # torch.distributed.checkpoint
    | shard-\d+-model-\d+-of-\d+\.safetensors                    # the same, as Hugging Face's format
    | (bf16_|fp16_)?(zero_pp|expp)_rank_\d+_mp_rank_\d+_\w+\.pt  # DeepSpeed: ZeRO, experts
    | layer_\d+[-_](model|expert)_.+\.pt                         # DeepSpeed: pipelines, experts
    | mp_rank_(0*[1-9]|\d+_\d*[1-9]).*                           # Megatron, DeepSpeed: all but the first model part
    """,
    re.VERBOSE,
)
FIRST = re.compile(r"mp_rank_0+(_0+)?(_model_states\.pt)?")
"""First part of the model as Megatron and DeepSpeed write it: all of it, or one of several, which its name does not
show."""
COMPANION = re.compile(r"rng_state_\d+\.pth|random_states_\d+\.pkl")
"""State of one process's random generators in a file of its own, as Hugging Face's Trainer and Accelerate write it."""
PROCESS = re.compile(r"(?:^|[-_.])(?:rank|worker|proc|process|node)[-_]?[0-9]+(?![0-9])")
"""Name of a file that one process of a program writes, in no layout that is known here."""
ZERO_RANK = re.compile(r"(?<=zero_pp_rank_)(\d+)(?=_)")
REMEDY = (
    "let checkpoints.path be a folder that all nodes share, such as a mounted file system, "
    "or save whole checkpoints from global rank 0"
)


def is_shard(name: str) -> bool:
    """Whether a file, or a folder above it, has a name of a checkpoint's part."""
    return any(SHARD.fullmatch(part) for part in PurePosixPath(name).parts)


def may_have_others(name: str) -> bool:
    """Whether a file, or a folder above it, has a name of a model's first part, or of any other part."""
    return is_shard(name) or any(FIRST.fullmatch(part) for part in PurePosixPath(name).parts)


def is_companion(name: str) -> bool:
    """Whether a file belongs to one process, and its checkpoint is usable without it."""
    return COMPANION.fullmatch(PurePosixPath(name).name) is not None


def is_of_a_process(name: str) -> bool:
    """Whether a file, or a folder above it, is named by a process, and is no part that nodes send."""
    is_sent = is_shard(name) or is_companion(name)
    return not is_sent and any(PROCESS.search(part) for part in PurePosixPath(name).parts)


def needs_others(names: Collection[str], metadata: Mapping[str, bytes]) -> bool:
    """Whether other nodes may have parts of a checkpoint of which this one has these files.

    `metadata`: the content of each file among them that is named `.metadata`. It is exact; without it, names decide.
    """
    if missing(names, metadata):
        return True
    if any(DISTCP.search(text) for text in metadata.values()):
        return False
    return any(may_have_others(name) or is_companion(name) for name in names)


def missing(names: Collection[str], metadata: Mapping[str, bytes]) -> list[str]:
    """Return the files that a checkpoint's metadata or numbering names, and that are missing."""
    return sorted((_named(metadata) | _numbered(names)) - set(names))


def _named(metadata: Mapping[str, bytes]) -> set[str]:
    # A pickle, which is not safe to load; but it holds the names as plain bytes.
    return {
        str(PurePosixPath(place).with_name(file.decode()))
        for place, text in metadata.items()
        for file in DISTCP.findall(text)
    }


def _numbered(names: Collection[str]) -> set[str]:
    """Return the names of ZeRO's parts from the first to the last that is there."""
    found: set[str] = set()
    for name in names:
        rank = ZERO_RANK.search(name)
        if rank:
            found |= {ZERO_RANK.sub(str(number), name) for number in range(int(rank[1]))}
    return found


def union(parts: Mapping[int, Sequence[ManifestFile]]) -> tuple[ManifestFile, ...]:
    """Return the files of all nodes, by rank of the node, as one checkpoint.

    Raises IncompleteCheckpoint, naming the file, where two nodes have sent different ones to the same place.
    """
    found: dict[str, tuple[int, ManifestFile]] = {}
    for rank, files in sorted(parts.items()):
        for file in files:
            owner, known = found.setdefault(file.path, (rank, file))
            if known != file:
                raise IncompleteCheckpoint(
                    f"nodes {owner} and {rank} have both written {file.path}, and not the same: "
                    "give each process a file of its own"
                )
    return tuple(file for _, (_, file) in sorted(found.items()))
