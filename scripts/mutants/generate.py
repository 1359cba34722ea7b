"""Print the mutants of one module as lines of JSON: `.venv-mutants/bin/python scripts/mutants/generate.py FILE`.

The mutations are mutmut's, and a few that it lacks. Each mutant is the whole text of the module with one change, so
that programs which tests start, and nodes that unpack it from a bundle, run the mutant too. mutmut itself puts all
mutants into one module, which imports mutmut and chooses by an environment variable; neither reaches a node, nor a
program that Python runs isolated. It also leaves out decorated functions.
"""

from __future__ import annotations

import bisect
import difflib
import itertools
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.file_mutation import MutationVisitor
from mutmut.mutation.mutators import mutation_operators
from mutmut.mutation.pragma_handling import IgnoredCode

NEGATED_BY_MUTMUT = (cst.Is, cst.IsNot, cst.In, cst.NotIn, cst.Equal, cst.NotEqual)
NOTHING = ("None", "True", "False")


def condition(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    """`if x` becomes `if not x`, where mutmut does not do that already."""
    match node.test:
        case cst.Comparison(comparisons=[cst.ComparisonTarget(operator=operator)]):
            if isinstance(operator, NEGATED_BY_MUTMUT):
                return
        case cst.UnaryOperation(operator=cst.Not()):
            return
    test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    yield node.with_changes(test=cst.UnaryOperation(operator=cst.Not(), expression=test))


def handler(node: cst.ExceptHandler) -> Iterable[cst.CSTNode]:
    """What was handled is raised again."""
    again = cst.SimpleStatementLine([cst.Raise()])
    body = node.body.body
    if not (len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) and body[0].deep_equals(again)):
        yield node.with_changes(body=cst.IndentedBlock([again]))


def result(node: cst.Return) -> Iterable[cst.CSTNode]:
    """`return x` becomes `return None`."""
    if node.value and not (isinstance(node.value, cst.Name) and node.value.value in NOTHING):
        yield node.with_changes(value=cst.Name("None"))


def call_alone(node: cst.Expr) -> Iterable[cst.CSTNode]:
    """A call for its effect is left out."""
    if isinstance(node.value, cst.Call | cst.Await):
        yield cst.Pass()


def entry(node: cst.Dict | cst.Set) -> Iterable[cst.CSTNode]:
    """An entry of a dictionary or a set is left out."""
    if len(node.elements) > 1:
        for number in range(len(node.elements)):
            kept = [*node.elements[:number], *node.elements[number + 1 :]]
            yield node.with_changes(elements=kept)


OURS = [
    (cst.If, condition),
    (cst.While, condition),
    (cst.ExceptHandler, handler),
    (cst.Return, result),
    (cst.Expr, call_alone),
    (cst.Dict, entry),
    (cst.Set, entry),
]


class Mutations(MutationVisitor):
    """As mutmut's, but within decorated functions too, and not within what only the type checker reads."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef) and node.decorators:
            return any(_is_overload(decorator) for decorator in node.decorators)
        if (
            isinstance(node, cst.If)
            and isinstance(node.test, cst.Name)
            and node.test.value == "TYPE_CHECKING"
        ):
            return True
        if isinstance(node, cst.Assign) and _names(node) & {"__all__", "log", "logger"}:
            return True
        if (
            isinstance(node, cst.Subscript)
            and isinstance(node.value, cst.Name)
            and node.value.value == "Literal"
        ):
            return True
        return bool(super()._skip_node_and_children(node))


def _is_overload(decorator: cst.Decorator) -> bool:
    return isinstance(decorator.decorator, cst.Name) and decorator.decorator.value == "overload"


def _names(node: cst.Assign) -> set[str]:
    return {target.target.value for target in node.targets if isinstance(target.target, cst.Name)}


def worth_trying(original: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Leave out what does not measure tests: other words in a message, another case, a call that Python refuses."""
    if isinstance(original, cst.SimpleString) and isinstance(mutated, cst.SimpleString):
        return mutated.value.strip("rbf'\"").startswith("XX") and " " not in original.value
    if isinstance(original, cst.Call) and isinstance(mutated, cst.Call):
        # mutmut also leaves each argument out; where that is no TypeError, None in its place has the same effect.
        return len(mutated.args) == len(original.args)
    return True


def owner_of(module: cst.Module, wrapper: MetadataWrapper) -> dict[int, str]:
    """Return for each line the function or class that holds it."""
    owners: dict[int, str] = {}
    places = wrapper.resolve(PositionProvider)

    def visit(node: cst.CSTNode, name: str) -> None:
        for child in node.children:
            inner = name
            if isinstance(child, cst.FunctionDef | cst.ClassDef):
                inner = f"{name}.{child.name.value}".lstrip(".")
                place = places[child]
                owners.update(dict.fromkeys(range(place.start.line, place.end.line + 1), inner))
            visit(child, inner)

    visit(module, "")
    return owners


def change_between(before: list[str], after: list[str]) -> str:
    """Return what differs as `removed -> added`, lines joined by ` / `."""
    lines = [line for line in difflib.ndiff(before, after) if line[:2] in {"- ", "+ "}]
    sides = [" / ".join(line[2:].strip() for line in lines if line[0] == side) for side in "-+"]
    return " -> ".join(sides)


class Statements:
    """A module by its outermost statements: to write only the one that changes takes a tenth of the time."""

    def __init__(self, module: cst.Module) -> None:
        self._nodes = module.body
        self._codes = [module.code_for_node(node) for node in module.body]
        self._head, _, self._foot = module.code.partition("".join(self._codes))
        lines = itertools.accumulate(
            (code.count("\n") for code in self._codes), initial=self._head.count("\n")
        )
        self._first = [line + 1 for line in lines]
        self._module = module

    def changed(self, old: cst.CSTNode, new: cst.CSTNode, line: int) -> tuple[str, str, str]:
        """Return the statement at a line, the same with one node in place of another, and all with that."""
        number = bisect.bisect_right(self._first, line) - 1
        node = self._nodes[number].deep_replace(old, new)
        assert isinstance(node, cst.CSTNode)
        code = self._module.code_for_node(node)
        all_code = [*self._codes[:number], code, *self._codes[number + 1 :]]
        return self._codes[number], code, "".join([self._head, *all_code, self._foot])


def mutants(path: Path) -> Iterable[dict[str, object]]:
    code = path.read_text()
    wrapper = MetadataWrapper(cst.parse_module(code))
    visitor = Mutations([*mutation_operators, *OURS], IgnoredCode(set(), set(), set()))
    wrapper.visit(visitor)
    places = wrapper.resolve(PositionProvider)
    owners = owner_of(wrapper.module, wrapper)
    module = Statements(wrapper.module)
    seen = {code}
    for mutation in visitor.mutations:
        if not worth_trying(mutation.original_node, mutation.mutated_node):
            continue
        place = places[mutation.original_node].start.line
        before, after, text = module.changed(mutation.original_node, mutation.mutated_node, place)
        if text in seen or not _compiles(text):
            continue
        seen.add(text)
        first = places[mutation.original_node].start.line
        last = places[mutation.original_node].end.line
        block = isinstance(mutation.original_node, cst.BaseCompoundStatement | cst.ExceptHandler)
        yield {
            "owner": owners.get(first, ""),
            "change": change_between(before.splitlines(), after.splitlines()),
            "lines": [first, first if block else last],
            "text": text,
        }


def _compiles(text: str) -> bool:
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    for mutant in mutants(Path(sys.argv[1])):
        print(json.dumps(mutant))
