"""A field's docstring begins with the noun of the field, so that it can be read without the field's name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import airflow_provider_ocidist

PACKAGE = Path(airflow_provider_ocidist.__file__).parent
FRAGMENT = re.compile(
    r"(?:The same|None|Of|By|In|When|Where|What|How|Which|Who|Whose|Itself|It|Its|From|As|Those|These|That|So|About|At"
    r"|Up to|Beside|Also|For|If|Not|On|With|Without|Within|Until|Since|After|Before|To|Such as|Set|Returns|Raises)\b"
)
"""First words of a docstring that lacks its noun."""
CANDIDATE = re.compile(rf'^ *"""{FRAGMENT.pattern}', re.MULTILINE)
"""Line that a fragment may be: a file without one need not be parsed."""


def fields_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each field, constant and attribute that has one."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, each in pairwise(body) if isinstance(body, list) else ():
            if isinstance(before, ast.Assign | ast.AnnAssign | ast.AugAssign) and isinstance(each, ast.Expr):
                value = each.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield each.lineno, value.value


def fragments_in(text: str) -> list[str]:
    if not CANDIDATE.search(text):
        return []
    return [f"{line}: {text}" for line, text in fields_in(ast.parse(text)) if FRAGMENT.match(text)]


def test_the_docstring_of_a_field_begins_with_its_noun() -> None:
    found = {
        str(path.relative_to(PACKAGE)): fragments
        for path in sorted(PACKAGE.rglob("*.py"))
        if (fragments := fragments_in(path.read_text()))
    }
    assert found == {}


def test_a_fragment_would_be_noticed() -> None:
    assert fragments_in('LIMIT = 5\n"""Of a node."""\nOTHER = 6\n"""Seconds of a node."""\n') == [
        "2: Of a node."
    ]
    assert fragments_in('class A:\n    x: int = 1\n    """What it is."""\n') == ["3: What it is."]
    assert fragments_in('def f():\n    """Of what?"""\n    self.x = 1\n    """By name."""\n') == [
        "4: By name."
    ]
