"""Pickles are read without running their code; whether one is whole is known by its end, and that of its storages."""

from __future__ import annotations

import collections
import io
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_ocidist.agent.save import pickles
from airflow_provider_ocidist.agent.save.pickles import LEGACY_MAGIC, Inert, Unreadable, load, require_whole

SIZES = {
    "ByteStorage": 1,
    "CharStorage": 1,
    "BoolStorage": 1,
    "UntypedStorage": 1,
    "ShortStorage": 2,
    "HalfStorage": 2,
    "BFloat16Storage": 2,
    "IntStorage": 4,
    "FloatStorage": 4,
    "LongStorage": 8,
    "DoubleStorage": 8,
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}


def made(kind: str) -> type:
    """Return a class of this name, which a pickle can refer to."""
    return globals().setdefault(kind, type(kind, (), {"__module__": __name__}))  # type: ignore[no-any-return]  # a class


class Storage:
    """A storage of a tensor, as a pickle of torch refers to it."""

    def __init__(self, kind: str, key: str, items: int, size: int | None = None) -> None:
        self.pid = ("storage", made(kind), key, "cpu", items, None)
        self.kind, self.key, self.items = kind, key, items
        self.size = SIZES.get(kind, 1) if size is None else size

    @property
    def content(self) -> bytes:
        return self.items.to_bytes(8, "little") + b"x" * (self.items * self.size)


class Writer(pickle.Pickler):
    def persistent_id(self, found: Any) -> Any:
        return found.pid if isinstance(found, Storage) else None


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    Writer(buffer, 2).dump(value)
    return buffer.getvalue()


def legacy(*storages: Storage) -> bytes:
    """Return what torch.save wrote before its files were archives: four pickles, the keys, then the storages."""
    heads = [
        LEGACY_MAGIC,
        1001,
        {"little_endian": True},
        {"model": list(storages)},
        [each.key for each in storages],
    ]
    return b"".join(map(pickled, heads)) + b"".join(each.content for each in storages)


def whole(data: bytes) -> int:
    return require_whole(io.BytesIO(data), len(data))


@pytest.mark.parametrize("kind", [*SIZES, "OfALaterVersionStorage"])
def test_the_older_format_is_whole_at_the_end_of_its_last_storage_and_at_no_other(kind: str) -> None:
    assert pickles.ITEM_SIZES == SIZES
    data = legacy(Storage(kind, "7", 3), Storage("FloatStorage", "9", 2))
    assert whole(data) == 0
    for cut in range(1, 24):
        with pytest.raises(ValueError, match=r"it ends within its storages|its pickle is cut off"):
            whole(data[:-cut])
    with pytest.raises(ValueError, match=r"^1 bytes follow its end$"):
        whole(data + b"x")


def test_the_older_format_may_have_storages_of_nothing_or_none() -> None:
    assert whole(legacy()) == 0
    assert whole(legacy(Storage("FloatStorage", "1", 0))) == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_other_pickles_may_follow_one_another_and_each_is_whole(count: int) -> None:
    data = b"".join(pickle.dumps({"epoch": number}) for number in range(count))
    assert whole(data) == count
    for cut in (1, 2, 5):
        with pytest.raises(ValueError, match="its pickle is cut off"):
            whole(data[:-cut])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_is_cut_off_anywhere_is_never_whole(protocol: int) -> None:
    data = pickle.dumps(
        {"weights": b"x" * 300, "text": "y" * 300, "list": list(range(50)), "f": 1.5}, protocol
    )
    assert whole(data) == 1
    for length in range(1, len(data), 7):
        with pytest.raises((ValueError, Unreadable)):
            whole(data[:length])


def test_what_is_no_pickle_is_unreadable_with_the_reason() -> None:
    with pytest.raises(Unreadable) as caught:
        load(b"no pickle at all")
    assert str(caught.value).partition(":")[0] in ("UnpicklingError", "KeyError", "AttributeError")
    assert not str(caught.value).endswith(": ")


class Harmful:
    """Would leave a file behind where its pickle is read by an ordinary reader."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_nothing_that_a_pickle_names_is_called(tmp_path: Path) -> None:
    data = pickle.dumps([Harmful(tmp_path / "harm"), 7])
    (found, seven), storages = load(data)
    assert (type(found).__name__, found.args, seven) == ("mkdir", (str(tmp_path / "harm"),), 7)
    assert isinstance(found, Inert)
    assert storages == {}
    assert list(tmp_path.iterdir()) == []
    pickle.loads(data)
    assert list(tmp_path.iterdir()), "so that the test shows something"


class Plain:
    pass


def test_what_an_object_holds_is_kept_beside_its_name() -> None:
    plain = Plain()
    plain.step = 5  # type: ignore[attr-defined]  # as any object of a program
    ordered = collections.OrderedDict(a=1, b=2)
    (one, two, three), _ = load(pickle.dumps([plain, ordered, collections.deque([1, 2, 3])]))
    assert (type(one).__name__, one.state) == ("Plain", {"step": 5})
    assert (type(two).__name__, two.items) == ("OrderedDict", [("a", 1), ("b", 2)])
    assert (type(three).__name__, three.items) == ("deque", [1, 2, 3])
    fresh = Inert(1, 2)
    assert (fresh.args, fresh.state, fresh.items) == ((1, 2), None, [])
    fresh.add(5)
    assert fresh.items == [5]


def test_a_nested_class_has_its_last_name_and_the_same_class_is_one() -> None:
    first, second = load(pickle.dumps([Outer.Inner(), Outer.Inner()], 4))[0]
    assert type(first) is type(second)
    assert type(first).__name__ == "Inner"


class Outer:
    class Inner:
        pass


def test_storages_are_known_by_their_keys_with_type_and_number_of_items() -> None:
    value, storages = load(pickled([Storage("HalfStorage", "0", 12), Storage("LongStorage", "1", 3)]))
    assert storages == {"0": ("HalfStorage", 12), "1": ("LongStorage", 3)}
    assert [each.args[0][0] for each in value] == ["storage", "storage"]


@pytest.mark.parametrize("pid", [("module", 1, 2, 3, 4), ("storage", "FloatStorage", "0", "cpu"), "storage"])
def test_another_reference_is_no_storage(pid: Any) -> None:
    other = Storage("FloatStorage", "0", 1)
    other.pid = pid
    value, storages = load(pickled([other]))
    assert (value[0].args, storages) == ((pid,), {})


def test_a_storage_whose_type_is_a_text_is_one_too() -> None:
    named = Storage("FloatStorage", "0", 2)
    named.pid = ("storage", "FloatStorage", 0, "cpu", 2)  # type: ignore[assignment]  # as of another writer
    assert load(pickled([named]))[1] == {"0": ("FloatStorage", 2)}


def test_text_of_python_2_is_read() -> None:
    assert load(b"\x80\x02U\x04caf\xe9q\x00.")[0] == "caf\u00e9"
