"""What newer Pythons have is on every Python that a node may have, and behaves the same."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
import threading
from dataclasses import field
from typing import Annotated, Any, Literal, Optional

import pytest

from airflow_provider_ocidist.backports import (
    UTC,
    StrEnum,
    cached_property,
    dataclass,
    get_type_hints,
    moment,
)
from airflow_provider_ocidist.model import codec


class Colour(StrEnum):
    RED = "red"
    BLUE = "dark blue"


@dataclass(frozen=True, kw_only=True)
class Part:
    first: str = "a"
    needed: int
    many: list[int] = field(default_factory=list)
    counted: int = field(default=7, init=False)


@dataclass(frozen=True, kw_only=True, order=True)
class More(Part):
    extra: bool
    last: str | None = None


@dataclass(kw_only=True)
class Doubled:
    twice: int = 0
    once: int

    def __post_init__(self) -> None:
        self.twice = 2 * self.once


@dataclass(frozen=True)
class Pair:
    left: int
    right: int = 2


@dataclass(frozen=True, kw_only=True)
class Hinted:
    plain: int
    maybe: str | None = None
    nested: tuple[Colour | None, ...] = ()
    limited: Annotated[int, "at least 1"] | None = None
    literal: Literal["a|b", "c"] = "c"
    old: Optional[int] = None  # noqa: UP045 - as others write it
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    table: dict[str, int | None] = field(default_factory=dict)


def test_members_are_their_values_wherever_text_is_made() -> None:
    assert (str(Colour.RED), f"{Colour.BLUE}", f"{Colour.RED:>5}") == ("red", "dark blue", "  red")
    assert "%s" % Colour.RED == "red"  # noqa: UP031 - as loggers do
    assert json.dumps({Colour.RED: Colour.BLUE}) == '{"red": "dark blue"}'
    assert Colour("dark blue") is Colour.BLUE
    assert Colour.RED == "red"
    assert {"red": 1}[Colour.RED] == 1


def test_fields_are_given_by_name_in_any_order_and_defaults_may_come_first() -> None:
    part = Part(needed=1)
    assert (part.first, part.needed, part.many, part.counted) == ("a", 1, [], 7)
    assert Part(needed=1).many is not part.many
    assert part == Part(needed=1, first="a")
    assert part != Part(needed=2)
    assert repr(part) == "Part(first='a', needed=1, many=[], counted=7)"
    assert dataclasses.replace(part, needed=3) == Part(needed=3)
    assert dataclasses.asdict(More(needed=1, extra=True))["last"] is None
    assert More(needed=1, extra=False) < More(needed=1, extra=True)
    assert Doubled(once=4).twice == 8
    assert Pair(1) == Pair(1, 2) == Pair(left=1, right=2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Part(1),
        Part,
        lambda: Part(needed=1, other=2),
        lambda: Part(needed=1, counted=2),
        lambda: More(needed=1),
        lambda: More(extra=True),
        Pair,
    ],
)
def test_what_is_missing_unknown_or_given_by_position_is_a_type_error(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


def test_what_is_frozen_stays_as_it_is() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Part(needed=1).needed = 2


def test_types_of_fields_are_read_whatever_way_unions_are_written() -> None:
    hints = get_type_hints(Hinted)
    assert hints["maybe"] == Optional[str]
    assert hints["nested"] == tuple[Optional[Colour], ...]
    assert hints["old"] == Optional[int]
    assert hints["literal"] == Literal["a|b", "c"]
    assert list(get_type_hints(More)) == ["first", "needed", "many", "counted", "extra", "last"]


def some_hinted(draw: random.Random) -> Hinted:
    def part() -> Part:
        return Part(needed=draw.randrange(9), first=draw.choice("ab"), many=[1] * draw.randrange(3))

    return Hinted(
        plain=draw.randrange(9),
        maybe=draw.choice((None, "x")),
        nested=tuple(draw.choice((None, *Colour)) for _ in range(draw.randrange(3))),
        limited=draw.choice((None, 1)),
        literal=draw.choice(("a|b", "c")),
        old=draw.choice((None, 5)),
        part=draw.choice((None, part())),
        parts=tuple(part() for _ in range(draw.randrange(3))),
        table={"a": draw.choice((None, 1))},
    )


def test_records_survive_the_trip_through_json() -> None:
    for seed in range(200):
        record = some_hinted(random.Random(seed))
        text = json.dumps(codec.encode(record))
        assert codec.decode(Hinted, json.loads(text)) == record, seed


def test_times_are_read_with_any_fraction_and_any_way_to_write_utc() -> None:
    for seed in range(500):
        draw = random.Random(seed)
        digits = draw.randrange(10)
        fraction = "".join(draw.choice("0123456789") for _ in range(digits))
        hours = draw.choice((None, 0, 2, -7))
        zone = "Z" if hours is None else f"{hours:+03}:00"
        start = dt.datetime(
            2026, draw.randint(1, 12), draw.randint(1, 28), draw.randrange(24), draw.randrange(60)
        )
        text = f"{start.isoformat()}{'.' * bool(digits)}{fraction}{zone}"
        expected = start.replace(
            microsecond=int(f"{fraction:0<6.6}"), tzinfo=dt.timezone(dt.timedelta(hours=hours or 0))
        )
        assert moment(text) == expected, (seed, text)
        assert moment(text).utcoffset() == expected.utcoffset(), (seed, text)


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00ZZ"])
def test_what_is_no_time_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        moment(text)


def test_utc_is_utc() -> None:
    assert dt.datetime.now(UTC).utcoffset() == dt.timedelta(0)


class Slow:
    """Has a value that takes as long as a test wants."""

    def __init__(self, go_on: threading.Event) -> None:
        self.computed = 0
        self._go_on = go_on

    @cached_property
    def value(self) -> int:
        """The number of times it was computed."""
        self.computed += 1
        assert self._go_on.wait(60)
        return self.computed


def test_a_property_that_waits_holds_up_that_of_no_other_instance_and_is_computed_once() -> None:
    answers, at_once = threading.Event(), threading.Event()
    at_once.set()
    silent, quick = Slow(answers), Slow(at_once)
    waiting = threading.Thread(target=lambda: silent.value)
    waiting.start()
    try:
        reading = threading.Thread(target=lambda: quick.value)
        reading.start()
        reading.join(30)
        assert not reading.is_alive()
    finally:
        answers.set()
        waiting.join(60)
    assert [quick.value, quick.value, silent.value, quick.computed, silent.computed] == [1] * 5
    assert Slow.value.__doc__ == "The number of times it was computed."
