"""YAML text -> values with their original text and line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from airflow_provider_ocidist.errors import JobFileError, Problem
from airflow_provider_ocidist.job_file.written_values import (
    FLOAT,
    INT,
    LONGEST_NUMBER,
    FilledText,
    WrittenFloat,
    WrittenInt,
)
from airflow_provider_ocidist.model.job import is_placeholder

MAX_VALUES = 100_000
"""Most values in one file, aliases expanded; more is a mistake, or an attack."""
_HEREDOC = re.compile(r"^[ \t]*(?:cat|kubectl|tee)\b.*<<-?\s*['\"]?(?P<word>\w+)", re.MULTILINE)
MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Safe YAML without the traps of 1.1: no octal, no base 60 (`12:30`), no dates."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 (add_implicit_resolver fills it, for this class alone)


for _tag, _pattern, _first in (
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", INT, "-+0123456789"),
    ("float", FLOAT, "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})\\Z"), [*_first.replace("\0", ""), ""]
    )


def _written_int(loader: _Loader, node: yaml.ScalarNode) -> WrittenInt:
    text = str(loader.construct_scalar(node))
    try:
        value = WrittenInt(text)
    except ValueError:
        raise yaml.MarkedYAMLError(
            problem=f"{text[:40]!r} is not a whole number", problem_mark=node.start_mark
        ) from None
    value.text = text
    return value


def _written_float(loader: _Loader, node: yaml.ScalarNode) -> WrittenFloat:
    text = str(loader.construct_scalar(node))
    try:
        value = WrittenFloat(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise yaml.MarkedYAMLError(
            problem=f"{text!r} is not a number", problem_mark=node.start_mark
        ) from None
    value.text = text
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _written_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _written_float)


@dataclass(frozen=True, slots=True)
class Document:
    """The value of a file, and the lines of its parts."""

    value: Any
    root: yaml.Node | None = None
    problems: tuple[Problem, ...] = ()
    """Problems of duplicate keys; `value` holds the last of each."""

    def line(self, path: str) -> int | None:
        """Return the line, counted from 1, of a dotted path, or of the nearest section around it."""
        node, line = self.root, self.root.start_mark.line + 1 if self.root else None
        while path and node is not None:
            found = _child(node, path)
            if found is None:
                break
            mark, node, path = found
            line = mark.line + 1
        return line

    def is_left_empty(self, key: str) -> bool:
        """Whether a key at the top has nothing after it; a written `null` is something."""
        found = _child(self.root, key) if self.root is not None else None
        if found is None or found[2]:
            return False
        node = found[1]
        return isinstance(node, yaml.ScalarNode) and node.style is None and node.value == ""


def read(text: str, source: str | None = None) -> Document:
    """Read one YAML document. Raises JobFileError with the first syntax error."""
    loader = _Loader("")
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Document(None)
        problems = tuple(_duplicates(root))
        return Document(loader.construct_document(root), root, problems)
    except RecursionError:
        raise JobFileError([Problem("", "is nested too deeply")], source) from None
    except yaml.YAMLError as error:
        raise JobFileError([_syntax_problem(error, text)], source) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # As PyYAML raises for a value that is none of its tag, such as `!!bool maybe`.
        raise JobFileError(
            [Problem("", "is not valid YAML: a value is not of its tag (!!...)")], source
        ) from None
    finally:
        loader.dispose()


def fill_in(text: str, render: Callable[[str], Any], source: str | None = None) -> Document:
    """Read a document and render its Jinja placeholders value by value, so that no value changes the structure.

    A text that is not YAML before, as with `{% for %}` around lines, is rendered as a whole. `render` raises
    ValueError for a placeholder that it cannot render. Raises JobFileError.
    """
    try:
        document = read(text, source)
    except JobFileError:
        if not is_placeholder(text):
            raise
        return read(_rendered(text, render, source), source)
    problems: list[Problem] = []
    value = _filled(document.value, "", render, problems)
    located = [replace(problem, line=document.line(problem.path)) for problem in problems]
    if located:
        raise JobFileError(located, source)
    return replace(document, value=value)


def _filled_text(value: Any) -> Any:
    return FilledText(value) if isinstance(value, str) else value


def _rendered(text: str, render: Callable[[str], Any], source: str | None) -> str:
    try:
        return str(render(text))
    except ValueError as error:
        raise JobFileError([Problem("", f"cannot be filled in: {error}")], source) from error


def _filled(value: Any, path: str, render: Callable[[str], Any], problems: list[Problem]) -> Any:
    def below(part: object) -> str:
        return f"{path}.{part}" if path else str(part)

    match value:
        case str() if is_placeholder(value):
            try:
                return _filled_text(render(value))
            except ValueError as error:
                problems.append(Problem(path, f"cannot be filled in: {error}"))
        case dict():
            return {
                str(_filled(key, path, render, problems)) if isinstance(key, str) else key: _filled(
                    item, below(key), render, problems
                )
                for key, item in value.items()
            }
        case list():
            return [_filled(item, below(index), render, problems) for index, item in enumerate(value)]
    return value


def is_index(text: str, items: Sequence[object]) -> bool:
    """Return whether a part of a path names one of the items."""
    return text.isdecimal() and len(text) < LONGEST_NUMBER and int(text) < len(items)


def _child(node: yaml.Node, path: str) -> tuple[yaml.Mark, yaml.Node, str] | None:
    if isinstance(node, yaml.SequenceNode):
        index, _, rest = path.partition(".")
        if is_index(index, node.value):
            item = node.value[int(index)]
            return item.start_mark, item, rest
    if isinstance(node, yaml.MappingNode):
        # The last one counts: merged keys come first. The longest match wins: names may hold dots.
        fits = [(key, value) for key, value in reversed(node.value) if f"{path}.".startswith(f"{key.value}.")]
        if fits:
            key, value = max(fits, key=lambda pair: len(pair[0].value))
            return key.start_mark, value, path[len(key.value) + 1 :]
    return None


def _duplicates(root: yaml.Node) -> list[Problem]:
    """Return duplicate keys. Raises MarkedYAMLError for circular aliases."""
    problems: list[Problem] = []
    sizes: dict[int, int | None] = {}

    def walk(node: yaml.Node, path: tuple[str, ...]) -> int:
        known = sizes.get(id(node), 0)
        if known is None:
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        if known:
            return known
        sizes[id(node)] = None
        size = 1
        if isinstance(node, yaml.SequenceNode):
            size += sum(walk(item, (*path, str(index))) for index, item in enumerate(node.value))
        elif isinstance(node, yaml.MappingNode):
            problems.extend(_double_keys(node, path))
            size += sum(walk(value, (*path, str(key.value))) for key, value in node.value)
        if size > MAX_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {MAX_VALUES} values, aliases written out", problem_mark=node.start_mark
            )
        sizes[id(node)] = size
        return size

    walk(root, ())
    return problems


def _double_keys(node: yaml.MappingNode, path: tuple[str, ...]) -> list[Problem]:
    first: dict[str, int] = {}
    problems = []
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
            continue
        if key.value in first:
            message = f"is there twice, first on line {first[key.value]}"
            problems.append(Problem(".".join((*path, key.value)), message, line))
        first.setdefault(key.value, line)
    return problems


def _syntax_problem(error: yaml.YAMLError, text: str) -> Problem:
    heredoc = _HEREDOC.search(text)
    if heredoc is not None:
        what = f"is a shell script around a job file: keep only the lines between it and {heredoc['word']}"
        return Problem("", what, text.count("\n", 0, heredoc.start()) + 1)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        character = getattr(error, "character", None)
        position = int(getattr(error, "position", 0))
        what = f"cannot contain the character #x{character:04x}" if isinstance(character, int) else str(error)
        return Problem("", f"is not valid YAML: {what}", text.count("\n", 0, position) + 1)
    line, column = mark.line + 1, mark.column + 1
    return Problem("", f"is not valid YAML: {_reason(error, text, mark)} (column {column})", line)


def _reason(error: yaml.YAMLError, text: str, mark: yaml.Mark) -> str:
    lines = text.splitlines()
    here = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return "a line cannot be indented with a tab: use blanks"
    reason = str(getattr(error, "problem", None) or error)
    if "another document" in reason:
        return f"{getattr(error, 'context', '')} {reason}: put each job into a file of its own"
    if "unhashable" in reason and "{{" in here:
        return "a Jinja placeholder without quotes; Airflow fills it in, a check without Airflow cannot"
    context = getattr(error, "context", None) or "while constructing"
    if context.startswith("while constructing"):
        return reason
    return f"{reason} {context}" if context.startswith("while") else f"{context} {reason}"
