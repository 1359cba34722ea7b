"""What belongs to a checkpoint folder, by what frameworks write into it: files made by hand, their times set."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save.entries import scan
from airflow_provider_ocidist.agent.save.formats import PROVED, FormatResult, Reading
from airflow_provider_ocidist.agent.save.layouts import (
    has_all_parts,
    none_elsewhere,
    read_folder,
    read_layout,
)
from airflow_provider_ocidist.agent.save.shards import is_companion

WHOLE, BROKEN, NOTHING = FormatResult.WHOLE, FormatResult.BROKEN, FormatResult.NOTHING
BEGIN = 1_500_000_000 * 10**9
DATA = b"data of no format"


class Folder:
    """A folder into which files are written one second after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = BEGIN

    def write(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            place = self.path / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            self.now += 10**9
            os.utime(place, ns=(self.now, self.now))

    def lose(self, name: str) -> None:
        (self.path / name).unlink()

    def read(self, elsewhere: Callable[[str], bool] = none_elsewhere) -> Reading:
        """Return what is said of the folder; which of its files are whole by themselves is another matter."""
        return replace(read_folder(self.path, scan(self.path), elsewhere), files=frozenset(), members={})

    def says(self, elsewhere: Callable[[str], bool] = none_elsewhere) -> FormatResult:
        return self.read(elsewhere).says


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "checkpoint-5").mkdir()
    return Folder(tmp_path / "checkpoint-5")


def require_each(folder: Folder, names: list[str]) -> None:
    """Fail unless the folder is broken without each of these files, and names it."""
    for name in names:
        data, times = (folder.path / name).read_bytes(), (folder.path / name).stat().st_mtime_ns
        folder.lose(name)
        assert folder.read() == Reading(BROKEN, f"{name} missing"), name
        (folder.path / name).write_bytes(data)
        os.utime(folder.path / name, ns=(times, times))


# Any folder


def test_a_folder_without_files_is_broken(folder: Folder) -> None:
    assert folder.read() == Reading(BROKEN, "it contains no file")


@pytest.mark.parametrize("name", ["a.tmp", "deep/b.part", "tmp-x/c", "tmp-d"])
def test_a_file_that_is_still_written_breaks_it(folder: Folder, name: str) -> None:
    folder.write({"a.bin": DATA, name: DATA})
    assert folder.read() == Reading(BROKEN, f"{name} has a name of an unfinished file")


def test_a_broken_file_breaks_it_and_is_named_with_its_reason(folder: Folder) -> None:
    folder.write({"z.json": b"{}", "b/a.bin": b""})
    assert folder.read() == Reading(BROKEN, "b/a.bin: it is empty")


def test_a_doubtful_file_counts_after_one_that_is_broken_for_certain(folder: Folder) -> None:
    folder.write({"a.pt": DATA})
    doubtful = folder.read()
    assert (doubtful.says, doubtful.is_doubtful) == (BROKEN, True)
    assert doubtful.why.startswith("a.pt: ")
    folder.write({"b.bin": b""})
    assert folder.read() == Reading(BROKEN, "b.bin: it is empty")


def test_which_files_are_whole_by_themselves_is_known(folder: Folder) -> None:
    folder.write({"a.json": b"{}", "b.bin": DATA, "c/d.json": b"[]"})
    found = read_folder(folder.path, scan(folder.path))
    assert found == Reading(NOTHING, files=frozenset({"a.json", "c/d.json"}))


def test_what_a_file_consists_of_that_an_exception_may_have_cut_short_is_known(folder: Folder) -> None:
    folder.write({"a.json": b"{}", "deep/b.pkl": pickle.dumps([1], 4) + pickle.dumps([2], 4)})
    found = read_folder(folder.path, scan(folder.path))
    assert found == Reading(
        NOTHING,
        files=frozenset({"a.json"}),
        members={"deep/b.pkl": frozenset({("0", PROVED), ("1", PROVED)})},
    )


def test_up_to_three_missing_files_are_named_and_the_others_counted(folder: Folder) -> None:
    for count in (2, 3, 4, 5, 6):
        folder.write({"model.safetensors.index.json": index(*(f"{number}.bin" for number in range(count)))})
        shown = ", ".join(f"{number}.bin" for number in range(min(count, 3)))
        more = f" and {count - 3} more" if count > 3 else ""
        assert folder.read().why == f"{shown}{more} missing"


def test_what_is_on_another_node_is_not_missing(folder: Folder) -> None:
    folder.write({"model.safetensors.index.json": index("a.bin", "b.bin")})
    assert folder.read(lambda name: name == "a.bin").why == "b.bin missing"
    assert folder.says(lambda _: True) is NOTHING
    assert not none_elsewhere("a.bin")


# Weights in several files


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"w{number}": shard for number, shard in enumerate(shards)}}).encode()


@pytest.mark.parametrize("place", ["", "deep/"])
def test_weights_with_an_index_need_each_file_that_it_names(folder: Folder, place: str) -> None:
    names = [f"{place}{name}" for name in ("one.bin", "two.bin")]
    folder.write(dict.fromkeys(names, DATA) | {f"{place}w.index.json": index("one.bin", "two.bin")})
    assert folder.says() is NOTHING
    require_each(folder, names)


def test_two_indices_need_the_files_of_both(folder: Folder) -> None:
    folder.write({"a.index.json": index("a.bin"), "b.index.json": index("b.bin")})
    assert folder.read().why == "a.bin, b.bin missing"


def test_an_index_of_another_kind_names_nothing(folder: Folder) -> None:
    folder.write({"a.index.json": b'{"other": {"w": "a.bin"}}', "index.json.txt": index("b.bin")})
    assert folder.says() is NOTHING


@pytest.mark.parametrize("text", [b"[1]", b'{"weight_map": 5}', b'{"weight_map": {"w": null}}'])
def test_an_index_that_makes_no_sense_breaks_the_folder(folder: Folder, text: bytes) -> None:
    folder.write({"a.index.json": text, "b.bin": DATA})
    found = folder.read()
    assert found.says is BROKEN
    assert found.why


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("place", ["", "deep/"])
def test_numbered_files_are_as_many_as_they_say(folder: Folder, first: int, place: str) -> None:
    names = [f"{place}model-{number:05}-of-00003.bin" for number in range(first, first + 3)]
    folder.write(dict.fromkeys(names, DATA))
    assert folder.says() is NOTHING
    # Without the first nobody knows that they are counted from 0.
    require_each(folder, names[1 - first :])


def test_a_series_of_numbers_is_counted_by_its_own_name(folder: Folder) -> None:
    folder.write({"a-00001-of-00002.bin": DATA, "b-00002-of-00002.bin": DATA, "c-1-of-2.bin": DATA})
    assert folder.read().why == "a-00002-of-00002.bin, b-00001-of-00002.bin missing"


# torch.distributed.checkpoint


class Object:
    """Stands for a class of torch: what reads a checkpoint imports none."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def metadata(*parts: tuple[str, int, int]) -> bytes:
    data = {
        number: Object(relative_path=name, offset=offset, length=length)
        for number, (name, offset, length) in enumerate(parts)
    }
    return pickle.dumps(Object(storage_data=data, state_dict_metadata={}), 4)


def distributed(place: str = "") -> dict[str, bytes]:
    return {
        f"{place}__0_0.distcp": b"x" * 30,
        f"{place}__1_0.distcp": b"x" * 10,
        f"{place}.metadata": metadata(
            ("__0_0.distcp", 0, 10), ("__0_0.distcp", 10, 20), ("__1_0.distcp", 0, 10)
        ),
    }


def test_a_distributed_checkpoint_is_whole_with_all_parts_at_their_length(folder: Folder) -> None:
    folder.write(distributed())
    assert folder.says() is WHOLE
    require_each(folder, ["__0_0.distcp", "__1_0.distcp", ".metadata"])
    folder.write({"__0_0.distcp": b"x" * 29})
    assert folder.read() == Reading(BROKEN, "__0_0.distcp has 29 of 30 bytes")
    folder.write({"__0_0.distcp": b"x" * 300, ".metadata": distributed()[".metadata"]})
    assert folder.says() is WHOLE, "a file may be longer"


def test_the_longest_item_says_how_long_a_part_is_whatever_their_order(folder: Folder) -> None:
    folder.write({"a": b"x" * 29, ".metadata": metadata(("a", 10, 20), ("a", 0, 10))})
    assert folder.read() == Reading(BROKEN, "a has 29 of 30 bytes")


def test_a_part_on_another_node_is_not_measured(folder: Folder) -> None:
    folder.write(distributed())
    folder.lose("__1_0.distcp")
    assert folder.says(lambda name: name.endswith(".distcp")) is WHOLE
    folder.lose(".metadata")
    assert folder.says(lambda name: name.endswith(".distcp")) is BROKEN


def test_metadata_of_the_save_before_prove_nothing_of_newer_parts(folder: Folder) -> None:
    folder.write(distributed())
    for name in ("__0_0.distcp", ".metadata"):
        # Written in the same moment they are of the same save.
        os.utime(folder.path / name, ns=(folder.now, folder.now))
    assert folder.says() is WHOLE
    os.utime(folder.path / "__0_0.distcp", ns=(folder.now + 1, folder.now + 1))
    assert folder.says() is NOTHING


def test_one_in_a_folder_within_is_needed_whole_and_proves_nothing_of_the_rest(folder: Folder) -> None:
    folder.write({**distributed("model/"), "optimizer.bin": DATA})
    assert folder.says() is NOTHING
    require_each(folder, ["model/__0_0.distcp", "model/__1_0.distcp", "model/.metadata"])


def test_lightning_writes_the_rest_of_it_beside(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "epoch=1-step=5.ckpt")
    folder.write(distributed())
    assert folder.read() == Reading(BROKEN, "meta.pt missing")
    folder.write({"meta.pt": torch_file({})})
    assert folder.says() is WHOLE


@pytest.mark.parametrize(
    "value", [Object(storage_data=None), Object(storage_data=[1]), Object(storage_data={0: Object(other=1)})]
)
def test_metadata_of_another_writer_name_no_parts(folder: Folder, value: Object) -> None:
    folder.write({"a.bin": DATA, ".metadata": pickle.dumps(value, 4)})
    assert folder.says() is WHOLE


def test_metadata_that_cannot_be_read_are_no_proof(folder: Folder) -> None:
    folder.write({"a.bin": DATA, ".metadata": pickle.dumps(["no object"], 4)})
    assert folder.says() is BROKEN
    folder.write({".metadata": b"\x80\x04" + b"\xff" * 20})
    assert read_layout(folder.path, scan(folder.path)).says is NOTHING


# DeepSpeed


def torch_file(value: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("archive/data.pkl", pickle.dumps(value, 2))
    return buffer.getvalue()


def deepspeed(
    data: int = 2, models: int = 1, *, kind: str = "bf16_zero_pp_rank_", place: str = ""
) -> dict[str, bytes]:
    """Return the files of `data` times `models` processes."""
    state = torch_file({"dp_world_size": data, "mp_world_size": models, "other": "x"})
    files = {f"{place}mp_rank_{model:02}_model_states.pt": state for model in range(models)}
    files |= {
        f"{place}{kind}{rank}_mp_rank_{model:02}_optim_states.pt": torch_file([rank])
        for rank in range(data)
        for model in range(models)
    }
    return files


def say_latest(folder: Folder, text: str = "", *, at: Path | None = None) -> Path:
    place = (at or folder.path).with_name("latest")
    place.write_text(text or (at or folder.path).name)
    folder.now += 10**9
    os.utime(place, ns=(folder.now, folder.now))
    return place


@pytest.mark.parametrize("kind", ["zero_pp_rank_", "bf16_zero_pp_rank_", "fp16_zero_pp_rank_"])
@pytest.mark.parametrize("data, models", [(1, 1), (3, 1), (2, 2), (1, 12)])
def test_deepspeed_has_as_many_parts_as_the_first_one_counts(
    folder: Folder, kind: str, data: int, models: int
) -> None:
    files = deepspeed(data, models, kind=kind)
    folder.write(files)
    assert folder.says() is NOTHING
    say_latest(folder)
    assert folder.says() is WHOLE
    first = "mp_rank_00_model_states.pt"
    last = f"{kind}{data - 1}_mp_rank_{models - 1:02}_optim_states.pt"
    require_each(folder, [name for name in files if name != first and (data * models > 1 or name != last)])


def test_without_parts_of_the_optimizer_the_model_is_all(folder: Folder) -> None:
    folder.write({"mp_rank_00_model_states.pt": torch_file({"dp_world_size": 4, "mp_world_size": 1})})
    say_latest(folder)
    assert folder.says() is WHOLE


def test_the_third_stage_parts_the_model_too(folder: Folder) -> None:
    state = torch_file({"dp_world_size": 3, "mp_world_size": 1})
    names = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(3)]
    folder.write(dict.fromkeys(names, state))
    say_latest(folder)
    assert folder.says() is WHOLE
    require_each(folder, names[1:])


def test_parts_of_the_optimizer_without_a_model_are_not_all(folder: Folder) -> None:
    files = deepspeed(2)
    folder.write(files)
    folder.lose("mp_rank_00_model_states.pt")
    assert folder.read() == Reading(BROKEN, "mp_rank_00_model_states.pt missing")


@pytest.mark.parametrize("state", [{}, {"dp_world_size": None, "mp_world_size": "x"}, ["no", "dictionary"]])
def test_a_state_that_counts_nothing_is_of_one_process(folder: Folder, state: Any) -> None:
    folder.write({"mp_rank_00_model_states.pt": torch_file(state), **_optim(1)})
    say_latest(folder)
    assert folder.says() is WHOLE


def _optim(count: int) -> dict[str, bytes]:
    return {name: data for name, data in deepspeed(count).items() if "optim" in name}


def test_a_state_that_is_no_archive_counts_nothing(folder: Folder) -> None:
    folder.write({"mp_rank_00_model_states.pt": pickle.dumps({"dp_world_size": 5}, 2), **_optim(1)})
    say_latest(folder)
    assert folder.says() is WHOLE


def test_it_is_whole_once_it_is_named_as_the_latest_and_not_before(folder: Folder) -> None:
    folder.write(deepspeed())
    latest = say_latest(folder, "global_step4")
    assert folder.says() is NOTHING
    latest = say_latest(folder, f"{folder.path.name}\n")
    assert folder.says() is WHOLE
    written = (folder.path / "mp_rank_00_model_states.pt").stat().st_mtime_ns
    os.utime(latest, ns=(written, written))
    assert folder.says() is WHOLE
    os.utime(latest, ns=(written - 1, written - 1))
    assert folder.says() is NOTHING, "that was said of the save before"
    latest.write_bytes(b"\xff\xfe")
    assert folder.says() is NOTHING


def test_within_a_folder_of_another_framework_it_proves_nothing_of_the_rest(folder: Folder) -> None:
    folder.write(deepspeed(place="global_step5/"))
    say_latest(folder, at=folder.path / "global_step5")
    assert folder.says() is NOTHING
    require_each(folder, ["global_step5/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"])


def test_within_a_folder_of_lightning_it_is_all(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "step=5.ckpt")
    folder.write(deepspeed(place="checkpoint/"))
    say_latest(folder, at=folder.path / "checkpoint")
    assert folder.says() is WHOLE


@pytest.mark.parametrize("data, models", [(1, 1), (2, 1), (2, 3)])
def test_all_parts_are_there_when_none_that_the_first_counts_is_missing(
    folder: Folder, data: int, models: int
) -> None:
    files = deepspeed(data, models)
    folder.write(files)
    assert has_all_parts(folder.path, files)
    # Without any part of the optimizer nothing shows that there is one.
    for missing in files if data * models > 1 else ():
        assert not has_all_parts(folder.path, set(files) - {missing}), missing


@pytest.mark.parametrize("content", [b"PK no archive", pickle.dumps({}, 2)[:-1], torch_file({})[:-9]])
def test_no_parts_are_all_where_there_is_no_model_or_it_cannot_be_read(
    folder: Folder, content: bytes
) -> None:
    assert not has_all_parts(folder.path, ["a.bin"])
    with zipfile.ZipFile(folder.path / "mp_rank_00_model_states.pt", "w") as archive:
        archive.writestr("archive/data.pkl", content)
    assert not has_all_parts(folder.path, ["mp_rank_00_model_states.pt"])


def test_an_archive_of_something_else_counts_nothing(folder: Folder) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/version", "3")
    folder.write({"mp_rank_00_model_states.pt": buffer.getvalue()})
    assert has_all_parts(folder.path, ["mp_rank_00_model_states.pt"])


def test_a_universal_one_is_whole_once_its_own_pointer_names_it(folder: Folder) -> None:
    folder.write({"zero/optimizer_state.pt": torch_file({}), "mp_rank_00_model_states.pt": torch_file({})})
    say_latest(folder)
    assert folder.says() is NOTHING, "that was said of the one that it was made of"
    for named, says in (("global_step4", NOTHING), (folder.path.name, WHOLE)):
        folder.path.with_name("latest_universal").write_text(named)
        assert folder.says() is says


@pytest.mark.parametrize(
    "world, here, settings, doubtful",
    [
        (4, 2, None, True),
        (6, 3, None, True),
        (5, 2, None, False),
        (3, 2, None, False),
        (4, 2, {}, False),
    ],
)
def test_parts_that_are_missing_may_be_those_of_another_group_that_saves_none(
    folder: Folder, world: int, here: int, settings: object, doubtful: bool
) -> None:
    state = torch_file({"dp_world_size": world, "mp_world_size": 1, "ds_config": settings})
    for rank in range(here):
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        folder.write({f"{name}_model_states.pt": state, f"{name}_optim_states.pt": torch_file([rank])})
    say_latest(folder)
    found = folder.read()
    assert (found.says, found.is_doubtful) == (BROKEN, doubtful)
    folder.write({"zero_pp_rank_9_mp_rank_00_optim_states.pt": torch_file([9])})
    assert not folder.read().is_doubtful, "no group has such a part and not the ones before"


def test_a_group_that_saves_all_parts_is_known_by_its_settings(folder: Folder) -> None:
    state = torch_file({"dp_world_size": 4, "ds_config": {"zero_optimization": {"mics_shard_size": 2}}})
    names = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(2)]
    folder.write(dict.fromkeys(names, state))
    say_latest(folder)
    assert folder.says() is WHOLE
    require_each(folder, names[1:])


# Hugging Face


def trainer(**state: Any) -> dict[str, bytes]:
    return {
        "config.json": b"{}",
        "model.safetensors": (2).to_bytes(8, "little") + b"{}",
        "optimizer.pt": torch_file({}),
        "scheduler.pt": torch_file({}),
        "rng_state.pth": torch_file({}),
        "trainer_state.json": json.dumps({"global_step": 5, **state}).encode(),
    }


def test_a_checkpoint_of_the_trainer_is_whole_with_all_that_it_goes_on_from(folder: Folder) -> None:
    folder.write(trainer())
    assert folder.says() is WHOLE
    require_each(folder, ["optimizer.pt", "scheduler.pt", "rng_state.pth"])


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_one_that_saves_only_the_model_needs_none_of_them(folder: Folder, name: str) -> None:
    files = trainer()
    for each in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        del files[each]
    folder.write(files)
    assert folder.says() is WHOLE
    if name != "rng_state.pth":
        folder.write({name: torch_file({}), "trainer_state.json": files["trainer_state.json"]})
        assert folder.says() is BROKEN


@pytest.mark.parametrize("name", ["optimizer_0/__0_0.distcp", "global_step5/x.bin", "optimizer.bin"])
def test_its_optimizer_may_be_elsewhere_with_other_frameworks(folder: Folder, name: str) -> None:
    files = {name: DATA, **trainer()}
    del files["optimizer.pt"]
    if name.endswith(".distcp"):
        files = {"optimizer_0/.metadata": metadata(("__0_0.distcp", 0, 1)), **files}
    folder.write({**_pointer_to(name), **files})
    assert folder.says() is WHOLE


def _pointer_to(name: str) -> dict[str, bytes]:
    """Return what DeepSpeed writes beside its folder of parts."""
    tag, _, part = name.partition("/")
    return {"latest": tag.encode()} if part and tag.startswith("global_step") else {}


def test_parts_that_deepspeed_has_saved_are_found_by_its_pointer_alone(folder: Folder) -> None:
    folder.write({"global_step5/x.bin": DATA, **trainer()})
    assert folder.read() == Reading(BROKEN, "latest missing")
    for tag, why in {
        "global_step4": "latest names 'global_step4', which is not there",
        "global_step": "latest names 'global_step', which is not there",
    }.items():
        folder.write({"latest": tag.encode(), "trainer_state.json": trainer()["trainer_state.json"]})
        assert folder.read() == Reading(BROKEN, why)
    folder.write({"latest": b"global_step5\n", "trainer_state.json": trainer()["trainer_state.json"]})
    assert folder.says() is WHOLE


@pytest.mark.parametrize("elsewhere", [is_companion, lambda _: False], ids=["several nodes", "one"])
def test_of_several_ranks_the_first_is_not_all_unless_the_others_are_elsewhere(
    folder: Folder, elsewhere: Callable[[str], bool]
) -> None:
    # A rank that is alone writes `rng_state.pth`.
    files = trainer()
    del files["rng_state.pth"]
    folder.write({**files, "rng_state_0.pth": torch_file({})})
    whole = WHOLE if elsewhere is is_companion else NOTHING
    assert folder.says(elsewhere) is whole
    folder.write({"rng_state_1.pth": torch_file({})})
    assert folder.says() is WHOLE


@pytest.mark.parametrize("elsewhere", [is_companion, lambda _: False], ids=["several nodes", "one"])
def test_a_state_that_is_missing_before_that_of_a_later_rank_is_missed_here(
    folder: Folder, elsewhere: Callable[[str], bool]
) -> None:
    files = trainer()
    del files["rng_state.pth"]
    folder.write({**files, "rng_state_1.pth": torch_file({})})
    assert folder.read(elsewhere) == Reading(BROKEN, "rng_state_0.pth missing")


@pytest.mark.parametrize("ranks", [2, 12])
def test_each_rank_below_the_highest_has_a_state_of_its_own(folder: Folder, ranks: int) -> None:
    files = trainer()
    del files["rng_state.pth"]
    names = [f"rng_state_{rank}.pth" for rank in range(ranks)]
    # They are written last, some after the state itself.
    folder.write({**files, **dict.fromkeys(names, torch_file({}))})
    assert folder.says() is WHOLE
    require_each(folder, names[:-1])


def test_what_is_newer_than_its_state_is_of_the_next_save(folder: Folder) -> None:
    files = trainer()
    folder.write(files)
    for name in ("config.json", "model.safetensors", "optimizer.pt"):
        folder.write({name: files[name]})
        assert folder.says() is NOTHING
        folder.write({"trainer_state.json": files["trainer_state.json"]})
        assert folder.says() is WHOLE
    state = (folder.path / "trainer_state.json").stat().st_mtime_ns
    os.utime(folder.path / "config.json", ns=(state, state))
    assert folder.says() is WHOLE


@pytest.mark.parametrize("step", [None, "5", 5.5])
def test_a_state_without_a_step_is_not_that_of_the_trainer(folder: Folder, step: Any) -> None:
    folder.write(trainer(global_step=step))
    assert folder.says() is NOTHING


def test_without_a_state_nothing_is_known(folder: Folder) -> None:
    folder.write(trainer())
    folder.lose("trainer_state.json")
    assert folder.says() is NOTHING


WEIGHTS = [
    *("model.safetensors", "adapter_model.bin", "pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"),
    *(
        "model-00001-of-00001.safetensors",
        "pytorch_model_fsdp.bin",
        "pytorch_model_fsdp_0/x",
        "global_step5/x",
    ),
]


@pytest.mark.parametrize("name", [*WEIGHTS, "other.bin", "model.txt", "my_model.bin"])
def test_it_is_not_whole_without_weights(folder: Folder, name: str) -> None:
    files = trainer()
    weights = files.pop("model.safetensors")
    made = {name: weights if name.endswith(".safetensors") else DATA}
    if "-of-" in name:
        made["model.safetensors.index.json"] = index(name)
    folder.write({**made, **_pointer_to(name), **files})
    assert folder.says() is (WHOLE if name in WEIGHTS else NOTHING)


def test_weights_in_several_files_need_their_index(folder: Folder) -> None:
    files = trainer()
    weights = files.pop("model.safetensors")
    shards = [f"model-{number:05}-of-00002.safetensors" for number in (1, 2)]
    folder.write({**dict.fromkeys(shards, weights), "model.safetensors.index.json": index(*shards), **files})
    assert folder.says() is WHOLE
    require_each(folder, [*shards, "model.safetensors.index.json"])


# Accelerate


def test_accelerate_has_a_state_of_each_rank_and_no_proof(folder: Folder) -> None:
    names = [f"random_states_{rank}.pkl" for rank in range(11)]
    folder.write({"model.bin": DATA, **dict.fromkeys(names, pickle.dumps({}, 4))})
    assert folder.says() is NOTHING
    require_each(folder, names[:-1])
