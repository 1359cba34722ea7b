"""Whether a file is there to its end, by its own format: every format at every length, without its library."""

from __future__ import annotations

import io
import json
import logging
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import formats, pickles
from airflow_provider_ocidist.agent.save.formats import (
    PROVED,
    FormatResult,
    Reading,
    is_unfinished,
    read_file,
)

WHOLE, BROKEN, NOTHING = FormatResult.WHOLE, FormatResult.BROKEN, FormatResult.NOTHING


def reading(folder: Path, name: str, data: bytes) -> Reading:
    path = folder / name
    path.write_bytes(data)
    return read_file(path)


def says(folder: Path, name: str, data: bytes) -> FormatResult:
    return reading(folder, name, data).says


# Names


@pytest.mark.parametrize("end", [".tmp", ".temp", ".part", ".partial", ".incomplete", ".crdownload"])
def test_who_still_writes_says_so_at_the_end_of_the_name(end: str) -> None:
    assert is_unfinished(f"step-1.pt{end}")
    assert not is_unfinished(f"step-1{end}.pt")
    assert not is_unfinished(f"step-1{end[1:]}")


@pytest.mark.parametrize("name", ["tmp-checkpoint-5", ".tmp5", "step-1.tmp-0815", ".tmp", "x.tmp-"])
def test_or_elsewhere_in_it(name: str) -> None:
    assert is_unfinished(name)


@pytest.mark.parametrize("name", ["tmpfile", "attempt-1", "step-1.pt", "x-tmp-", "xtmp", "step.tmpl"])
def test_other_names_say_nothing(name: str) -> None:
    assert not is_unfinished(name)


NEVER_EMPTY = [
    *("a.pt", "a.pth", "a.ptz", "a.npz", "a.zip", "a.keras", "a.bin", "a.ckpt", "a.safetensors"),
    *("a.distcp", "a.npy", "a.pkl", "a.json", "a.h5", "a.msgpack", "a.gguf"),
]


@pytest.mark.parametrize("name", NEVER_EMPTY)
def test_weights_are_never_empty(tmp_path: Path, name: str) -> None:
    found = reading(tmp_path, name, b"")
    assert found == Reading(BROKEN, "it is empty")
    assert not found.is_doubtful


@pytest.mark.parametrize("name", ["_SUCCESS", "done.txt", "pt", "a.pt.txt", "a.lock"])
def test_marks_may_be(tmp_path: Path, name: str) -> None:
    assert reading(tmp_path, name, b"") == Reading(NOTHING)


@pytest.mark.parametrize("end", [".pt", ".pth", ".ptz", ".npz", ".zip", ".keras"])
def test_an_archive_by_its_name_that_is_none_is_broken_unless_the_program_knows_better(
    tmp_path: Path, end: str
) -> None:
    found = reading(tmp_path, f"a{end}", b"text of a format of its own")
    assert found == Reading(BROKEN, "it is neither an archive of torch nor a pickle", is_doubtful=True)


@pytest.mark.parametrize("name", ["a.bin", "a.ckpt", "a.dat", "a", "a.h5", "a.npy"])
def test_of_a_format_that_nobody_knows_nothing_can_be_said(tmp_path: Path, name: str) -> None:
    for data in (b"x", b"text of a format of its own"):
        assert reading(tmp_path, name, data) == Reading(NOTHING)


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "a.pt")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_an_error_of_the_disk_is_no_word_of_the_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive({"x": b"1"})

    def torn(*_: object) -> None:
        raise OSError("input/output error")

    monkeypatch.setattr(formats.zipfile, "ZipFile", torn)
    with pytest.raises(OSError, match="input/output error"):
        says(tmp_path, "a.pt", data)


def test_one_odd_file_ends_nothing_and_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = archive({"x": b"1"})

    def odd(*_: object) -> None:
        raise RuntimeError("very odd")

    monkeypatch.setattr(formats.zipfile, "ZipFile", odd)
    with caplog.at_level(logging.DEBUG):
        assert says(tmp_path, "a.pt", data) is NOTHING
    assert f"{tmp_path}/a.pt cannot be looked through: RuntimeError: very odd" in caplog.text


# Holes


def test_a_file_with_room_that_nobody_has_written_to_is_doubtful(tmp_path: Path) -> None:
    path = tmp_path / "a.dat"
    with path.open("wb") as file:
        file.write(b"x" * 5000)
        file.truncate(1 << 20)
    found = read_file(path)
    if found.says is NOTHING:
        pytest.skip("this file system does not report holes")
    assert found == Reading(BROKEN, "it has a hole that was never written", is_doubtful=True)


def test_a_file_system_that_shows_no_holes_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> int:
        raise OSError("not supported")

    monkeypatch.setattr(formats.os, "lseek", silent)
    assert says(tmp_path, "a.json", b"{}") is WHOLE


# At every length


def archive(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, data in members.items():
            opened.writestr(name, data)
    return buffer.getvalue()


def archive_of_large_files(members: dict[str, bytes]) -> bytes:
    """Return an archive as torch writes one: each member has room for a size of more than 4 GiB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        for name, data in members.items():
            with opened.open(name, "w", force_zip64=True) as member:
                member.write(data)
    return buffer.getvalue()


class TensorPickler(pickle.Pickler):
    """Writes `("storage", key, items)` as torch refers to the storage of a tensor."""

    def persistent_id(self, item: Any) -> Any:
        if isinstance(item, tuple) and len(item) == 3 and item[0] == "storage":
            _, key, items = item
            return ("storage", "FloatStorage", key, "cpu", items)
        return None


def torch_archive(
    storages: dict[str, int],
    *,
    root: str = "archive",
    place: str = "data",
    lack: str = "",
    archived: Callable[[dict[str, bytes]], bytes] = archive,
) -> bytes:
    """Return an archive whose pickle refers to storages of so many floats."""
    buffer = io.BytesIO()
    TensorPickler(buffer, 2).dump([("storage", key, items) for key, items in storages.items()])
    tensors = {f"{root}/{place}/{key}": b"f" * 4 * items for key, items in storages.items() if key != lack}
    return archived({f"{root}/data.pkl": buffer.getvalue(), **tensors, f"{root}/version": b"3\n"})


def safetensors(sizes: list[int], *, metadata: bool = False) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}} if metadata else {}
    start = 0
    for number, size in enumerate(sizes):
        header[f"w{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"t" * start


def npy(description: str, shape: tuple[int, ...], item: int, *, version: int = 1) -> bytes:
    header = repr({"descr": description, "fortran_order": False, "shape": shape}).encode() + b"  \n"
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    count = 1
    for each in shape:
        count *= each
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + b"n" * count * item


FILES = {
    "zip": ("a.npz", archive({"w": b"x" * 300, "deep/b": b"y" * 10})),
    "empty zip": ("a.zip", archive({})),
    "torch": ("a.pt", torch_archive({"0": 30, "1": 2})),
    "torch of large files": ("a.pt", torch_archive({"0": 30, "1": 2}, archived=archive_of_large_files)),
    "torch under another name": ("a.bin", torch_archive({"0": 30}, root="model")),
    "torch of an older version": ("a.ckpt", torch_archive({"0": 30}, place=".data")),
    "safetensors": ("a.safetensors", safetensors([100, 3])),
    "safetensors with metadata": ("a.safetensors", safetensors([100], metadata=True)),
    "json": ("a.json", json.dumps({"step": 5, "log": [1, 2, {"x": "y"}]}, indent=1).encode()),
    "json list": ("a.json", b"[1, 2, 3]"),
    "npy": ("a.npy", npy("<f4", (3, 5), 4)),
    "npy of doubles": ("a.npy", npy("<f8", (7,), 8)),
    "npy of texts": ("a.npy", npy("<U7", (2,), 28)),
    "npy of bytes": ("a.npy", npy("|S7", (2,), 7)),
    "npy of one number": ("a.npy", npy("<i8", (), 8)),
    "npy of version 2": ("a.npy", npy("<f4", (3,), 4, version=2)),
    **{f"pickle {number}": ("a.pkl", pickle.dumps({"x": [1, 2.5, "y"]}, number)) for number in (2, 3, 4, 5)},
    "pickles": ("a.pkl", pickle.dumps({"x": 1}, 4) + pickle.dumps([2], 4)),
}


@pytest.mark.parametrize("kind", FILES)
def test_it_is_whole_at_its_full_length(tmp_path: Path, kind: str) -> None:
    may_be_cut_short = kind.split(maxsplit=1)[0] in ("zip", "empty", "pickle", "pickles")
    found = reading(tmp_path, *FILES[kind])
    assert (found.says, found.is_cut_short, bool(found.members)) == (
        WHOLE,
        may_be_cut_short,
        may_be_cut_short,
    )
    assert found.is_by_length == kind.startswith(("safetensors", "npy"))


@pytest.mark.parametrize(
    "kind, members",
    [
        ("zip", {("w", 300), ("deep/b", 10)}),
        ("empty zip", set()),
        ("pickle 4", {("0", PROVED)}),
        ("pickles", {("0", PROVED), ("1", PROVED)}),
    ],
)
def test_what_has_no_certain_end_is_known_by_what_it_consists_of(
    tmp_path: Path, kind: str, members: set[tuple[str, int]]
) -> None:
    name, data = FILES[kind]
    assert reading(tmp_path, name, data).members == {name: frozenset(members)}


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_in_an_archive_is_whole_by_its_own_header(tmp_path: Path, compression: int) -> None:
    whole = npy("<f4", (3, 5), 4)
    records = b"\x93NUMPY\x01\x00\x2e\x00{'descr': [('a', '<i4')], 'shape': (1000,)}   \n"
    for data in (whole, whole[:-1], whole[:9]):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as opened:
            opened.writestr("a.npy", data)
            opened.writestr("b.npy", records)
        found = reading(tmp_path, "a.npz", buffer.getvalue())
        if data is whole:
            assert found.members == {"a.npz": frozenset({("a.npy", PROVED), ("b.npy", len(records))})}
        else:
            assert found.says is BROKEN


@pytest.mark.parametrize("kind", sorted(set(FILES) - {"pickles"}))
def test_and_at_no_other(tmp_path: Path, kind: str) -> None:
    name, data = FILES[kind]
    seed = random.randrange(10**6)
    print("seed", seed)
    lengths = {1, len(data) // 2, len(data) - 1, *random.Random(seed).choices(range(1, len(data)), k=30)}
    for length in lengths:
        assert says(tmp_path, name, data[:length]) is not WHOLE, length
    if "zip" not in kind and "torch" not in kind and "pickle" not in kind:
        for more in (b"x", b"x" * 100):
            assert says(tmp_path, name, data + more) is not WHOLE


@pytest.mark.parametrize("kind", ["safetensors", "safetensors with metadata", "npy", "npy of version 2"])
def test_how_many_bytes_there_are_and_should_be_is_said(tmp_path: Path, kind: str) -> None:
    name, data = FILES[kind]
    for size in (len(data) - 1, len(data) + 1):
        found = reading(tmp_path, name, (data + b"x")[:size])
        assert found == Reading(BROKEN, f"it has {size} of {len(data)} bytes")


# Archives


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    found = reading(tmp_path, "a.pt", torch_archive({"0": 30, "1": 2}, lack="1"))
    assert found == Reading(BROKEN, "its tensor data/1 is missing")


def test_a_tensor_of_nothing_needs_no_file(tmp_path: Path) -> None:
    assert says(tmp_path, "a.pt", torch_archive({"0": 30, "1": 0}, lack="1")) is WHOLE


def test_an_archive_of_several_models_is_none_of_torch(tmp_path: Path) -> None:
    members = {f"{name}/data.pkl": b"no pickle" for name in ("a", "b")}
    assert says(tmp_path, "a.zip", archive(members)) is WHOLE


def test_an_archive_whose_pickle_is_too_large_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = torch_archive({"0": 30})
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        size = opened.getinfo("archive/data.pkl").file_size
    monkeypatch.setattr(pickles, "LARGEST", size)
    assert says(tmp_path, "a.pt", data) is WHOLE
    monkeypatch.setattr(pickles, "LARGEST", size - 1)
    assert says(tmp_path, "a.pt", data) is NOTHING


def test_an_archive_whose_members_lie_elsewhere_is_broken(tmp_path: Path) -> None:
    data = archive({"w": b"x" * 300})
    moved = data.replace(b"PK\x03\x04", b"PK\x03\x05", 1)
    assert says(tmp_path, "a.dat", moved) is NOTHING, "it does not begin as an archive"
    two = archive({"v": b"", "w": b"x" * 300})
    second = two.rindex(b"PK\x03\x04")
    found = reading(tmp_path, "a.zip", two[:second] + b"XX\x03\x04" + two[second + 4 :])
    assert found == Reading(BROKEN, "w is not where its directory says")


@pytest.mark.parametrize("too_much", [0, 1, 50])
def test_a_member_that_is_longer_than_there_is_room_is_cut_off(tmp_path: Path, too_much: int) -> None:
    data = archive({"w": b"x" * 300})
    start = data.index(b"PK\x01\x02")
    size = struct.pack("<I", 300 + too_much)
    found = reading(tmp_path, "a.zip", data[: start + 20] + size + data[start + 24 :])
    assert found == (
        Reading(BROKEN, "w is cut off")
        if too_much
        else Reading(WHOLE, is_cut_short=True, members={"a.zip": frozenset({("w", 300)})})
    )


@pytest.mark.parametrize("extra", [b"", b"\x99\x99\x04\x00abcd"])
def test_the_header_of_a_member_has_a_name_and_may_have_more(tmp_path: Path, extra: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        member = zipfile.ZipInfo("a name of its own")
        member.extra = extra
        opened.writestr(member, b"x" * 300)
    data = buffer.getvalue()
    assert says(tmp_path, "a.zip", data) is WHOLE
    start = data.index(b"PK\x01\x02")
    longer = data[: start + 20] + struct.pack("<I", 301) + data[start + 24 :]
    assert says(tmp_path, "a.zip", longer) is BROKEN


# JSON and headers


@pytest.mark.parametrize(
    "text, found",
    [
        (b"12", NOTHING),
        (b'"text"', NOTHING),
        (b"null", NOTHING),
        (b'{"step": 1}\n{"step": 2}\n', NOTHING),
        (b"{} x", NOTHING),
        (b'{"step": 1', BROKEN),
        (b'{"step": 1,', BROKEN),
        (b"[1, 2", BROKEN),
        (b" ", BROKEN),
        (b"\xff\xfe\xff", BROKEN),
    ],
)
def test_what_of_json_has_a_certain_end(tmp_path: Path, text: bytes, found: FormatResult) -> None:
    assert says(tmp_path, "a.json", text) is found


@pytest.mark.parametrize(
    "text",
    [
        b'{\n  "stage": 2  // of ZeRO\n}\n',
        b'{\n  # for one node\n  "stage": 2\n}\n',
        b'{"stage": 2, }',
        b"{stage: 2}",
        b'{"text": "two\nlines"}',
        '{"author": "Zo\u00eb"}'.encode("latin-1"),
    ],
)
def test_settings_that_are_no_strict_json_are_not_broken(tmp_path: Path, text: bytes) -> None:
    assert says(tmp_path, "ds_config.json", text) is NOTHING


@pytest.mark.parametrize("seed", range(10))
def test_json_that_was_cut_off_at_any_byte_is_broken(tmp_path: Path, seed: int) -> None:
    print("seed", seed)
    dice = random.Random(seed)
    values: list[Any] = [
        "a b} ]",
        "Zo\u00eb \u2026",
        '\t\\"',
        1.5e-9,
        -12,
        True,
        None,
        [],
        {},
        [1, [2, {"x": "y"}]],
    ]
    content = {f"key {number}": dice.choice(values) for number in range(dice.randint(1, 9))}
    text = json.dumps(content, indent=dice.choice([None, 2]), ensure_ascii=dice.random() < 0.5).encode()
    assert says(tmp_path, "a.json", text) is WHOLE
    for length in range(1, len(text)):
        assert says(tmp_path, "a.json", text[:length]) is BROKEN, text[:length]


def test_json_that_is_too_large_to_be_looked_through_cannot_be_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LONGEST_HEADER", 10)
    assert says(tmp_path, "a.json", b'{"step":12') is BROKEN
    assert says(tmp_path, "a.json", b'{"step":123') is NOTHING
    assert says(tmp_path, "a.json", b'{"step":1}') is WHOLE


def test_a_header_that_is_longer_than_any_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = safetensors([5])
    length = int.from_bytes(data[:8], "little")
    monkeypatch.setattr(formats, "LONGEST_HEADER", length + 8)
    assert says(tmp_path, "a.safetensors", data) is WHOLE
    monkeypatch.setattr(formats, "LONGEST_HEADER", length + 7)
    found = reading(tmp_path, "a.safetensors", data)
    assert found == Reading(BROKEN, f"its header of {length} bytes is not all there")


@pytest.mark.parametrize("cut", [3, 8, 20])
def test_a_header_of_safetensors_that_was_cut_off_is_broken(tmp_path: Path, cut: int) -> None:
    assert says(tmp_path, "a.safetensors", safetensors([5])[:cut]) is BROKEN


def test_safetensors_of_nothing_are_whole(tmp_path: Path) -> None:
    assert says(tmp_path, "a.safetensors", safetensors([])) is WHOLE
    assert says(tmp_path, "a.safetensors", safetensors([], metadata=True)) is WHOLE


@pytest.mark.parametrize("entry", [{}, {"data_offsets": []}, {"data_offsets": None}, 5])
def test_a_header_that_does_not_say_where_tensors_end_is_broken_with_a_reason(
    tmp_path: Path, entry: Any
) -> None:
    text = json.dumps({"w": entry}).encode()
    found = reading(tmp_path, "a.safetensors", len(text).to_bytes(8, "little") + text)
    assert found.says is BROKEN
    assert found.why


@pytest.mark.parametrize(
    "data",
    [
        npy("|O", (3,), 8),
        npy("<M8[ns]", (3,), 8),
        b"\x93NUMPY\x01\x00\x2e\x00{'descr': [('a', '<i4')], 'shape': (1000,)}   \n",
    ],
    ids=["objects", "times", "records"],
)
def test_arrays_whose_size_does_not_follow_from_the_header_cannot_be_judged(
    tmp_path: Path, data: bytes
) -> None:
    assert says(tmp_path, "a.npy", data) is NOTHING


# Pickles


def test_a_pickle_that_is_too_large_cannot_be_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps({"x": 1}, 4)
    monkeypatch.setattr(pickles, "LARGEST", len(data))
    assert says(tmp_path, "a.pkl", data) is WHOLE
    monkeypatch.setattr(pickles, "LARGEST", len(data) - 1)
    assert says(tmp_path, "a.pkl", data) is NOTHING


def test_a_pickle_of_a_protocol_that_nobody_knows_is_no_pickle(tmp_path: Path) -> None:
    assert says(tmp_path, "a.pkl", b"\x80\x07" + b"." * 20) is NOTHING
    assert says(tmp_path, "a.pt", b"\x80\x07" + b"." * 20) is BROKEN
    assert says(tmp_path, "a.pt", b"\x80\x01" + b"." * 20) is BROKEN


def test_bytes_after_a_pickle_that_are_none_cannot_be_judged(tmp_path: Path) -> None:
    assert says(tmp_path, "a.pkl", pickle.dumps([1], 4) + b"\x00\x01") is not WHOLE


def test_a_reason_is_never_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise EOFError

    monkeypatch.setattr(formats.pickles, "require_whole", silent)
    assert reading(tmp_path, "a.pkl", pickle.dumps([1], 4)) == Reading(BROKEN, "EOFError")


def test_what_shows_nothing_of_its_members_has_none() -> None:
    assert dict(formats.Reading(formats.FormatResult.WHOLE).members) == {}
