"""Values of which some are wrong: numbers, texts, JSON, bodies of the SDK's models."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from airflow_provider_ocidist.emulator import body_models

MODELS = json.loads(body_models.FILE.read_text())
WRONG: tuple[Any, ...] = (
    1,
    -1,
    0.5,
    True,
    False,
    "text",
    "",
    [],
    [1],
    [[]],
    {},
    {"name": 1},
    {"a": {"b": []}},
    10**400,
)
MOMENTS = (
    *("2026-01-01T00:00:00Z", "soon", "", "9999-12-31T23:59:59-14:00"),
    *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999Z"),
)
TEXTS = (
    *(
        "",
        "a",
        "0",
        "-1",
        "1",
        "100",
        "9" * 20,
        "9" * 5000,
        "1e9",
        "NaN",
        "null",
        "true",
        "ASC",
        "DESC",
        "displayName",
    ),
    *(
        "timeCreated",
        "2026-01-01T00:00:00Z",
        "0000-00-00",
        "9999-12-31T23:59:59.999999Z",
        "ACTIVE",
        "*",
        "%",
        "a=b",
    ),
    *(
        "../../etc/passwd",
        "..",
        ".",
        "/",
        "//",
        "a/../../b",
        "~",
        "$HOME",
        "`id`",
        "a\0b",
        "a\nb",
        "\r\nx: y",
        " ",
    ),
    *(
        "\N{ROCKET}",
        "\u202e",
        "e\u0301",
        "\ufeff",
        "\U0010ffff/a",
        "\ud800",
        "a" * 300,
        "a" * 5000,
        "a*" * 100,
        "(" * 200,
        "[" * 999,
    ),
    *(
        "ocid1.x",
        "ocid1.datasciencejob.oc1.iad.aaaa",
        "attachment; filename*=UTF-8''%0D%0Ax%3A%20y.py",
        "attachment; filename*=UTF-8''%E2%98%83%00.py",
        "bytes=0-",
        "bytes=-1",
        "bytes=9-1",
        "{}",
        "[]",
        "W10=",
        "'",
        '"',
    ),
)


def text(dice: random.Random) -> str:
    """Return a text, mostly a strange one."""
    if dice.random() < 0.1:
        return "".join(
            chr(dice.choice((dice.randrange(256), dice.randrange(0x11000))))
            for _ in range(dice.randrange(40))
        )
    if dice.random() < 0.02:
        return dice.choice(("a", "%", "/", "=", '"', " ", "1", "\\", "[")) * dice.randrange(60_000)
    return dice.choice(TEXTS)


def random_body(model: str, dice: random.Random) -> dict[str, Any]:
    """Return a body that is mostly well-formed; some of its values are of another type."""
    body = well_formed(model, dice, 0)
    for _ in range(dice.randrange(3)):
        places = list(values_in(body))
        if places:
            holder, key = dice.choice(places)
            holder[key] = copy.deepcopy(dice.choice(WRONG))
    return body


def well_formed(model: str, dice: random.Random, depth: int) -> dict[str, Any]:
    spec = MODELS["models"][model]
    fields = dict(spec["fields"])
    body: dict[str, Any] = {}
    if "choices" in spec:
        value = dice.choice(sorted(spec["choices"]))
        body[spec["discriminator"]] = value
        fields |= MODELS["models"][spec["choices"][value]]["fields"]
    for name, wanted in fields.items():
        if name not in body and dice.random() < 0.7 and depth < 6:
            body[name] = of_type(wanted, dice, depth + 1)
    return body


def of_type(wanted: str, dice: random.Random, depth: int) -> Any:
    if listed := body_models.LIST.fullmatch(wanted):
        return [of_type(listed[1], dice, depth + 1) for _ in range(dice.randrange(3))]
    if mapped := body_models.MAP.fullmatch(wanted):
        return {str(number): of_type(mapped[1], dice, depth + 1) for number in range(dice.randrange(3))}
    plain = {
        "str": lambda: dice.choice(("text", "", "ocid1.x", "\N{ROCKET}", "a" * 300)),
        "datetime": lambda: dice.choice(MOMENTS),
        "bool": lambda: dice.random() < 0.5,
        "int": lambda: dice.choice((0, 1, -1, 2**40)),
        "float": lambda: dice.choice((0.0, 1.5, -1, 1e300)),
        "object": lambda: copy.deepcopy(dice.choice(WRONG[:-1])),
    }
    return plain[wanted]() if wanted in plain else well_formed(wanted, dice, depth + 1)


def values_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a body, as what holds it and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from values_in(inner)


def spoilt(raw: bytes, dice: random.Random) -> bytes:
    """Return bytes that are damaged somewhere: changed, cut, doubled, or with something in between."""
    data = bytearray(raw)
    for _ in range(dice.randrange(1, 4)):
        place = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0 and place < len(data):
            data[place] = dice.randrange(256)
        elif kind == 1:
            del data[place : place + dice.choice((1, 2, 100))]
        elif kind == 2:
            data[place:place] = dice.choice(
                (b"\r\n", b"\n", b"\0", b"\xff\xfe", b" ", b"{", b"[" * 500, b'"', b"%", b"\x80" * 9)
            )
        elif kind == 3:
            del data[place:]
        else:
            data[place:place] = data[place : place + dice.randrange(50)]
    return bytes(data)


def json_bytes(body: Any, dice: random.Random) -> bytes:
    """Return JSON, sometimes in a form that no encoder writes."""
    raw = json.dumps(body, ensure_ascii=dice.random() < 0.8).encode("utf-8", "surrogatepass")
    chance = dice.random()
    if chance < 0.1:
        return spoilt(raw, dice)
    if chance < 0.12:
        return raw.decode("utf-8", "surrogatepass").encode(
            dice.choice(("utf-16", "utf-32", "latin-1")), "replace"
        )
    if chance < 0.14:
        deep = dice.choice((50, 110, 5_000, 100_000))
        return b'{"a":' * deep + b"1" + b"}" * deep
    if chance < 0.15:
        return b'{"displayName":' + b"9" * dice.choice((400, 5_000, 200_000)) + b"}"
    if chance < 0.16:
        return raw[:-1] + b',"displayName":"' + b"a" * dice.choice((1_000, 300_000, 2_000_000)) + b'"}'
    return raw
