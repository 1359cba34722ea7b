"""What formats and layouts say of checkpoints that were cut off anywhere."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from airflow_provider_ocidist.agent.save.entries import scan
from airflow_provider_ocidist.agent.save.formats import FormatResult, read_file
from airflow_provider_ocidist.agent.save.layouts import has_all_parts, read_folder
from airflow_provider_ocidist.agent.save.proofs import Evidence, Moment, Proof, judge
from airflow_provider_ocidist.agent.save.shards import is_shard
from tests.agent.save.saved import KINDS, PROVED_BY_FORMAT, Save, torch_bytes


def read(folder: Path, name: str) -> FormatResult:
    path = folder / name
    return (read_folder(path, scan(path)) if path.is_dir() else read_file(path)).says


def write(folder: Path, files: list[tuple[str, bytes]]) -> None:
    for name, data in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def cut(save: Save, at: int) -> list[tuple[str, bytes]]:
    """Return what is there when so many bytes have been written."""
    there = []
    for name, data in save.files:
        if at <= 0:
            break
        there.append((name, data[:at]))
        at -= len(data)
    return there


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_that_was_cut_off_anywhere_is_never_whole_by_its_format(kind: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    random_ = random.Random(seed)
    for number in range(25):
        folder = tmp_path / str(number)
        save = KINDS[kind](100 * number + 100, random_)
        total = sum(len(data) for _, data in save.files)
        inside = save.files if save.kind != "deepspeed" else save.files[:-1]
        # At a random byte, or just where a file ends.
        ends = [sum(len(data) for _, data in inside[:count]) for count in range(1, len(inside) + 1)]
        at = random_.choice([random_.randrange(1, total), *ends])
        there = cut(save, at)
        write(folder, there)
        if dict(there) == dict(save.files):
            continue
        if (folder / save.name).exists() and dict(there) != dict(inside):
            assert read(folder, save.name) is not FormatResult.WHOLE, (at, [name for name, _ in there])


@pytest.mark.parametrize("kind", KINDS)
def test_formats_prove_what_is_there_to_its_end(kind: str, tmp_path: Path) -> None:
    save = KINDS[kind](300, random.Random(kind))
    write(tmp_path, list(save.files))
    assert read(tmp_path, save.name) is (
        FormatResult.WHOLE if kind in PROVED_BY_FORMAT else FormatResult.NOTHING
    )


@pytest.mark.parametrize("left", [None, 0, 1, 8])
def test_of_the_trainers_deepspeed_the_pointer_to_the_parts_belongs_to_it(
    tmp_path: Path, left: int | None
) -> None:
    save = KINDS["trainer with deepspeed"](300, random.Random(1))
    write(tmp_path, list(save.files))
    latest, state = tmp_path / save.name / "latest", tmp_path / save.name / "trainer_state.json"
    kept = latest.read_bytes()[:left] if left is not None else b""
    latest.unlink()
    if left is not None:
        latest.write_bytes(kept)
        # As after a copy that keeps no times.
        os.utime(state)
    assert read(tmp_path, save.name) is FormatResult.BROKEN


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"opaque"}))
def test_what_lost_a_file_or_a_piece_of_one_is_never_whole(kind: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    random_ = random.Random(seed)
    save = KINDS[kind](300, random_)
    needless = ("latest", f"{save.name}/config.json")
    parts = [name for name, _ in save.files if name not in needless]
    for number, name in enumerate(parts):
        folder = tmp_path / str(number)
        write(folder, list(save.files))
        data = (folder / name).read_bytes()
        if (
            random_.random() < 0.3
            and "/" in name
            and not name.endswith(("scheduler.pt", "training_args.bin"))
        ):
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(data[: random_.randrange(len(data))])
            # Files that came later are older than this one now, as after a copy.
        assert read(folder, save.name) is not FormatResult.WHOLE, name


def test_a_save_that_an_exception_broke_off_is_broken_though_its_archive_has_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    write_record = torch._C.PyTorchFileWriter.write_record
    records = []

    def fail_at_the_fifth(self: object, name: str, *rest: object) -> object:
        records.append(name)
        if len(records) == 8:
            raise KeyboardInterrupt
        return write_record(self, name, *rest)

    monkeypatch.setattr(torch._C.PyTorchFileWriter, "write_record", fail_at_the_fifth)
    file = tmp_path / "step-1.pt"
    with pytest.raises(KeyboardInterrupt):
        torch.save([torch.rand(100) for _ in range(9)], file)
    reading = read_file(file)
    assert reading.says is FormatResult.BROKEN
    assert "its tensor data/" in reading.why


@pytest.mark.parametrize("size", [0, 1])
def test_a_file_with_room_that_nobody_has_written_to_is_broken(tmp_path: Path, size: int) -> None:
    file = tmp_path / "step-1.dat"
    with file.open("wb") as opened:
        opened.write(b"x" * 9000 * size)
        opened.truncate(1 << 20)
    if os.lseek(os.open(file, os.O_RDONLY), 0, os.SEEK_HOLE) == 1 << 20:
        pytest.skip("this file system does not report holes")
    assert read_file(file).says is FormatResult.BROKEN


def test_an_empty_file_of_weights_is_broken_and_an_empty_mark_is_not(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    (tmp_path / "_SUCCESS").touch()
    assert read_file(tmp_path / "model.bin").says is FormatResult.BROKEN
    assert read_file(tmp_path / "_SUCCESS").says is FormatResult.NOTHING


def test_no_code_of_a_checkpoint_is_run_when_it_is_looked_at(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "was run"),)

    (tmp_path / "step-1.pt").write_bytes(torch_bytes({"model": Evil()}))
    assert read_file(tmp_path / "step-1.pt").says is FormatResult.WHOLE
    assert not (tmp_path / "was run").exists()


def test_deepspeed_counts_the_parts_of_all_nodes(tmp_path: Path) -> None:
    save = KINDS["deepspeed"](8, random.Random(1))
    write(tmp_path, list(save.files))
    folder = tmp_path / save.name
    (folder / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    reading = read_folder(folder, scan(folder))
    assert reading.says is FormatResult.BROKEN
    assert "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt missing" in reading.why
    assert read_folder(folder, scan(folder), is_shard).says is FormatResult.WHOLE


def zero_3(folder: Path, parts: int, **state: object) -> list[Path]:
    """Write what the third stage of ZeRO saves, and `latest`; return the parts."""
    folder.mkdir()
    files = [
        folder / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"
        for rank in range(parts)
        for prefix, kind in (("", "model"), ("bf16_", "optim"))
    ]
    for file in files:
        file.write_bytes(torch_bytes({"module": {}, "mp_world_size": 1, **state}))
    (folder.parent / "latest").write_text(folder.name)
    return files


@pytest.mark.parametrize("seed", range(10))
def test_of_mics_the_parts_of_one_group_are_all(tmp_path: Path, seed: int) -> None:
    # DeepSpeed up to 0.18: `save_zero_checkpoint` is true in the first group alone, and parts are numbered within it.
    random_ = random.Random(seed)
    size, groups = random_.randint(2, 4), random_.randint(2, 4)
    settings = {"zero_optimization": {"stage": 3, "mics_shard_size": size}}
    folder = tmp_path / "global_step7"
    files = zero_3(folder, size, dp_world_size=size * groups, ds_config=settings)
    assert read_folder(folder, scan(folder)).says is FormatResult.WHOLE
    lost = random_.choice(files)
    lost.unlink()
    reading = read_folder(folder, scan(folder))
    assert (reading.says, reading.is_doubtful) == (FormatResult.BROKEN, False)


@pytest.mark.parametrize(
    "zero", [{"zero_hpz_partition_size": 2}, {"mics_shard_size": -1}, {}], ids=["hpZ", "no MiCS", "plain"]
)
def test_without_mics_all_parts_are_wanted(tmp_path: Path, zero: dict[str, int]) -> None:
    folder = tmp_path / "global_step7"
    state = {"dp_world_size": 4, "ds_config": {"zero_optimization": {"stage": 3, **zero}}}
    files = zero_3(folder, 4, **state)
    assert read_folder(folder, scan(folder)).says is FormatResult.WHOLE
    for file in files[4:]:
        file.unlink()
    reading = read_folder(folder, scan(folder))
    assert (reading.says, reading.is_doubtful) == (FormatResult.BROKEN, False)


def test_where_the_settings_are_in_a_file_the_parts_of_one_group_are_doubtful(tmp_path: Path) -> None:
    folder = tmp_path / "global_step7"
    files = zero_3(folder, 2, dp_world_size=4, ds_config="ds_config.json")
    reading = read_folder(folder, scan(folder))
    assert (reading.says, reading.is_doubtful) == (FormatResult.BROKEN, True)
    files[-1].unlink()
    reading = read_folder(folder, scan(folder))
    assert (reading.says, reading.is_doubtful) == (FormatResult.BROKEN, False)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_universal_checkpoint_is_whole_once_its_pointer_names_it(tmp_path: Path, stage: int) -> None:
    # As deepspeed 0.19.8, checkpoint/ds_to_universal.py, writes it: the model's parts are as they were.
    folder = tmp_path / "global_step7_universal"
    names = (
        [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(4)]
        if stage == 3
        else ["mp_rank_00_model_states.pt"]
    )
    values = {f"zero/layer.{number}.weight/{kind}.pt" for number in range(3) for kind in ("fp32", "exp_avg")}
    for name in [*sorted(values), "zero/optimizer_state.pt", *names]:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(torch_bytes({"module": {}, "mp_world_size": 1, "dp_world_size": 4}))
        assert read_folder(folder, scan(folder)).says is not FormatResult.WHOLE
    assert read_folder(folder, scan(folder)).says is FormatResult.NOTHING
    (tmp_path / "latest_universal").write_text(folder.name)
    assert read_folder(folder, scan(folder)).says is FormatResult.WHOLE
    assert has_all_parts(folder, set(scan(folder)))


@pytest.mark.parametrize("begin", [b"\x80", b"\x80\x04", b"PK"])
def test_bytes_that_only_begin_like_a_format_are_not_called_broken(tmp_path: Path, begin: bytes) -> None:
    file = tmp_path / "step-1.dat"
    file.write_bytes(begin + b"\xff" * 4000)
    assert read_file(file).says is FormatResult.NOTHING


@pytest.mark.parametrize(
    "name, data",
    [
        ("data-00000-of-00001.arrow", b"of a data set"),
        ("metrics.json", b'{"step": 1}\n{"step": 2}\n'),
        ("odd.safetensors", (2).to_bytes(8, "little") + b"[]"),
    ],
)
def test_what_frameworks_do_not_write_breaks_no_folder(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert read_folder(tmp_path, scan(tmp_path)).says is FormatResult.NOTHING


@pytest.mark.parametrize("data", [b"\x93NUMPY", b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fort"])
def test_a_header_that_was_cut_off_is_broken_and_ends_no_looking(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "step-1.npy").write_bytes(data)
    assert read_file(tmp_path / "step-1.npy").says is FormatResult.BROKEN


def test_records_of_numpy_prove_nothing_by_a_header_that_lacks_their_size(tmp_path: Path) -> None:
    (tmp_path / "step-1.npy").write_bytes(
        b"\x93NUMPY\x01\x00\x2e\x00{'descr': [('a', '<i4')], 'shape': (1000,)}   \n"
    )
    assert read_file(tmp_path / "step-1.npy").says is FormatResult.NOTHING


@pytest.mark.parametrize("form", ["hole", "no archive"])
def test_a_doubt_gives_way_to_the_word_of_the_program_and_to_nothing_else(tmp_path: Path, form: str) -> None:
    file = tmp_path / "step-1.pt"
    with file.open("wb") as opened:
        opened.write(b"of a format of its own" * 1000)
        opened.truncate(1 << 20 if form == "hole" else None)
    found = Evidence(format=read_file(file), is_file=True, followed=True, is_like_the_last=True)
    assert not isinstance(judge(Moment.RUNNING, found), Proof)
    assert not isinstance(judge(Moment.CUT_OFF, found), Proof)
    assert isinstance(judge(Moment.EXITED, found), Proof)
    said = Evidence(format=read_file(file), is_file=True, announced=True)
    assert isinstance(judge(Moment.CUT_OFF, said), Proof)


def test_a_save_in_the_place_of_the_last_is_not_whole_by_the_metadata_of_the_last(tmp_path: Path) -> None:
    save = KINDS["distributed"](8, random.Random(2))
    write(tmp_path, list(save.files))
    folder = tmp_path / save.name
    assert read(tmp_path, save.name) is FormatResult.WHOLE
    part = next(folder.glob("*.distcp"))
    part.write_bytes(part.read_bytes())
    assert read(tmp_path, save.name) is FormatResult.NOTHING
