"""What runs quickly in the simulation does what it does elsewhere."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation import quick

NAMES = ("first", "second", "third", "fourth", "fifth")


def made(fields: Mapping[str, Any], *, slots: bool, kw_only: bool, after: bool) -> type:
    """Return a frozen dataclass with these defaults."""

    def checked(self: Any) -> None:
        if self.first == "refused":
            raise ValueError("refused")

    return dataclasses.make_dataclass(
        "Made",
        [(name, Any, dataclasses.field(default=default)) for name, default in fields.items()],
        frozen=True,
        slots=slots,
        kw_only=kw_only,
        namespace={"__post_init__": checked} if after else {},
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_quick_dataclass_is_what_another_is_and_is_replaced_as_another_is(seed):
    dice = random.Random(seed)
    fields = {name: dice.randrange(3) for name in NAMES[: dice.randint(1, 5)]}
    kind = {name: dice.random() < 0.5 for name in ("slots", "kw_only", "after")}
    given = {name: dice.randrange(9) for name in fields if dice.random() < 0.5}
    changes = {name: dice.choice([5, "refused"]) for name in fields if dice.random() < 0.5}
    usual = made(fields, **kind)
    with quick.PlainDataclasses():
        fast = made(fields, **kind)
        assert dataclasses.replace is quick.replaced
    assert dataclasses.replace is not quick.replaced
    for replace in (dataclasses.replace, quick.replaced):
        assert shown(fast, given, changes, replace) == shown(usual, given, changes, dataclasses.replace)
        # What is made elsewhere is replaced too.
        assert shown(usual, given, changes, replace) == shown(usual, given, changes, dataclasses.replace)
    with pytest.raises(TypeError):
        quick.replaced(fast(**given), another=1)
    assert hash(fast(**given)) == hash(usual(**given))
    assert fast(**given) == fast(**given)


def shown(kind: Any, given: Mapping[str, Any], changes: Mapping[str, Any], replace: Any) -> str:
    try:
        before = kind(**given)
        after = replace(before, **changes)
        assert after is not before
        assert type(after) is kind
        return f"{before} {after}"
    except ValueError as error:
        return str(error)


def test_what_is_no_field_of_its_own_is_replaced_by_the_usual_way():
    with quick.PlainDataclasses():

        @dataclasses.dataclass(frozen=True)
        class Counted:
            one: int
            sum: int = dataclasses.field(init=False, default=0)

        @dataclasses.dataclass(frozen=True)
        class Initialised:
            one: int

            def __init__(self, one: int) -> None:
                object.__setattr__(self, "one", 2 * one)

    with pytest.raises(ValueError, match="init=False"):
        quick.replaced(Counted(1), sum=3)
    assert quick.replaced(Counted(1), one=3) == Counted(3)
    assert quick.replaced(Initialised(1), one=3) == Initialised(3)


def test_a_report_is_read_once_and_what_cannot_be_read_each_time():
    asked: list[bytes] = []

    def read(cls: type, text: bytes) -> Any:
        asked.append(text)
        if text == b"damaged":
            raise ValueError("damaged")
        return cls()

    class NodeReport: ...

    class LogCursor: ...

    codec = SimpleNamespace(read=quick._remembered(read))
    assert codec.read(NodeReport, b"a") is codec.read(NodeReport, b"a")
    assert codec.read(LogCursor, b"a") is not codec.read(LogCursor, b"a")
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            codec.read(NodeReport, b"damaged")
    assert asked == [b"a", b"a", b"a", b"damaged", b"damaged"]
