"""What of a mutant can be put into functions that are there, and what has to be imported anew."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts.mutants.patching import Functions, functions_of, place_of

TEXT = """
import functools
from dataclasses import dataclass, field

LIMIT = 3
NAMES = [name for name in ("a", "b")]


def plain(x, more=1):
    return x + more


def around(x):
    def within(y):
        return y + x

    return within(1) if x < LIMIT else (lambda: x)()


def decorator(function):
    @functools.wraps(function)
    def wrapped(*arguments):
        return function(*arguments) * 2

    return wrapped


@decorator
def decorated(x):
    return x + 1


def used_by_import():
    return 5


@dataclass
class Point:
    x: int = 1
    many: list = field(default_factory=lambda: [1])
    y: int = used_by_import()

    @property
    def size(self):
        return max(
            self.x,
            0,
        )

    @staticmethod
    def named(name):
        return f"<{name}>"

    def later(self):
        return (n * 2 for n in range(self.x))
"""
numbers = itertools.count()


@pytest.fixture
def found(tmp_path: Path) -> Iterator[tuple[ModuleType, Functions]]:
    path = tmp_path / f"a_module_{next(numbers)}.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    ran = set()

    def note(frame: Any, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename == str(path):
            ran.add(place_of(frame.f_code))

    sys.setprofile(note)
    spec.loader.exec_module(module)
    sys.setprofile(None)
    yield module, functions_of(str(path), TEXT, ran)
    del sys.modules[path.stem]


BODIES = {
    "x + more": ("x - more", lambda module: module.plain(3), 4, 2),
    "y + x": ("y - x", lambda module: module.around(2), 3, -1),
    "x < LIMIT": ("x > LIMIT", lambda module: module.around(2), 3, 2),
    "(lambda: x)": ("(lambda: 7)", lambda module: module.around(9), 9, 7),
    "return x + 1": ("return x", lambda module: module.decorated(3), 8, 6),
    "self.x,\n            0,": (
        "1,",
        lambda module: type(module.Point(4)).size.fget(module.Point(4)),
        4,
        None,
    ),
    'f"<{name}>"': ('"XX"', lambda module: module.Point.named("n"), "<n>", "XX"),
    "n * 2": ("n * 3", lambda module: list(module.Point(2).later()), [0, 2], [0, 3]),
    "lambda: [1]": ("lambda: [2]", lambda module: module.Point().many, [1], [2]),
}


@pytest.mark.parametrize("old", BODIES)
def test_what_functions_do_is_changed_where_they_are(found: tuple[ModuleType, Functions], old: str):
    module, functions = found
    new, call, before, after = BODIES[old]
    assert call(module) == before
    text = TEXT.replace(old, new, 1)
    if after is None:
        with pytest.raises(TypeError):
            _put(functions, text, call, module)
    else:
        assert _put(functions, text, call, module) == after


def _put(functions: Functions, text: str, call: Any, module: ModuleType) -> object:
    changed = functions.changed_by(text)
    assert changed is not None
    assert functions.put(changed)
    return call(module)


def test_lines_that_only_move_change_nothing(found: tuple[ModuleType, Functions]):
    assert found[1].changed_by(TEXT) == {}
    assert found[1].changed_by("# a comment\n\n" + TEXT) == {}


@pytest.mark.parametrize(
    "old, new",
    [
        pytest.param("LIMIT = 3", "LIMIT = 4", id="constant"),
        pytest.param("LIMIT = 3", "LIMIT = 3.0", id="another type"),
        pytest.param("[name for name", "[name + name for name", id="list made at the import"),
        pytest.param("more=1", "more=2", id="default"),
        pytest.param("@decorator\n", "", id="decorator"),
        pytest.param("x: int = 1", "x: int = 2", id="field"),
        pytest.param("@property", "@staticmethod", id="kind of method"),
        pytest.param("return 5", "return 6", id="function that the import calls"),
        pytest.param(
            "* 2\n\n    return wrapped", "* 3\n\n    return wrapped", id="what a decorator has made"
        ),
        pytest.param("return wrapped", "return function", id="decorator's result"),
        pytest.param("return within(1) if x < LIMIT else (lambda: x)()", "return None", id="function fewer"),
        pytest.param("def plain", "def plainer", id="name"),
    ],
)
def test_what_the_import_did_is_not_changed_where_it_is(
    found: tuple[ModuleType, Functions], old: str, new: str
):
    assert old in TEXT
    changed = found[1].changed_by(TEXT.replace(old, new, 1))
    assert changed is None or not found[1].put(changed)
