"""What belongs to a checkpoint that several nodes have written."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_ocidist.agent.save.shards import (
    REMEDY,
    is_companion,
    is_of_a_process,
    is_shard,
    may_have_others,
    missing,
    needs_others,
    union,
)
from airflow_provider_ocidist.errors import IncompleteCheckpoint
from airflow_provider_ocidist.storage.checkpoints import ManifestFile

ZERO = "global_step8/zero_pp_rank_{}_mp_rank_00_optim_states.pt"


def metadata(*names: str) -> bytes:
    """Names as torch pickles them: each in an object of its own, again and again."""
    return pickle.dumps([{"relative_path": name} for name in names * 2])


@pytest.mark.parametrize(
    "name",
    [
        "__0_0.distcp",
        "optimizer_0/__12_3.distcp",
        "sharded/shard-00001-model-00001-of-00001.safetensors",
        "zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "bf16_zero_pp_rank_11_mp_rank_01_optim_states.pt",
        "zero_pp_rank_3_mp_rank_00_model_states.pt",
        "expp_rank_1_mp_rank_00_optim_states.pt",
        "layer_3_expert_5_mp_rank_00_model_states.pt",
        "layer_03-model_00-model_states.pt",
        "mp_rank_01_model_states.pt",
        "mp_rank_10_model_states.pt",
        "mp_rank_00_001/model_optim_rng.pt",
    ],
)
def test_parts_are_known_by_their_names(name: str) -> None:
    assert is_shard(name)


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "pytorch_model.bin",
        "optimizer.pt",
        "rng_state_3.pth",
        "random_states_1.pkl",
        "mp_rank_00_model_states.pt",
        "mp_rank_00/model_optim_rng.pt",
        ".metadata",
        "step-000100.pt",
    ],
)
def test_what_one_process_writes_alone_is_no_part(name: str) -> None:
    assert not is_shard(name)


def test_metadata_names_what_is_on_other_nodes() -> None:
    metadata_files = {".metadata": metadata("__0_0.distcp", "__1_0.distcp")}
    here = {".metadata", "__0_0.distcp"}
    assert needs_others(here, metadata_files)
    assert missing(here, metadata_files) == ["__1_0.distcp"]
    whole = here | {"__1_0.distcp"}
    assert missing(whole, metadata_files) == []
    assert not needs_others(whole, metadata_files)


def test_each_metadata_speaks_for_its_own_folder() -> None:
    metadata_files = {
        "model/.metadata": metadata("__0_0.distcp"),
        "optim/.metadata": metadata("__0_0.distcp"),
    }
    assert missing({*metadata_files, "model/__0_0.distcp"}, metadata_files) == ["optim/__0_0.distcp"]


def test_zero_may_have_parts_elsewhere_and_none_in_between() -> None:
    assert needs_others({ZERO.format(0), ZERO.format(1)}, {})
    assert missing({ZERO.format(0), ZERO.format(1)}, {}) == []
    assert missing({ZERO.format(0), ZERO.format(3)}, {}) == [ZERO.format(1), ZERO.format(2)]


def test_the_first_part_of_a_model_may_be_all_of_it_or_not() -> None:
    assert needs_others({"mp_rank_00_model_states.pt"}, {})
    assert needs_others({"mp_rank_00/model_optim_rng.pt"}, {})


def test_a_plain_checkpoint_needs_nobody() -> None:
    assert not needs_others({"model.safetensors", "optimizer.pt", "rng_state.pth"}, {})


def test_the_states_of_random_generators_are_asked_of_all_nodes() -> None:
    assert needs_others({"model.safetensors", "optimizer.pt", "rng_state_0.pth"}, {})


def test_all_files_of_all_nodes_are_one_checkpoint() -> None:
    first, second = (ManifestFile(path=name, size=1, sha256="a") for name in ("b", "a"))
    assert union({0: [first], 1: [second], 2: []}) == (second, first)
    assert union({0: [first], 1: [first]}) == (first,)


def test_two_files_of_one_name_are_refused() -> None:
    mine, other = (ManifestFile(path="local.pt", size=1, sha256=digest) for digest in "ab")
    with pytest.raises(IncompleteCheckpoint, match=r"nodes 0 and 2 have both written local\.pt"):
        union({0: [mine], 2: [other]})


@pytest.mark.parametrize(
    "name, is_one",
    [
        ("state-rank0.pt", True),
        ("rank_3/model.pt", True),
        ("step-5/worker-1.bin", True),
        ("proc.node-12.pt", True),
        ("node1", True),
        ("process7.pt", True),
        # As parts, and as companions: nodes send these.
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", False),
        ("mp_rank_01_model_states.pt", False),
        ("rng_state_3.pth", False),
        ("random_states_1.pkl", False),
        ("frank0.pt", False),
        ("rank.pt", False),
        ("ranking-2.pt", False),
        ("step-5.pt", False),
    ],
)
def test_a_file_of_one_process_in_no_known_layout_is_known_by_its_name(name: str, *, is_one: bool) -> None:
    assert is_of_a_process(name) is is_one


@pytest.mark.parametrize(
    "name, is_one",
    [
        ("mp_rank_00", True),
        ("step-5/mp_rank_00_000/model_optim_rng.pt", True),
        ("mp_rank_0_model_states.pt", True),
        ("__3_0.distcp", True),
        ("mp_rank_0x/model.pt", False),
        ("model.pt", False),
    ],
)
def test_a_models_first_part_may_have_others_as_each_part_has(name: str, *, is_one: bool) -> None:
    assert may_have_others(name) is is_one


@pytest.mark.parametrize(
    "name, is_one", [("a/rng_state_0.pth", True), ("rng_state_0.pth/x", False), ("rng_state.pth", False)]
)
def test_a_companion_is_known_by_the_name_of_the_file_itself(name: str, *, is_one: bool) -> None:
    assert is_companion(name) is is_one


def test_a_description_that_names_no_files_leaves_it_to_the_names() -> None:
    metadata_files = {".metadata": b"nothing of the kind"}
    assert missing({".metadata"}, metadata_files) == []
    assert not needs_others({".metadata", "model.pt"}, metadata_files)
    assert needs_others({".metadata", "__0_0.distcp"}, metadata_files)


def test_each_rank_between_the_first_and_the_last_part_is_missed_and_of_each_series_by_itself() -> None:
    here = {ZERO.format(2), "x/zero_pp_rank_1_mp_rank_00_model_states.pt"}
    assert missing(here, {}) == [
        ZERO.format(0),
        ZERO.format(1),
        "x/zero_pp_rank_0_mp_rank_00_model_states.pt",
    ]


def test_who_has_written_a_file_first_is_named_beside_who_wrote_another() -> None:
    mine, other = (ManifestFile(path="a", size=1, sha256=digest) for digest in "ab")
    with pytest.raises(IncompleteCheckpoint) as caught:
        union({3: [other], 1: [mine], 2: [mine]})
    assert str(caught.value) == (
        "nodes 1 and 3 have both written a, and not the same: give each process a file of its own"
    )


def test_the_remedy_names_the_setting_and_the_process() -> None:
    assert "let checkpoints.path be a folder that all nodes share" in REMEDY
    assert "save whole checkpoints from global rank 0" in REMEDY
